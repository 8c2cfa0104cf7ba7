"""Proof 3: the time to the first token, one request at a time.

Two clocks: that of who asks, from before the request is handed to vLLM, and
the engine's own, from its queue on. Handing over tens of thousands of tokens
takes tens of milliseconds that vary and that no store can change: what is
judged is the engine's.

Of a hit most is what the engine's thread needs to launch two steps (it
schedules the next before it looks at a token), and that is 60 to 120 ms for the
same work, by the machine's moods: CPU time, with nobody in the way. It is
noted for each request, and what is judged is the rest and the median of that:
the same for all kinds.

Three engines one after the other: with vLLM's native offload; with Larder;
with Larder again, which has to load what the one before computed. Then the
node is restarted: its DRAM is empty, and the SSD has all.
"""
import time

import host
import models
from proof import APART, GIB, check, checked, middle, ms, table

LENGTHS = (4096, 20480, 49152)
TINY = (700, 1500, 3100)
LINK = 50e9  # bytes a second that a hit may be charged, where the driver's
CONTIGUOUS = 55e9  # own copy of contiguous memory makes so many
OFTEN = 9  # times of the shortest prompt, where a tenth of a ms counts
HITS = 10  # in the restarted engine, of one prompt
SSD_TIMES = 2
PARTS = ("lookup_ms", "stage_ms", "copy_ms", "resume_ms")
NAMES = {"cold": "cold", "saving": "cold, saving", "own": "own hit",
         "native": "native offload hit", "dram": "Larder, DRAM",
         "restart": "Larder, engine restarted", "ssd": "Larder, SSD"}
# Engines differ by tens of ms, whatever they do: each has its own.
OWN = {"native": "native_own", "dram": "own", "restart": "restart_own"}


