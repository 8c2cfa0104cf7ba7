#!/usr/bin/env python3
"""What the connector costs, measured inside a real engine.

    bench/vllm/overhead.py [--json FILE] [--docs] [PART...]

Parts: steps (scheduler time on a miss, on a hit of 1,000 chunks, and at an
arrival), copies (saves and loads beside `larder bench`), turns (requests that
need nothing of Larder, by engines with and without the connector in turns),
starts (an engine's first seconds). turns takes LARDER_SECONDS (240) and the
start of two engines, starts ten starts and two minutes. Needs scripts/vllm-env
and make build.
"""
import argparse
import contextlib
import ctypes
import itertools
import json
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from array import array

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests/vllm")]

import rig
from larder_kv import _lib
from run import put, row, say

VERSION = "0.32.0"
STEP = 4096  # tokens that a step computes, and saves, at most
MEMBERS_OF_STEP = ("schedule", "tokens", "requests", "new")
CHUNKS, COPY_ROUNDS = (128, 256, 512), 5
TURN_SECONDS = int(os.environ.get("LARDER_SECONDS", "240"))
NEW_EACH = 4  # turns: prompts that nobody has take ten times as long
STARTS, START_SECONDS, EARLY_SECONDS = 3, 12, 3
TURN_TOKENS, TURN_BATCH, TURN_ANSWER = 2900, 8, 8


def engine(url, larder=True, options=None, **args):
    given = dict(max_num_seqs=16, max_num_batched_tokens=4096,
                 max_model_len=32768, threads=None)
    given.update(args)
    one = rig.engine(VERSION, "dense", url, larder=larder,
                     options=dict(options or {}, load=None), **given)
    return one


def outside(*args, **kwargs):
    """An engine that finds the module that is asked inside it."""
    os.environ["PYTHONPATH"] = str(HERE)
    try:
        return engine(*args, **kwargs)
    finally:
        del os.environ["PYTHONPATH"]


def middle(values):
    return statistics.median(values) if values else 0


def high(values):
    return sorted(values)[int(len(values) * 0.99)] if values else 0


def load():
    return round(os.getloadavg()[0], 2)


# ---- scheduler time ----


def added(step, cost):
    """Microseconds of the connector's in a step, without those of timing."""
    calls = [v for k, v in step.items() if k not in MEMBERS_OF_STEP]
    took = sum(calls) - cost * len(calls)
    return max(0.0, took) / 1000


def misses(one, cost, at_once):
    """Prompts that nobody has: 2,000 tokens, 32 generated."""
    one.ask("inside_overhead", "taken")
    prompts = [rig.prompt(f"miss {at_once} {i}", 2000) for i in range(64)]
    for i in range(0, len(prompts), at_once):
        one.generate(prompts[i:i + at_once], max_tokens=32, logprobs=None,
                     timeout=300)
    found = one.ask("inside_overhead", "taken")
    steps = found["steps"]
    own = [s["schedule"] / 1000 for s in steps]
    return {"at_once": at_once, "load": load(), "steps": len(steps),
            "members": _members([s for s in steps if s["new"]]),
            "all": _two([added(s, cost) for s in steps]),
            "admitting": _two([added(s, cost) for s in steps if s["new"]]),
            "prefill": _two([added(s, cost) for s in steps
                             if s["tokens"] > s["requests"]]),
            "decode": _two([added(s, cost) for s in steps
                            if 0 < s["tokens"] == s["requests"]]),
            "schedule": _two(own)}


def _members(steps):
    """The median microseconds of each of the connector's members."""
    names = {n for s in steps for n in s} - set(MEMBERS_OF_STEP)
    return {n: middle([s.get(n, 0) / 1000 for s in steps])
            for n in sorted(names)}


def _two(values):
    return [middle(values), high(values), max(values, default=0)]


def arrivals(one, sizes=(500, 2000, 8000, 32000), times=30):
    found = []
    for size in sizes:
        one.ask("inside_overhead", "taken")
        for i in range(times):
            names = one.add([rig.prompt(f"arrive {size} {i}", size)],
                            max_tokens=1, logprobs=None)
            one.abort(*names)
        took = [ns / tokens for tokens, ns
                in one.ask("inside_overhead", "taken")["arrivals"]]
        found.append({"tokens": size, "ns_per_token": _two(took)})
    return found


