"""Proof 5: under load.

Groups of requests share a long prefix, each has a few tokens of its own: some
at once, the next when one is answered; then one each so many milliseconds,
which is the same load for all. Then a batch of long prompts with long answers.
Three engines one after the other, all with so little cache of their own that it
cannot hold all prefixes: without a connector; with Larder; with Larder after a
restart.
"""
import random

import host
from proof import check, middle, part, table

PASSES = ("fill", "queries", "paced", "batch", "batch again")
SAVING = 1.02  # times as long may a first token take where all is saved


class Load:
    def __init__(self, proof):
        self.proof = proof
        self.found = proof.stage("load")
        scale = proof.args.scale
        if proof.tiny:
            self.shape, self.room = "tiny", 1
            self.prefix, self.own, self.answer = 1100, 64, 8
            self.groups, self.queries, self.at_once = 3, 2, 2
            self.every, self.paced = 0.3, 2
            self.long, self.long_answer, self.batch = 1300, 16, 2
        else:
            self.shape, self.room = "qwen3-8b", 32
            self.prefix, self.own, self.answer = 20000, 128, 64
            # 70 GB, of which the engine's own cache holds half, as that of a
            # whole H200 would hold a third of 100 groups.
            self.groups = max(4, round(24 * scale))
            self.queries, self.at_once = max(2, round(3 * scale)), 4
            self.every, self.paced = 0.45, max(2, round(3 * scale))
            self.long, self.long_answer, self.batch = 21000, 1000, 8
        self.found.update(
            shape=self.shape, groups=self.groups, queries=self.queries,
            prefix=self.prefix, own=self.own, answer=self.answer,
            at_once=self.at_once, every=self.every, paced=self.paced,
            batch=self.batch, long=self.long,
            long_answer=self.long_answer, cache_gib=self.room, passes={})

    def engine(self, name, url=None):
        one = host.Engine(self.proof, self.shape, f"load {name}", url,
                          **self.proof.room(self.room),
                          **self.proof.graphs())
        self.found[f"engine {name}"] = one.about
        for i in range(2):
            one.ask([[f"warm up {i}", self.prefix // 4]], max_tokens=4)
        one.reset()
        return one

    def one_pass(self, one, name, kind, prompts, at_once, answer, every=0.0):
        with host.Counted(one) as counted:
            done = one.many(prompts, at_once, every=every, max_tokens=answer,
                            answers=False)
        good = [a for a in done["answers"] if a["error"] is None]
        firsts = [a["ttft"] for a in good]
        steps = [(a["seconds"] - a["ttft"]) / (a["tokens"] - 1)
                 for a in good if a["tokens"] > 1]
        mine = self.found["passes"].setdefault(name, {})
        mine[kind] = {
            "requests": len(prompts), "errors": len(prompts) - len(good),
            "seconds": done["seconds"],
            "per_minute": 60 * len(good) / done["seconds"],
            "ttft_p50": middle(firsts), "ttft_p99": part(firsts, 0.99),
            "tpot": middle(steps), "tpot_p99": part(steps, 0.99),
            "tpot_mean": sum(steps) / len(steps) if steps else float("nan"),
            "ttfts": [round(s, 5) for s in firsts],
            "tpots": [round(s, 6) for s in steps],
            "external": counted.external, "prompt": counted.prompt,
            "local": sum(a["cached"] for a in good) - counted.external}
        self.proof.save()
        self.proof.say(f"{name}, {kind}: {done['seconds']:.1f} s, "
                       f"{counted.external:,} tokens from the store")

    def fill(self, one, name):
        """Each group's first request."""
        self.one_pass(one, name, "fill", self.prompts(["first"]),
                      self.at_once, self.answer)

    def ask(self, one, name):
        self.one_pass(one, name, "queries", self.prompts(
            [f"query {i}" for i in range(self.queries)]), self.at_once,
            self.answer)
        self.one_pass(one, name, "paced", self.prompts(
            [f"paced {i}" for i in range(self.paced)]), 1000, self.answer,
            self.every)

    def prompts(self, queries):
        """All groups' queries in mixed order, the same for every engine."""
        found = [[[f"group {g}", self.prefix], [f"own {g} {q}", self.own]]
                 for q in queries for g in range(self.groups)]
        random.Random(1).shuffle(found)
        return found

    def long_batch(self, one, name, kind="batch"):
        self.one_pass(one, name, kind, [
            [[f"long {i}", self.long]] for i in range(self.batch)],
            self.batch, self.long_answer)

    def run(self):
        need = self.proof.clock.need
        with self.proof.node("load", "100G") as node:
            with self.engine("Larder", node.url) as one:
                self.fill(one, "warm")
                self.ask(one, "warm")
                one.reset()
                self.long_batch(one, "warm")
                one.reset()
                self.long_batch(one, "warm", "batch again")
            need(50, "the restarted engine")
            with self.engine("restarted", node.url) as one:
                self.ask(one, "restarted")
                one.reset()
                self.long_batch(one, "restarted", "batch again")
        need(60, "the engine without a connector")
        with self.engine("none") as one:
            self.fill(one, "none")
            self.ask(one, "none")
            one.reset()
            self.long_batch(one, "none")


NAMES = {"none": "engine cache only", "warm": "Larder",
         "restarted": "Larder, engine restarted"}


def show(found):
    rows = []
    for kind in PASSES:
        for name, text in NAMES.items():
            mine = found["passes"].get(name, {}).get(kind)
            if mine is not None:
                rows.append([
                    f"{kind}: {text}", f"{mine['ttft_p50'] * 1000:,.0f}",
                    f"{mine['ttft_p99'] * 1000:,.0f}",
                    f"{mine['tpot'] * 1000:.2f}",
                    f"{mine['tpot_mean'] * 1000:.2f}",
                    f"{mine['tpot_p99'] * 1000:.2f}",
                    f"{mine['per_minute']:,.1f}", f"{mine['external']:,}",
                    f"{mine['local']:,}", mine["errors"]])
    table(["under load", "first token p50 ms", "p99", "per token p50 ms",
           "mean", "p99",
           "requests/min", "from the store", "own cache", "errors"], rows)


def judge(found):
    passes = found["passes"]
    none = passes.get("none", {})
    for name in ("warm", "restarted"):
        for kind, against in (("queries", "queries"), ("paced", "paced"),
                              ("batch", "batch"), ("batch again", "batch")):
            mine, base = passes.get(name, {}).get(kind), none.get(against)
            if mine is None or base is None:
                continue
            text = f"{kind}: {NAMES[name]}"
            # Nothing hits there: all is computed, and saved.
            times, of = ((SAVING, f"{SAVING} x without") if kind == "batch"
                         else (1, "without Larder"))
            check(found, f"{text}: p99 of the first token",
                  mine["ttft_p99"], times * base["ttft_p99"], of)
            for key, name_of in (("tpot", "median"), ("tpot_mean", "mean")):
                check(found, f"{text}: {name_of} time per token", mine[key],
                      1.02 * base[key], "1.02 x without")


def run(proof):
    one = Load(proof)
    try:
        one.run()
    finally:
        show(one.found)
        judge(one.found)
        proof.save()
