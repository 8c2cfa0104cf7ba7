"""Proof 4: tensor parallel 2. Each rank saves its half of the heads, in shards
of its own, and loads it after a restart. With one KV head both ranks hold the
same bytes: they are stored once, each rank writes every other chunk."""
import pytest

import rig
from restarted import restarted

CHUNK = 256
LONG = rig.prompt("tp", 4200)
LENGTHS = (2100, 4200)
# Workers that have nothing to do call sched_yield() in a loop. On two cores a
# kernel (6.18) was seen to run them, and nobody else on the machine, for 20 s:
# the node did not answer. vLLM's other way of waiting does not do that.
ARGS = dict(tensor_parallel_size=2, start_timeout=500,
            env={"VLLM_CPU_OMP_THREADS_BIND": "0|1",
                 "VLLM_USE_SPINLOOP_EXT": "1"})


def compute(told, engine):
    engine.ask_one(LONG)
    told.own = {n: engine.ask_one(LONG[:n]) for n in LENGTHS}


@pytest.fixture(scope="module", params=[
    pytest.param("dense", marks=pytest.mark.core), "dense_gqa1"])
def told(request, version, tmp_path_factory):
    with restarted(version, request.param, tmp_path_factory.mktemp("node"),
                   compute, **ARGS) as told:
        told.kind = request.param
        yield told


def hit(told, tokens):
    return rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))


def test_shards(told, version):
    """All that was computed is stored, once. From 0.32 on a shard is a head in
    one of four ranges of layers, before that a rank's."""
    ranges = 4 if version >= "0.32" else 1
    wanted = {"dense": (2 * ranges, 1), "dense_gqa1": (ranges, 2)}[told.kind]
    assert (told.about["shards"], told.about["replicas"]) == wanted
    assert len(told.store.pages(LONG)) == len(LONG) // CHUNK * wanted[0]


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restart(told, tokens):
    assert told.own[tokens]["cached"] == rig.whole(tokens - 1, CHUNK)
    rig.check_same(hit(told, tokens), told.own[tokens])


def differs(told, tokens, chunk, shard, at):
    with told.store.flipped(LONG, chunk, shard=shard, at=at):
        return not rig.same(hit(told, tokens), told.own[tokens])


def test_sees_one_bit(told):
    """The test of the test, in every shard. One that holds a single layer has
    tokens that hardly count for the answer: one bit of three is seen."""
    tokens = LENGTHS[-1]
    last = (tokens - 1) // CHUNK - 1
    for shard in range(told.store.shards):
        for chunk in (0, last - 1, last):
            assert any(differs(told, tokens, chunk, shard, at)
                       for at in (0.5, 0.99, 0.01)), (chunk, shard)
    rig.check_same(hit(told, tokens), told.own[tokens])


def test_a_chunk_without_one_shard_misses(told):
    """A prefix ends where one rank's part is missing."""
    pages = [told.store.get(LONG, 3, shard=i)
             for i in range(told.store.shards)]
    told.store.put(LONG, 3, None, shard=told.store.shards - 1)
    rig.hit(told.engine, LONG[:2100], 3 * CHUNK)
    # What was computed anew is stored anew, and is the same.
    assert pages == [told.store.get(LONG, 3, shard=i)
                     for i in range(told.store.shards)]
    rig.check_same(hit(told, 2100), told.own[2100])
