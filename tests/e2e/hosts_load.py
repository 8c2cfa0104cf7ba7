"""Engines of one host, for tests/e2e/hosts.py: saves and loads by its node
until its standard input ends, checks every byte, and says what it saw as JSON.

    hosts_load.py URL SEED NAMES TIMEOUT_MS
"""
import collections
import json
import random
import sys
import threading
import time

import capi

SIZES = 2000, 80000


class Load:
    def __init__(self, url, seed, names, timeout_ms):
        self.url, self.timeout_ms = url, timeout_ms
        self.rng = random.Random(seed)
        self.values = {f"host-{i}": capi.value_of(f"host-{i}", *SIZES)
                       for i in range(names)}
        self.over = False
        self.wrong = []
        self.statuses = collections.Counter()
        self.longest = (0.0, "")
        self.stall = 0.0
        self.seconds = collections.defaultdict(lambda: [0, 0])

    def control(self):
        """Does nothing but sleep: what it oversleeps the machine has taken."""
        while not self.over:
            begin = time.monotonic()
            time.sleep(0.005)
            self.stall = max(self.stall, time.monotonic() - begin - 0.005)

    def timed(self, what, call):
        begin = time.monotonic()
        result = call()
        took = time.monotonic() - begin
        if took > self.longest[0]:
            self.longest = took, what
        return result

    def once(self, node, rng):
        name = rng.choice(list(self.values))
        value = self.values[name]
        if rng.randrange(4) == 0:
            status = self.timed("save", lambda: node.put(
                name, value, timeout_ms=self.timeout_ms))
            self.statuses[f"save {status}"] += 1
            return
        status, _, got = self.timed("load", lambda: node.get(
            name, size=SIZES[1], timeout_ms=self.timeout_ms))
        self.statuses[f"load {status}"] += 1
        second = self.seconds[int(time.monotonic() - self.begin)]
        second[0] += 1
        if status == capi.OK:
            second[1] += 1
            if got != value:
                self.wrong.append(name)

    def client(self, seed):
        rng = random.Random(seed)
        node = None
        while not self.over:
            try:
                node = node or capi.Node(self.url)
            except capi.Error:
                time.sleep(0.05)
                continue
            self.once(node, rng)
            time.sleep(rng.random() * 0.02)
        if node is not None:
            node.close()

    def run(self):
        self.begin = time.monotonic()
        threads = [threading.Thread(target=self.control, daemon=True)]
        threads += [threading.Thread(target=self.client, daemon=True,
                                     args=(self.rng.random(),))
                    for _ in range(2)]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.over = True
        for thread in threads:
            thread.join(60)
        print(json.dumps({
            "wrong": self.wrong, "statuses": self.statuses,
            "longest_ms": self.longest[0] * 1000, "longest": self.longest[1],
            "stall_ms": self.stall * 1000,
            "hung": sum(t.is_alive() for t in threads),
            "seconds": sorted(self.seconds.items())}))


if __name__ == "__main__":
    Load(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]),
         int(sys.argv[4])).run()