class Stage:
    def __init__(self, proof, size):
        self.proof = proof
        self.shape = "tiny" if proof.tiny else f"qwen3-{size}"
        self.found = proof.stage(f"ttft-{size}")
        self.times = 2 if proof.tiny else proof.args.times
        self.lengths = [n + proof.args.tail
                        for n in (TINY if proof.tiny
                                  else proof.args.lengths or LENGTHS)]
        self.middle = self.lengths[len(self.lengths) // 2]
        self.rows = self.found["rows"] = {
            str(n): {"bytes": self.size(n)} for n in self.lengths}
        self.found.update(shape=self.shape, times=self.times)

    def size(self, tokens):
        return (tokens - 1) // 256 * 256 * models.token_bytes(self.shape)

    def prompt(self, tokens, name="kept"):
        return [[f"{self.shape} {name} {tokens}", tokens]]

    def engine(self, name, **args):
        one = host.Engine(self.proof, self.shape, f"{self.shape} {name}",
                          **args)
        self.found[f"engine {name}"] = one.about
        self.warm_up(one)
        return one

    def warm_up(self, one):
        """The engine's own first times are nobody's hit: kernels of prefill
        and of decode, and of a long prompt's last step."""
        one.call("rpc", method="larder_watch")
        one.call("rpc", method="larder_link", args=[1])
        for i, tokens in enumerate((64, self.lengths[0], self.lengths[0])):
            one.ask(self.prompt(tokens, f"warm up {i}"), transfer=APART)
        one.reset()

    def measure(self, one, row, tokens, name="kept", transfer=None):
        """One request of a kind, noted."""
        note = self.rows[str(tokens)].setdefault(
            row, {"s": [], "core": [], "external": [], "local": []})
        with host.Counted(one) as counted:
            answer = one.ask(self.prompt(tokens, name), transfer=transfer)
        note["s"].append(answer["ttft"])
        note["core"].append(answer["core"])
        note["external"].append(counted.external)
        note["local"].append(answer["cached"] - counted.external)
        if row in ("dram", "restart", "ssd"):
            note.setdefault("explain", []).append(one.explain(answer["id"]))
        note.setdefault("steps", []).append(one.call("rpc",
                                                     method="larder_steps"))
        self.proof.save()
        return answer

    def fresh(self, one, row, tokens, **args):
        """The same with nothing in the engine's own cache."""
        one.reset()
        return self.measure(one, row, tokens, **args)

    def often(self, tokens, times):
        """How often: more often than that, if it is the shortest prompt."""
        return (max(OFTEN, times) if tokens == self.lengths[0]
                and not self.proof.tiny else times)

    def hits(self, one, row, tokens, times=None):
        """Hits, each with an own hit of the same engine right after it: engines
        differ, and each has its moods."""
        for _ in range(times or self.often(tokens, self.times)):
            self.fresh(one, row, tokens)
            mine = self.rows[str(tokens)]
            mine[row].setdefault("link", []).append(one.call(
                "rpc", method="larder_link", args=[mine["bytes"]]))
            self.measure(one, OWN[row], tokens)

    # ---- engines ----

    def native(self):
        """vLLM's own offload, in its own process's memory."""
        room = int(sum(n * models.token_bytes(self.shape)
                       for n in self.lengths) * 1.25) + GIB
        with self.engine("native", transfer={
                "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"cpu_bytes_to_use": room}}
                ) as one:
            for n in self.lengths:
                self.measure(one, "native_cold", n)
            time.sleep(0.5)  # its stores end after the request
            for n in self.lengths:
                self.hits(one, "native", n)

    def larder(self, node):
        with self.engine("Larder", url=node.url) as one:
            for n in self.lengths:
                for i in range(self.often(n, 2 if n > 40000 else 3)):
                    self.fresh(one, "cold", n, name=f"cold {i}",
                               transfer=APART)
                self.fresh(one, "saving", n)
                self.rows[str(n)]["held_s"] = one.reset()
                self.hits(one, "dram", n)
            self.found["lines"] = one.larder_lines()[-20:]

    def restarted(self, node):
        with self.engine("restarted", url=node.url) as one:
            order = sorted(self.lengths, key=lambda n: n != self.middle)
            for n in order:
                self.hits(one, "restart", n, HITS if n == order[0] else None)
            for i in range(0 if self.proof.args.no_ssd else SSD_TIMES):
                self.proof.clock.need(30, "Larder from SSD")
                self.from_disk(one, node, i)
            self.found["lines restarted"] = one.larder_lines()[-20:]

    def from_disk(self, one, node, i):
        done, took = node.written(self.proof.clock.limit(90))
        note = {"written": done, "written_s": took}
        self.found.setdefault("disk", []).append(note)
        self.proof.say(f"{'all' if done else 'NOT all'} on disk after "
                       f"{took:.1f} s")
        node.stop()
        node.start()
        note["node_start_s"] = node.start_s
        begin = time.monotonic()
        host.until(lambda: self.reached(one, i), 30,
                   "the engine does not reach the node again")
        note["reached_s"] = time.monotonic() - begin
        time.sleep(2)  # the arena of the new one is mapped meanwhile
        for n in self.lengths:
            self.fresh(one, "ssd", n)

    def reached(self, one, i):
        """Whether the node answers: a prompt that it cannot know is absent
        there, not out of reach."""
        self.probes = getattr(self, "probes", 0) + 1
        answer = one.ask(self.prompt(300, f"probe {i} {self.probes}"),
                         transfer={"larder": {"skip_save": True}})
        return one.explain(answer["id"]).get("reason") in ("absent",
                                                           "evicted")

    # ---- what it says ----

    def show(self):
        rows = []
        for n in self.lengths:
            mine = self.rows[str(n)]
            native = even(mine, "native")
            for row, text in NAMES.items():
                if row not in mine:
                    continue
                took, own = even(mine, row), even(mine, OWN.get(row, "own"))
                link = own + mine["bytes"] / LINK
                rows.append([
                    text, f"{n:,}", ms(mine[row]["s"]),
                    ms(mine[row]["core"]),
                    f"{min(mine[row]['core']) * 1000:.1f}",
                    f"{max(mine[row]['core']) * 1000:.1f}",
                    f"{even(mine, row) * 1000:.1f}" if row in OWN
                    or row == "own" else "-",
                    f"{middle(mine[row]['external']):,.0f}",
                    f"{mine['bytes'] / 1e9:.2f}",
                    f"{link * 1000:.1f}" if own == own else "-",
                    f"{took / native:.2f}" if native == native else "-",
                    why(mine[row])])
        table(["first token", "tokens", "asked ms", "engine ms", "least",
               "most", "even", "from the store", "GB", "own + GB/50", "÷ native", "why not"],
              rows)
        self.show_parts()

    def show_parts(self):
        """Where the time of a hit goes, as the connector tells it."""
        rows = []
        for n in self.lengths:
            for row in ("dram", "restart", "ssd"):
                told = [e for e in self.rows[str(n)].get(row, {}).get(
                    "explain", []) if "copy_ms" in e]
                if told:
                    rows.append([NAMES[row], f"{n:,}"] + [
                        f"{middle([float(e.get(p, 0)) for e in told]):.2f}"
                        for p in PARTS])
        if rows:
            table(["of a hit", "tokens", *PARTS], rows)

    def judge(self):
        for n in self.lengths:
            mine = self.rows[str(n)]
            native, cold = even(mine, "native"), seconds(mine, "cold")
            for row in ("dram", "restart"):
                if row not in mine:
                    continue
                took, own = even(mine, row), even(mine, OWN[row])
                name = f"{NAMES[row]}, {n:,} tokens"
                if native == native:
                    check(self.found, f"{name}: native", took,
                          1.05 * native, "1.05 x native offload")
                check(self.found, f"{name}: link", took,
                      own + mine["bytes"] / LINK,
                      "that engine's own hit + bytes / 50 GB/s")
                check(self.found, f"{name}: this link", took,
                      own + allowed(mine, row), "the same, by what the "
                      "driver's own copy took beside it")
                checked(self.found, f"{name}: loaded",
                        min(mine[row]["external"]) >= (n - 1) // 256 * 256,
                        f"{min(mine[row]['external']):,} tokens")
            for row in ("dram", "restart", "ssd"):
                if row in mine and cold == cold:
                    check(self.found, f"{NAMES[row]}, {n:,} tokens: cold",
                          max(mine[row]["core"]), 1.05 * cold,
                          "the slowest, 1.05 x cold")
        mine = self.rows[str(self.middle)]
        hits = [usual(mine) + more for more in rest(mine.get(
            "restart", {"core": []}))]
        if len(hits) >= HITS:
            check(self.found, "first hit after a start", hits[0],
                  1.1 * hits[HITS - 1], "1.1 x the tenth")


def link(mine, row):
    """Seconds of the driver's own copies beside hits of a kind."""
    return middle(mine.get(row, {}).get("link", []))


def allowed(mine, row):
    """Seconds that a hit's bytes may take: as at 50 GB/s where the driver's own
    copy makes 55, or as much longer as that takes here."""
    took = link(mine, row)
    least = mine["bytes"] / LINK
    return max(least, took * CONTIGUOUS / LINK) if took == took else least


def launches(note):
    """What the engine's thread took for the two steps of each request."""
    return [sum(step[1] for step in steps[-4:]) for steps in
            note.get("steps", [])]


def usual(rows):
    """What launching takes, by all kinds of hits."""
    return middle([took for kind in (*OWN, *OWN.values()) if kind in rows
                   for took in launches(rows[kind])])


def rest(note):
    """Of each request: the time that is not launching."""
    return [core - took for core, took in zip(note["core"], launches(note))]


def even(rows, name):
    """As seconds(), with the same time to launch for all kinds of hits."""
    if name not in rows or "steps" not in rows[name]:
        return seconds(rows, name)
    return usual(rows) + middle(rest(rows[name]))


def seconds(rows, name):
    """By the engine's clock, where it was read."""
    if name not in rows:
        return float("nan")
    return middle(rows[name].get("core") or rows[name]["s"])


def why(note):
    """Why not all was loaded: what the connector says."""
    found = sorted({e.get("reason") or "" for e in note.get("explain", [])})
    return "/".join(word for word in found if word) or "-"


def run(proof, size):
    stage = Stage(proof, size)
    node = proof.node(f"ttft-{size}", proof.args.dram, "28G")
    try:
        if proof.cpu:
            proof.say("native offload refuses this platform: left out")
        else:
            try:
                stage.native()
            except host.Failed as error:
                stage.found["native_failed"] = str(error)[-4000:]
                proof.say(f"native offload FAILED: {error}")
        proof.clock.need(60, "Larder")
        with node:
            stage.larder(node)
            proof.clock.need(45, "the restarted engine")
            stage.restarted(node)
    finally:
        proof.forget(node)
        stage.show()
        stage.judge()
        proof.save()
