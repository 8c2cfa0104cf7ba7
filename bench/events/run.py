#!/usr/bin/env python3
"""bench/events/run.py: what KV events of a node cost (docs/guide/routing.md).

    bench/events/run.py [--chunks 20000] [--times 5]

Events a second: a node with that many described chunks publishes all of its
topic again, several times, to one subscriber. Counted are its events, and the
processor time of the thread that publishes and of libzmq's.

$LARDER_BUILD: the build (build/release). Run it on a quiet machine.
"""
import argparse
import os
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
os.environ["LARDER_BIN"] = str(BUILD / "bin")
sys.path.insert(0, str(ROOT / "tests/e2e"))

import router
from daemon import Daemon, free_port, until
from router import CHUNK, Engine, prompt
from subscriber import DEALER, END, RCVHWM, SUB, SUBSCRIBE, Socket

PER_PROMPT = 8
TOPIC = b"kv@pod-a@m"


def processor_seconds(pid):
    """Of the threads that publish: {name: seconds}."""
    used = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        text = (task / "stat").read_text()
        name = text[text.index("(") + 1:text.rindex(")")]
        fields = text[text.rindex(")") + 2:].split()
        if name == "larder-events" or name.startswith("ZMQ"):
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf(
                "SC_CLK_TCK")
            used[name] = used.get(name, 0) + seconds
    return used


def fill(node, chunks):
    router.VALUE = 64
    with Engine(node.url()) as engine:
        for i in range(-(-chunks // PER_PROMPT)):
            tokens = prompt(f"events {i}", PER_PROMPT)
            engine.describe(tokens)
            engine.save(tokens, range(PER_PROMPT))


def published(node):
    return node.value("larder_events_total", outcome="published")


def rate(args, folder):
    events, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    node = Daemon(str(BUILD / "bin/larder"), folder / "node", events=events,
                  events_replay=replay, describe_memory="1G",
                  dram=str(args.chunks * 65536 * 5 // 4 + (128 << 20)))
    node.start()
    try:
        fill(node, args.chunks)
        until(lambda: published(node) >= args.chunks)
        listener = Socket(SUB, events, set=((SUBSCRIBE, b""),
                                            (RCVHWM, 1000000)))
        stop = threading.Event()

        def listen():
            while not stop.is_set():
                listener.receive(100)

        thread = threading.Thread(target=listen)
        thread.start()
        asks = Socket(DEALER, replay)
        before, count = processor_seconds(node.pid), published(node)
        for i in range(args.times):
            wanted = published(node) + args.chunks
            asks.send(b"", END.to_bytes(8, "big"), TOPIC)
            until(lambda: published(node) >= wanted)
            time.sleep(1.1)  # it publishes all again once a second at most
        count = published(node) - count
        after = processor_seconds(node.pid)
        stop.set()
        thread.join()
        listener.close()
        asks.close()
        used = {name: after[name] - before.get(name, 0) for name in after}
        print(f"{count:.0f} events of {CHUNK // router.BLOCK} blocks, "
              f"{CHUNK} tokens each; processor seconds: " + ", ".join(
                  f"{name} {seconds:.2f}" for name, seconds in used.items()))
        print(f"  {count / max(sum(used.values()), 0.01):.0f} events a second "
              "on one core (goal 100000)")
    finally:
        node.end()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chunks", type=int, default=20000)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rate(args, pathlib.Path(folder))
    print(f"load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
