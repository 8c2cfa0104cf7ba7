"""deploy/: the unit, the container's file and root file system, and the
manifests, each held to the program and to what it is written for. Where a tool
is missing the test is skipped, and says what is."""
import ctypes
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess

import pytest
import seccomp

from manifests import (CONTAINER, DEPLOY, K8S, ROOT, conf_of, instructions,
                       k8s_pods, last_stage)

EXPOSURE_MAX = 2.0


def tool(name, package):
    path = shutil.which(name)
    if not path:
        pytest.skip(f"no {name} here: apt-get install {package}")
    return path


# ---- systemd ---------------------------------------------------------------

UNIT = DEPLOY / "systemd" / "larder.service"


def unit_values(section, key):
    """All values of a key, in order (configparser keeps the last only)."""
    values, here = [], None
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            here = line.strip("[]")
        elif here == section and line.startswith(f"{key}="):
            values.append(line.split("=", 1)[1])
    return values


def seconds_of(text):
    return int(re.fullmatch(r"(\d+)s?", text).group(1))


def test_unit_exposure():
    analyze = tool("systemd-analyze", "systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", str(UNIT)],
        stdout=subprocess.PIPE, check=True, text=True)
    level = re.search(r"exposure level for larder.service: ([\d.]+)",
                      done.stdout)
    assert float(level.group(1)) <= EXPOSURE_MAX, done.stdout


def test_unit_is_understood(binary, tmp_path):
    analyze = tool("systemd-analyze", "systemd")
    unit = tmp_path / "larder.service"
    unit.write_text(UNIT.read_text().replace("ExecStart=larder",
                                             f"ExecStart={binary}"))
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, text=True)
    assert done.returncode == 0 and not done.stdout, done.stdout


def test_unit_fits_the_program(serve_options):
    conf = conf_of((DEPLOY / "larder.conf").read_text())
    drain_ms = int(conf.get("drain_ms", serve_options["drain_ms"]))
    (stop,) = unit_values("Service", "TimeoutStopSec")
    assert seconds_of(stop) * 1000 >= 2 * drain_ms
    (files,) = unit_values("Service", "LimitNOFILE")
    # Its socket, ring, bell and process: four descriptors for a session.
    assert int(files) >= 8 * int(serve_options["sessions"])
    (cache,) = unit_values("Service", "CacheDirectory")
    assert conf["dir"] == f"/var/cache/{cache}"
    # What else is written has to lie where the unit lets it.
    (trace,) = re.findall(r"^# trace = (.+)$", (DEPLOY / "larder.conf"
                                                ).read_text(), re.M)
    assert trace.startswith(conf["dir"])
    # A thread for each connection of a member, in and out.
    (tasks,) = unit_values("Service", "TasksMax")
    conns = re.search(r"CONNS_MAX (\d+)u", (
        ROOT / "src/server/peer.c").read_text()).group(1)
    assert int(tasks) >= 2 * int(conns)
    (start,) = unit_values("Service", "ExecStart")
    words = shlex.split(start)
    assert words[:2] == ["larder", "serve"]
    (etc,) = unit_values("Service", "ConfigurationDirectory")
    assert words[3] == f"/etc/{etc}/larder.conf"
    # In a user namespace every client would be nobody.
    assert unit_values("Service", "PrivateUsers") == ["no"]


