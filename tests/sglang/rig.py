"""What the tests with real SGLang share: a node, servers that use it, and
prompts.

    with rig.node(folder) as node:
        with rig.server(folder, node.url()) as server:
            cold = server.ask(rig.prompt(1, 1000))
            server.flush()
            warm = server.ask(rig.prompt(1, 1000))
            assert warm.tokens("storage") and warm.logprobs == cold.logprobs

Servers run with the Python of build/sglang-VERSION (scripts/sglang-env) on the
CPU, with the stand-ins of shim/ for what SGLang has on GPUs only. $LARDER_BUILD
is the build of Larder that is tested (build/release).
"""
import contextlib
import ctypes
import functools
import hashlib
import json
import mmap
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
PROGRAM = BUILD / "bin/larder"
LIBRARY = BUILD / "lib/liblarder.so"
# Before larder_kv is imported: it opens the library that this names.
os.environ["LARDER_LIBRARY"] = str(LIBRARY)
os.environ["LARDER_PROGRAM"] = str(PROGRAM)
for _folder in (ROOT / "python", ROOT / "tests/e2e"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import daemon
import larder_kv
import larder_kv.client

VERSION = "0.5.23"
PYTHON = ROOT / f"build/sglang-{VERSION}/bin/python"
PAGE = 16
KEY = "admin"  # of SGLang's own admin calls
START_SECONDS = 900.0  # three processes, each of which imports for minutes
ASK_SECONDS = 300.0
# What a proof must not depend on: how fast this machine is just now.
PATIENT = dict(lookup_ms=5000, load_ms=10000, save_ms=10000)
_libc = ctypes.CDLL(None)


@functools.cache
def model(kind):
    """The path of a small model with generated weights."""
    folder = ROOT / "build/sglang-models"
    done = subprocess.run(
        [PYTHON, ROOT / "tests/vllm/models.py", folder, kind],
        stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.split()[-1]


def prompt(seed, count):
    return random.Random(seed).choices(range(10, 2000), k=count)


@contextlib.contextmanager
def node(folder, **options):
    given = {"dram": "256M", "ssd": "512M", "dirs": 1,
             "config": "[tenant other]\nuids = any\n"} | options
    one = daemon.Daemon(str(PROGRAM), pathlib.Path(folder) / "node", **given)
    with contextlib.ExitStack() as stack:
        stack.callback(one.end)
        yield one.start()


class Answer:
    def __init__(self, body):
        self.meta = body["meta_info"]
        self.text = body.get("output_ids") or body.get("text")
        # The prompt's last and those that were generated: all digits.
        self.logprobs = [repr(one[0])
                         for one in self.meta["output_token_logprobs"]]
        self.ids = [one[1] for one in self.meta["output_token_logprobs"]]
        self.cached = self.meta["cached_tokens"]

    def tokens(self, tier):
        """Of the prompt, how many came from there: device, host, storage."""
        details = self.meta.get("cached_tokens_details") or {}
        return details.get(tier, 0)

    def __eq__(self, other):
        return (self.ids, self.logprobs) == (other.ids, other.logprobs)


class Server:
    """One `sglang.launch_server`, ended by its own process group."""

    def __init__(self, folder, url, kind="dense", layout="page_first",
                 io="kernel", v1=True, env=None, extra=None, page=PAGE,
                 storage=True, args=()):
        self.port = daemon.free_port()
        self.log_path = pathlib.Path(folder) / f"sglang-{self.port}.log"
        self.extra = {
            "backend_name": "larder", "module_path": "larder_kv.sglang",
            "class_name": "LarderStorage", "interface_v1": int(v1),
            "prefetch_threshold": 2 * page,
            "hicache_storage_pass_prefix_keys": True, "url": url,
        } | PATIENT | (extra or {})
        command = [
            PYTHON, "-m", "sglang.launch_server", "--model-path", model(kind),
            "--skip-tokenizer-init", "--device", "cpu", "--attention-backend",
            "torch_native", "--host", "127.0.0.1", "--port", self.port,
            "--disable-cuda-graph", "--max-total-tokens", 8192,
            "--page-size", page, "--mem-fraction-static", 0.8,
            "--skip-server-warmup", "--enable-cache-report",
            "--random-seed", 0, "--admin-api-key", KEY,
            "--enable-hierarchical-cache", "--hicache-ratio", 2,
            "--hicache-mem-layout", layout, "--hicache-io-backend", io,
            "--hicache-storage-prefetch-policy", "wait_complete", *args]
        if storage:
            command += ["--hicache-storage-backend", "dynamic",
                        "--hicache-storage-backend-extra-config",
                        json.dumps(self.extra)]
        settings = dict(os.environ) | {
            "PYTHONPATH": f"{HERE / 'shim'}:{ROOT / 'python'}",
            "SGLANG_USE_CPU_ENGINE": "1", "SG_CPU_SHIM": "1",
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
            "PATH": f"{PYTHON.parent}:{os.environ['PATH']}"} | (env or {})
        # Where that is set every start compiles all of SGLang again.
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), env=settings, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: _libc.prctl(1, signal.SIGKILL))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait(self):
        def answers():
            assert self.process.poll() is None, self.log()[-6000:]
            with contextlib.suppress(OSError):
                self._call("GET", "/health", seconds=5)
                return True
            return False

        end = time.monotonic() + START_SECONDS
        while not answers():
            assert time.monotonic() < end, self.log()[-6000:]
            time.sleep(0.5)
        return self

    def _call(self, method, path, body=None, seconds=ASK_SECONDS, params=""):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}{params}", data=data,
            method=method, headers={"Content-Type": "application/json",
                                    "Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.read()

    def ask(self, ids, tokens=8, **fields):
        body = {"input_ids": ids, "return_logprob": True,
                "sampling_params": {"temperature": 0, "max_new_tokens": tokens,
                                    "ignore_eos": True}} | fields
        return Answer(json.loads(self._call("POST", "/generate", body)))

    def flush(self):
        """SGLang's own memory, not the store. Refused while it is busy."""
        def flushed():
            with contextlib.suppress(urllib.error.HTTPError):
                self._call("POST", "/flush_cache")
                return True
            return False

        daemon.until(flushed, ASK_SECONDS, "it is never idle")

    def attach(self, **extra):
        return self._call("PUT", "/hicache/storage-backend", {
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config_json":
                json.dumps(self.extra | extra)})

    def detach(self):
        return self._call("DELETE", "/hicache/storage-backend")

    def end(self):
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def server(folder, url, **options):
    one = Server(folder, url, **options)
    try:
        yield one.wait()
    finally:
        one.end()


def stored(node, pages):
    """Waits until the node has saved as many pages: SGLang does it beside."""
    with larder_kv.open(node.url()) as one:
        daemon.until(lambda: one.stats()["saves_stored"] >= pages,
                     text=lambda: f"{one.stats()['saves_stored']} pages saved, "
                     f"not {pages}")


def page_keys(ids, page=PAGE):
    """SGLang's page hashes of a prompt without extra_key and cache_salt, as
    its documentation of the storage has them."""
    keys, before = [], b""
    for at in range(0, len(ids) - page + 1, page):
        before = hashlib.sha256(
            before + struct.pack(f"<{page}I", *ids[at:at + page])).digest()
        keys.append(before)
    return b"".join(keys)


class Store:
    """What the node has of a server's KV pages."""

    def __init__(self, node, server, pool="kv"):
        found = re.findall(rf"pool {pool}: pages of (\d+) tokens, .*, shard "
                           r"\d+ of (\d+) of (\{.*\})$", server.log(), re.M)
        assert found, "the server has not said what its space is"
        page, shards, descriptor = found[-1]
        self.page = int(page)
        self.about = json.loads(descriptor)
        self._node = larder_kv.open(node.url())
        self._space = self._node.space(descriptor, chunk_tokens=self.page,
                                       shards=int(shards))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._space.close()
        self._node.close()

    def chain(self, ids):
        return larder_kv.client.Chain(page_keys(ids, self.page))

    def exists(self, ids):
        return self._space.exists(self.chain(ids))

    def page_bytes(self, ids, number):
        """As they are stored."""
        one = self.chain(ids)[number:number + 1]
        into = bytearray(larder_kv._lib.VALUE_MAX)
        [got] = self._space.get(one, [into])
        assert got.hit, got
        return bytes(into[:got.length])


def flip_in_memory(node, piece):
    """Turns the sign of a number in the middle of a piece, wherever the node's
    memory has it; gives how often."""
    count = 0
    for one in pathlib.Path(f"/proc/{node.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if not os.readlink(one).startswith("/memfd:"):
                continue
            size = os.stat(one).st_size
            with open(one, "r+b") as file, \
                    mmap.mmap(file.fileno(), size) as memory:
                at = -1
                while (at := memory.find(piece, at + 1)) >= 0:
                    memory[at + len(piece) // 2 // 4 * 4 + 3] ^= 0x80
                    count += 1
    return count
