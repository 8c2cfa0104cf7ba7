"""Gemma 3 with the hybrid KV manager off: vLLM keeps all layers in one group,
those with a window too, and all of their pages. Hits after a restart."""
import pytest

import rig
from restarted import restarted

CHUNK = 256
LONG = rig.prompt("one group", 3200)
LENGTHS = (300, 800, 2100, 3200)
BRANCH = LONG[:1300] + rig.prompt("one branch", 500)  # shares 1280 tokens
LAYERS = 6
ARGS = dict(disable_hybrid_kv_cache_manager=True)


def compute(told, engine):
    with rig.Counted(engine) as counted:
        engine.ask_one(LONG)
    assert counted.computed == len(LONG)
    told.own = {n: engine.ask_one(LONG[:n]) for n in LENGTHS}
    told.branch = engine.ask_one(
        BRANCH, kv_transfer_params={"larder": {"skip_save": True}})
    assert told.branch["cached"] == 1280


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with restarted(version, "gemma3", tmp_path_factory.mktemp("node"),
                   compute, **ARGS) as told:
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))


def test_groups(told):
    """What this proof is about is there."""
    assert told.about["engine_groups"] == [[0, 0]]


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restart(told, tokens):
    assert told.own[tokens]["cached"] == rig.whole(tokens - 1, CHUNK)
    rig.check_same(hit(told, tokens), told.own[tokens])


def test_branch(told):
    rig.check_same(rig.hit(told.engine, BRANCH, 1280), told.branch)
    rig.hit(told.engine, BRANCH, rig.whole(len(BRANCH) - 1, CHUNK))


def seen(told, tokens, chunk):
    """In how many of the layers one sign bit of that chunk is seen."""
    found = 0
    for _, group, at in told.about["layers"]:
        with told.store.flipped(LONG, chunk, group, at=at):
            found += not rig.same(hit(told, tokens), told.own[tokens])
    return found


def test_sees_one_bit(told):
    """The test of the test: in every layer near the end; at the begin, which
    is out of the windows, only in the one that sees all."""
    assert seen(told, 3200, (3200 - 1) // CHUNK - 1) == LAYERS
    assert seen(told, 3200, 0) == 1
    for tokens in LENGTHS:
        rig.check_same(hit(told, tokens), told.own[tokens])
