"""Proof 6: what one shape of engine saved is what another one loads.

Two engines of one model, with other attention backends and block sizes, on one
node. The first computes prompts, which are saved; the second claims all of them.
Its pages are those of the first, byte for byte (inside.Asked.larder_digest hashes
them at save and at load), and its logprobs are no further from those of its own
hit than the two engines' own answers are apart. Then the reverse.
"""
import host
from equality import ANSWER, OPTIONS, apart
from proof import APART, checked, table

CHUNK = 256
LENGTHS = ((5, 9), (16, 3), (40, 16))  # (chunks, tokens behind)
TINY = ((2, 9), (5, 3))
FLASH = dict(attention_backend="FLASH_ATTN", block_size=16)
TRITON = dict(attention_backend="TRITON_ATTN", block_size=64)
CASES = {
    "qwen3": ("qwen3", FLASH, TRITON),
    "qwen3-fp8": ("qwen3", dict(FLASH, kv_cache_dtype="fp8"),
                  dict(TRITON, kv_cache_dtype="fp8")),
    "deepseek-v2": ("deepseek-v2", dict(block_size=64),
                    dict(attention_backend="TRITON_MLA", block_size=32)),
}
SLACK = 1.25  # times what the engines' own answers differ by


class Case:
    def __init__(self, proof, name, found):
        self.proof, self.name, self.found = proof, name, found
        self.model, *self.shapes = CASES[name]
        if proof.cpu:  # its pages are packed by block: the script is tried out
            self.shapes = [{}, {}]
        self.prompts = [([[f"{name} {i}", chunks * CHUNK + more]],
                         chunks * CHUNK) for i, (chunks, more) in enumerate(
                             TINY if proof.tiny else LENGTHS)]

    def engine(self, node, number):
        one = host.Engine(self.proof, self.model,
                          f"{self.name} {self.shapes[number]}", node.url,
                          OPTIONS, **self.shapes[number])
        one.call("rpc", method="larder_digest")
        return one

    def ask(self, one, prompt, **more):
        with host.Counted(one) as counted:
            answer = one.ask(prompt, **ANSWER, **more)
        answer["external"] = counted.external
        return answer

    def own(self, one):
        """What it makes of each prompt by itself, leaving the store alone: all
        computed, and with a hit of its own."""
        answers = []
        for prompt, _ in self.prompts:
            one.reset()
            answers.append([self.ask(one, prompt, transfer=APART)
                            for _ in range(2)])
        return answers

    def run(self, writer):
        """One engine saves, the other loads: one direction."""
        mine = self.found[f"from {writer}"] = {"prompts": []}
        with self.proof.node(f"{self.name}-{writer}", "8G") as node:
            with self.engine(node, writer) as one:
                first = self.own(one)
                one.reset()
                for prompt, _ in self.prompts:
                    one.ask(prompt, max_tokens=2)
                one.reset()
                for prompt, hit in self.prompts:  # all of it is stored
                    again = self.ask(one, prompt)
                    mine["prompts"].append({"again": again["external"]})
                saved = one.call("rpc", method="larder_digests")["saved"]
                about = one.call("rpc", method="larder_about")
            with self.engine(node, 1 - writer) as one:
                one.reset(scribble=True)
                mine["same_space"] = about["descriptor"] == one.call(
                    "rpc", method="larder_about")["descriptor"]
                hits = [self.ask(one, prompt) for prompt, _ in self.prompts]
                loaded = one.call("rpc", method="larder_digests")["loaded"]
                second = self.own(one)
        mine.update(saved=len(saved), loaded=len(loaded), wrong=sum(
            saved.get(name) != digest for name, digest in loaded.items()))
        for note, (prompt, hit), a, b, got in zip(
                mine["prompts"], self.prompts, first, second, hits):
            note.update(tokens=prompt[0][1], hit=hit, external=got["external"],
                        own_apart=max(apart(a[0], b[0]), apart(a[1], b[1]),
                                      apart(b[0], b[1])),
                        apart=apart(got, b[1]))
        self.judge(writer, mine)
        self.proof.save()

    def judge(self, writer, mine):
        what = f"{self.name}, saved by {self.shapes[writer]}"
        checked(self.found, f"{what}: pages",
                mine["loaded"] > 0 and mine["wrong"] == 0
                and mine["same_space"],
                f"{mine['loaded']} heads of chunks loaded, {mine['wrong']} of "
                f"them not as saved ({mine['saved']})")
        for note in mine["prompts"]:
            checked(self.found, f"{what}: {note['tokens']} tokens",
                    note["external"] == note["hit"] == note["again"]
                    and note["apart"] <= SLACK * note["own_apart"],
                    f"hit {note['external']} of {note['hit']}, "
                    f"{note['apart']:.3g} apart, by themselves "
                    f"{note['own_apart']:.3g}")


def run(proof):
    found = proof.stage("shapes")
    failed = []
    for name in proof.only(CASES):
        mine = found[name] = {}
        try:
            for writer in (0, 1):
                proof.clock.need(60, name)
                Case(proof, name, mine).run(writer)
        except host.Failed as error:
            mine["error"] = str(error)[-4000:]
            proof.say(f"{name} FAILED: {error}")
            failed.append(name)
        proof.save()
    table(["model", "saved by", "pages loaded", "not as saved", "hit",
           "apart", "by themselves"],
          [[name, writer, one.get("loaded", "-"), one.get("wrong", "-"),
            f"{note['external']} of {note['hit']}", f"{note['apart']:.3g}",
            f"{note['own_apart']:.3g}"]
           for name, mine in found.items() if isinstance(mine, dict)
           for writer, one in mine.items() if writer.startswith("from")
           for note in one["prompts"] if "apart" in note])
    if failed:
        raise host.Failed(f"failed: {', '.join(failed)}")
