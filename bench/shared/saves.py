#!/usr/bin/env python3
"""What a shared tier costs a save to DRAM: bursts of 16 shards of 512 KiB, one
each 40 ms (200 MB/s) or one after the other without a pause, into nodes with
and without a tier on a directory, in turns. `make build` first.

    bench/shared/saves.py [--rounds N] [--dir DIR] [--pause SECONDS]
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

SIZE, BATCH, BURSTS = 512 << 10, 16, 24
FLUSHED = (capi.OK, -66)  # the second: LARDER_E_DROPPED
ENDLESS = 250  # bursts, where there is no pause: four times what DRAM holds


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


def round_of(url, source, number, pause):
    """The time of each burst, and what the tier has written."""
    with capi.Node(url) as node:
        # Memory that was never used is slow: without a pause, all of it.
        for i in range(4 if pause > 0 else 80):
            burst(node, source, f"warm {number} {i}")
        times = []
        for i in range(BURSTS if pause > 0 else ENDLESS):
            times.append(burst(node, source, f"{number} {i}"))
            if pause > 0:
                time.sleep(pause)
        written = 0
        if "shared" in url:
            # It did have work; without a pause much of it was dropped.
            assert node.flush(2) in FLUSHED
            folder = url.partition("dir:")[2].partition("&")[0]
            written = sum(f.stat().st_size
                          for f in pathlib.Path(folder).glob("*/o/*/*"))
    return times, written


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--pause", type=float, default=0.04)
    args = parser.parse_args()
    source = (ctypes.c_uint8 * (BATCH * SIZE))()
    ctypes.memmove(source, os.urandom(1 << 20) * (len(source) >> 20),
                   len(source))
    times = {"without": [], "with": []}
    ratios, written = [], []
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
                got[name], held = round_of(urls[name], source,
                                           f"{name} {number}", args.pause)
                times[name] += got[name]
                if name == "with":
                    written.append(held - sum(written))
            ratios.append(statistics.median(got["with"])
                          / statistics.median(got["without"]))
    for name, all_of in times.items():
        middle = statistics.median(all_of)
        print(f"{name:8} {middle * 1e6:7.0f} us a burst, "
              f"{BATCH * SIZE / middle / 1e9:5.1f} GB/s, 90 %: "
              f"{sorted(all_of)[int(len(all_of) * 0.9)] * 1e6:7.0f} us, mean: "
              f"{statistics.mean(all_of) * 1e6:7.0f} us")
    print(f"objects of a round: {statistics.median(written) / 1e6:.0f} MB of "
          f"{len(times['with']) // args.rounds * BATCH * SIZE / 1e6:.0f}")
    print(f"with over without, median of {len(ratios)} rounds: "
          f"{statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
