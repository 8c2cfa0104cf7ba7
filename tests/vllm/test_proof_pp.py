"""Pipeline parallel 2: each rank has half of the layers and saves them in
shards of its own. Hits after a restart."""
import pytest

import rig
from restarted import restarted

CHUNK = 256
LONG = rig.prompt("pp", 4200)
LENGTHS = (2100, 4200)
# The CPU build makes the memory for what the first rank sends to the second
# only when it compiles; the compiler that is called eager does nothing.
ARGS = dict(pipeline_parallel_size=2, start_timeout=500, enforce_eager=False,
            compilation_config={"mode": 1, "backend": "eager"},
            env={"VLLM_CPU_OMP_THREADS_BIND": "0|1",
                 "VLLM_USE_SPINLOOP_EXT": "1"})  # as in test_proof_tp


def compute(told, engine):
    engine.ask_one(LONG)
    told.own = {n: engine.ask_one(LONG[:n]) for n in LENGTHS}


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with restarted(version, "dense", tmp_path_factory.mktemp("node"),
                   compute, **ARGS) as told:
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))


def test_shards(told, version):
    """All that was computed is stored, once. From 0.32 on a shard is one of
    two heads in one of four ranges of layers, before that a rank's."""
    shards = 8 if version >= "0.32" else 2
    assert (told.about["shards"], told.about["replicas"]) == (shards, 1)
    assert len(told.store.pages(LONG)) == len(LONG) // CHUNK * shards


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restart(told, tokens):
    assert told.own[tokens]["cached"] == rig.whole(tokens - 1, CHUNK)
    rig.check_same(hit(told, tokens), told.own[tokens])


def test_sees_one_bit(told):
    """The test of the test, in each rank's shard."""
    tokens = LENGTHS[-1]
    last = (tokens - 1) // CHUNK - 1
    for shard in range(told.store.shards):
        for chunk in (0, last):
            with told.store.flipped(LONG, chunk, shard=shard):
                assert not rig.same(hit(told, tokens), told.own[tokens])
    rig.check_same(hit(told, tokens), told.own[tokens])
