"""examples/pd as a user has it: one command, two `vllm serve` and a proxy.
Whole prompts are handed off, in turn and at once; streams come through; with
the prefill engine down the decode engine serves alone. And vLLM's own toy
proxy, played by hand: what it sends, in its order."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
import uuid

import pytest

import rig
from engine_run import PATIENCE
from test_example import home  # noqa: F401, a fixture

START_S, ASK_S = 500, 300
SERVE = rig.ROOT / "examples/pd/serve"


def free_ports(count):
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in found]


def call(port, path, body=None, **headers):
    data = json.dumps(body).encode() if body is not None else None
    headers["Content-Type"] = "application/json"
    with urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", data, headers),
            timeout=ASK_S) as answer:
        return answer.read().decode()


class Served:
    def __init__(self, version, home, folder, *flags):
        self.model = str(rig.model(version, "dense"))
        adapter = f"lora-a={self.model}/lora-a"
        self.prefill, self.decode, self.proxy = free_ports(3)
        self.log = folder / "log"
        env = dict(home.env, VLLM=str(rig.python_of(version).parent / "vllm"),
                   PREFILL_PORT=self.prefill, DECODE_PORT=self.decode,
                   PORT=self.proxy, OMP_NUM_THREADS="1")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [str(SERVE), self.model, *flags, "--enforce-eager", "--dtype",
                 "bfloat16", "--max-num-seqs", "2", "--max-model-len", "4096",
                 "--enable-lora", "--lora-modules", adapter],
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
        """Of all labels."""
        return sum(float(line.rsplit(" ", 1)[1])
                   for line in call(port, "/metrics").splitlines()
                   if line.startswith(f"vllm:larder_{name}_total{{"))


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
            for case in TOY:
                check_toy(served, case)
            down(served)


# ---- vLLM's toy proxy ----

# It asks for nothing else of the prefill side, whatever the client asked for.
ASKED = {"do_remote_decode": True, "do_remote_prefill": False,
         "remote_engine_id": None, "remote_block_ids": None,
         "remote_host": None, "remote_port": None}


def toy(served, path, body):
    """What the client gets of it: the answer's text, as it came."""
    name = {"X-Request-Id": str(uuid.uuid4()),
            "Authorization": "Bearer None"}
    first = dict(body, kv_transfer_params=dict(ASKED), stream=False,
                 max_tokens=1)
    if "max_completion_tokens" in first:
        first["max_completion_tokens"] = 1
    for other in ("stream_options", "min_tokens"):
        first.pop(other, None)
    answer = json.loads(call(served.prefill, path, first, **name))
    if params := answer.get("kv_transfer_params", {}):
        body = dict(body, kv_transfer_params=params)
    return call(served.decode, path, body, **name)


def texts(answer):
    """Of each choice; streamed or not."""
    lines = [answer]
    if answer.startswith("data: "):
        lines = [line[6:] for line in answer.splitlines()
                 if line.startswith("data: {")]
    found = {}
    for line in lines:
        for choice in json.loads(line).get("choices", ()):
            said = choice.get("delta") or choice.get("message") or {}
            text = choice["text"] if "text" in choice else said.get("content")
            found[choice["index"]] = found.get(choice["index"], "") + (
                text or "")
    return found


COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
TOY = {
    "plain": dict(prompt=rig.prompt("toy", 700)),
    "shorter than a block": dict(prompt=rig.prompt("toy short", 20)),
    "streamed": dict(prompt=rig.prompt("toy stream", 400), stream=True,
                     stream_options={"include_usage": True}),
    "two choices": dict(prompt=rig.prompt("toy two", 500), n=2),
    "an adapter": dict(prompt=rig.prompt("toy", 700), model="lora-a"),
    "a salt": dict(prompt=rig.prompt("toy", 700), cache_salt="pepper"),
    "min_tokens": dict(prompt=rig.prompt("toy min", 300), min_tokens=4),
    "chat": dict(messages=[{"role": "user", "content": "ba be bi " * 150}],
                 max_completion_tokens=6),
}


def check_toy(served, case):
    body = dict(dict(model=served.model, max_tokens=6, temperature=0),
                **TOY[case])
    path = CHAT if "messages" in body else COMPLETE
    if path == CHAT:
        del body["max_tokens"]
    count = body.get("n", 1)
    before = [served.counted(served.decode, name) for name in
              ("handoffs_taken", "handoffs_short", "handoffs_refused")]
    found = texts(toy(served, path, body))
    after = [served.counted(served.decode, name) for name in
             ("handoffs_taken", "handoffs_short", "handoffs_refused")]
    assert [b - a for a, b in zip(before, after)] == [count, 0, 0], case
    right = texts(call(served.prefill, path, body))
    assert len(found) == count and found == right, case


def down(served):
    """Without the prefill engine: the decode engine serves as any."""
    ids = rig.prompt("down", 400)
    pid = int(subprocess.run(
        ["pgrep", "-s", str(served.process.pid), "-f",
         f"serve .*--port {served.prefill} "], stdout=subprocess.PIPE,
        text=True, check=True).stdout.split()[0])
    os.kill(pid, signal.SIGKILL)
    assert served.ask(served.proxy, ids)["choices"][0]["text"]
