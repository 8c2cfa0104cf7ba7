"""The quick start, as a user has it: examples/vllm_offline.py without a URL, in
a home of its own. The first run starts a node, the second finds it and loads
what the first computed."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time

import pytest

import rig

CHUNK = 256
PROGRAM = rig.ROOT / "examples/vllm_offline.py"


class Home:
    """A user's own directories, and the node that runs for them."""

    def __init__(self, folder):
        self.socket = folder / "run/larder.sock"
        for name in ("run", "home"):
            (folder / name).mkdir(mode=0o700)
        self.env = dict(os.environ, HOME=str(folder / "home"),
                        XDG_RUNTIME_DIR=str(folder / "run"),
                        PYTHONPATH=str(rig.ROOT / "python"),
                        HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                        VLLM_CPU_KVCACHE_SPACE="1")
        for name in ("XDG_CACHE_HOME", "VLLM_ENABLE_V1_MULTIPROCESSING"):
            self.env.pop(name, None)

    def run(self, version, model):
        """All that the example and its engine print."""
        process = subprocess.Popen(
            [str(rig.python_of(version)), "-B", str(PROGRAM), "--model",
             str(model)], env=self.env, cwd="/", text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=400)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.returncode == 0, out[-6000:]
        return out

    def node(self):
        """The process that has the socket; 0: none."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except (FileNotFoundError, ConnectionRefusedError):
                return 0
            return struct.unpack("3i", probe.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def end(self):
        """Its node, by SIGTERM as its line says."""
        pid = self.node()
        if pid == 0:
            return
        for number, tries in ((signal.SIGTERM, 400), (signal.SIGKILL, 400)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            while tries > 0 and pathlib.Path(f"/proc/{pid}").exists():
                time.sleep(0.05)
                tries -= 1


@pytest.fixture
def home(tmp_path):
    one = Home(tmp_path)
    yield one
    one.end()


def numbers(text):
    found = re.search(r"^prompt: (\d+) tokens, of which (\d+) were loaded;",
                      text, re.M)
    assert found, text[-6000:]
    return [int(one) for one in found.groups()]


def tokens_line(text):
    return re.search(r"^tokens: [\d ]+$", text, re.M).group()


def test_quick_start(version, home):
    model = rig.model(version, "dense")
    first = home.run(version, model)
    started = re.findall(r"larder: no node on this host; started one, process "
                         r"(\d+), which takes (.*)", first)
    assert len(started) == 1, first[-6000:]
    assert f"--socket {home.socket}" in started[0][1]
    assert int(started[0][0]) == home.node(), "it stays when the engine ends"
    line = re.search(r"larder: unix:\S+, space (\w+), chunks of 256 tokens, "
                     r"2048 bytes per token; dram holds (\d+) tokens, "
                     r"ssd (\d+)", first)
    assert line and int(line[2]) > 0 and int(line[3]) > 0
    prompt, loaded = numbers(first)
    assert prompt > 4 * CHUNK and loaded == 0

    second = home.run(version, model)
    assert "larder: attached to the node of this host" in second
    assert f"space {line[1]}," in second
    again, loaded = numbers(second)
    assert again == prompt
    assert 0 < loaded < prompt and loaded % CHUNK == 0
    assert tokens_line(second) == tokens_line(first)
