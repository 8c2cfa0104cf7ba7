"""A hybrid (Gemma 3) with tensor parallel 2: the scheduler and its two workers
are three processes. What vLLM before 0.30 may claim lies in memory of the
scheduler's then, where the workers open it. The second engine reaches the node
by TCP: from there it is brought to this host first."""
import pytest

import rig
from restarted import restarted
from test_proof_tp import ARGS

CHUNK = 256
LONG = rig.prompt("hybrid tp", 2100)
LENGTHS = (600, 2100)


def compute(told, engine):
    engine.ask_one(LONG)
    told.own = {n: engine.ask_one(LONG[:n]) for n in LENGTHS}
    # From the node's memory on this host.
    rig.check_same(rig.hit(engine, LONG, rig.whole(2099, CHUNK)),
                   told.own[2100])


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with restarted(version, "gemma3", tmp_path_factory.mktemp("node"),
                   compute, via=["tcp"], **ARGS) as told:
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restart(told, tokens):
    assert told.own[tokens]["cached"] == rig.whole(tokens - 1, CHUNK)
    rig.check_same(hit(told, tokens), told.own[tokens])


def test_sees_one_bit(told):
    """The test of the test: in each group, in each rank's shard."""
    last = (LENGTHS[-1] - 1) // CHUNK - 1
    for group in range(told.store.groups):
        for shard in range(told.store.shards):
            with told.store.flipped(LONG, last, group, shard=shard):
                assert not rig.same(hit(told, LENGTHS[-1]),
                                    told.own[LENGTHS[-1]])
    rig.check_same(hit(told, LENGTHS[-1]), told.own[LENGTHS[-1]])


def test_a_chunk_without_one_shard_misses(told):
    """A prefix ends where one rank's part of the group without a window is
    missing; what is computed anew is stored anew, the same."""
    rules = [rule for _, rule, _, _ in told.about["groups"]]
    group, last = rules.index(0), told.store.shards - 1
    page = told.store.get(LONG, 3, group, last)
    told.store.put(LONG, 3, None, group, last)
    rig.hit(told.engine, LONG, 3 * CHUNK)
    assert told.store.get(LONG, 3, group, last) == page
    rig.check_same(hit(told, LENGTHS[-1]), told.own[LENGTHS[-1]])
