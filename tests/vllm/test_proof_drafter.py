"""Speculative decoding: with a drafter that has KV of its own, one layer beside
the target's four (EAGLE-3, and the head for multi-token prediction that a model
brings itself), and with n-grams of the prompt and the answer. With the former a
hit ends one block earlier, as vLLM's own does. The answer is that of the
engine's own hit, bit by bit, and just as many drafts are accepted. What is
saved while drafts are refused is right: turn two hits the answer of turn one.

The answers have eight different tokens only: so there are n-grams, and some
drafts are accepted and others not."""
import pytest

import drafts
import rig
from restarted import restarted

# The CPU build of 0.24 fails in its own start with any speculation.
pytestmark = pytest.mark.versions("0.29.0", "0.32.0")

CHUNK, BLOCK, LAYERS = 256, 128, 4
LONG = rig.prompt("drafts", 2100)
QUESTION = rig.prompt("drafts question", 500)
MORE = rig.prompt("drafts more", 200)
ANSWER = 300  # tokens of turn one: they fill a chunk with the question's
FEW = dict(max_tokens=60, timeout=600,
           sampling={"allowed_token_ids": list(drafts.TOKENS)})
# Of a drafter: its model, its layers of KV, what else vLLM is told of it.
KINDS = {"eagle3": ("dense", 1, {}), "mtp": ("mtp", 1, {}),
         "ngram": ("dense", 0, dict(prompt_lookup_min=1,
                                    prompt_lookup_max=3))}


def counted(engine, ask):
    """What it gives, and the drafts that were made and accepted meanwhile, by
    vLLM's own counters."""
    def read():
        return {name: value for name, value in engine.counters().items()
                if name.startswith("vllm:spec_decode_")}
    before = read()
    answer = ask()
    return answer, {n: v - before.get(n, 0) for n, v in read().items()}


def speculation(method, version, folder):
    given = dict(KINDS[method][2], method=method, num_speculative_tokens=3)
    if method == "eagle3":
        given["model"] = drafts.make_with(rig.python_of(version), folder)
    return dict(speculative_config=given)


def compute(told, engine):
    engine.ask_one(LONG, **FEW)
    told.own = counted(engine, lambda: engine.ask_one(LONG, **FEW))
    assert told.own[0]["cached"] == length(told, LONG)
    one = engine.ask_one(QUESTION, **dict(FEW, max_tokens=ANSWER))
    told.turn_two = QUESTION + one["tokens"] + MORE
    told.own_two = counted(
        engine, lambda: engine.ask_one(told.turn_two, **FEW))
    assert told.own_two[0]["cached"] == length(told, told.turn_two)


@pytest.fixture(scope="module", params=KINDS)
def told(request, version, tmp_path_factory):
    kind, layers, _ = KINDS[request.param]
    args = speculation(request.param, version,
                       tmp_path_factory.mktemp("draft"))

    def compute_with(told, engine):
        told.own_layers = layers
        compute(told, engine)

    with restarted(version, kind, tmp_path_factory.mktemp("node"),
                   compute_with, **args) as told:
        yield told


def length(told, ids):
    """Tokens of a hit. For a drafter with KV vLLM leaves the last block to be
    computed again: it needs what the target computes there."""
    return rig.whole(len(ids) - 1, CHUNK) - (BLOCK if told.own_layers else 0)


def hit(told, ids):
    return counted(told.engine, lambda: rig.hit(
        told.engine, ids, length(told, ids), **FEW))


def check(told, ids, own):
    answer, found = hit(told, ids)
    rig.check_same(answer, own[0])
    assert found == own[1]


def test_drafts_are_made(told):
    """Else this proves nothing: some are accepted, others are not."""
    for _, found in (told.own, told.own_two):
        accepted = found["vllm:spec_decode_num_accepted_tokens"]
        assert 0 < accepted < found["vllm:spec_decode_num_draft_tokens"]


def test_restart(told):
    check(told, LONG, told.own)


def test_turn_two_hits_the_answer_of_turn_one(told):
    """Pages that drafts were written to, and refused, are right."""
    assert (len(QUESTION) < length(told, told.turn_two)
            <= len(QUESTION) + ANSWER)
    check(told, told.turn_two, told.own_two)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_sees_one_bit(told, layer):
    """The test of the test; the first and the last chunk, too."""
    ids, own = ((LONG, told.own), (told.turn_two, told.own_two))[layer % 2]
    chunk = (0, 0, 3, length(told, ids) // CHUNK - 1)[layer]
    at = (layer + 0.5) / (LAYERS + told.own_layers)
    with told.store.flipped(ids, chunk, at=at):
        assert not rig.same(hit(told, ids)[0], own[0])
    check(told, ids, own)


def see_the_drafter(told):
    """All of the drafter's signs: other drafts are made, and accepted."""
    saved = told.store.pages(LONG)
    for (chunk, group, shard), data in saved.items():
        turned = bytearray(data)
        for i in range(len(data) * LAYERS // (LAYERS + 1) + 1, len(data), 2):
            turned[i] ^= 0x80
        told.store.put(LONG, chunk, bytes(turned), group, shard)
    try:
        answer, found = hit(told, LONG)
        assert answer["tokens"] == told.own[0]["tokens"]
        assert found != told.own[1]
    finally:
        for (chunk, group, shard), data in saved.items():
            told.store.put(LONG, chunk, data, group, shard)
    check(told, LONG, told.own)


def test_what_it_keeps(told, version):
    """Its own KV is in the store. Without any it changes none: an engine that
    does not speculate hits the same prefixes."""
    if told.own_layers:
        see_the_drafter(told)
        return
    with rig.engine(version, "dense", told.node.url()) as engine:
        assert engine.ask("inside", "space") == told.about
        rig.hit(engine, LONG, length(told, LONG))
