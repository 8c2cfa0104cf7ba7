"""Loading layer by layer (load_layers): first token of a hit from DRAM.

The forward of a hit runs while its KV arrives. That needs vLLM's V1 runner
without async scheduling, so there are two baselines: the engine as vLLM starts
it, and the same engine as those that load in the step. Each is measured beside
its own hits; all of the second kind load what the first of them has saved.

Then, with generated weights: logprobs of such a hit are those of an own hit,
bit by bit, and one turned sign bit of one stored page is noticed.
"""
import time

import equality
import host
import models
from proof import checked, middle, ms, table

LENGTHS = (4096, 20480, 49152)
TINY = (700, 1500, 3100)
EXTRA = 240  # seconds, after which the last kind is left out
LINK = 50e9  # bytes a second that a hit may be charged
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
# Name: what it is, options, in the step?
KINDS = {
    "default": ("vLLM's defaults, ordinary loads", {}, False),
    "before": ("V1, not async, ordinary loads", {}, True),
    "sync": ("V1, not async, load_layers=1", {"load_layers": 1}, True),
    "layers": ("V1, not async, load_layers=8", {"load_layers": 8}, True),
    "single": ("V1, not async, load_layers=36", {"load_layers": 36}, True),
}
COUNTER = "vllm:larder_loads_layered"


class Stage:
    def __init__(self, proof, size):
        self.proof = proof
        self.shape = "tiny" if proof.tiny else f"qwen3-{size}"
        self.times = 2 if proof.tiny else proof.args.times
        self.lengths = [n + 1 for n in (TINY if proof.tiny else LENGTHS)]
        self.found = proof.stage(f"layers-{size}")
        self.found.update(shape=self.shape, times=self.times, kinds={})

    def prompt(self, tokens, name):
        return [[f"{self.shape} {name} {tokens}", tokens]]

    def engine(self, kind):
        text, options, in_step = KINDS[kind]
        more = dict(async_scheduling=False, env=V1) if in_step else {}
        return host.Engine(self.proof, self.shape, text, self.url,
                           dict(options, load="always"), **more)

    def ask(self, one, note, kind, tokens, name):
        with host.Counted(one) as counted:
            before = one.call("counters").get(COUNTER, 0)
            answer = one.ask(self.prompt(tokens, name))
            after = one.call("counters").get(COUNTER, 0)
        mine = note.setdefault(str(tokens), {}).setdefault(
            kind, {"core": [], "s": [], "external": [], "layered": []})
        mine["core"].append(answer["core"])
        mine["s"].append(answer["ttft"])
        mine["external"].append(counted.external)
        mine["layered"].append(int(after - before))
        self.proof.save()

    def run(self, kind, name, saves):
        """One engine: own hits, and hits from the store."""
        note = self.found["kinds"][kind] = {"text": KINDS[kind][0]}
        with self.engine(kind) as one:
            note["engine"] = one.about
            for i, tokens in enumerate((64, self.lengths[0])):
                one.ask(self.prompt(tokens, f"warm up {kind} {i}"))
            for tokens in self.lengths:
                prompt = self.prompt(tokens, name)
                if saves:
                    one.ask(prompt)
                    one.reset()
                for _ in range(self.times + 1):  # the first is a warm-up
                    one.reset()
                    self.ask(one, note, "dram", tokens, name)
                    self.ask(one, note, "own", tokens, name)
            note["lines"] = [line for line in one.larder_lines()
                             if "layer" in line][-8:]

    def show(self):
        rows = []
        for text, tokens, own, hit, link, loaded, layered in figures(
                self.found):
            more = middle(hit) - middle(own)
            rows.append([
                text, f"{tokens:,}", ms(own), ms(hit),
                f"{min(hit) * 1000:.1f}", f"{max(hit) * 1000:.1f}",
                f"{more * 1000:.1f}", f"{link * 1000:.1f}", loaded, layered])
        table(["first token, engine ms", "tokens", "own hit", "DRAM", "least",
               "most", "beyond own", "GB/50", "loaded", "layered"], rows)

    def judge(self):
        for kind in ("sync", "layers", "single"):
            note = self.found["kinds"].get(kind)
            for tokens in self.lengths if note else ():
                mine = note.get(str(tokens), {}).get("dram")
                if mine and not self.proof.cpu:
                    checked(self.found, f"{kind}, {tokens:,} tokens: loads "
                            "in the step",
                            sum(mine["layered"]) == len(mine["layered"]),
                            f"{mine['layered']}")


def figures(found):
    """(text, tokens, seconds of own hits, of hits, of their bytes at the
    link's speed, tokens loaded, loads in the step) for each kind."""
    rows = []
    for note in found["kinds"].values():
        for tokens, mine in note.items():
            if not tokens.isdigit() or "own" not in mine:
                continue
            size = ((int(tokens) - 1) // 256 * 256
                    * models.token_bytes(found["shape"]))
            # The first of each was a warm-up.
            hit, own = (mine[k]["core"][1:] for k in ("dram", "own"))
            if hit and own:
                rows.append((note["text"], int(tokens), own, hit, size / LINK,
                             min(mine["dram"]["external"]),
                             sum(mine["dram"]["layered"])))
    return sorted(rows, key=lambda r: r[1])


def measure(proof, size):
    stage = Stage(proof, size)
    begin = time.monotonic()
    try:
        with proof.node(f"layers-{size}", proof.args.dram) as node:
            stage.url = node.url
            for kind in KINDS:
                took = time.monotonic() - begin
                if kind == "single" and (took > EXTRA
                                         or proof.clock.left() < 60):
                    continue  # it may be missing
                proof.clock.need(25, KINDS[kind][0])
                stage.run(kind, "async" if kind == "default" else "v1",
                          kind in ("default", "before"))
    finally:
        stage.show()
        stage.judge()
        proof.save()


class Case(equality.Case):
    def engine(self, name):
        one = host.Engine(self.proof, self.model, f"layers {name}",
                          self.node.url,
                          dict(equality.OPTIONS, load_layers=4),
                          async_scheduling=False, env=V1, **self.given)
        self.found[f"engine {name}"] = one.about
        return one

    def ask(self, one, prompt):
        before = one.call("counters").get(COUNTER, 0)
        answer = super().ask(one, prompt)
        answer["layered"] = int(one.call("counters").get(COUNTER, 0) - before)
        return answer

    def compute(self):
        with self.engine("equality") as one:
            for (prompt, hit), note in zip(self.prompts,
                                           self.found["prompts"]):
                cold = self.ask(one, prompt)
                own = self.ask(one, prompt)
                one.reset(scribble=True)
                larder = self.ask(one, prompt)
                self.own.append(own)
                note.update(
                    own_hit=own["local"], hit_tokens=larder["external"],
                    layered=larder["layered"], equal=equality.same(own, larder),
                    apart=equality.apart(own, larder),
                    own_as_cold=equality.same(own, cold))
                self.proof.save()
            self.flips(one)

    def judge(self):
        super().judge()
        if not self.proof.cpu:
            checked(self.found, "hits came layer by layer",
                    all(note.get("layered") for note in
                        self.found["prompts"]),
                    str([note.get("layered") for note in
                         self.found["prompts"]]))


def equal(proof):
    found = proof.stage("layers-equality")
    mine = found["qwen3"] = {}
    try:
        with proof.node("layers-equality", "4G") as node:
            one = Case(proof, "qwen3", dict(model="qwen3"), node, mine)
            one.compute()
            one.judge()
    finally:
        equality.show(found)
        proof.save()


def run(proof):
    equal(proof)
    measure(proof, "8b")
