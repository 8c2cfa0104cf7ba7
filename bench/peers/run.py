#!/usr/bin/env python3
"""Larder beside redis (or valkey), memcached and Mooncake's store: the same
values, the same machine, the same run. README.md says what is measured.

bench/peers/run.py [--stores larder,redis,...] [--sizes 256K,1M,4M]
                   [--seconds N] [--passes N] [--json FILE] [--svg FILE]
                   [--docs]
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import plot
import stores
import table

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "peers"
BATCH = 16
FLAGS = ["-O2", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra",
         "-Werror", f"-I{HERE}", f"-I{ROOT / 'include'}"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def size_of(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1].upper())
    return int(text[:-1]) << unit if unit else int(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--stores", default="larder,redis,memcached,mooncake")
    parser.add_argument("--sizes", default="256K,1M,4M")
    parser.add_argument("--seconds", type=float, default=2,
                        help="timed work for each figure of a pass")
    parser.add_argument("--passes", type=int, default=2,
                        help="over all stores; the better figure counts")
    parser.add_argument("--bytes", type=size_of, default=0,
                        help="all values together; default 4 times the caches")
    parser.add_argument("--build", default=str(ROOT / "build" / "release"),
                        help="where liblarder and larder were built")
    parser.add_argument("--json", help="every figure as a line, in this file")
    parser.add_argument("--svg", help="the plot, in this file")
    parser.add_argument("--docs", action="store_true",
                        help="write bench/results/peers.md and docs/img/peers.svg")
    args = parser.parse_args()
    args.sizes = [size_of(s) for s in args.sizes.split(",")]
    args.stores = args.stores.split(",")
    for name in args.stores:
        if name not in stores.ALL:
            parser.error(f"no store {name}: {', '.join(stores.ALL)}")
    return args


# ---- the machine ----------------------------------------------------------

def cache_bytes():
    most = 0
    for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob(
            "index*/size"):
        most = max(most, size_of(path.read_text().strip()))
    return most or 32 << 20


def memory_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def working_set(args):
    """Larger than the caches on both sides; a sixteenth of memory at most."""
    most = memory_bytes() // 16
    return args.bytes or min(max(4 * cache_bytes(), 256 << 20), most)


def own_network():
    """Runs the rest in a network namespace of its own: nothing else is in it,
    nothing outside can connect, and every socket may be set to cubic."""
    if os.environ.get("LARDER_PEERS_NETWORK"):
        return True
    unshare = ["unshare", "--net"] if os.getuid() == 0 else [
        "unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or not shutil.which("ip") or \
            subprocess.run([*unshare, "true"],
                           stderr=subprocess.DEVNULL).returncode != 0:
        say("no network namespace can be made here: stores listen on this "
            "machine's loopback, with ports that are free now")
        return False
    os.environ["LARDER_PEERS_NETWORK"] = "own"
    os.execvp(unshare[0], [*unshare, sys.executable, "-B", *sys.argv])


def bring_up():
    """Loopback, and for Mooncake, which wants an address that is not, one that
    leads nowhere else: what is sent to it goes over loopback as well."""
    for command in ("link set lo up",
                    "link add larder0 type veth peer name larder1",
                    "addr add 10.64.64.1/30 dev larder0",
                    "link set larder1 up", "link set larder0 up"):
        subprocess.run(["ip", *command.split()], check=True)


# ---- what runs ------------------------------------------------------------

def build(args):
    """The load generator, for this liblarder, and the preloaded library."""
    OUT.mkdir(parents=True, exist_ok=True)
    lib = pathlib.Path(args.build) / "lib"
    sources = [str(HERE / name) for name in (
        "peer_bench.c", "content.c", "conn.c", "peer_larder.c",
        "peer_redis.c", "peer_memcached.c")]
    for command in (
            [*sources, "-o", str(OUT / "peer_bench"), f"-L{lib}", "-llarder",
             f"-Wl,-rpath,{lib}"],
            ["-shared", "-fPIC", str(HERE / "content.c"), "-o",
             str(OUT / "content.so")],
            ["-shared", "-fPIC", str(HERE / "preload_cubic.c"), "-o",
             str(OUT / "cubic.so"), "-ldl"]):
        subprocess.run(["cc", *FLAGS, *command], check=True)


def best_copy(args, size, limits):
    """The best single-thread copy of this size, as larder bench measures it
    beside its own figures: the better of the passes, as for the stores."""
    larder = os.path.join(args.build, "bin", "larder")
    done = subprocess.run(
        [larder, "bench", "dram-get", "dram-put", "--size", str(size),
         "--seconds", str(args.seconds / 2), "--json"],
        stdout=subprocess.PIPE, check=False, timeout=300)
    for line in done.stdout.decode().splitlines():
        figure = json.loads(line)
        if figure.get("limit") and "2 threads" not in figure.get(
                "variant", ""):
            key = figure["bench"].split("-")[1], size
            limits[key] = max(limits.get(key, 0), figure["limit"])


def measure(args, run, size, figures):
    """One way to reach one store: both directions of one size."""
    with run.start(size) as where:
        for op in ("get", "put"):
            command = run.client(where, op, size, args)
            done = subprocess.run(command, stdout=subprocess.PIPE,
                                  stderr=run.log, env=run.client_env(),
                                  cwd=run.folder,
                                  timeout=60 + 20 * args.seconds, check=False)
            lines = done.stdout.decode().splitlines()
            if done.returncode != 0 or not lines:
                raise stores.Failed(f"{run.title}: {op} of {size} bytes "
                                    f"failed\n{run.tail()}")
            figure = json.loads(lines[-1])
            figure.update(store=run.store, by=run.by, title=run.title)
            figures.append(figure)
            say(f"  {run.title:24} {op} {table.size_text(size):>8} "
                f"{figure['value']:7.2f} GB/s")


def measure_all(args, folder):
    """All stores for each size, so that neighbours in a table were neighbours
    in time; every second pass backwards."""
    figures, missing, limits = [], {}, {}
    for n in range(args.passes):
        for size in args.sizes:
            runs = []
            for name in args.stores:
                why = stores.ALL[name].missing(args)
                if why:
                    missing[name] = why
                else:
                    runs += stores.ALL[name].ways(args, folder)
            if runs:
                best_copy(args, size, limits)
            for run in runs if n % 2 == 0 else reversed(runs):
                try:
                    measure(args, run, size, figures)
                except (stores.Failed, subprocess.TimeoutExpired) as failure:
                    say(f"FAILED {failure}")
                    missing[run.title] = str(failure).split("\n", 1)[0]
    return figures, missing, limits


def better_of(figures):
    """Of the passes, the better figure of each: for all stores alike."""
    best = {}
    for figure in figures:
        key = (figure["title"], figure["op"], figure["bytes"])
        if key not in best or figure["value"] > best[key]["value"]:
            best[key] = figure
    return best


def main():
    args = arguments()
    if own_network() and os.environ["LARDER_PEERS_NETWORK"] == "own":
        bring_up()
        os.environ["LARDER_PEERS_NETWORK"] = "up"
    build(args)
    args.bytes = working_set(args)
    args.out, args.batch = OUT, BATCH
    say(f"values of {args.bytes >> 20} MiB in all, batches of {BATCH}, "
        f"{args.passes} passes")
    with tempfile.TemporaryDirectory(prefix="larder-peers-") as folder:
        figures, missing, limits = measure_all(args, pathlib.Path(folder))
    best = better_of(figures)
    for name, why in missing.items():
        say(f"NOT MEASURED: {name}: {why}")
    text = table.text(best, limits, args)
    print(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            for figure in figures:
                print(json.dumps(figure), file=file)
            for (op, size), value in limits.items():
                print(json.dumps({"store": "copy", "op": op, "bytes": size,
                                  "value": value}), file=file)
    svg = args.svg or (ROOT / "docs/img/peers.svg" if args.docs else None)
    if svg:
        pathlib.Path(svg).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(svg).write_text(plot.svg(best, limits, args))
    if args.docs:
        table.write_docs(ROOT / "bench/results/peers.md", text)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
