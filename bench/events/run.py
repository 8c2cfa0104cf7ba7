#!/usr/bin/env python3
"""bench/events/run.py: what KV events of a node cost (docs/guide/routing.md).

    bench/events/run.py [--chunks 20000] [--times 5]

Events a second: a node with that many described chunks publishes all of its
topic again, several times, to one subscriber. Counted are its events, and the
processor time of the thread that publishes and of libzmq's.

Saves and loads: two nodes, one with events and a subscriber, take turns; an
engine describes, saves and loads prompts of 8 chunks of 1 MiB at each.

$LARDER_BUILD: the build (build/release). Run it on a quiet machine.
"""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
os.environ["LARDER_BIN"] = str(BUILD / "bin")
os.environ["LARDER_BUILD"] = str(BUILD)
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


def turn(engine, number):
    """Seconds of saves, and of loads."""
    tokens = prompt(f"turn {number}", PER_PROMPT)
    names = [engine.name(tokens, i) for i in range(PER_PROMPT)]
    values = [bytes([i]) * (1 << 20) for i in range(PER_PROMPT)]
    engine.describe(tokens)  # vLLM's connector has a thread for it
    engine.node.exists("nobody")  # both nodes are awake
    began = time.perf_counter()
    engine.node.put_many(list(zip(names, values)))
    saved = time.perf_counter()
    found = engine.node.get_many(names, 1 << 20)
    ended = time.perf_counter()
    assert len(found) == PER_PROMPT
    return saved - began, ended - saved


def ratios(args, folder):
    given = dict(dram="512M", describe_memory="64M")
    urls = {"events": f"tcp://127.0.0.1:{free_port()}"}
    nodes = [Daemon(str(BUILD / "bin/larder"), folder / f"r{i}", **given,
                    **(urls if i else {})) for i in range(2)]
    for node in nodes:
        node.start()
    listener = Socket(SUB, urls["events"], set=((SUBSCRIBE, b""),))
    try:
        engines = [Engine(node.url()) for node in nodes]
        times = []
        for i in range(args.turns + 5):
            pair = [None, None]
            for which in (0, 1) if i % 2 else (1, 0):
                pair[which] = turn(engines[which], i)
            times.append(pair)
        for what in range(2):
            ratio = statistics.median(without[what] / with_them[what]
                                      for without, with_them in times[5:])
            print(f"{('saves', 'loads')[what]} with events: {ratio:.3f} of "
                  "those without, the median of pairs (goal 0.98)")
        print(f"  {published(nodes[1]):.0f} events were published")
        for engine in engines:
            engine.node.close()
    finally:
        listener.close()
        for node in nodes:
            node.end()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chunks", type=int, default=20000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--turns", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rate(args, pathlib.Path(folder))
        ratios(args, pathlib.Path(folder))
    print(f"load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
