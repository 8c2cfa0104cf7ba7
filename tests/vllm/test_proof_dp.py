"""Proof 2, data parallel: `vllm serve --data-parallel-size 2`, asked over HTTP.
What one rank computed, the other loads."""
import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

import rig

CHUNK = 256
START_SECONDS = 500


class Server:
    """`vllm serve` as a user starts it, in a session of its own."""

    def __init__(self, version, url, log, *args):
        self.port = rig.daemon.free_port()
        self.log = log
        env = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1",
                   VLLM_CPU_OMP_THREADS_BIND="0|1", HF_HUB_OFFLINE="1",
                   VLLM_NO_USAGE_STATS="1",
                   PYTHONPATH=str(rig.ROOT / "python"))
        command = [
            rig.python_of(version).parent / "vllm", "serve",
            rig.model(version, "dense"), "--host", "127.0.0.1", "--port",
            self.port, "--served-model-name", "tiny", "--dtype", "bfloat16",
            "--enforce-eager", "--max-model-len", rig.LENGTH,
            "--max-num-seqs", "1", "--max-num-batched-tokens", "128",
            "--kv-transfer-config", json.dumps(rig.transfer(url)), *args]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                ["timeout", "-k", "5", "1500", *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                start_new_session=True)
        rig.daemon.until(
            lambda: self.process.poll() is not None or self.is_healthy(),
            START_SECONDS, self.words)
        assert self.process.poll() is None, self.words()

    def words(self):
        return "it said:\n" + self.log.read_text(errors="replace")[-6000:]

    def _open(self, path, timeout, data=None, headers=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, headers or {})
        with urllib.request.urlopen(request, timeout=timeout) as page:
            return page.read().decode()

    def is_healthy(self):
        with contextlib.suppress(OSError, urllib.error.URLError):
            self._open("/health", 5)
            return True
        return False

    def ask(self, ids, rank, tokens=4):
        """What that rank answers: tokens and their logprobs."""
        body = {"model": "tiny", "prompt": ids, "max_tokens": tokens,
                "temperature": 0, "logprobs": 3, "ignore_eos": True,
                "return_tokens_as_token_ids": True}
        text = self._open("/v1/completions", 120, json.dumps(body).encode(),
                          {"Content-Type": "application/json",
                           "X-data-parallel-rank": str(rank)})
        found = json.loads(text)["choices"][0]["logprobs"]
        return {"tokens": found["tokens"],
                "logprobs": [found["token_logprobs"],
                             found["top_logprobs"]]}

    def value(self, name, rank):
        """One of vLLM's own counters, of one rank."""
        found = re.findall(rf'^{name}{{([^}}]*)}} (\S+)$',
                           self._open("/metrics", 10), re.M)
        [value] = [float(v) for labels, v in found
                   if f'engine="{rank}"' in labels]
        return int(value)

    def external(self, rank):
        return self.value("vllm:external_prefix_cache_hits_total", rank)

    def close(self):
        """As Ctrl-C ends it; what does not end is killed, with its ranks."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(40)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def served(version, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dp")
    with rig.node(folder / "node") as node:
        # The server cannot be asked what its space is called; it is that of
        # any engine with this model.
        with rig.engine(version, "dense", node.url()) as engine:
            about = engine.ask("inside", "space")
        server = Server(version, node.url(), folder / "log",
                        "--data-parallel-size", "2")
        try:
            with rig.Store(node.url(), about) as store:
                yield server, store
        finally:
            server.close()


@pytest.mark.parametrize("first", [0, 1])
def test_the_other_rank(served, first):
    """Both ways: one rank computes, the other loads, and answers what the
    first one's own hit answers."""
    server, store = served
    second = 1 - first
    ids = rig.prompt(f"rank {first}", 2100)
    before = server.external(first), server.external(second)
    server.ask(ids, first)
    own = server.ask(ids, first)
    assert server.external(first) == before[0]
    hit = server.ask(ids, second)
    assert server.external(second) - before[1] == rig.whole(2099, CHUNK)
    rig.check_same(hit, own)
    # The test of the test. That rank has never seen this prompt.
    ids = rig.prompt(f"flipped {first}", 2100)
    server.ask(ids, first)
    own = server.ask(ids, first)
    store.flip(ids, 4)
    hit = server.ask(ids, second)
    assert server.external(second) - before[1] == 2 * rig.whole(2099, CHUNK)
    assert not rig.same(hit, own)
