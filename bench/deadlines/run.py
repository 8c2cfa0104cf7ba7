#!/usr/bin/env python3
"""How far beyond its deadline a call ends whose daemon is stopped, killed or
restarted in the middle.

A handle calls match, get, put, stage and flush in turn, without a pause and
with breaker_ms=1, so that nearly every call has to find out for itself. In
the middle the daemon is

  stopped    SIGSTOP for some deadlines, then SIGCONT
  killed     SIGSTOP, then SIGKILL, half a deadline later; a while nobody
             listens, then a new one
  restarted  SIGTERM, and a new one at once

Of each call the time beyond its deadline is taken: positive is late. `by
deadline` are the calls that the deadline ended; `early` is how long before it
the hastiest of them did. The other calls were answered, or found the daemon
gone, before; `late` counts all calls that ended more than 10 ms after their
deadlines, whatever they answered, and `awake` those of them that did so even
without the time for which the thread waited for a CPU, as the kernel counts
it: other processes' doing, on a machine with work. --fifo gives the calling
thread (and no other) a real-time priority, so that it does not have to wait.

  LARDER_BUILD=build/release bench/deadlines/run.py [--rounds N] [--fifo]
"""
import argparse
import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("LARDER_BUILD", str(ROOT / "build/release"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
import capi  # noqa: E402
from daemon import Daemon, free_port  # noqa: E402

TRANSPORTS = ("shm", "tcp")
DEADLINES_MS = (20, 100, 500)
EVENTS = ("stopped", "killed", "restarted")
OPS = ("match", "get", "put", "stage", "flush")
KEYS = 64          # that are there to be loaded
BYTES = 1 << 20    # of each
BATCH = 4          # keys of a get, a put, a stage
LATE_MS = 10
DEADLINE_CAUSE = capi.CAUSES.index("deadline")


# ---- the daemon, in a process of its own -----------------------------------

def control(daemon, channel):
    """Does what it is told, a line each, and says when it is done. Forked
    before there are handles: what starting a daemon takes is not taken from
    the process that measures."""
    daemon.start()
    channel.sendall(b"done\n")
    for line in channel.makefile():
        event, delay_s, away_s = line.split()
        time.sleep(float(delay_s))
        if event == "end":
            daemon.process.kill()
            return
        if event == "stopped":
            daemon.signal(signal.SIGSTOP)
            time.sleep(float(away_s))
            daemon.signal(signal.SIGCONT)
        elif event == "killed":
            daemon.signal(signal.SIGSTOP)
            time.sleep(float(away_s) / 10)
            daemon.kill()
            time.sleep(float(away_s))
            daemon.start()
        else:
            daemon.stop()
            daemon.start()
        channel.sendall(b"done\n")


class Control:
    def __init__(self, daemon):
        self.channel, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.channel.close()
                control(daemon, other)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        other.close()
        self.wait()

    def tell(self, event, delay_s=0.0, away_s=0.0):
        self.channel.sendall(f"{event} {delay_s} {away_s}\n".encode())

    def wait(self):
        if self.channel.recv(100) != b"done\n":
            raise SystemExit("the daemon's process has ended")

    def done(self):
        try:
            said = self.channel.recv(100, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if said != b"done\n":
            raise SystemExit("the daemon's process has ended")
        return True

    def end(self):
        self.tell("end")
        os.waitpid(self.pid, 0)


# ---- calls, prepared so that hardly any Python is timed --------------------

class Calls:
    def __init__(self, node, deadline_ms):
        self.node, self.lib, self.ms = node, node.lib, deadline_ms
        self.fresh = 0
        self.keys = (capi.Key * KEYS)(*(capi.key_of(f"k{i}")
                                        for i in range(KEYS)))
        self.buffers = [ctypes.create_string_buffer(BYTES)
                        for _ in range(BATCH)]
        self.iovs = [capi.Iovec(ctypes.addressof(b), BYTES)
                     for b in self.buffers]
        self.params = capi.OpParams(capi.OP_TIMEOUT, deadline_ms)

    def items(self, keys):
        out = (capi.Item * BATCH)()
        for item, key, iov in zip(out, keys, self.iovs):
            item.key, item.iov = ctypes.pointer(key), ctypes.pointer(iov)
            item.iov_count = 1
        return out

    def save_all(self):
        for at in range(0, KEYS, BATCH):
            keys = [self.keys[at + i] for i in range(BATCH)]
            items = self.items(keys)
            self.lib.larder_run(self.node.space, capi.PUT, items, BATCH, None)

    def call(self, op):
        """(seconds, ended by its deadline)"""
        clock = time.monotonic
        if op == "match":
            out = capi.Match()
            begin = clock()
            self.lib.larder_match(self.node.space, self.keys, KEYS, 0,
                                  ctypes.byref(out))
            return clock() - begin, out.cause == DEADLINE_CAUSE
        if op == "stage":
            out, lease = capi.Match(), ctypes.c_void_p()
            begin = clock()
            self.lib.larder_stage(self.node.space, self.keys, BATCH, 0,
                                  self.ms, ctypes.byref(lease),
                                  ctypes.byref(out))
            took = clock() - begin
            if lease:
                self.lib.larder_release(ctypes.byref(lease))
            return took, out.cause == DEADLINE_CAUSE
        if op == "flush":
            begin = clock()
            status = self.lib.larder_flush(self.node.node, 0, self.ms)
            return clock() - begin, status == capi.E_DEADLINE
        if op == "put":
            self.fresh += BATCH
            keys = [capi.key_of(f"n{os.getpid()} {self.ms} {self.fresh + i}")
                    for i in range(BATCH)]
        else:
            keys = [self.keys[i] for i in range(BATCH)]
        items = self.items(keys)
        begin = clock()
        self.lib.larder_run(self.node.space,
                            capi.PUT if op == "put" else capi.GET, items,
                            BATCH, ctypes.byref(self.params))
        took = clock() - begin
        return took, any(i.status == capi.E_DEADLINE
                         or i.cause == DEADLINE_CAUSE for i in items)


def waited_ms():
    """That this thread was ready to run, and did not."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e6


def measure(calls, control, event, deadline_ms, rand, turn):
    """The calls from just before an event until the daemon is back."""
    out = []
    end = time.monotonic() + 10
    while calls.call("get")[1] or calls.node.flush(0, 1000) != capi.OK:
        if time.monotonic() > end:
            raise SystemExit("the daemon does not answer any more")
        time.sleep(0.01)
    calls.save_all()
    away_s = max(5 * deadline_ms, 300) / 1000
    control.tell(event, rand.random() * 0.05, away_s)
    done = False
    while not done:
        done = control.done()
        op = OPS[turn % len(OPS)]
        turn += 1
        before_ms = waited_ms()
        took, by_deadline = calls.call(op)
        out.append({"op": op, "event": event, "deadline_ms": deadline_ms,
                    "late_ms": took * 1e3 - deadline_ms,
                    "waited_ms": waited_ms() - before_ms,
                    "by_deadline": by_deadline})
    return out, turn


# ---- tables ----------------------------------------------------------------

def table(samples, *by):
    print("| " + " | ".join(by) + " | calls | by deadline | median ms | 99 % "
          "| most | early | late | awake |")
    print("|" + "---|" * len(by) + "---:|" * 8)
    groups = {}
    for s in samples:
        groups.setdefault(tuple(str(s[name]) for name in by), []).append(s)
    for names, rows in groups.items():
        ended = sorted(r["late_ms"] for r in rows if r["by_deadline"])
        most = max(r["late_ms"] for r in rows)
        late = sum(r["late_ms"] > LATE_MS for r in rows)
        awake = sum(r["late_ms"] - r["waited_ms"] > LATE_MS for r in rows)
        if ended:
            text = (f"{ended[len(ended) // 2]:+.2f} | "
                    f"{ended[min(len(ended) * 99 // 100, len(ended) - 1)]:+.2f}"
                    f" | {most:+.2f} | {max(0.0, -ended[0]):.2f}")
        else:
            text = f"– | – | {most:+.2f} | –"
        print("| " + " | ".join(names)
              + f" | {len(rows)} | {len(ended)} | {text} | {late} | {awake} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--transport", choices=TRANSPORTS, action="append")
    parser.add_argument("--fifo", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rand = random.Random(args.seed)
    binary = pathlib.Path(os.environ["LARDER_BUILD"]) / "bin/larder"
    samples = []
    for transport in args.transport or TRANSPORTS:
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            daemon = Daemon(str(binary), folder, dram="256M", ssd=None,
                            listen=f"127.0.0.1:{port}")
            keeper = Control(daemon)
            where = (f"unix:{daemon.socket}" if transport == "shm"
                     else f"tcp://127.0.0.1:{port}")
            turn = 0
            if args.fifo:
                os.sched_setscheduler(
                    0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK,
                    os.sched_param(1))
            for ms in DEADLINES_MS:
                node = capi.Node(f"{where}?timeout_ms={ms}&breaker_ms=1"
                                 "&connect=lazy")
                calls = Calls(node, ms)
                for _ in range(args.rounds):
                    for event in EVENTS:
                        got, turn = measure(calls, keeper, event, ms, rand,
                                            turn)
                        samples += [dict(s, transport=transport) for s in got]
                node.close()
            keeper.end()
            if args.fifo:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if args.json:
        args.json.write_text(json.dumps(samples))
    table(samples, "transport", "event", "deadline_ms")
    table(samples, "transport", "op")
    for s in samples:
        if s["late_ms"] > LATE_MS:
            print(json.dumps(s))


if __name__ == "__main__":
    main()
