"""Proof 2: what Larder loads is what vLLM itself would have used.

For each model: an engine computes prompts, hits its own cache, and its KV is
saved; a new engine hits Larder. Its logprobs must be those of the own hit, bit
by bit. The lengths are such that both hits have the same length: what is
computed behind them has the same shape, so that nothing but the KV can differ.
Then the test is tested: one sign bit of one stored page is turned. The last
prompt is the second turn of a conversation: it hits what was generated, step by
step and scheduled ahead.
"""
import host
import models
import store
from proof import GRAPHS, checked, table

CHUNK = 256
# (chunks, tokens behind): at most 16 behind, a block of vLLM's.
LENGTHS = ((5, 9), (16, 3), (40, 16))
TINY = ((2, 9), (5, 3))
FIRST, ANSWERED = 5 * CHUNK - 40, CHUNK + 40  # tokens of the first turn
CASES = {
    "qwen3": dict(model="qwen3", **GRAPHS),
    "gemma3": dict(model="gemma3"),
    "deepseek-v2": dict(model="deepseek-v2"),
    "qwen3-fp8": dict(model="qwen3", kv_cache_dtype="fp8"),
}
# With torch.compile and all of vLLM's own graphs: a minute more.
COMPILED = {"qwen3-compiled": dict(model="qwen3", enforce_eager=False)}
# What is tried if an engine does not start.
OTHER = {"deepseek-v2": dict(attention_backend="TRITON_MLA")}
PLACES = (0.5, 0.1, 0.9, 0.3, 0.7)
ANSWER = dict(max_tokens=8, logprobs=5)
OPTIONS = dict(load="always", lookup_ms=10000)


def same(one, other):
    return (one["tokens"] == other["tokens"]
            and one["logprobs"] == other["logprobs"])


def apart(one, other):
    """The largest difference of two answers' logprobs, as far as their
    tokens are the same."""
    most = 0.0
    for i, (a, b) in enumerate(zip(one["logprobs"], other["logprobs"])):
        if one["tokens"][:i] != other["tokens"][:i]:
            break
        b = dict(map(tuple, b))
        for token, value in a:
            if token in b:
                most = max(most, abs(float.fromhex(value)
                                     - float.fromhex(b[token])))
    return most


