#!/usr/bin/env python3
"""bench/sglang/run.py [SECONDS]: SGLang's storage backend beside larder bench.

Pages of 64 KiB to 8 MiB in calls of up to 128, as SGLang makes them, through
shared memory; `larder bench shm-get` and `shm-put` of the same size; and a
lookup of 4,096 pages. SGLang itself is not needed: its classes are those that
tests/python/sglang_parts.py makes, and the host pool is laid out as its
page_first. $LARDER_BUILD: the build (build/release). Times mean something on a
quiet machine only.
"""
import contextlib
import ctypes
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
import conftest  # the library, and where Python finds what follows
import sglang_parts as parts
from daemon import Daemon

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20]
POOL = 512 << 20  # bytes of host memory at most
TOKENS = 64
CHAIN = 4096
EXISTS_GOAL_US, GOAL = 1000, 0.8


class Pool:
    """page_first: K of all pages, then V; two pieces a page."""

    layout, dtype = "page_first", "bf16"

    def __init__(self, page_bytes, pages):
        self.page_size, self.half = TOKENS, page_bytes // 2
        self.kv_buffer = ctypes.create_string_buffer(page_bytes * pages)
        ctypes.memset(self.kv_buffer, 7, page_bytes * pages)
        self.v_offset = self.half * pages

    def get_page_buffer_meta(self, indices):
        base = ctypes.addressof(self.kv_buffer)
        found = []
        indices = indices.tolist()
        for at in range(0, len(indices), self.page_size):
            key = base + indices[at] // self.page_size * self.half
            found += [key, key + self.v_offset]
        return found, [self.half] * len(found)


def keys_of(count, seed):
    return [hashlib.sha256(f"{seed} {i}".encode()).hexdigest()
            for i in range(count)]


def backend_of(storage, url, pool):
    from larder_kv.sglang import LarderStorage

    config = storage.HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0,
        attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
        is_page_first_layout=True, model_name="bench", dcp_size=1,
        extra_config={"interface_v1": 1, "url": url, "lookup_ms": 10000,
                      "save_ms": 60000, "load_ms": 60000})
    made = LarderStorage(config, {})
    made.register_mem_pool_host(pool)
    return made


def speed(work, keys_of_call, size, seconds):
    """Bytes a second, the middle of at least five calls. work gives whether
    every page of the call was moved."""
    times, end = [], time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < end:
        keys = keys_of_call(len(times))
        begin = time.perf_counter()
        good = all(work(keys))
        times.append(time.perf_counter() - begin)
        assert good, "a page was not moved"
    return size / statistics.median(times)


def larders(name, size, seconds):
    """What larder bench has for it, in bytes a second."""
    done = subprocess.run(
        [os.environ["LARDER_PROGRAM"], "bench", name, "--size", str(size),
         "--seconds", str(seconds), "--json"], stdout=subprocess.PIPE,
        check=True, text=True)
    [value] = [one["value"] for one in map(json.loads, done.stdout.split("\n")
                                           [:-1])
               if one["variant"] in ("checksum", "")][:1]
    return value * 1e9


def pages(storage, url, size, seconds):
    count = max(8, min(128, POOL // size))
    pool = Pool(size, count)
    backend = backend_of(storage, url, pool)
    where = parts.Indices(range(count * TOKENS))
    with contextlib.closing(backend):
        put = speed(lambda keys: backend.batch_set_v1(keys, where),
                    lambda i: keys_of(count, f"{size} {i}"), size * count,
                    seconds)
        keys = keys_of(count, "got")
        assert all(backend.batch_set_v1(keys, where))
        get = speed(lambda keys: backend.batch_get_v1(keys, where),
                    lambda _: keys, size * count, seconds)
    for name, ours in (("get", get), ("put", put)):
        theirs = larders(f"shm-{name}", size, seconds)
        ratio = ours / theirs
        print(f"{size >> 10:6d} KiB  {name}  {ours / 1e9:6.2f} GB/s  larder "
              f"bench {theirs / 1e9:6.2f} GB/s  {ratio:.2f}  "
              f"{'holds' if ratio >= GOAL else 'below'} {GOAL}", flush=True)


def lookups(storage, url):
    pool = Pool(8192, 128)
    backend = backend_of(storage, url, pool)
    where = parts.Indices(range(128 * TOKENS))
    keys = keys_of(CHAIN, "chain")
    with contextlib.closing(backend):
        for at in range(0, CHAIN, 128):
            assert all(backend.batch_set_v1(keys[at:at + 128], where))
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            assert backend.batch_exists(keys) == CHAIN
            times.append((time.perf_counter() - begin) * 1e6)
    middle = statistics.median(times)
    print(f"batch_exists of {CHAIN} pages: {middle:.0f} us, best "
          f"{min(times):.0f} us, "
          f"{'holds' if middle <= EXISTS_GOAL_US else 'above'} "
          f"{EXISTS_GOAL_US} us", flush=True)


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    model = types.SimpleNamespace(model_path="bench", load_format="dummy")
    storage = parts.install(model)
    with tempfile.TemporaryDirectory() as folder:
        node = Daemon(os.environ["LARDER_PROGRAM"],
                      pathlib.Path(folder) / "node", dram="2G", ssd=None)
        with contextlib.ExitStack() as stack:
            stack.callback(node.end)
            node.start()
            lookups(storage, node.url())
            for size in SIZES:
                pages(storage, node.url(), size, seconds)


if __name__ == "__main__":
    main()