def hits(one, cost, chunk, times=10):
    """A prompt of 1,000 chunks, computed once, then loaded: by an engine that
    does nothing else, and beside a request that is being answered."""
    tokens = 1000 * chunk + 1
    ids = rig.prompt("long", tokens)
    say(f"computing {tokens} tokens")
    one.ask_one(ids, max_tokens=1, logprobs=None, timeout=600)
    alone, beside = [], []
    for i in range(2 * times):
        found, other = (beside, True) if i % 2 else (alone, False)
        one.reset_prefix_cache()
        names = []
        if other:
            names = one.add([rig.prompt(f"beside {i}", 100)], logprobs=None,
                            max_tokens=4000, sampling=dict(ignore_eos=True))
            one.run(until="first")
        one.ask("inside_overhead", "taken")
        with rig.Counted(one) as counted:
            asked = one.add([ids], max_tokens=2, logprobs=None)
            one.run(until="first", timeout=300)
        one.abort(*names, *asked)
        assert counted.external == 1000 * chunk, (counted.external,
                                                  one.larder_lines()[-3:])
        steps = one.ask("inside_overhead", "taken")["steps"]
        found.append(max(steps, key=lambda s: added(s, cost)))
    return {"chunk": chunk, "tokens": tokens, "load": load(),
            "step": _two([added(s, cost) for s in alone]),
            "members": _members(alone),
            "beside": _two([added(s, cost) for s in beside]),
            "beside_members": _members(beside)}


def part_steps():
    found = {"misses": []}
    with rig.node(dram="1G") as node:
        say("an engine with blocks of 128 tokens")
        with outside(node.url()) as one:
            cost = one.ask("inside_overhead", "install")
            one.generate([rig.prompt("warm up", 3000)] * 2, max_tokens=8)
            for at_once in (1, 16):
                found["misses"].append(misses(one, cost, at_once))
            found["arrivals"] = arrivals(one)
            found["wake"] = _two(one.ask("inside_overhead", "wake"))
            found["timing_ns"] = cost
        say("an engine with blocks of 32 tokens")
        with outside(node.url(), options=dict(chunk=32), block_size=32) as one:
            cost = one.ask("inside_overhead", "install")
            one.ask_one(rig.prompt("warm up", 500))
            found["hit"] = hits(one, cost, 32)
    return found


def steps_table(found):
    hit, lines = found["hit"], []
    lines += [row("scheduler time that the connector adds", "median", "99 %",
                  "goal"), row("---", "---:", "---:", "---:")]
    for f in found["misses"]:
        for name, text in (("all", "all steps"),
                           ("admitting", "steps that admit a request"),
                           ("decode", "steps that only decode")):
            goal = "≤ 50 µs" if name == "all" else ""
            lines.append(row(
                f"a miss, {f['at_once']} at once: {text}",
                f"{f[name][0]:.0f} µs", f"{f[name][1]:.0f} µs", goal))
    for name, text in (("step", "alone"), ("beside", "beside an answer")):
        lines.append(row(
            f"a hit of 1,000 chunks, {text}: its most expensive step",
            f"{hit[name][0]:.0f} µs", f"{hit[name][1]:.0f} µs", "≤ 200 µs"))
    for f in found["arrivals"]:
        lines.append(row(f"an arrival of {f['tokens']:,} tokens, per token",
                         f"{f['ns_per_token'][0]:.1f} ns",
                         f"{f['ns_per_token'][1]:.1f} ns", "≤ 20 ns"))
    wake = [f"{ns / 1000:.0f} µs" for ns in found["wake"]]
    lines.append(row("for comparison: waking a thread that sleeps", *wake[:2],
                     ""))
    lines += ["", f"Load of the machine meanwhile: {hit['load']}."]
    return lines


# ---- copies ----


def as_worker():
    """What vLLM's own worker process gets on a machine like this one (see
    vllm/utils/ompmultiprocessing.py): OpenMP's threads are bound to cores, the
    first one too. The engine here is its own worker, and gets it from us."""
    libraries = rig.python_of(VERSION).parents[1] / "lib"
    gomp, = libraries.glob("python3*/site-packages/torch/lib/libgomp.so.1")
    cores = sorted(map(str, os.sched_getaffinity(0)), key=int)
    return {"LD_PRELOAD": str(gomp), "OMP_NUM_THREADS": str(len(cores)),
            "GOMP_CPU_AFFINITY": " ".join(cores)}