class Case:
    def __init__(self, proof, name, given, node, found):
        self.proof, self.name, self.node, self.found = proof, name, node, found
        self.given = dict(given)
        self.model = self.given.pop("model")
        if proof.cpu:
            for key in GRAPHS:
                self.given.pop(key, None)
        lengths = TINY if proof.tiny else LENGTHS
        self.prompts = [([[f"equal {i}", chunks * CHUNK + more]],
                         chunks * CHUNK)
                        for i, (chunks, more) in enumerate(lengths)]
        self.own = []
        found["prompts"] = [{"tokens": p[0][1], "hit": hit}
                            for p, hit in self.prompts]

    def talk(self, one):
        """The first turn. Some more is generated, for what is known of the
        last tokens comes late."""
        first = [["first turn", FIRST]]
        answer = one.ask(first, max_tokens=ANSWERED + 20)["tokens"]
        self.prompts.append(
            ([*first, [answer[:ANSWERED], ANSWERED], ["second turn", 9]],
             FIRST + ANSWERED))
        self.found["prompts"].append(
            {"tokens": FIRST + ANSWERED + 9, "hit": FIRST + ANSWERED,
             "generated": ANSWERED})

    def engine(self, name):
        first = self.given
        for given in (first, dict(first, **OTHER.get(self.name, {}))):
            try:
                one = host.Engine(self.proof, self.model,
                                  f"{self.name} {name}", self.node.url,
                                  OPTIONS, **given)
                self.given = given
                self.found[f"engine {name}"] = one.about
                return one
            except host.Failed as error:
                if self.name not in OTHER or given is not first:
                    raise
                self.proof.say(f"again with {OTHER[self.name]}: "
                               f"{str(error)[-600:]}")
                self.found["first_try"] = str(error)[-2000:]

    def ask(self, one, prompt):
        with host.Counted(one) as counted:
            answer = one.ask(prompt, **ANSWER)
        answer["external"] = counted.external
        answer["local"] = answer["cached"] - counted.external
        return answer

    def compute(self):
        """The first engine: cold, own hit, and a Larder hit beside them."""
        with self.engine("1") as one:
            self.talk(one)
            for (prompt, hit), note in zip(self.prompts,
                                           self.found["prompts"]):
                cold = self.ask(one, prompt)
                own = self.ask(one, prompt)
                again = self.ask(one, prompt)
                one.reset(scribble=True)
                larder = self.ask(one, prompt)
                self.own.append(own)
                note.update(
                    own_hit=own["local"], own_again=same(own, again),
                    own_as_cold=same(own, cold), cold_apart=apart(own, cold),
                    first_hit=larder["external"],
                    first_equal=same(own, larder),
                    answers=len({tuple(a["tokens"]) for a in self.own}))
                self.proof.save()

    def restarted(self):
        """Another process, that has computed nothing."""
        with self.engine("2") as one:
            one.reset(scribble=True)
            for (prompt, hit), note, own in zip(
                    self.prompts, self.found["prompts"], self.own):
                larder = self.ask(one, prompt)
                note.update(hit_tokens=larder["external"],
                            local_tokens=larder["local"],
                            equal=same(own, larder), apart=apart(own, larder),
                            explain=one.explain(larder["id"]))
                self.proof.save()
            self.flips(one)

    def flips(self, one):
        """One bit at a time, in a page in the middle of the prompt, or in the
        last one, which every window reaches."""
        [(prompt, hit), own] = self.prompts[0], self.own[0]
        ids = store.prompt(prompt, models.KINDS[self.model]["vocab_size"])
        about = one.call("rpc", method="larder_about")
        seen = []
        with store.Store(self.node.url, about) as hand:
            for i, at in enumerate(PLACES):
                group = i % len(about["groups"])
                chunk = hit // about["chunk_tokens"] - 1
                if not hand.flip(ids, chunk, group, at):
                    continue
                one.reset()
                wrong = self.ask(one, prompt)
                hand.flip(ids, chunk, group, at)
                one.reset()
                right = self.ask(one, prompt)
                seen.append({
                    "group": group, "at": at, "loaded": wrong["external"],
                    "noticed": not same(own, wrong),
                    "apart": apart(own, wrong), "mended": same(own, right)})
                self.found["flips"] = seen
                self.proof.save()

    def judge(self):
        for note, (_, hit) in zip(self.found["prompts"], self.prompts):
            if "equal" in note:
                checked(self.found, f"{self.name} {note['tokens']} tokens",
                        note["equal"] and note["hit_tokens"] == hit
                        and note["own_hit"] == hit,
                        f"Larder hit {note['hit_tokens']}, own hit "
                        f"{note['own_hit']}, {note['apart']:.3g} apart")
        flips = self.found.get("flips", [])
        checked(self.found, f"{self.name} flipped sign bits",
                flips and any(f["noticed"] for f in flips)
                and all(f["mended"] and f["loaded"] for f in flips),
                f"{sum(f['noticed'] for f in flips)} of {len(flips)} noticed")


def run(proof):
    found = proof.stage("equality")
    cases = dict(CASES, **(COMPILED if proof.args.compiled else {}))
    cases = {name: cases[name] for name in proof.only(cases)}
    failed = []
    try:
        with proof.node("equality", "8G") as node:
            for name, given in cases.items():
                proof.clock.need(45, name)
                if not one_case(proof, name, given, node, found):
                    failed.append(name)
    finally:
        show(found)
    if failed:
        raise host.Failed(f"failed: {', '.join(failed)}")


def one_case(proof, name, given, node, found):
    """Whether it ran to its end; the others do not depend on it."""
    mine = found[name] = {}
    try:
        one = Case(proof, name, given, node, mine)
        one.compute()
        one.restarted()
        one.judge()
        return True
    except host.Failed as error:
        mine["error"] = str(error)[-4000:]
        proof.say(f"{name} FAILED: {error}")
        return False
    finally:
        proof.save()


def show(found):
    rows = []
    for name, mine in found.items():
        if not isinstance(mine, dict):
            continue
        for note in mine.get("prompts", ()):
            turn = " (second turn)" if "generated" in note else ""
            rows.append([name + turn, note["tokens"],
                         note.get("own_hit", "-"),
                         note.get("hit_tokens", "-"),
                         yes(note.get("own_again")), yes(note.get("equal")),
                         yes(note.get("own_as_cold"))])
    table(["model", "tokens", "own hit", "Larder hit, restarted",
           "own = own again", "Larder = own", "cold = own"], rows)


def yes(value):
    return "-" if value is None else "yes" if value else "NO"
