"""Too many requests for the engine's memory, and some that are given up while
they load: preemption and aborts beside saves and loads.

Many at once share steps, and what one computes then differs in its last bits
from what it computes alone. So an answer is held to how far the same answers
are apart without Larder, in the same crowd (of each its first 8 tokens). Then
all is asked for one at a time, with the engine's memory overwritten: what had
been saved before the crowd came must be bit by bit what it is without Larder,
and what the crowd saved must be as near as the crowd's answers are.
"""
import host
from equality import apart, same
from proof import APART, checked, table

CHUNK = 256
MODELS = ("qwen3", "gemma3")
CHUNKS = 6
STORED, NEW, GIVEN_UP = 8, 8, 16
AT_ONCE = 8
BEFORE = 0.004  # seconds after which the first is given up
ALONE = dict(max_tokens=8, logprobs=3)
CROWD = dict(max_tokens=160, logprobs=3)
HANG = 60
# Blocks of vLLM's, so that half of the crowd finds room: of 16 tokens, and of
# each of the groups.
BLOCKS = {"qwen3": 500, "gemma3": 1300}


class Pressure:
    def __init__(self, proof, node, model, found):
        self.proof, self.node, self.model = proof, node, model
        self.found = found
        chunks = 2 if proof.tiny else CHUNKS
        self.hit = chunks * CHUNK
        self.stored, self.new, self.left = (
            [[[f"{kind} {i}", self.hit + 5]] for i in range(count)]
            for kind, count in (("stored", STORED), ("new", NEW),
                                ("given up", GIVEN_UP)))
        self.wanted = {}

    def prepare(self, one):
        for prompt in self.stored + self.new + self.left:
            self.wanted[str(prompt)] = one.ask(prompt, transfer=APART,
                                               **ALONE)
        one.reset()
        for prompt in self.stored + self.left:
            one.ask(prompt, **ALONE)
        one.reset(scribble=True)

    def crowd(self, one, name, **more):
        """All at once; those that are given up have 4 ms, 8, and so on."""
        prompts = [p for three in zip(self.stored, self.new, self.left,
                                      self.left[STORED:]) for p in three]
        deadlines = [BEFORE * (1 + self.left.index(p)) if p in self.left
                     else HANG for p in prompts]
        before = one.call("counters")
        done = one.call("many", HANG + 60, prompts=prompts, at_once=2 * AT_ONCE,
                        deadlines=deadlines, **CROWD, **more)
        after = one.call("counters")

        def grown(counter):
            return int(after.get(counter, 0) - before.get(counter, 0))

        ended = [(p, a) for p, a in zip(prompts, done["answers"])
                 if p not in self.left]
        note = self.found[name] = dict(
            seconds=done["seconds"], requests=len(prompts),
            given_up=sum(a["error"] is not None for p, a in
                         zip(prompts, done["answers"]) if p in self.left),
            errors=sum(a["error"] is not None for _, a in ended),
            preempted=grown("vllm:num_preemptions"),
            hit_tokens=grown("vllm:external_prefix_cache_hits"),
            apart=max(apart(a, self.wanted[str(p)]) for p, a in ended),
            other_tokens=sum(
                a["tokens"][:8] != self.wanted[str(p)]["tokens"]
                for p, a in ended))
        self.proof.save()
        return note

    def check(self, one):
        """What the crowd saved and loaded, one at a time."""
        wrong = hits = 0
        most = 0.0
        for prompt in self.stored + self.new + self.left:
            one.reset(scribble=True)
            with host.Counted(one) as counted:
                answer = one.ask(prompt, **ALONE)
            hits += counted.external == self.hit
            if prompt in self.new:
                most = max(most, apart(answer, self.wanted[str(prompt)]))
            else:
                wrong += (answer["error"] is not None
                          or not same(answer, self.wanted[str(prompt)]))
        self.found.update(asked=len(self.wanted), hits=hits, wrong=wrong,
                          saved_apart=most)
        self.proof.save()

    def judge(self):
        if "wrong" not in self.found:
            return
        without, crowd = self.found["without"], self.found["with"]
        checked(self.found, f"{self.model}, crowd",
                crowd["preempted"] > 0 and crowd["given_up"] > 0
                and crowd["hit_tokens"] > 0 and not crowd["errors"]
                and crowd["apart"] <= 2 * without["apart"],
                f"{crowd['apart']:.3g} apart, {without['apart']:.3g} without")
        checked(self.found, f"{self.model}, one by one",
                not self.found["wrong"]
                and self.found["hits"] == self.found["asked"]
                and self.found["saved_apart"] <= 2 * without["apart"],
                f"{self.found['wrong']} of {self.found['asked'] - NEW} wrong, "
                f"{self.found['hits']} hits, what the crowd saved "
                f"{self.found['saved_apart']:.3g} apart")


def show(found):
    table(["model", "", "requests", "given up", "preempted", "hit tokens",
           "errors", "apart", "then asked", "hits", "wrong"],
          [[model, name, note["requests"], note["given_up"],
            note["preempted"], note["hit_tokens"], note["errors"],
            f"{note['apart']:.3g}",
            *([one.get("asked", "-"), one.get("hits", "-"),
               one.get("wrong", "-")] if name == "with" else ["", "", ""])]
           for model in MODELS for name in ("without", "with")
           if (note := (one := found.get(model, {})).get(name))])


def run(proof):
    found = proof.stage("pressure")
    try:
        for model in proof.only(MODELS):
            proof.clock.need(45, f"pressure on {model}")
            with proof.node(f"pressure-{model}", "4G") as node:
                one = Pressure(proof, node, model,
                               found.setdefault(model, {}))
                blocks = BLOCKS[model] // (3 if proof.tiny else 1)
                with host.Engine(
                        proof, model, f"pressure {model}", node.url,
                        max_num_seqs=AT_ONCE, max_num_batched_tokens=CHUNK,
                        max_model_len=2048,
                        num_gpu_blocks_override=blocks) as engine:
                    try:
                        one.prepare(engine)
                        one.crowd(engine, "without", transfer=APART)
                        engine.reset(scribble=True)
                        one.crowd(engine, "with")
                        one.check(engine)
                        one.found["lines"] = engine.larder_lines()[-30:]
                    finally:
                        one.judge()
                        proof.save()
    finally:
        show(found)
