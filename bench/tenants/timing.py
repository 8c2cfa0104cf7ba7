#!/usr/bin/env python3
"""Whether time tells a foreign key from an absent one.

Starts a daemon with two tenants. Tenant b saves keys; tenant a asks for them,
and for keys that nobody has, one at a time and in random turns, over shared
memory and TCP. What each call took is compared as dudect does: Welch's t, over
all calls and over those below several percentiles (the slowest are the
scheduler's); beyond 4.5 the two are told apart. Beside it the two-sample
Kolmogorov-Smirnov distance D and its bound for one chance in a thousand.

Two rows say what the figures are worth: absent keys against other absent ones
(nothing to be seen), and a's own keys against absent ones (seen, and by how
much).

  LARDER_BUILD=build/release bench/tenants/timing.py [--calls N]
"""
import argparse
import ctypes
import math
import os
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("LARDER_BUILD", str(ROOT / "build/release"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
import capi  # noqa: E402
from daemon import Daemon  # noqa: E402

KEYS = 3072  # of each kind: where a few happen to lie must not count much
BYTES = 4096
TOLD_APART = 4.5
CROPS = (1.0, 0.99, 0.95, 0.9, 0.75, 0.5)
TOKENS = {"a": "token-of-a-0123456789abcdef01234567",
          "b": "token-of-b-0123456789abcdef01234567"}


# ---- statistics ------------------------------------------------------------

def welch(x, y):
    def moments(v):
        mean = sum(v) / len(v)
        return mean, sum((e - mean) ** 2 for e in v) / (len(v) - 1) / len(v)

    if len(x) < 2 or len(y) < 2:
        return 0.0
    (mx, vx), (my, vy) = moments(x), moments(y)
    return (mx - my) / math.sqrt(vx + vy) if vx + vy > 0 else 0.0


def worst_t(x, y):
    """Of all crops. Where to crop is found in both classes together, so that
    it favours neither."""
    both = sorted(x + y)
    out = 0.0
    for crop in CROPS:
        limit = both[min(int(len(both) * crop), len(both) - 1)]
        t = welch([v for v in x if v <= limit], [v for v in y if v <= limit])
        out = t if abs(t) > abs(out) else out
    return out


def distance(x, y):
    """Kolmogorov-Smirnov's D, and what chance exceeds once in a thousand."""
    x, y = sorted(x), sorted(y)
    i = j = 0
    most = 0.0
    while i < len(x) and j < len(y):
        v = min(x[i], y[j])
        while i < len(x) and x[i] == v:
            i += 1
        while j < len(y) and y[j] == v:
            j += 1
        most = max(most, abs(i / len(x) - j / len(y)))
    bound = math.sqrt(-math.log(0.0005) / 2 * (len(x) + len(y))
                      / (len(x) * len(y)))
    return most, bound


# ---- calls -----------------------------------------------------------------

class Caller:
    """One call at a time, with all that it needs made before."""

    def __init__(self, node):
        self.node = node
        self.lib = node.lib
        self.buffer = ctypes.create_string_buffer(BYTES)
        self.iov = capi.Iovec(ctypes.addressof(self.buffer), BYTES)
        self.params = capi.OpParams(0, 0)
        self.matched = capi.Match()
        self.lease = ctypes.c_void_p()

    def run(self, op, keys):
        """Each call with its key, in this order; gives what each took."""
        item = capi.Item(iov=ctypes.pointer(self.iov), iov_count=1)
        at, params = ctypes.byref(item), ctypes.byref(self.params)
        out = ctypes.byref(self.matched)
        lease = ctypes.byref(self.lease)
        space, lib = self.node.space, self.lib
        clock = time.perf_counter_ns
        code = {"exists": capi.EXISTS, "get": capi.GET,
                "remove": capi.REMOVE}.get(op)
        times = []
        for key in keys:
            item.key = key
            if op == "match":
                begin = clock()
                lib.larder_match(space, key, 1, 0, out)
                took = clock() - begin
            elif op == "lease":
                begin = clock()
                lib.larder_stage(space, key, 1, 0, 1000, lease, out)
                took = clock() - begin
                if self.lease:
                    lib.larder_release(lease)
            else:
                begin = clock()
                lib.larder_run(space, code, at, 1, params)
                took = clock() - begin
            times.append(took)
        return times


def pointers(names):
    return [ctypes.pointer(capi.key_of(name)) for name in names]


def compare(caller, op, first, second, calls, rng):
    """calls of each class, in random turns."""
    turns = [0] * calls + [1] * calls
    rng.shuffle(turns)
    classes = (first, second)
    caller.run(op, [rng.choice(classes[t]) for t in turns[:500]])  # warm
    times = caller.run(op, [rng.choice(classes[t]) for t in turns])
    out = ([], [])
    for turn, took in zip(turns, times):
        out[turn].append(took)
    return out


def save(node, names):
    for name in names:
        status = node.put(name, random.Random(name).randbytes(BYTES))
        assert status == capi.OK, f"put: {status}: {node.error()}"


def report(transport, op, what, x, y):
    t = worst_t(x, y)
    d, bound = distance(x, y)
    medians = [sorted(v)[len(v) // 2] / 1000 for v in (x, y)]
    verdict = "told apart" if abs(t) > TOLD_APART else "not told apart"
    print(f"{transport:5} {op:7} {what:18} {medians[0]:8.2f} {medians[1]:8.2f}"
          f" {t:8.1f} {d:7.4f} {bound:7.4f}  {verdict}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20000,
                        help="of each class, a row")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    binary = pathlib.Path(os.environ["LARDER_BUILD"]) / "bin/larder"
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        config = ""
        for tenant, token in TOKENS.items():
            path = base / f"token-{tenant}"
            path.write_text(token + "\n")
            path.chmod(0o600)
            config += f"[tenant {tenant}]\ntoken_file = {path}\n"
        daemon = Daemon(str(binary), base / "d", config=config, dram="1G")
        daemon.start()
        try:
            measure(daemon, base, args.calls, rng)
        finally:
            daemon.end()


def measure(daemon, base, calls, rng):
    def node(transport, tenant):
        return capi.Node(daemon.url(transport, tenant=tenant,
                                    token_file=base / f"token-{tenant}"),
                         transport.encode())

    names = {kind: [f"{kind} {i}" for i in range(KEYS)]
             for kind in ("foreign", "absent", "other", "own")}
    keys = {kind: pointers(some) for kind, some in names.items()}
    print("                               median, us       t       D   bound")
    for transport in ("unix", "tcp"):
        with node(transport, "a") as a, node(transport, "b") as b:
            save(b, names["foreign"])
            save(a, names["own"])
            caller = Caller(a)
            for op in ("match", "exists", "get", "lease", "remove"):
                for what in ("foreign", "other", "own"):
                    if (op, what) == ("remove", "own"):
                        continue  # it would be gone after the first
                    x, y = compare(caller, op, keys[what], keys["absent"],
                                   calls, rng)
                    report(transport, op, f"{what} / absent", x, y)
            assert all(b.exists(name) == capi.OK
                       for name in names["foreign"][::100])


if __name__ == "__main__":
    main()
