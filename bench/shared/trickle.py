#!/usr/bin/env python3
"""How many files trickling saves leave in a shared directory: a client saves
one chunk at a time, with pauses, into a `larder serve` that compacts what it
wrote; files are counted all the while, and at the end a second node, cold, must
give every byte. `make build` first.

    bench/shared/trickle.py [--seconds N] [--pause SECONDS] [--size BYTES]
                            [--flush] [--settle N] [--dir DIR]

The ratio is files for each 8 MiB of payload. While saves go on, the objects of
the last minute are not compacted yet: `small` counts those below 8 MiB.
"""
import argparse
import hashlib
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("LARDER_BUILD", str(ROOT / "build/release"))
sys.path.insert(0, str(ROOT / "tests/e2e"))

import capi
from daemon import Daemon, until

SHARED = 2  # LARDER_TIER_SHARED
EACH = 8 << 20  # payload that may have a file
EVERY_S = 15  # seconds between two counts


def chunk(number, size):
    return hashlib.shake_128(b"trickle %d" % number).digest(size)


def count(tier):
    """(objects, those below 8 MiB, manifests, other files)"""
    objects = small = manifests = others = 0
    for folder, _, names in os.walk(tier):
        parts = pathlib.Path(folder).relative_to(tier).parts
        kind = parts[1] if len(parts) > 1 else ""
        for name in names:
            try:
                size = os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # it was compacted or merged just now
            objects += kind == "o"
            small += kind == "o" and size < EACH
            manifests += kind == "m"
            others += kind not in ("o", "m")
    return objects, small, manifests, others


class Table:
    def __init__(self, tier, size):
        self.tier, self.size, self.began = tier, size, time.monotonic()
        print(f"{'s':>5} {'MiB':>7} {'files':>6} {'objects':>8} {'small':>6} "
              f"{'manifests':>10} {'others':>7} {'objects/8M':>11} "
              f"{'all/8M':>7}")

    def row(self, saved):
        objects, small, manifests, others = count(self.tier)
        files = objects + manifests + others
        units = saved * self.size / EACH
        print(f"{time.monotonic() - self.began:5.0f} "
              f"{saved * self.size / (1 << 20):7.1f} {files:6} {objects:8} "
              f"{small:6} {manifests:10} {others:7} {objects / units:11.2f} "
              f"{files / units:7.2f}", flush=True)
        return objects, files


def trickle(node, table, args):
    """Saves, and counts while it does. Gives how many were saved."""
    began = shown = time.monotonic()
    saved = 0
    while time.monotonic() < began + args.seconds:
        status = node.put(f"trickle {saved}", chunk(saved, args.size))
        assert status == capi.OK, f"{status}: {node.error()}"
        saved += 1
        if args.flush:
            assert node.flush(SHARED, 30000) == capi.OK, node.error()
        if time.monotonic() >= shown + EVERY_S:
            shown = time.monotonic()
            table.row(saved)
        # By the clock: what a call takes does not add up.
        time.sleep(max(0, began + saved * args.pause - time.monotonic()))
    return saved


def settle(table, saved, seconds):
    """No more saves: what is left becomes a minute old."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(EVERY_S, max(0.1, end - time.monotonic())))
        out = table.row(saved)
    return out


def verify(daemon, saved, size):
    """All of it, from the tier."""
    names = [f"trickle {i}" for i in range(saved)]
    with capi.Node(daemon.url()) as node:
        until(lambda: all(node.exists(name) == capi.OK for name in names), 60,
              "something is not found")
        for i, name in enumerate(names):
            status, cause, value = node.get(name, size, 10000)
            assert status == capi.OK, f"{name}: {status}, {cause}"
            assert value == chunk(i, size), f"{name}: wrong bytes"
    loads = daemon.value("larder_loads_total", tier="shared")
    assert loads == saved, f"{loads} of {saved} came from the tier"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--pause", type=float, default=0.25)
    parser.add_argument("--size", type=int, default=256 << 10)
    parser.add_argument("--flush", action="store_true",
                        help="after each save: each is an object of its own")
    parser.add_argument("--settle", type=float, default=90)
    parser.add_argument("--dir", default=None)
    args = parser.parse_args()
    binary = os.path.join(os.environ["LARDER_BUILD"], "bin/larder")
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        tier = f"{folder}/tier"
        os.mkdir(tier)
        assert capi.library().larder_shared_create(
            f"dir:{tier}".encode(), None, 10000) == capi.OK
        given = {"shared": f"dir:{tier}", "dram": "256M", "ssd": None}
        first = Daemon(binary, f"{folder}/first", **given).start()
        try:
            with capi.Node(first.url()) as node:
                table = Table(tier, args.size)
                saved = trickle(node, table, args)
                assert node.flush(SHARED, 30000) == capi.OK, node.error()
                print("no more saves")
                table.row(saved)
                objects, files = settle(table, saved, args.settle)
        finally:
            first.end()
        second = Daemon(binary, f"{folder}/second", **given).start()
        try:
            verify(second, saved, args.size)
        finally:
            second.end()
    units = saved * args.size / EACH
    print(f"{saved} chunks of {args.size >> 10} KiB, one each {args.pause} s"
          f"{' with a flush' if args.flush else ''}, "
          f"all right in a cold node; at the end for each 8 MiB "
          f"{objects / units:.2f} objects, {files / units:.2f} files")


if __name__ == "__main__":
    main()
