"""Proof 3, a hybrid of sliding windows and full attention (Gemma 3: 5 groups
with a window of 512 tokens, 1 without, all in one memory): hits after a
restart, for prompts that cross windows and chunks. Prefill is chunked: 128
tokens in a step."""
import pytest

import rig
from restarted import restarted

pytestmark = pytest.mark.core

CHUNK, WINDOW = 256, 512
LONG = rig.prompt("gemma", 3200)
# Shorter than a window, around one, with more than one; of all of them the
# engine's own cache and Larder hold the same part.
LENGTHS = (300, 600, 800, 2100, 3200)
BRANCH = LONG[:1300] + rig.prompt("branch", 500)  # shares 1280 tokens


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
                   compute) as told:
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))


def test_groups(told):
    """What this proof is about is there: six groups, five with a window."""
    rules = [rule for rule, _ in told.about["engine_groups"]]
    assert sorted(rules) == [0, 1, 1, 1, 1, 1]
    assert {window for _, rule, _, window in told.about["groups"]
            if rule == 1} == {WINDOW}


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restart(told, tokens):
    assert told.own[tokens]["cached"] == rig.whole(tokens - 1, CHUNK)
    rig.check_same(hit(told, tokens), told.own[tokens])


def test_branch(told):
    """A prompt that leaves the stored one in its middle: the window's pages
    of that place are there, too."""
    rig.check_same(rig.hit(told.engine, BRANCH, 1280), told.branch)
    wanted = rig.whole(len(BRANCH) - 1, CHUNK)
    rig.hit(told.engine, BRANCH, wanted)  # and it was saved itself


def flipped(told, tokens, chunk, group):
    """Whether one sign bit in that page changes the answer."""
    _, layer = told.about["engine_groups"][group]
    _, stored, at = told.about["layers"][layer]
    with told.store.flipped(LONG, chunk, stored, at=at):
        return not rig.same(hit(told, tokens), told.own[tokens])


@pytest.mark.parametrize("group", range(6))
@pytest.mark.parametrize("tokens", [800, 3200])
def test_sees_one_bit(told, tokens, group):
    """The test of the test, in every group of the engine: one sign bit in the
    last chunk."""
    last = (tokens - 1) // CHUNK - 1
    assert flipped(told, tokens, last, group)


def test_loads_what_is_needed(told):
    """Of a group with a window a hit loads the last 511 tokens, of the other
    all. A bit in what is not loaded is not seen."""
    for group, (rule, _) in enumerate(told.about["engine_groups"]):
        assert flipped(told, 3200, 0, group) == (rule == 0)
        assert flipped(told, 3200, 9, group) == (rule == 0)
        assert flipped(told, 3200, 10, group)
    for tokens in LENGTHS:
        rig.check_same(hit(told, tokens), told.own[tokens])
