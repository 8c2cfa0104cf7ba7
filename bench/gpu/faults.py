"""The node is killed, and stopped, while an engine loads from it and saves to
it: every answer is the one it would be without Larder, none hangs, and hits
come back. With each kind of model: full attention, a hybrid whose groups share
memory, and one with a latent in place of heads.

Prompts are computed in steps of one chunk: whatever part of one came from a
cache, the rest is computed in the same shapes, and the logprobs are the same
bit by bit.
"""
import signal
import time

import host
from equality import OTHER, same
from proof import APART, checked, table

CHUNK = 256
EXACT = dict(max_num_seqs=1, max_num_batched_tokens=CHUNK)
ANSWER = dict(max_tokens=8, logprobs=3)
AWAY = {"kill": 1.0, "stop": 3.0}  # seconds
HANG = 40
COUNT = 6
MODELS = ("qwen3", "gemma3", "deepseek-v2")


class Faults:
    def __init__(self, proof, node, model, found):
        self.proof, self.node, self.model = proof, node, model
        self.found = found
        chunks = 3 if proof.tiny else 24
        self.hit = chunks * CHUNK
        tokens = self.hit + 5
        self.stored = [[[f"stored {i}", tokens]] for i in range(COUNT)]
        self.new = {fault: [[[f"{fault} {i}", tokens]] for i in range(COUNT)]
                    for fault in AWAY}
        self.wanted = {}

    def prepare(self, one):
        """The answers without Larder; then what is stored is."""
        for prompt in self.stored + sum(self.new.values(), []):
            self.wanted[str(prompt)] = one.ask(prompt, transfer=APART,
                                               **ANSWER)
        one.reset()
        wrong = sum(not self.right(p, one.ask(p, **ANSWER))
                    for p in self.stored)
        self.found["wrong_cold"] = wrong
        one.reset()
        self.node.written(30)

    def right(self, prompt, answer):
        return (answer["error"] is None
                and same(answer, self.wanted[str(prompt)]))

    def hits(self, one, prompt):
        one.reset()
        with host.Counted(one) as counted:
            answer = one.ask(prompt, **ANSWER)
        self.last = counted.external
        return counted.external == self.hit and self.right(prompt, answer)

    def strike(self, one, fault):
        """Requests that hit and requests that do not, in turn, while the node
        is away."""
        note = self.found[fault] = {}
        note["hit_before"] = self.hits(one, self.stored[0])
        one.reset()
        prompts = [p for pair in zip(self.stored, self.new[fault])
                   for p in pair]
        one.send("many", prompts=prompts, at_once=4, deadline=HANG, **ANSWER)
        time.sleep(0.05 if self.proof.tiny else 0.15)
        begin = time.monotonic()
        if fault == "kill":
            self.node.kill()
        else:
            self.node.signal(signal.SIGSTOP)
        time.sleep(AWAY[fault])
        if fault == "kill":
            self.node.start()
        else:
            self.node.signal(signal.SIGCONT)
        done = one.receive(HANG + 30)
        answers = done["answers"]
        note.update(
            requests=len(prompts), seconds=done["seconds"],
            slowest=max(a.get("seconds") or HANG for a in answers),
            errors=sum(a["error"] is not None for a in answers),
            wrong=sum(not self.right(p, a)
                      for p, a in zip(prompts, answers)))
        note["wrong_tokens"] = sum(
            a["tokens"] != self.wanted[str(p)]["tokens"]
            for p, a in zip(prompts, answers))
        self.proof.save()
        host.until(lambda: self.hits(one, self.stored[1]), 40,
                   lambda: f"{self.last} of {self.hit} tokens hit after it")
        note["recovered_s"] = time.monotonic() - begin
        self.proof.save()

    def judge(self):
        for fault in AWAY:
            note = self.found.get(fault)
            if note and "wrong" in note:
                checked(self.found, f"{self.model}, node: {fault}",
                        note["hit_before"] and "recovered_s" in note
                        and not note["wrong"] and not note["errors"],
                        f"{note['wrong']} of {note['requests']} wrong, "
                        f"{note['errors']} errors")


def show(found):
    table(["model", "the node", "requests", "wrong", "wrong tokens", "errors",
           "slowest s", "hits again after s"],
          [[model, fault, note["requests"], note["wrong"],
            note["wrong_tokens"], note["errors"], f"{note['slowest']:.2f}",
            f"{note.get('recovered_s', float('nan')):.1f}"]
           for model in MODELS for fault in AWAY
           if "wrong" in (note := found.get(model, {}).get(fault, {}))])


def run(proof):
    found = proof.stage("faults")
    try:
        for model in proof.only(MODELS):
            proof.clock.need(45, f"faults with {model}")
            with proof.node(f"faults-{model}", "4G", "8G") as node:
                one = Faults(proof, node, model, found.setdefault(model, {}))
                try:
                    with host.Engine(proof, model, f"faults {model}",
                                     node.url, **EXACT,
                                     **OTHER.get(model, {})) as engine:
                        one.prepare(engine)
                        for fault in AWAY:
                            one.strike(engine, fault)
                        one.found["lines"] = engine.larder_lines()[-30:]
                finally:
                    one.judge()
                    proof.save()
            proof.forget(node)
    finally:
        show(found)
