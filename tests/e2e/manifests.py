"""Reads what lies in deploy/: configurations, manifests, the Containerfile."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINER = DEPLOY / "container"
K8S = DEPLOY / "k8s"
NODE = "base/daemonset/daemonset.yaml"
POOL = "base/statefulset/statefulset.yaml"
OVERHEAD_MIN = 1 << 30  # of a container's memory beyond its arena


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)i?", text).groups()
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[unit]


def conf_of(text):
    """larder.conf as {name: value}; sections and comments left out."""
    pairs = {}
    for line in text.split("\n[", 1)[0].splitlines():
        line = line.split("#", 1)[0].strip()
        if line:
            name, value = (part.strip() for part in line.split("=", 1))
            pairs[name] = value
    return pairs


def yaml_all(text):
    yaml = pytest.importorskip("yaml", reason="no yaml: apt-get install "
                               "python3-yaml")
    return [one for one in yaml.safe_load_all(text) if one]


def yaml_of(name):
    return yaml_all((K8S / name).read_text())


def k8s_conf():
    return conf_of((K8S / "base/larder.conf").read_text())


def k8s_pods():
    """The pods of node and engine, as their templates have them."""
    return [yaml_of(name)[0]["spec"]["template"]["spec"]
            for name in (NODE, "vllm.yaml")]


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def mount_of(container, volume):
    return next(m for m in container["volumeMounts"] if m["name"] == volume)


def instructions():
    """[(stage, WORD, rest)] with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (CONTAINER / "Containerfile").read_text(),
                  flags=re.M)
    found, stage = [], -1
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, rest = line.split(None, 1)
            stage += word == "FROM"
            found.append((stage, word, rest.strip()))
    return found


def last_stage():
    lines = instructions()
    return {word: rest for stage, word, rest in lines if stage == lines[-1][0]}
