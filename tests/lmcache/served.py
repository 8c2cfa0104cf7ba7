"""LMCache's server, and vLLM engines that use it."""
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import urllib.request

import rig
from daemon import free_port, until
from engine_run import SETTINGS

VERSION = "0.32.0"
BIN = rig.ROOT / "build/lmcache/bin"
START_S, ASK_S = 600, 300
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1",
         "TERM": "dumb"}


def environment():
    return dict(os.environ, **QUIET, PYTHONPATH=str(rig.ROOT / "python"))


def adapter(url, **params):
    """--l2-adapter, as a user writes it."""
    return json.dumps({
        "type": "native_plugin", "module_path": "larder_kv.lmcache",
        "class_name": "Connector", "adapter_params": dict(url=url, **params)})


class Server:
    """`lmcache server` with Larder as its only L2."""

    def __init__(self, folder, url, **params):
        self.port, self.http = free_port(), free_port()
        self.log = folder / f"lmcache-{self.port}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [BIN / "lmcache", "server", "--port", str(self.port),
                 "--http-port", str(self.http), "--l1-size-gb", "1",
                 "--supported-transfer-mode", "engine_driven",
                 "--disable-metrics", "--eviction-policy", "LRU",
                 "--l2-adapter", adapter(url, **params)],
                env=environment(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))

    def __enter__(self):
        try:
            until(self._is_ready, START_S, lambda: self.words())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        self.process.kill()
        self.process.wait()

    def words(self):
        return self.log.read_text(errors="replace")[-4000:]

    def _is_ready(self):
        assert self.process.poll() is None, self.words()
        with contextlib.suppress(OSError):
            return self.call("/healthcheck") is not None
        return False

    def call(self, path, method="GET"):
        ask = urllib.request.Request(
            f"http://127.0.0.1:{self.http}{path}", method=method)
        with urllib.request.urlopen(ask, timeout=60) as answer:
            return answer.read().decode()

    def forget(self):
        """Nothing is in LMCache's own memory any more."""
        self.call("/cache/clear", "POST")


class Engine:
    """`vllm serve` with LMCache's connector. (Not in the tests' own process:
    vLLM 0.32's CPU build does not start where numba is imported first, as
    LMCache's connector does it.)"""

    def __init__(self, folder, server):
        self.port = free_port()
        self.model = str(rig.model(VERSION, "dense"))
        self.log = folder / f"vllm-{self.port}.log"
        transfer = {
            "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": server.port}}
        more = [f"--{name.replace('_', '-')}={value}"
                for name, value in rig.settings("dense").items()]
        env = dict(environment(), **SETTINGS)
        env.update(OMP_NUM_THREADS="1", VLLM_SERVER_DEV_MODE="1",
                   VLLM_ENABLE_V1_MULTIPROCESSING="1")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [BIN / "python", "-m", "vllm.entrypoints.cli.main", "serve",
                 self.model, "--port", str(self.port), "--host", "127.0.0.1",
                 "--dtype", "bfloat16", "--enforce-eager",
                 "--max-model-len", str(rig.LENGTH),
                 "--kv-transfer-config", json.dumps(transfer), *more],
                env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        try:
            until(self._is_ready, START_S, lambda: self.words())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for number, seconds in ((signal.SIGTERM, 60), (signal.SIGKILL, 60)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def words(self):
        return self.log.read_text(errors="replace")[-4000:]

    def _is_ready(self):
        assert self.process.poll() is None, self.words()
        with contextlib.suppress(OSError):
            return self.call("/health") is not None
        return False

    def call(self, path, body=None):
        ask = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask, timeout=ASK_S) as answer:
            return answer.read().decode()

    def _hits(self):
        return sum(float(line.rsplit(" ", 1)[1])
                   for line in self.call("/metrics").splitlines()
                   if line.startswith("vllm:external_prefix_cache_hits"))

    def ask(self, ids):
        """The answer to a prompt of which the engine itself has nothing: its
        tokens with their logprobs, and how many came from LMCache."""
        self.call("/reset_prefix_cache", {})
        before = self._hits()
        [choice] = json.loads(self.call("/v1/completions", dict(
            model=self.model, prompt=ids, max_tokens=4, temperature=0,
            logprobs=3, ignore_eos=True, return_token_ids=True)))["choices"]
        return ((choice["token_ids"], choice["logprobs"]),
                int(self._hits() - before))