@contextlib.contextmanager
def spinning():
    """A process that does nothing else on the last core, as OpenMP's threads do
    after a forward."""
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"],
                          preexec_fn=lambda: os.sched_setaffinity(0, {core})
                          ) as one:
        try:
            yield
        finally:
            one.kill()


def bench_figure(name, size):
    """GB/s of `larder bench`, one client, 16 a call, checked."""
    done = subprocess.run(
        [str(rig.PROGRAM), "bench", name, "--size", str(size), "--seconds",
         "1", "--clients", "1", "--json"], stdout=subprocess.PIPE, timeout=120,
        check=True)
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    return next(f["value"] for f in figures if f["variant"] == "checksum")


class Plain:
    """A client of the engine's node that does what `larder bench` does, 16 a
    call, from memory in one piece: is it the engine that is slow, or the memory
    of that node?"""

    BYTES = 256 << 20

    def __init__(self, url, size):
        self._memory = mmap.mmap(-1, self.BYTES)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory.write(os.urandom(1 << 20) * (self.BYTES >> 20))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._blocks, self._draw = self.BYTES // size, random.Random(size)
        self._node = _lib.Node(url, lambda *_: None)
        self._space = self._node.space(b"plain", 1, 1)
        layers = (_lib.Layer * 1)((b"all", 0, 0, size, size))
        self._layout = _lib.Layout(
            1, [_lib.Group(_lib.RULE_ALL, 1, 0, layers, 1)],
            [_lib.Region(b"memory", base, self.BYTES)], self._blocks)

    def rates(self, times=24):
        """GB/s of puts and of gets."""
        found = [], []
        for _ in range(times):
            keys = _lib.Keys()
            tokens = [self._draw.randrange(1 << 31) for _ in range(16)]
            self._space.chain(array("I", tokens), keys)
            for call, rates in zip((self._space.save, self._space.load),
                                   found):
                ids = array("I", self._draw.sample(range(1, self._blocks), 16))
                tables = (_lib.Table * 1)((ids.buffer_info()[0], 0, 16))
                move = _lib.Move(keys=keys.data(0, 16), tables=tables, end=16,
                                 writers=1, timeout_ms=20000)
                began = time.perf_counter_ns()
                status = call(self._layout, move)
                took = time.perf_counter_ns() - began
                assert status == _lib.OK and move.shards == 16, move.failed
                rates.append(move.bytes / took)
        return [middle(rates) for rates in found]

    def close(self):
        self._layout.close()
        self._space.close()
        self._node.close()


def limits(size):
    """What `larder bench` makes, with the machine to itself and beside a thread
    that spins, as OpenMP's do after a forward."""
    found = {}
    for name in ("put", "get"):
        found[name] = bench_figure(f"shm-{name}", size)
        with spinning():
            found[name + "_beside"] = bench_figure(f"shm-{name}", size)
    return found


def part_copies():
    """No other daemon comes and goes while the engine's is measured: that makes
    its memory slow, for every client, on the virtual machine of the docs."""
    found = []
    for chunk in CHUNKS:
        size = chunk * 2048
        bench = [limits(size), limits(size)]
        mine = []
        # So small that saves evict, as in the bench: its memory is in use.
        with rig.node(dram="256M", clean=False) as node:
            with outside(node.url(), options=dict(chunk=chunk),
                         env=as_worker()) as one:
                one.ask("inside_overhead", "mark")
                for seed in range(8):  # fills the node, at its start
                    _copies(one, chunk, seed)
                for i in range(COPY_ROUNDS):
                    mine.append(_copy_round(one, chunk, 8 + 2 * i))
                    say(f"{size >> 10} KiB: {mine[-1]}")
                plain = Plain(node.url(), size)
                same = dict(zip(("put_same", "get_same"), plain.rates()))
                plain.close()
        bench.append(limits(size))
        of_bench = {k: middle([one[k] for one in bench]) for k in bench[0]}
        found += [{"shard": size, **of_bench, **same, **f} for f in mine]
        say(f"{size >> 10} KiB: {of_bench}, {same}")
    return found


def _copy_round(one, chunk, seed):
    found = {"load": load()}
    for alone in (False, True):
        ours = _copies(one, chunk, seed + alone, alone)
        assert ours["same"] and ours["shard"] == chunk * 2048, ours
        found["save_alone" if alone else "save"] = round(
            middle(ours["saves"]), 2)
        found["load_"] = round(middle(ours["loads"]), 2)
    return found


