"""Proof 3, an MLA model (DeepSeek V2's shape). The CPU build has neither a
prefix cache of its own nor chunked prefill for it, and computes a part of a
prompt a little differently from the whole: a hit after the restart is compared
with a Larder hit inside the engine that computed it."""
import contextlib

import pytest

import rig

pytestmark = pytest.mark.versions("0.29.0", "0.32.0")

CHUNK = 256
LONG = rig.prompt("mla", 6000)
LENGTHS = (300, 1000, 2100, 6000)


class Told:
    pass


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    told = Told()
    with contextlib.ExitStack() as stack:
        told.node = stack.enter_context(rig.node(
            tmp_path_factory.mktemp("node")))
        with rig.engine(version, "mla", told.node.url()) as engine:
            told.cold = {}
            for n in LENGTHS:  # each alone: nothing else was computed before
                told.cold[n] = engine.ask_one(
                    LONG[:n], kv_transfer_params={
                        "larder": {"skip_load": True}})
                assert told.cold[n]["cached"] == 0
            told.first = {n: rig.hit(engine, LONG[:n],
                                     rig.whole(n - 1, CHUNK))
                          for n in LENGTHS}
            told.about = engine.ask("inside", "space")
        told.engine = stack.enter_context(rig.engine(
            version, "mla", told.node.url()))
        told.store = stack.enter_context(rig.Store(told.node.url(),
                                                   told.about))
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restart(told, tokens):
    rig.check_same(hit(told, tokens), told.first[tokens])


@pytest.mark.parametrize("tokens", LENGTHS)
def test_near_the_cold_run(told, tokens):
    """Not bit by bit, but it is the same prompt's answer: of 2,048 tokens the
    likeliest is among the likeliest. (Of another prompt it is not.)"""
    for other in LENGTHS:
        likely = [token for token, _ in told.first[other]["logprobs"][0]]
        is_likely = told.cold[tokens]["tokens"][0] in likely
        assert is_likely == (other == tokens)


@pytest.mark.parametrize("tokens", [1000, 6000])
def test_sees_one_bit(told, tokens):
    """The test of the test."""
    last = (tokens - 1) // CHUNK - 1
    for chunk in {0, last // 2, last}:
        with told.store.flipped(LONG, chunk):
            assert not rig.same(hit(told, tokens), told.first[tokens])
    rig.check_same(hit(told, tokens), told.first[tokens])
