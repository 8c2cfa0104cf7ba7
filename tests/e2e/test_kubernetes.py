"""deploy/k8s: every overlay as `kubectl` renders it, held to the schemas of
Kubernetes, to the program's options, and to what its parts say of each other.
Where a tool is missing the test is skipped, and says what is."""
import json
import os
import re
import shutil
import subprocess

import pytest

from manifests import (DEPLOY, K8S, NODE, OVERHEAD_MIN, POOL, ROOT, bytes_of,
                       conf_of, containers, k8s_conf, k8s_pods, last_stage,
                       mount_of, yaml_all, yaml_of)

K8S_VERSIONS = ("1.28", "1.37")
OVERLAYS = sorted(p.name for p in (K8S / "overlays").iterdir())
# What has no namespace, and what Kubernetes itself has no schema of.
GLOBAL = ("Namespace", "PriorityClass")
CUSTOM = ("ServiceMonitor", "PrometheusRule")


@pytest.fixture(scope="module")
def schemas():
    """kubernetes-validate with its schemas, in a place of its own."""
    done = subprocess.run(
        [str(ROOT / "scripts/venv"), "build/venv", "tests/requirements.txt"],
        stderr=subprocess.PIPE, check=False, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot be installed here: {done.stderr.strip()}")
    return ROOT / "build/venv/bin/kubernetes-validate"


@pytest.fixture(scope="module")
def rendered():
    """{overlay: what `kubectl apply -k` would send}."""
    places = [ROOT / "build/tools/kubectl", shutil.which("kubectl")]
    kubectl = next((str(p) for p in places if p and os.path.exists(p)), None)
    if kubectl is None:
        pytest.skip("NOT TESTED: there is no kubectl (scripts/install-deps "
                    "test)")
    objects = {}
    for name in OVERLAYS:
        done = subprocess.run(
            [kubectl, "kustomize", str(K8S / "overlays" / name)], check=False,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr
        objects[name] = yaml_all(done.stdout)
    return objects


def of_kind(objects, *kinds):
    return [one for one in objects if one["kind"] in kinds]


def one_of(objects, kind, name):
    (one,) = [o for o in of_kind(objects, kind)
              if o["metadata"]["name"] == name]
    return one


def templates(objects):
    """The pods' templates of what makes pods."""
    return [o["spec"]["template"]
            for o in of_kind(objects, "DaemonSet", "StatefulSet", "Deployment")]


def chosen(objects, selector):
    """The templates whose pods a selector's labels choose."""
    return [t for t in templates(objects)
            if selector.items() <= t["metadata"]["labels"].items()]


def env_of(template):
    """The variables of a pod's one container; what is looked up, as a path."""
    (c,) = template["spec"]["containers"]
    return {e["name"]: e.get("value") or e["valueFrom"]["fieldRef"]["fieldPath"]
            for e in c.get("env", [])}


def validate(schemas, version, path):
    return subprocess.run([str(schemas), "--strict", "-k", version, str(path)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, text=True)


@pytest.mark.parametrize("version", K8S_VERSIONS)
def test_manifests_against_the_schemas(schemas, rendered, version, tmp_path):
    """Strictly: a field that Kubernetes does not know is an error."""
    yaml = pytest.importorskip("yaml")
    objects = [o for name in OVERLAYS for o in rendered[name]
               if o["kind"] not in CUSTOM] + yaml_of("vllm.yaml")
    assert len(objects) > 20
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    done = validate(schemas, version, path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("passed") == len(objects)


def test_the_schemas_can_fail(schemas, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((K8S / NODE).read_text().replace(
        "readOnlyRootFilesystem", "readOnlyRootFileSystem"))
    done = validate(schemas, K8S_VERSIONS[-1], wrong)
    assert done.returncode != 0 and "readOnlyRootFileSystem" in done.stdout


def test_every_file_is_in_an_overlay():
    """Nothing lies there that no overlay sends."""
    used = {K8S / "vllm.yaml"}
    for path in K8S.rglob("kustomization.yaml"):
        (k,) = yaml_all(path.read_text())
        names = k.get("resources", []) + k.get("patchesStrategicMerge", [])
        for made in k.get("configMapGenerator", []):
            names += made.get("files", []) + [made[x] for x in ("env",)
                                              if x in made]
        used |= {path, *(path.parent / name for name in names)}
    assert used == {p for p in K8S.rglob("*") if p.is_file()}
    assert OVERLAYS == ["cluster", "monitoring", "node", "pool"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_rendered(rendered, name):
    """All of it in one namespace, with a version of the image; every selector
    chooses a pod, and everything that a pod names is there."""
    objects = rendered[name]
    seen = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(seen)) == len(seen)
    for one in objects:
        if one["kind"] not in GLOBAL:
            assert one["metadata"]["namespace"] == "larder"
    made = {o["metadata"]["name"] for o in of_kind(objects, "ConfigMap")}
    for template in templates(objects):
        for c in containers(template["spec"]):
            assert re.fullmatch(r"larder:\d+\.\d+\.\d+", c["image"])
            mounted = {m["name"] for m in c["volumeMounts"]}
            volumes = {v["name"]: v for v in template["spec"]["volumes"]}
            claims = {"cache"} - volumes.keys()
            assert mounted <= volumes.keys() | claims
            maps = {v["configMap"]["name"] for v in volumes.values()
                    if "configMap" in v}
            maps |= {e["configMapRef"]["name"] for e in c.get("envFrom", [])}
            assert maps <= made
        assert template["spec"].get("priorityClassName") in {
            None, *(o["metadata"]["name"]
                    for o in of_kind(objects, "PriorityClass"))}
    for one in of_kind(objects, "DaemonSet", "StatefulSet",
                       "PodDisruptionBudget"):
        assert len(chosen(objects, one["spec"]["selector"]["matchLabels"])) == 1
    if name != "monitoring":
        for one in of_kind(objects, "NetworkPolicy"):
            assert chosen(objects, one["spec"]["podSelector"]["matchLabels"])
        for one in of_kind(objects, "Service"):
            assert len(chosen(objects, one["spec"]["selector"])) == 1


@pytest.mark.parametrize("name", ["node", "cluster", "pool"])
def test_nodes_and_their_options(rendered, serve_options, name):
    conf = k8s_conf()
    drain_ms = int(conf["drain_ms"])
    nodes = templates(rendered[name])
    assert len(nodes) == (2 if name == "pool" else 1)
    for template in nodes:
        pod = template["spec"]
        (c,) = pod["containers"]
        assert c["args"] == ["serve", "--config", "/etc/larder/larder.conf"]
        own = {n[len("LARDER_"):].lower() for n in env_of(template)
               if n.startswith("LARDER_")}
        assert own <= set(serve_options)
        assert pod["terminationGracePeriodSeconds"] * 1000 >= 2 * drain_ms
        memory = bytes_of(c["resources"]["limits"]["memory"])
        assert memory >= bytes_of(conf["dram"]) + OVERHEAD_MIN
        assert c["resources"]["requests"]["memory"] == \
            c["resources"]["limits"]["memory"], "the arena is resident at once"
        for probe in ("startupProbe", "readinessProbe"):
            assert c[probe]["httpGet"] == {"path": "/readyz", "port": "admin"}
        assert c["livenessProbe"]["exec"]["command"][-1] == \
            f"unix:{conf['socket']}"
        mounts = {m["mountPath"] for m in c["volumeMounts"]}
        assert {conf["dir"], os.path.dirname(conf["socket"])} <= mounts
        port = int(conf["admin"].rsplit(":", 1)[1])
        assert {"name": "admin", "containerPort": port} in c["ports"]
        assert template["metadata"]["annotations"]["prometheus.io/port"] == \
            str(port)
        # GPU hosts: placed early, also where only GPU pods may be.
        gpu = pod["nodeSelector"] == {"larder.node": "true"} if \
            "nodeSelector" in pod else False
        assert gpu == ("tolerations" in pod) == ("priorityClassName" in pod)
        socket = next(v for v in pod["volumes"] if v["name"] == "socket")
        assert ("hostPath" in socket) == gpu
    assert sum("tolerations" in t["spec"] for t in nodes) == 1


def test_members_know_each_other(rendered):
    """Both clusters: ports, secret and policies fit each other."""
    for name in ("cluster", "pool"):
        objects = rendered[name]
        members = chosen(objects, {"larder.member": "true"})
        assert members == templates(objects)
        policy = one_of(objects, "NetworkPolicy", "larder-members")["spec"]
        (peers,) = policy["ingress"][0]["ports"]
        for template in members:
            env = env_of(template)
            pod = template["spec"]
            (c,) = pod["containers"]
            assert env["LARDER_PEER_LISTEN"] == f"0.0.0.0:{peers['port']}"
            assert {"name": "peers",
                    "containerPort": peers["port"]} in c["ports"]
            secret = next(v for v in pod["volumes"] if "secret" in v)
            where = mount_of(c, secret["name"])["mountPath"]
            assert os.path.dirname(env["LARDER_CLUSTER_SECRET"]) == where
            assert secret["secret"]["secretName"] == "larder-cluster"
            # Larder refuses one that everybody may read; its group may.
            assert secret["secret"]["defaultMode"] == 0o440
            assert pod["securityContext"]["fsGroup"] == \
                pod["securityContext"]["runAsGroup"]


def test_members_of_the_cluster(rendered):
    """By DNS: a StatefulSet whose pods are members by their names."""
    objects = rendered["cluster"]
    pool = one_of(objects, "StatefulSet", "larder-pool")
    service = one_of(objects, "Service", pool["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    (port,) = service["spec"]["ports"]
    template = pool["spec"]["template"]
    assert env_of(template)["LARDER_CLUSTER"] == (
        f"dns:_{port['name']}._tcp.{service['metadata']['name']}.larder"
        ".svc.cluster.local")
    (c,) = template["spec"]["containers"]
    assert c["lifecycle"]["preStop"]["exec"]["command"] == [
        "/usr/bin/larder", "cluster", "drain", k8s_conf()["socket"]]
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    # The host's socket is one node's.
    (rule,) = template["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"].items() <= \
        template["metadata"]["labels"].items()


def test_members_of_the_pool(rendered):
    """By etcd: storage nodes, and GPU hosts that lend nothing."""
    objects = rendered["pool"]
    hosts = one_of(objects, "DaemonSet", "larder")["spec"]["template"]
    storage = one_of(objects, "StatefulSet", "larder-pool")["spec"]["template"]
    (members,) = [o for o in of_kind(objects, "ConfigMap")
                  if "LARDER_CLUSTER" in o["data"]]
    url = re.fullmatch(r"etcd://[\w.-]+\.(\w+)\.svc\.cluster\.local:(\d+)/\w+",
                       members["data"]["LARDER_CLUSTER"])
    (rule,) = one_of(objects, "NetworkPolicy", "larder-etcd")["spec"]["egress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": int(url.group(2))}]
    assert rule["to"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": url.group(1)}
    for template in (hosts, storage):
        (c,) = template["spec"]["containers"]
        assert c["envFrom"] == [
            {"configMapRef": {"name": members["metadata"]["name"]}}]
        # A variable of its own would count more than that.
        assert "LARDER_CLUSTER" not in env_of(template)
        # In etcd a drain outlasts the pod that asked for it.
        assert "lifecycle" not in c
    env = env_of(hosts)
    assert env["LARDER_MEMBER_WEIGHT"] == "0"
    assert env["LARDER_MEMBER_NAME"] == "spec.nodeName"
    assert env["LARDER_MEMBER_ADDRESS"] == "$(POD_IP):9500"
    env = env_of(storage)
    assert "LARDER_MEMBER_WEIGHT" not in env
    assert env["LARDER_MEMBER_ADDRESS"] == \
        "$(POD_NAME).larder-pool.larder.svc.cluster.local:9500"
    assert env["POD_NAME"] == "metadata.name"


def test_monitoring(rendered):
    """The operator's two kinds, which Kubernetes has no schemas of: only fields
    that it knows, and they find the nodes of every overlay."""
    objects = rendered["monitoring"]
    monitor = one_of(objects, "ServiceMonitor", "larder")
    service = one_of(objects, "Service", "larder-metrics")
    assert {o["apiVersion"] for o in of_kind(objects, *CUSTOM)} == {
        "monitoring.coreos.com/v1"}
    assert set(monitor["spec"]) == {"jobLabel", "selector", "endpoints"}
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    assert monitor["spec"]["endpoints"] == [
        {"port": port["name"], "path": "/metrics", "interval": "15s"}]
    assert port["port"] == int(k8s_conf()["admin"].rsplit(":", 1)[1])
    # The job that the alerts are written for.
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    job = labels[monitor["spec"]["jobLabel"]]
    assert set(re.findall(r'job="(\w+)"', alerts)) == {job}
    for name in ("node", "cluster", "pool"):
        assert chosen(rendered[name], service["spec"]["selector"]) == \
            templates(rendered[name])
        for one in of_kind(rendered[name], "Service"):
            assert not (monitor["spec"]["selector"]["matchLabels"].items()
                        <= one["metadata"]["labels"].items())


def test_the_rules_are_the_alerts(rendered):
    rule = one_of(rendered["monitoring"], "PrometheusRule", "larder")
    (alerts,) = yaml_all((DEPLOY / "prometheus/alerts.yml").read_text())
    assert rule["spec"] == alerts, "run scripts/prometheus-rule"
    for group in rule["spec"]["groups"]:
        assert set(group) == {"name", "rules"}
        for one in group["rules"]:
            assert {"alert", "expr", "annotations"} <= set(one) <= {
                "alert", "expr", "for", "labels", "annotations"}
            assert isinstance(one["expr"], str)


def test_nobody_is_more_than_he_must_be(rendered):
    pods = [t["spec"] for name in OVERLAYS for t in templates(rendered[name])]
    pods.append(k8s_pods()[1])
    assert len(pods) == 5
    for pod in pods:
        own = pod["securityContext"]
        assert own["runAsNonRoot"] and own["runAsUser"] > 0
        assert own["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not any(pod.get(k) for k in ("hostNetwork", "hostPID",
                                            "hostIPC"))
        for c in containers(pod):
            s = c["securityContext"]
            assert s["allowPrivilegeEscalation"] is False
            assert s["readOnlyRootFilesystem"] is True
            assert s["capabilities"]["drop"] == ["ALL"]
            assert not s.get("privileged")
        for c in pod["containers"]:
            assert "add" not in c["securityContext"]["capabilities"]
            assert "runAsUser" not in c["securityContext"]


def test_two_uids_and_one_group():
    node, engine = (pod["securityContext"] for pod in k8s_pods())
    assert node["runAsUser"] != engine["runAsUser"]
    assert node["runAsGroup"] != engine["runAsGroup"]
    assert engine["supplementalGroups"] == [node["runAsGroup"]]
    user, group = last_stage()["USER"].split(":")
    assert (int(user), int(group)) == (node["runAsUser"], node["runAsGroup"])
    (pool,) = yaml_of(POOL)
    own = pool["spec"]["template"]["spec"]["securityContext"]
    assert own["runAsUser"] == node["runAsUser"]
    assert k8s_conf()["socket_mode"] == "0660"


def test_both_sides_mean_the_same_socket():
    node, engine = k8s_pods()
    conf = k8s_conf()
    for pod, name in ((node, "socket"), (engine, "larder")):
        volume = next(v for v in pod["volumes"] if v["name"] == name)
        assert volume["hostPath"]["path"] == "/run/larder"
        mount = mount_of(pod["containers"][0], name)
        assert os.path.dirname(conf["socket"]) == mount["mountPath"]
    url = engine["containers"][0]["env"][0]["value"]
    assert re.fullmatch(r"unix:([^?]+)\?.*", url).group(1) == conf["socket"]
    assert mount_of(engine["containers"][0], "larder")["readOnly"]
    assert engine["nodeSelector"] == node["nodeSelector"]
    assert engine["tolerations"] == node["tolerations"]


def test_the_engine_loads_the_connector():
    """As the page on vLLM says it."""
    _, engine = k8s_pods()
    (config,) = [a.split("=", 1)[1] for a in engine["containers"][0]["args"]
                 if a.startswith("--kv-transfer-config=")]
    wanted = json.loads(config)
    (page,) = (ROOT / "docs").rglob("vllm.md")
    shown = json.loads(re.search(r"--kv-transfer-config '(\{.*\})'",
                                 page.read_text()).group(1))
    assert wanted == shown
    limits = engine["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"


def test_the_configuration_of_all(serve_options):
    conf = k8s_conf()
    assert set(conf) <= set(serve_options)
    host, port = conf["admin"].rsplit(":", 1)
    assert (host, conf["admin_open"]) == ("0.0.0.0", "on"), "or no probe"
    (policy,) = yaml_of("base/networkpolicy.yaml")
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": int(port)}]
    # The default profile forbids io_uring.
    assert conf["io"] == "plain"
