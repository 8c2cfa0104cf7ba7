"""Hosts: daemons in network namespaces of their own, three real etcd servers,
and a relay (relay.py) that all members' connections go through. Everything ends
with the test."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from daemon import _before_exec, until

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
NET = "10.77.0"
PORT = 7700
TIMEOUT_MS = 1500
NAMES = 200


def _ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.PIPE,
                   stderr=subprocess.PIPE, timeout=60)


def _etcd_program():
    places = [shutil.which("etcd"), ROOT / "build/tools/etcd"]
    return next((str(p) for p in places if p and os.path.exists(p)), None)


def require():
    """Skips, and says why, where this cannot be done."""
    if shutil.which("ip") is None:
        pytest.skip("NOT TESTED: there is no ip (iproute2)")
    if _etcd_program() is None:
        pytest.skip("NOT TESTED: there is no etcd (scripts/install-deps test)")
    name = f"ldr{os.getpid()}try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (subprocess.CalledProcessError, OSError):
        pytest.skip("NOT TESTED: network namespaces are not permitted here")


class Hosts:
    """Hosts 0 to count - 1, members h0, h1...; etcd servers 0 to 2."""

    def __init__(self, serve, tmp_path, secret, count=5, **options):
        self.serve, self.tmp_path, self.count = serve, tmp_path, count
        self.prefix = f"ldr{os.getpid()}"
        self.spaces, self.children, self.loads = [], [], []
        self.options = {
            "listen": None, "admin": "none", "cluster_secret": secret,
            "cluster": "etcd://" + ",".join(
                f"{NET}.{50 + i}:2379" for i in range(3)) + "/hosts",
            "cluster_ramp_s": 2, "peer_timeout_ms": 1000,
            "peer_match_ms": 300, "drain_ms": 5000, **options}
        self.nodes = []

    # ---- the network

    def __enter__(self):
        try:
            self._network()
            self.etcd = [self._etcd(i) for i in range(3)]
            self.relay = self._child(
                "sw", [sys.executable, str(HERE / "relay.py")] + [
                    f"h{i}={NET}.{100 + i}:{PORT}={NET}.{1 + i}:{PORT}"
                    for i in range(self.count)], "relay",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self.relay.stdout.readline() == b"ready\n"
            self.nodes = [self.start(i) for i in range(self.count)]
        except BaseException:
            self.__exit__()
            raise
        return self

    def _space(self, name):
        full = f"{self.prefix}{name}"
        _ip("netns", "add", full)
        self.spaces.append(full)
        _ip("-n", full, "link", "set", "lo", "up")
        return full

    def _network(self):
        switch = self._space("sw")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for last in [254] + [100 + i for i in range(self.count)]:
            _ip("-n", switch, "addr", "add", f"{NET}.{last}/24", "dev", "br0")
        for name, last in ([(f"h{i}", 1 + i) for i in range(self.count)] +
                           [(f"e{i}", 50 + i) for i in range(3)]):
            full = self._space(name)
            _ip("-n", switch, "link", "add", name, "type", "veth", "peer",
                "name", "eth0", "netns", full)
            _ip("-n", switch, "link", "set", name, "master", "br0", "up")
            _ip("-n", full, "addr", "add", f"{NET}.{last}/24", "dev", "eth0")
            _ip("-n", full, "link", "set", "eth0", "up")

    def link(self, name, up):
        _ip("-n", f"{self.prefix}{name}", "link", "set", "eth0",
            "up" if up else "down")

    def tell_relay(self, *words):
        self.relay.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.relay.stdin.flush()
        assert self.relay.stdout.readline() == b"done\n"

    # ---- processes

    def _child(self, space, command, name, **more):
        with open(self.tmp_path / f"{name}.log", "ab") as log:
            more.setdefault("stdout", log)
            child = subprocess.Popen(
                ["ip", "netns", "exec", f"{self.prefix}{space}"] + command,
                stderr=log, preexec_fn=_before_exec, **more)
        self.children.append(child)
        return child

    def _etcd(self, i):
        def peer(k):
            return f"http://{NET}.{50 + k}:2380"
        url = f"http://{NET}.{50 + i}:2379"
        return self._child(f"e{i}", [
            _etcd_program(), "--name", f"e{i}", "--data-dir",
            str(self.tmp_path / f"etcd{i}"), "--listen-client-urls", url,
            "--advertise-client-urls", url, "--listen-peer-urls", peer(i),
            "--initial-advertise-peer-urls", peer(i), "--initial-cluster",
            ",".join(f"e{k}={peer(k)}" for k in range(3))], f"etcd{i}")

    def etcd_again(self, i):
        self.etcd[i] = self._etcd(i)

    def start(self, i, binary=None):
        """The daemon of host i, from its disk if it has one."""
        if i < len(self.nodes):
            node = self.nodes[i]
            node.inner = binary or node.inner
            return node.start()
        node = self.serve(name=f"h{i}", start=False, dirs=1,
                          member_name=f"h{i}",
                          member_address=f"{NET}.{100 + i}:{PORT}",
                          peer_listen=f"{NET}.{1 + i}:{PORT}",
                          member_zone=f"z{i % 2}", **self.options)
        node.inner = binary or node.binary
        plain = node.command
        node.command = lambda: (
            ["ip", "netns", "exec", f"{self.prefix}h{i}", node.inner] +
            plain()[1:])
        return node.start()

    def members(self, node):
        """That it knows, answers of which it has had."""
        return node.value("larder_peer_well")

    def met(self):
        for node in self.nodes:
            until(lambda n=node: self.members(n) >= self.count - 1,
                  text=lambda n=node: f"members do not meet:\n"
                                      f"{n.log()[-3000:]}")

    # ---- load

    def load_begin(self, seed=1):
        self.loads = [subprocess.Popen(
            [sys.executable, str(HERE / "hosts_load.py"), node.url(),
             str(seed * 100 + i), str(NAMES), str(TIMEOUT_MS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=_before_exec)
            for i, node in enumerate(self.nodes)]

    def load_end(self):
        """What each saw."""
        out = []
        for load in self.loads:
            text, _ = load.communicate("", timeout=180)
            out.append(json.loads(text))
        self.loads = []
        return out

    def __exit__(self, *_):
        for child in self.loads + self.children:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
            child.wait()
        for node in self.nodes:
            if node.process is not None:
                node.signal(signal.SIGCONT)
                node.kill()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False,
                           timeout=60)