def test_sysusers(tmp_path):
    sysusers = tool("systemd-sysusers", "systemd")
    (tmp_path / "etc").mkdir()
    lines = (DEPLOY / "systemd" / "larder.sysusers").read_text()
    done = subprocess.run([sysusers, f"--root={tmp_path}", "--inline",
                           *[line for line in lines.splitlines()
                             if line and not line.startswith("#")]],
                          stderr=subprocess.PIPE, check=False, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("passwd", "group"):
        assert "larder:" in (tmp_path / "etc" / name).read_text()
    (user,) = unit_values("Service", "User")
    assert lines.splitlines()[-1].split()[1] == user


def test_five_hosts():
    """The systemd example: the list and the options fit each other."""
    folder = DEPLOY / "systemd/cluster"
    members = [line for line in (folder / "members").read_text().splitlines()
               if not line.startswith("#")]
    assert len(members) == 5
    assert all(re.fullmatch(r"kv\d=10\.0\.0\.\d:9500/rack\d", m)
               for m in members)
    assert "static:/etc/larder/members" in (folder / "larder.conf").read_text()


# ---- the configuration -----------------------------------------------------

def test_conf_names_exist(serve_options):
    conf = conf_of((DEPLOY / "larder.conf").read_text())
    assert set(conf) <= set(serve_options)
    # What stands there as an example, too.
    text = (DEPLOY / "larder.conf").read_text()
    shown = re.findall(r"^# (\w+) +=", text, re.M)
    tenant = {"token_file", "uids", "dram", "ssd", "rate", "connections"}
    assert set(shown) <= set(serve_options) | tenant
    assert "listen" in shown and "rate" in shown


# ---- a daemon, for what follows --------------------------------------------

class Daemon:
    """`larder serve` by some command; ends with the test."""

    def __init__(self, command, **kwargs):
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"larder-test-{os.getpid()}-{id(self)}"
        self.notify.bind(f"\0{name}")
        self.notify.settimeout(0.2)
        env = dict(os.environ, **kwargs.pop("env", {}))
        env["NOTIFY_SOCKET"] = f"@{name}"
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, env=env,
                                        text=True, **kwargs)

    def wait_ready(self):
        """What a service manager waits for; or the end of the process."""
        while self.process.poll() is None:
            try:
                if "READY=1" in self.notify.recv(4096).decode():
                    return
            except TimeoutError:
                continue
        pytest.fail(f"ended with {self.process.returncode}: "
                    f"{self.process.communicate()[1]}")

    def stop(self):
        """SIGTERM, and the exit code; its log in self.log."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.log = self.process.communicate(timeout=300)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.log = self.process.communicate()[1]
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self.notify.close()


def test_under_the_units_filter(binary, larder, tmp_path):
    """The daemon works when every system call that the unit does not allow
    kills it: TCP, shared memory, an SSD tier by io_uring, reload, drain."""
    analyze = tool("systemd-analyze", "systemd")
    allowed = seccomp.allowed_by_unit(
        analyze, unit_values("Service", "SystemCallFilter"))
    for name in ("io_uring_setup", "io_uring_enter", "io_uring_register",
                 "memfd_create", "mbind", "madvise", "pidfd_open"):
        assert name in allowed
    for name in ("ptrace", "mount", "bpf", "kexec_load", "reboot",
                 "init_module", "keyctl"):
        assert name not in allowed
    numbers = seccomp.numbers(allowed)
    sock = tmp_path / "s.sock"
    (tmp_path / "f").write_bytes(os.urandom(300000))
    command = [binary, "serve", "--socket", str(sock), "--admin",
               "127.0.0.1:0", "--listen", "127.0.0.1:0", "--dram", "16M",
               "--ssd", "64M", "--dir", str(tmp_path / "kv")]
    with Daemon(command, cwd=tmp_path,
                preexec_fn=lambda: seccomp.install(numbers)) as daemon:
        daemon.wait_ready()
        daemon.process.send_signal(signal.SIGHUP)
        larder("put", f"unix:{sock}", "k", tmp_path / "f")
        larder("get", f"unix:{sock}", "k", tmp_path / "g")
        larder("flush", f"unix:{sock}")
        assert daemon.stop() == 0, daemon.log
    assert (tmp_path / "f").read_bytes() == (tmp_path / "g").read_bytes()


# ---- the container ---------------------------------------------------------

def test_containerfile():
    final = last_stage()
    assert final["FROM"] == "scratch", "no shell, no package manager"
    user, group = final["USER"].split(":")
    # A number: Kubernetes cannot see that a name is not root.
    assert int(user) > 0 and int(group) > 0
    assert final["STOPSIGNAL"] == "SIGTERM"
    for word in ("ENTRYPOINT", "CMD"):
        assert final[word].startswith("["), f"{word} would need a shell"
    assert re.search(r'CMD \["/usr/bin/larder", "stat", "unix:/run/larder/',
                     final["HEALTHCHECK"])
    assert "RUN" not in final
    words = [word for _, word, _ in instructions()]
    assert set(words) <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "LABEL",
                          "USER", "ENV", "VOLUME", "STOPSIGNAL", "HEALTHCHECK",
                          "ENTRYPOINT", "CMD"}
    stages = re.findall(r"AS (\w+)", str(instructions()))
    for source in re.findall(r"--from=(\w+)", str(instructions())):
        assert source in stages


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The container's root file system, made of this build by the script that
    the Containerfile runs."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    for name, package in (("dpkg", "dpkg"), ("strip", "binutils"),
                          ("chroot", "coreutils"), ("cmake", "cmake")):
        tool(name, package)
    build = os.environ.get("LARDER_BUILD", "")
    if "asan" in build or "tsan" in build:
        pytest.skip("a sanitized program needs more than its libraries")
    folder = tmp_path_factory.mktemp("image")
    # /tmp may be mounted so that nothing in it runs as another user.
    folder.parent.chmod(0o755)
    subprocess.run(["cmake", "--install", build, "--prefix", "/usr"],
                   env=dict(os.environ, DESTDIR=str(folder / "built")),
                   stdout=subprocess.DEVNULL, check=True)
    done = subprocess.run(
        [str(CONTAINER / "rootfs"), str(folder / "built"),
         str(folder / "root")], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False, text=True)
    assert done.returncode == 0, done.stdout
    return folder / "root"


def within(image, uid, groups=()):
    """A command in the image, as somebody."""
    chroot = ["chroot", f"--userspec={uid}:{uid}"]
    chroot += [f"--groups={','.join(map(str, groups))}"] if groups else []
    return [*chroot, str(image)]


CAPABILITIES = {"CHOWN": 0, "FOWNER": 3}
CAPABILITY_LAST, BOUNDING_DROP = 40, 24


def as_root_with(image, command, capabilities):
    """The exit code of a command in the image, run by a root that has no
    other capabilities."""
    keep = {CAPABILITIES[name] for name in capabilities}
    libc = ctypes.CDLL(None)

    def drop():
        os.chroot(image)
        os.chdir("/")
        for number in set(range(CAPABILITY_LAST + 1)) - keep:
            libc.prctl(BOUNDING_DROP, number, 0, 0, 0)

    return subprocess.run(command, preexec_fn=drop, check=False,
                          stderr=subprocess.DEVNULL).returncode


def test_image_holds_what_it_must(image):
    names = {p.name for p in image.rglob("*") if p.is_file()}
    assert {"larder", "larder-bench", "install", "libssl.so.3",
            "libcrypto.so.3", "libcurl.so.4"} <= names
    assert not {"sh", "bash", "dash", "busybox", "apt", "dpkg"} & names
    # Whose libraries it carries, and under which licence.
    assert len(list(image.glob("usr/share/doc/*/copyright"))) >= 3
    assert (image / "usr/share/doc/larder/LICENSE").exists()
    assert [p for p in image.rglob("*") if p.is_file()
            and p.stat().st_mode & 0o6000] == []


def test_image_knows_every_kind_of_storage(image):
    """What a kind of shared tier is loaded with is there: it is the storage
    that does not answer."""
    for url in ("s3://bucket?endpoint=http://127.0.0.1:1",
                "valkey://127.0.0.1:1", "dir:/nowhere"):
        done = subprocess.run(
            [*within(image, 10646), "/usr/bin/larder", "tier", "check", url],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=dict(os.environ, AWS_ACCESS_KEY_ID="a",
                     AWS_SECRET_ACCESS_KEY="b"),
            timeout=300, check=False)
        assert done.returncode != 0 and "install" not in done.stdout, done
        assert ("refused" in done.stdout or "connect" in done.stdout
                or "no such directory" in done.stdout), done.stdout


def test_image_as_two_pods(image):
    """What the DaemonSet and the engine's pod do, with their numbers: the
    directory is given its owner by the init container's command, the daemon
    serves from a uid, an engine comes from another with only the group in
    common, and one without it stays out."""
    node, engine = k8s_pods()
    uid = node["securityContext"]["runAsUser"]
    other = engine["securityContext"]["runAsUser"]
    groups = engine["securityContext"]["supplementalGroups"]
    for container in node["initContainers"]:
        caps = container["securityContext"]["capabilities"]["add"]
        path = image / container["command"][-1].lstrip("/")
        os.chown(path, 0, 0)  # as the kubelet makes it
        assert as_root_with(image, container["command"], []) != 0
        for _ in range(2):  # again, when it is another's already
            assert as_root_with(image, container["command"], caps) == 0
        assert path.stat().st_uid == uid
    probe = node["containers"][0]["livenessProbe"]["exec"]["command"]
    conf = (K8S / "base/larder.conf").read_text()
    (image / "etc/larder").mkdir(exist_ok=True)
    (image / "etc/larder/larder.conf").write_text(conf)
    (image / "tmp/f").write_bytes(os.urandom(300000))
    # Smaller than in a cluster: flags come before the file.
    command = [*within(image, uid), "/usr/bin/larder",
               *node["containers"][0]["args"], "--dram", "16M", "--ssd", "64M",
               "--admin", "127.0.0.1:0"]
    with Daemon(command) as daemon:
        daemon.wait_ready()
        subprocess.run([*within(image, uid), *probe], check=True,
                       stdout=subprocess.DEVNULL)
        url = engine["containers"][0]["env"][0]["value"]
        for args in (["put", url, "k", "/tmp/f"],
                     ["get", url, "k", "/tmp/g"]):
            subprocess.run([*within(image, other, groups), "/usr/bin/larder",
                            *args], check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run([*within(image, other), "/usr/bin/larder",
                               "get", url.split("?")[0], "k", "/tmp/h"],
                              stderr=subprocess.PIPE, check=False, text=True)
        assert done.returncode == 3 and "denied" in done.stderr.lower()
        assert daemon.stop() == 0, daemon.log
    assert (image / "tmp/f").read_bytes() == (image / "tmp/g").read_bytes()
    assert not (image / "tmp/h").exists()


# ---- the pages ------------------------------------------------------------

def literals():
    """The strings of the program, neighbours joined as the compiler does, with
    a blank where a value goes."""
    found = []
    for path in [*(ROOT / "src").rglob("*.[ch]"),
                 ROOT / "include/larder/larder.h"]:
        for run in re.findall(r'(?:"(?:\\.|[^"\\\n])*"\s*(?:PRIu64\s*)?)+',
                              path.read_text()):
            text = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', run))
            found.append(re.sub(r"%[-.*0-9a-z]*", "\0", text))
    return found


def test_messages_of_the_manual():
    """Each message that the daemon's table shows is one of the program's. The
    ellipsis stands for what differs."""
    page = (ROOT / "docs/reference/messages.md").read_text()
    table = page[page.index("## The daemon"):page.index("## vLLM's connector")]
    messages = [m for m in re.findall(r"`([^`]+)`", table)
                if "\N{HORIZONTAL ELLIPSIS}" in m or m.count(" ") > 4]
    assert len(messages) > 20
    strings = literals()
    wrong = []
    for message in messages:
        for part in message.split("\N{HORIZONTAL ELLIPSIS}"):
            part = part.strip(" ':")
            if len(part) > 3 and not any(part in text for text in strings):
                wrong.append(f"{part} in {message}")
    assert wrong == []


def test_options_named_in_the_page_exist(larder):
    """Lines of configuration in its examples, and options in URLs."""
    page = (ROOT / "docs/guide/deploy.md").read_text()
    known = {o["name"] for o in larder.json("options")}
    known |= {o["name"] for o in larder.json("options", "--serve")}
    tenant = {"token_file", "secret_file", "secret_check", "cert", "uids",
              "dram", "ssd", "rate", "connections"}
    named = set(re.findall(r"(?:^    |`)([a-z_]+) += \w", page, re.M))
    named |= set(re.findall(r"[?&]([a-z_]+)=", page))
    assert {"listen", "tls_ca", "rate", "uids"} <= named
    assert named - {"limit", "bytes"} <= known | tenant | {"dir"}
