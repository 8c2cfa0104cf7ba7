#!/usr/bin/env python3
"""The default policy beside LRU on traffic of many kinds (traffic.py), with
many seeds: what is noise, and what is not.

bench/plan/noise.py [KIND ...] [--seeds N] [--capacity 1%,10%] [--near N]
                    [--trace FILE ...] [--wide] [--program FILE]

For each kind, capacity and seed the difference of hit rates, default minus LRU,
is a mean over some capacities within 4 % of the one named; then over the seeds
mean, standard deviation and standard error, and of all single runs the least
and the most. Rows whose mean is below 0 by more than two errors are marked.
"""
import argparse
import concurrent.futures
import io
import json
import math
import os
import pathlib
import statistics
import subprocess

import traffic

ROOT = pathlib.Path(__file__).resolve().parents[2]


def around(percent, near):
    """So many percentages within 4 % of that one."""
    if near == 1:
        return [percent]
    return [percent * (0.96 + 0.08 * i / (near - 1)) for i in range(near)]


def replay(args, percents, kind, seed):
    """For each percentage, pairs of LRU's hit rate and the difference."""
    wanted = [p for c in percents for p in around(c, args.near)]
    if kind in traffic.KINDS:
        out = io.StringIO()
        traffic.write(kind, seed, args.requests, out)
        source = {"input": out.getvalue().encode()}
        name = "-"
    else:
        source, name = {"stdin": subprocess.DEVNULL}, kind
    done = subprocess.run(
        ["nice", "-n", "10", str(args.program), "plan", name, "--json",
         "--policy", f"lru,{args.policy}", "--capacity",
         ",".join(f"{p:.6g}%" for p in wanted)],
        stdout=subprocess.PIPE, check=True, **source)
    found = {"lru": [], args.policy: []}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        found[row["policy"]].append(row["hit_rate"])
    lru, own = found["lru"], found[args.policy]
    assert len(lru) == len(own) == len(wanted), done.stdout
    pairs = [(a, b - a) for a, b in zip(lru, own)]
    return kind, [pairs[k * args.near:(k + 1) * args.near]
                  for k in range(len(percents))]


def show(kind, percents, runs):
    for k, percent in enumerate(percents):
        means = [statistics.mean(d for _, d in run[k]) for run in runs]
        lru = statistics.mean(h for run in runs for h, _ in run[k])
        single = [d for run in runs for _, d in run[k]]
        mean = statistics.mean(means)
        sd = statistics.stdev(means) if len(means) > 1 else 0.0
        error = sd / math.sqrt(len(means))
        mark = " *" if mean < -0.00005 and mean < -2 * error else ""
        print(f"| {kind if k == 0 else ''} | {percent:g} % | {len(runs)} "
              f"| {lru:.4f} | {mean:+.4f} | {sd:.4f} | {error:.4f} "
              f"| {min(single):+.4f} | {max(single):+.4f} |{mark}", flush=True)


def show_wide(kind, percents, runs):
    """One row: means and errors, and the least of all single runs."""
    cells = []
    for k in range(len(percents)):
        means = [statistics.mean(d for _, d in run[k]) for run in runs]
        sd = statistics.stdev(means) if len(means) > 1 else 0.0
        cells.append(f"{statistics.mean(means):+.4f} ± "
                     f"{sd / math.sqrt(len(means)):.4f}")
    least = min(d for run in runs for part in run for _, d in part)
    print(f"| {kind} | {' | '.join(cells)} | {least:+.4f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("kinds", nargs="*", help="of traffic.py; all, unless a trace is given")
    p.add_argument("--seeds", type=int, default=8)
    p.add_argument("--first-seed", type=int, default=1)
    p.add_argument("--capacity", default="0.2%,1%,5%,10%,25%,50%")
    p.add_argument("--near", type=int, default=3)
    p.add_argument("--requests", type=int)
    p.add_argument("--policy", default="default")
    p.add_argument("--trace", action="append", default=[])
    p.add_argument("--wide", action="store_true",
                   help="a row for each kind, without sd and most")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--program", default=ROOT / "build/release/bin/larder")
    args = p.parse_args()
    percents = [float(c.rstrip("%")) for c in args.capacity.split(",")]
    kinds = args.kinds or ([] if args.trace else list(traffic.KINDS))
    if args.wide:
        heads = [f"{c:g} %" for c in percents]
        print(f"| | {' | '.join(heads)} | least |")
        print("|---|" + "---:|" * (len(percents) + 1))
    else:
        print("| | | seeds | LRU | mean | sd | error | least | most |")
        print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        waiting = [(t, [pool.submit(replay, args, percents, t, 0)])
                   for t in args.trace]
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        waiting += [(k, [pool.submit(replay, args, percents, k, s)
                         for s in seeds]) for k in kinds]
        for kind, runs in waiting:
            (show_wide if args.wide else show)(
                os.path.basename(kind), percents,
                [r.result()[1] for r in runs])


if __name__ == "__main__":
    main()