def _copies(one, chunk, seed, alone=False):
    return one.ask("inside_overhead", "copies", seed=seed,
                   chunks=STEP // chunk, times=8, alone=alone)


def copies_table(found):
    lines = [row("shard", "", "in the engine", "`larder bench`", "ratio",
                 "the same beside a thread that spins", "ratio",
                 "the same on the engine's node", "ratio"),
             row("---:", "---", *["---:"] * 7)]
    for size in sorted({f["shard"] for f in found}):
        mine = [f for f in found if f["shard"] == size]
        for ours, bench, text in (
                ("save", "put", "save"),
                ("save_alone", "put", "save, by one thread"),
                ("load_", "get", "load")):
            cells = [f"{middle([f[ours] for f in mine]):.1f} GB/s"]
            for limit in (bench, bench + "_beside", bench + "_same"):
                cells += [f"{middle([f[limit] for f in mine]):.1f} GB/s",
                          f"{middle([f[ours] / f[limit] for f in mine]):.2f}"]
            lines.append(row(f"{size >> 10} KiB", text, *cells))
    loads = [f["load"] for f in found]
    return lines + ["", f"Load of the machine meanwhile: {min(loads)} to "
                    f"{max(loads)}."]


# ---- turns ----


def turn(one, kind, number):
    """One turn of an engine: a request alone, and a batch, of prompts that it
    has whole in its own cache or that nobody has. Milliseconds to the first
    token, and tokens a second."""
    def ids(i):
        return (rig.prompt(f"own {i}", TURN_TOKENS) if kind == "own"
                else rig.prompt(f"new {number} {i}", TURN_TOKENS))

    alone = one.generate([ids(0)], max_tokens=1, logprobs=None)[0]
    wanted = TURN_TOKENS - 1 if kind == "own" else 0
    assert alone["cached"] == rig.whole(wanted, 128), alone
    batch = [ids(i) for i in range(1, 1 + TURN_BATCH)]
    began = time.perf_counter()
    one.generate(batch, max_tokens=TURN_ANSWER, logprobs=None, timeout=300)
    took = time.perf_counter() - began
    return {"ttft_ms": alone["ttft"] * 1000,
            "tokens_per_s": TURN_BATCH * (TURN_TOKENS + TURN_ANSWER) / took}


def part_turns():
    """Two engines that live at once, one without the connector, take turns: who
    is first changes. Neither computes while the other does."""
    found = {kind: {"without": [], "with Larder": []}
             for kind in ("own", "new")}
    # One thread computes: two would wait for each other where anything else
    # runs, and that differs from turn to turn.
    args = dict(max_num_batched_tokens=STEP, max_model_len=16384, threads=1)
    loads = []
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(dram="1G"))
        engines = {
            "without": stack.enter_context(engine(None, False, **args)),
            "with Larder": stack.enter_context(engine(
                node.url(), options=dict.fromkeys(rig.PATIENT), **args))}
        end = None
        for number in itertools.count(-2):
            if number == 0:
                end = time.monotonic() + TURN_SECONDS
            if end is not None and time.monotonic() >= end:
                break
            for kind, rounds in found.items():
                if kind == "new" and number > 0 and number % NEW_EACH:
                    continue
                for name in list(rounds)[::1 if number % 2 else -1]:
                    if kind == "own" and number == -2:  # computed, then had
                        for i in range(1 + TURN_BATCH):
                            engines[name].ask_one(
                                rig.prompt(f"own {i}", TURN_TOKENS))
                    one = turn(engines[name], kind, number)
                    if number >= 0:
                        rounds[name].append(one)
            loads.append(load())
        counters = engines["with Larder"].counters()
        assert counters["vllm:larder_saved_bytes"] > 0
        assert not counters.get("vllm:larder_hits")
    return {"turns": found, "load": loads}


