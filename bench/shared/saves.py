#!/usr/bin/env python3
"""What a shared tier costs a save to DRAM: bursts of 16 shards of 512 KiB, one
each 40 ms (200 MB/s), into nodes with and without a tier on a directory, in
turns. `make build` first.

    bench/shared/saves.py [--rounds N] [--dir DIR]
"""
import argparse
import ctypes
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("LARDER_BUILD", str(ROOT / "build/release"))
sys.path.insert(0, str(ROOT / "tests/e2e"))

import capi

SIZE, BATCH, BURSTS, PAUSE = 512 << 10, 16, 24, 0.04


def burst(node, source, number):
    """Seconds that one call of 16 saves takes."""
    items = (capi.Item * BATCH)()
    keep = []
    for i, item in enumerate(items):
        key = capi.key_of(f"{number} {i} {os.getpid()}")
        iov = capi.Iovec(ctypes.addressof(source) + i * SIZE, SIZE)
        keep += [key, iov]
        item.key, item.iov = ctypes.pointer(key), ctypes.pointer(iov)
        item.iov_count = 1
    began = time.perf_counter()
    status = node._run(capi.PUT, items, 0)
    took = time.perf_counter() - began
    assert status == capi.OK and all(i.status == capi.OK for i in items)
    return took


def round_of(url, source, number):
    with capi.Node(url) as node:
        for i in range(4):  # memory that was never used is slow
            burst(node, source, f"warm {number} {i}")
        times = []
        for i in range(BURSTS):
            times.append(burst(node, source, f"{number} {i}"))
            time.sleep(PAUSE)
        if "shared" in url:
            assert node.flush(2) == capi.OK  # it did have work
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--dir", default=None)
    args = parser.parse_args()
    source = (ctypes.c_uint8 * (BATCH * SIZE))()
    ctypes.memmove(source, os.urandom(1 << 20) * (len(source) >> 20),
                   len(source))
    times = {"without": [], "with": []}
    ratios = []
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        tier = f"{folder}/tier"
        os.mkdir(tier)
        assert capi.library().larder_shared_create(
            f"dir:{tier}".encode(), None, 10000) == capi.OK
        urls = {"without": "embed:?dram=512M",
                "with": f"embed:?dram=512M&shared=dir:{tier}"
                        "&shared_max=1G"}
        for number in range(args.rounds):
            order = list(urls)[::1 if number % 2 else -1]
            got = {}
            for name in order:
                got[name] = round_of(urls[name], source, f"{name} {number}")
                times[name] += got[name]
            ratios.append(statistics.median(got["with"])
                          / statistics.median(got["without"]))
    for name, all_of in times.items():
        middle = statistics.median(all_of)
        print(f"{name:8} {middle * 1e6:7.0f} us a burst, "
              f"{BATCH * SIZE / middle / 1e9:5.1f} GB/s, 90 %: "
              f"{sorted(all_of)[int(len(all_of) * 0.9)] * 1e6:7.0f} us")
    print(f"with over without, median of {len(ratios)} rounds: "
          f"{statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
