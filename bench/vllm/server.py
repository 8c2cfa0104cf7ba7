"""`vllm serve` as a user starts it, on a loopback port, for a bounded time."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build/vllm-bench"
LIFE = 1500  # seconds, whatever becomes of who started it
START = 300
# All that a user writes. The node is this host's, and is started if there is
# none.
LARDER = {"kv_connector": "LarderConnector",
          "kv_connector_module_path": "larder_kv.vllm", "kv_role": "kv_both"}
COUNTERS = {"external": "vllm:external_prefix_cache_hits_total",
            "local": "vllm:prefix_cache_hits_total",
            "prompt": "vllm:prompt_tokens_total",
            "saved_bytes": "vllm:larder_saved_bytes_total",
            "loaded_bytes": "vllm:larder_loaded_bytes_total"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Host:
    """A host of its own for the runs: directories where the connector looks
    for this host's node, starts one, and lets it keep its files."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "larder.sock"
        self.env = dict(
            os.environ, XDG_RUNTIME_DIR=str(self.folder),
            XDG_CACHE_HOME=str(self.folder / "cache"),
            VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
            PATH=f"{ENVIRONMENT}/bin:{os.environ['PATH']}")
        self.env.pop("PYTHONPATH", None)
        # Compiled kernels are kept between runs.
        self.env["VLLM_CACHE_ROOT"] = str(ROOT / "build/vllm-cache")

    def node_pid(self):
        """Who listens on the socket; None: nobody."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return None
            return struct.unpack("3i", probe.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def end_node(self):
        pid = self.node_pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.1)


class Server:
    """One `vllm serve`. Ends with the block."""

    def __init__(self, host, model, log, larder=True, args=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = ["vllm", "serve", str(model), "--host", "127.0.0.1",
                        "--port", str(self.port), "--served-model-name",
                        "small", *args]
        if larder:
            self.command += ["--kv-transfer-config", json.dumps(LARDER)]
        self.log = pathlib.Path(log)
        began = time.monotonic()
        with open(self.log, "wb") as out:
            self._process = subprocess.Popen(
                ["timeout", "-k", "30", str(LIFE), *self.command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=host.env, cwd=host.folder, start_new_session=True)
        self._wait(began + START)
        self.seconds = time.monotonic() - began

    def _wait(self, end):
        while True:
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            if self._process.poll() is not None or time.monotonic() > end:
                words = self.log.read_text(errors="replace")[-3000:]
                self.end()
                raise RuntimeError(f"vllm serve did not start:\n{words}")
            time.sleep(0.5)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def counters(self):
        """Of vLLM's own /metrics; what is not there is 0."""
        text = self.get("/metrics")
        return {short: sum(float(value) for value in re.findall(
            rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))
            for short, name in COUNTERS.items()}

    def larder_lines(self):
        return [line for line in self.log.read_text(
            errors="replace").splitlines() if "larder: " in line]

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