def turns_table(found):
    lines = [row("prompts of 2,900 tokens", "", "without", "with Larder",
                 "with − without, in pairs", "goal"),
             row("---", "---", *["---:"] * 4)]
    for kind, text in (("own", "whole in vLLM's own cache"),
                       ("new", "that nobody has")):
        pairs = [found["turns"][kind][name]
                 for name in ("without", "with Larder")]
        first = [[t["ttft_ms"] for t in one] for one in pairs]
        more = sorted(b - a for a, b in zip(*first))
        lines.append(row(
            text, "first token", *(f"{middle(f):.1f} ms" for f in first),
            f"{middle(more):+.2f} ms ({more[len(more) // 4]:+.1f} … "
            f"{more[3 * len(more) // 4]:+.1f})", "≤ 1 ms"))
        rate = [[t["tokens_per_s"] for t in one] for one in pairs]
        less = sorted(100 * (b / a - 1) for a, b in zip(*rate))
        lines.append(row(
            "", f"{TURN_BATCH} at once", *(f"{middle(r):,.0f} tokens/s"
                                           for r in rate),
            f"{middle(less):+.1f} % ({less[len(less) // 4]:+.1f} … "
            f"{less[3 * len(less) // 4]:+.1f})", "≥ −2 %"))
    own, new = (len(found["turns"][kind]["without"])
                for kind in ("own", "new"))
    return lines + ["", f"Medians of {own} turns of each, of {new} with new "
                    "prompts; in brackets the middle half. Load of the machine "
                    f"meanwhile: {min(found['load'])} to "
                    f"{max(found['load'])}."]


# ---- an engine's first seconds ----


def first_seconds(one, hits):
    """Requests from the end of the engine's start on: (seconds since then,
    milliseconds to the first token). hits: of a prompt that the store has and
    vLLM's own cache has not; else of new ones."""
    began, found = time.perf_counter(), []
    for i in itertools.count():
        at = time.perf_counter() - began
        if at >= START_SECONDS:
            return found
        ids = rig.prompt("stored" if hits else f"{began} {i}", TURN_TOKENS)
        answer = one.generate([ids], max_tokens=1, logprobs=None)[0]
        wanted = rig.whole(TURN_TOKENS - 1, 256) if hits else 0
        if answer["cached"] == wanted:  # else it was declined, and computed
            found.append((at, answer["ttft"] * 1000))
        one.reset_prefix_cache()


def part_starts():
    """Engines that have just been started, in turns: one that hits, one that
    computes with the connector, one without it."""
    found = {"hits": [], "new": [], "without": []}
    args = dict(max_num_batched_tokens=STEP, max_model_len=16384)
    with rig.node(dram="1G") as node:
        with engine(node.url(), **args) as one:
            one.ask_one(rig.prompt("stored", TURN_TOKENS))
        for _ in range(STARTS):
            for name, times in found.items():
                with engine(node.url(), name != "without", **args) as one:
                    times.append(first_seconds(one, name == "hits"))
    return {"starts": found, "load": load()}


def starts_table(found):
    lines = [row("prompts of 2,900 tokens, first token",
                 f"in the first {EARLY_SECONDS} s", "the slowest", "later"),
             row("---", *["---:"] * 3)]
    for name, text in (("hits", "a hit"), ("new", "computed, with Larder"),
                       ("without", "computed, without")):
        times = [one for rounds in found["starts"][name] for one in rounds]
        early = [ms for at, ms in times if at < EARLY_SECONDS]
        late = [ms for at, ms in times if at >= EARLY_SECONDS]
        lines.append(row(text, *(f"{f(v):.0f} ms" for f, v in (
            (middle, early), (lambda v: max(v, default=0), early),
            (middle, late)))))
    return lines + ["", f"{STARTS} starts of each, in turns. Load of the "
                    f"machine: {found['load']}."]


PARTS = {"steps": (part_steps, steps_table),
         "copies": (part_copies, copies_table),
         "turns": (part_turns, turns_table),
         "starts": (part_starts, starts_table)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS],
                        metavar="PART")
    parser.add_argument("--json", type=pathlib.Path, help="where figures go",
                        default=rig.ROOT / "build/vllm-bench/overhead.json")
    parser.add_argument("--docs", action="store_true",
                        help="write them into bench/results/vllm.md")
    args = parser.parse_args()
    known = json.loads(args.json.read_text()) if args.json.exists() else {}
    for name in args.parts or PARTS:
        measure, table = PARTS[name]
        known[name] = measure()
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(known, indent=1))
        lines = table(known[name])
        print("\n".join(lines), flush=True)
        if args.docs:
            put(rig.ROOT / "bench/results/vllm.md", name, lines)


if __name__ == "__main__":
    main()
