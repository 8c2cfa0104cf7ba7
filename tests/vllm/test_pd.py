"""examples/pd as a user has it: one command, two `vllm serve` and a proxy.
Whole prompts are handed off, in turn and at once; streams come through; with
the prefill engine down the decode engine serves alone."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

import rig
from engine_run import PATIENCE
from test_example import home  # noqa: F401, a fixture

START_S, ASK_S = 500, 120
SERVE = rig.ROOT / "examples/pd/serve"


def free_ports(count):
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in found]


def call(port, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", data,
            {"Content-Type": "application/json"}), timeout=ASK_S) as answer:
        return answer.read().decode()


class Served:
    def __init__(self, version, home, folder, *flags):
        self.model = str(rig.model(version, "dense"))
        self.prefill, self.decode, self.proxy = free_ports(3)
        self.log = folder / "log"
        env = dict(home.env, VLLM=str(rig.python_of(version).parent / "vllm"),
                   PREFILL_PORT=self.prefill, DECODE_PORT=self.decode,
                   PORT=self.proxy, OMP_NUM_THREADS="1")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [str(SERVE), self.model, *flags, "--enforce-eager", "--dtype",
                 "bfloat16", "--max-num-seqs", "2", "--max-model-len", "4096"],
                env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        end = time.monotonic() + START_S * PATIENCE
        while True:
            with contextlib.suppress(OSError):
                call(self.proxy, "/health")
                return self
            assert self.process.poll() is None and time.monotonic() < end, (
                self.log.read_text()[-4000:])
            time.sleep(0.5)

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, port, ids, **more):
        return json.loads(call(port, "/v1/completions", dict(
            model=self.model, prompt=ids, max_tokens=6, temperature=0,
            **more)))

    def counted(self, port, name):
        for line in call(port, "/metrics").splitlines():
            if line.startswith(f"vllm:larder_{name}"):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


@pytest.mark.parametrize("dispatch", [(), ("--concurrent",)],
                         ids=["in turn", "at once"])
def test_pd(version, home, tmp_path, dispatch):
    with Served(version, home, tmp_path, *dispatch) as served:
        for i, length in enumerate((300, 2049)):
            ids = rig.prompt(f"pd {length}", length)
            answer = served.ask(served.proxy, ids)
            assert served.counted(served.prefill, "handoffs_given") == i + 1
            assert served.counted(served.decode, "handoffs_taken") == i + 1
            again = served.ask(served.prefill, ids)
            assert answer["choices"][0]["text"] == again["choices"][0]["text"]
        stream = call(served.proxy, "/v1/completions", dict(
            model=served.model, prompt=rig.prompt("stream", 300),
            max_tokens=4, stream=True))
        assert stream.rstrip().endswith("data: [DONE]")
        assert served.counted(served.decode, "handoffs_taken") == 3
        if not dispatch:
            down(served)


def down(served):
    """Without the prefill engine: the decode engine serves as any."""
    ids = rig.prompt("down", 400)
    pid = int(subprocess.run(
        ["pgrep", "-s", str(served.process.pid), "-f",
         f"serve .*--port {served.prefill} "], stdout=subprocess.PIPE,
        text=True, check=True).stdout.split()[0])
    os.kill(pid, signal.SIGKILL)
    assert served.ask(served.proxy, ids)["choices"][0]["text"]
