"""Speculative decoding with n-grams of the prompt and the answer: a Larder hit
gives the answer of the engine's own hit, bit by bit, and just as many drafts
are accepted. What is saved while drafts are refused is right: turn two hits
the answer of turn one.

The answers have six different tokens only: so there are n-grams, and some
drafts are accepted and others not."""
import contextlib

import pytest

import rig

# The CPU build of 0.24 fails in its own start with any speculation.
pytestmark = pytest.mark.versions("0.29.0", "0.32.0")

CHUNK = 256
LONG = rig.prompt("n-gram", 2100)
QUESTION = rig.prompt("n-gram question", 500)
MORE = rig.prompt("n-gram more", 200)
ANSWER = 300  # tokens of turn one: they fill a chunk with the question's
FEW = dict(max_tokens=40, sampling={"allowed_token_ids": list(range(10, 16))})
ARGS = dict(speculative_config={
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
    "prompt_lookup_max": 3})
COUNTED = ("drafts", "draft_tokens", "accepted_tokens")


class Told:
    pass


def drafts(engine):
    """vLLM's own counters of drafts; those of each place in a draft, too."""
    found = engine.counters()
    assert all(f"vllm:spec_decode_num_{n}" in found for n in COUNTED)
    return {name: value for name, value in found.items()
            if name.startswith("vllm:spec_decode_")}


def counted(engine, ask):
    """What it gives, and the drafts that were made and accepted meanwhile."""
    before = drafts(engine)
    answer = ask()
    after = drafts(engine)
    return answer, {n: v - before.get(n, 0) for n, v in after.items()}


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    told = Told()
    with contextlib.ExitStack() as stack:
        told.node = stack.enter_context(rig.node(
            tmp_path_factory.mktemp("node")))
        with rig.engine(version, "dense", told.node.url(), **ARGS) as engine:
            engine.ask_one(LONG, **FEW)
            told.own = counted(engine, lambda: engine.ask_one(LONG, **FEW))
            assert told.own[0]["cached"] == rig.whole(len(LONG) - 1, CHUNK)
            one = engine.ask_one(QUESTION, **dict(FEW, max_tokens=ANSWER))
            told.turn_two = QUESTION + one["tokens"] + MORE
            told.own_two = counted(
                engine, lambda: engine.ask_one(told.turn_two, **FEW))
            assert told.own_two[0]["cached"] == 768
            told.about = engine.ask("inside", "space")
        told.engine = stack.enter_context(rig.engine(
            version, "dense", told.node.url(), **ARGS))
        told.store = stack.enter_context(rig.Store(told.node.url(),
                                                   told.about))
        yield told


def hit(told, ids):
    return rig.hit(told.engine, ids, rig.whole(len(ids) - 1, CHUNK), **FEW)


def check(told, ids, own):
    answer, found = counted(told.engine, lambda: hit(told, ids))
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
    assert len(QUESTION) < 768 < len(QUESTION) + ANSWER
    check(told, told.turn_two, told.own_two)


@pytest.mark.parametrize("name", ["long", "turn two"])
def test_sees_one_bit(told, name):
    """The test of the test."""
    ids, own = {"long": (LONG, told.own),
                "turn two": (told.turn_two, told.own_two)}[name]
    last = (len(ids) - 1) // CHUNK - 1
    for chunk in {0, last}:
        with told.store.flipped(ids, chunk):
            assert not rig.same(hit(told, ids), own[0])
    check(told, ids, own)


def test_same_space_without_it(told, version):
    """N-grams change no KV: an engine that does not speculate hits the same
    prefixes."""
    with rig.engine(version, "dense", told.node.url()) as engine:
        assert engine.ask("inside", "space") == told.about
        rig.hit(engine, LONG, rig.whole(len(LONG) - 1, CHUNK))
