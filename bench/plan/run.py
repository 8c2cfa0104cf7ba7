#!/usr/bin/env python3
"""How many references of a made-up trace `larder plan` takes a second, for
each policy, and the memory it needs.

bench/plan/run.py [--references N] [--sessions N] [--hashed] [--program FILE]
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--references", type=int, default=20_000_000)
    p.add_argument("--sessions", type=int, default=100_000)
    p.add_argument("--hashed", action="store_true",
                   help="ids are hashes, not numbers in order")
    p.add_argument("--program", default=ROOT / "build/release/bin/larder")
    p.add_argument("--policy", default="lru,default,optimal")
    p.add_argument("--capacity", default="1%,10%,50%")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generate = os.path.join(folder, "generate")
        subprocess.run(["cc", "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall",
                        "-Wextra", "-Werror", str(HERE / "generate.c"), "-o",
                        generate], check=True)
        trace = [generate, str(args.references), str(args.sessions), "1",
                 "hashed" if args.hashed else "dense"]
        with subprocess.Popen(trace, stdout=subprocess.PIPE) as source:
            done = subprocess.run(
                [str(args.program), "plan", "-", "--json", "--policy",
                 args.policy, "--capacity", args.capacity],
                stdin=source.stdout, stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    print(f"{rows[0]['references']} references, {rows[0]['distinct']} "
          f"different blocks; read with {rows[0]['read_per_s'] / 1e6:.1f} "
          f"million a second")
    for row in rows:
        print(f"{row['policy']:8} {100 * row['capacity']:5.3g} % "
              f"{row['hit_rate']:7.4f} "
              f"{row['references_per_cpu_s'] / 1e6:7.1f} million a second of "
              f"one core, {row['references_per_s'] / 1e6:.1f} by the clock")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"most memory: {used.ru_maxrss / 1024:.0f} MiB; load average "
          f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


main()
