"""Proof 3, an MLA model (DeepSeek V2's shape). The CPU build has neither a
prefix cache of its own nor chunked prefill for it, and what a token's KV
becomes depends there on the step that computes it (see rotary.py): so a hit
after the restart is compared with a Larder hit inside the engine that computed
it. And, with rotary embeddings that are right, with the cold run."""
import pathlib

import pytest

import rig
from restarted import restarted

pytestmark = pytest.mark.versions("0.29.0", "0.32.0")

CHUNK = 256
LONG = rig.prompt("mla", 6000)
LENGTHS = (300, 1000, 2100, 6000)


def compute(told, engine):
    told.cold = {}
    for n in LENGTHS:  # each alone: nothing else was computed before
        told.cold[n] = engine.ask_one(
            LONG[:n], kv_transfer_params={"larder": {"skip_load": True}})
        assert told.cold[n]["cached"] == 0
    told.first = {n: rig.hit(engine, LONG[:n], rig.whole(n - 1, CHUNK))
                  for n in LENGTHS}


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with restarted(version, "mla", tmp_path_factory.mktemp("node"),
                   compute) as told:
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


def values(answer):
    return [{token: float.fromhex(value) for token, value in step}
            for step in answer["logprobs"]]


def test_equal_to_the_cold_run(version, tmp_path, figure):
    """Where a token's KV does not depend on its step, a hit is the cold run but
    for the rounding of float32."""
    given = rig.transfer(None)
    with rig.node(tmp_path) as node:
        given["kv_connector_extra_config"]["url"] = node.url()
        given["kv_connector_module_path"] = "rotary"
        with rig.engine(version, "mla", kv_transfer_config=given,
                        dtype="float32", env={"PYTHONPATH": str(
                            pathlib.Path(__file__).parent)}) as engine:
            for n in LENGTHS[:3]:
                cold = engine.ask_one(LONG[:n], kv_transfer_params={
                    "larder": {"skip_load": True}})
                assert cold["cached"] == 0
                warm = rig.hit(engine, LONG[:n], rig.whole(n - 1, CHUNK))
                off = [abs(one[token] - other[token])
                       for one, other in zip(values(cold), values(warm))
                       for token in one]
                figure(f"MLA, {n} tokens: a hit is {max(off):.1e} off the "
                       "cold run, with rotary embeddings by torch")
                assert max(off) < 1e-4


def test_not_loaded_by_default(version, tmp_path):
    """A hit would change the answer, by vLLM's own kernel."""
    with rig.node(tmp_path) as node:
        with rig.engine(version, "mla", node.url(),
                        options={"load": None}) as engine:
            engine.ask_one(LONG[:1000])
            rig.fresh(engine)
            assert engine.ask_one(LONG[:1000])["cached"] == 0
            [line] = [line for line in engine.larder_lines()
                      if "nothing is loaded" in line]
            assert "positions" in line and "WARNING" in line
