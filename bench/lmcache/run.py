#!/usr/bin/env python3
"""bench/lmcache/run.py: `lmcache bench l2` with Larder and with two of
LMCache's own adapters, in turns, on one machine.

    bench/lmcache/run.py [--size-kb 2048] [--keys 32] [--in-flight 4]
                         [--rounds 5] [--turns 3]

    larder     a `larder serve` by its Unix socket
    fs_native  files in /dev/shm, LMCache's threads in C++
    resp       redis-server by loopback, nothing written to disk

Every run is verified by LMCache: what it loads is what it stored, or the run
fails. Printed are the medians over the turns of LMCache's own "Throughput avg"
(MiB/s), and Larder's as multiples. $LARDER_BUILD: the build (build/release).
`make bench-lmcache` builds and installs what it needs.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
LMCACHE = ROOT / "build/lmcache/bin/lmcache"
NAMES = ("larder", "fs_native", "resp")
GOALS = {"fs_native": 3, "resp": 5}
START_S, RUN_S = 60, 600


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def server(command, ready, executable=None):
    """A server that has said it is ready, and ends here."""
    process = subprocess.Popen(command, executable=executable,
                               stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL,
                               preexec_fn=die_with_parent)
    try:
        end = time.monotonic() + START_S
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{command[0]} does not start")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def connects(kind, address):
    with socket.socket(kind) as one, contextlib.suppress(OSError):
        one.connect(address)
        return True
    return False


@contextlib.contextmanager
def larder(folder, size):
    path = f"{folder}/sock"

    def resident():
        """All of its memory is there: no save waits for pages."""
        shown = subprocess.run(
            [BUILD / "bin/larder", "stat", f"unix:{path}", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if shown.returncode != 0:
            return False
        found = json.loads(shown.stdout)
        return found["dram_resident_bytes"] >= found["dram_bytes"] > 0

    with server([str(BUILD / "bin/larder"), "serve", "--socket", path,
                 "--dram", str(size), "--admin", "none"], resident):
        yield {"type": "native_plugin", "module_path": "larder_kv.lmcache",
               "class_name": "Connector",
               "adapter_params": {"url": f"unix:{path}"}}


@contextlib.contextmanager
def fs_native(folder, size):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as files:
        yield {"type": "fs_native", "base_path": files}


@contextlib.contextmanager
def resp(folder, size):
    # Debian's package redis-tools has the server by another name.
    program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if program is None:
        sys.exit("there is no redis-server: scripts/install-deps test")
    port = free_port()
    with server(["redis-server", "--port", str(port), "--bind", "127.0.0.1",
                 "--save", "", "--appendonly", "no", "--dir", folder],
                lambda: connects(socket.AF_INET, ("127.0.0.1", port)),
                program):
        yield {"type": "resp", "host": "127.0.0.1", "port": port}


def run(name, args):
    """{"Store": MiB/s, "Lookup": keys/s, "Load": MiB/s} of one run."""
    size = ((args.rounds + 1) * args.in_flight * args.keys * args.size_kb
            * 1024 * 5 // 4 + (256 << 20))
    with tempfile.TemporaryDirectory() as folder, \
            globals()[name](folder, size) as adapter:
        env = dict(os.environ, PYTHONPATH=str(ROOT / "python"),
                   LARDER_LIBRARY=str(BUILD / "lib/liblarder.so"),
                   LMCACHE_TRACK_USAGE="false", TERM="dumb")
        out = subprocess.run(
            [LMCACHE, "bench", "l2", "--l2-adapter", json.dumps(adapter),
             "--no-skip-verify", "--num-keys", str(args.keys), "--in-flight",
             str(args.in_flight), "--data-size-kb", str(args.size_kb),
             "--rounds", str(args.rounds), "--lookup-max-hit-rate", "1.0"],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=RUN_S,
            preexec_fn=die_with_parent).stdout
    return figures(out, args)


def figures(out, args):
    wanted = args.rounds * args.in_flight * args.keys
    verified = re.search(r"All (\d+) keys data verified OK", out)
    found = {}
    for part in ("Store", "Lookup", "Load"):
        text = re.search(rf"-+ {part} -+\n(.*?)\n-?-?-?[-=]+", out, re.S)
        values = dict(re.findall(r"^(.+?):\s+([\d.]+)$",
                                 text.group(1), re.M)) if text else {}
        if (int(float(values.get("Total success", 0))) != wanted
                or not verified):
            sys.exit(f"LMCache's bench failed:\n{out[-4000:]}")
        found[part] = float(values["Avg ops/s" if part == "Lookup"
                                   else "Throughput avg (MB/s)"])
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-kb", type=int, default=2048)
    parser.add_argument("--keys", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=NAMES, action="append")
    args = parser.parse_args()
    names = args.only or NAMES
    runs = {name: [] for name in names}
    for turn in range(args.turns):
        for name in names:
            one = run(name, args)
            runs[name].append(one)
            print(f"turn {turn + 1}  {name:9}  store {one['Store']:7.0f}  "
                  f"load {one['Load']:7.0f} MiB/s  lookup "
                  f"{one['Lookup']:8.0f} keys/s", flush=True)
    middle = {name: {part: statistics.median(one[part] for one in all_)
                     for part in ("Store", "Load", "Lookup")}
              for name, all_ in runs.items()}
    print(f"\nmedians of {args.turns} turns, {args.size_kb} KiB a key, "
          f"{args.keys * args.in_flight} keys in flight, verified; load of "
          f"the machine {os.getloadavg()[0]:.1f}")
    for name, value in middle.items():
        line = (f"{name:9}  store {value['Store']:7.0f}  "
                f"load {value['Load']:7.0f} MiB/s  "
                f"lookup {value['Lookup']:8.0f} keys/s")
        if name in GOALS and "larder" in middle:
            store, load = (middle["larder"][part] / value[part]
                           for part in ("Store", "Load"))
            line += (f"  larder has {store:.1f} and {load:.1f} times that "
                     f"(goal {GOALS[name]})")
        print(line)


if __name__ == "__main__":
    main()
