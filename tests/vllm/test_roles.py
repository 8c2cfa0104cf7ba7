"""What vLLM's roles allow: a producer saves and never loads, a consumer loads
and never saves. By vLLM's counters, by the connector's and by the node's."""
import contextlib

import pytest

import rig

CHUNK = 256
KNOWN = rig.prompt("of the producer", 2100)
OTHER = rig.prompt("of the consumer", 2100)
CHUNKS = (len(KNOWN) - 1) // CHUNK


def ours(engine):
    """The connector's own counters."""
    counters = engine.counters()
    return {name: counters.get(f"vllm:larder_{name}", 0) for name in (
        "hits", "hit_tokens", "loads", "loaded_bytes", "saved_shards",
        "saved_bytes", "saves_present")}


def stored(store):
    found = store.stats()
    return found.saves_stored, found.saved_bytes, found.entries


def test_roles(version, tmp_path):
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(tmp_path))
        with rig.engine(version, "dense", node.url(),
                        role="kv_producer") as producer:
            store = stack.enter_context(rig.Store(node.url(), producer))
            cold = producer.ask_one(KNOWN)
            own = producer.ask_one(KNOWN)
            assert own["cached"] == CHUNKS * CHUNK
            assert all(store.has(KNOWN, i) for i in range(CHUNKS))
            loads = store.stats().loads_dram
            rig.fresh(producer)
            with rig.Counted(producer) as counted:
                again = producer.ask_one(KNOWN)
            assert counted.external == counted.local == again["cached"] == 0
            assert counted.computed == len(KNOWN)
            rig.check_same(again, cold)
            assert store.stats().loads_dram == loads
            mine = ours(producer)
            assert mine["hits"] == mine["loads"] == mine["loaded_bytes"] == 0
            assert mine["saved_shards"] == CHUNKS * store.shards
        before = stored(store)
        with rig.engine(version, "dense", node.url(),
                        role="kv_consumer") as consumer:
            rig.check_same(rig.hit(consumer, KNOWN, CHUNKS * CHUNK), own)
            assert store.stats().loads_dram - loads >= CHUNKS
            # Neither a prompt that nobody has, nor the answer to one that is
            # loaded.
            consumer.ask_one(OTHER, max_tokens=CHUNK)
            consumer.ask_one(KNOWN, max_tokens=CHUNK)
            assert stored(store) == before
            assert not store.has(OTHER, 0)
            mine = ours(consumer)
            assert (mine["hits"], mine["hit_tokens"]) == (1, CHUNKS * CHUNK)
            assert mine["loads"] == 1 and mine["loaded_bytes"] > 0
            assert mine["saved_shards"] == mine["saved_bytes"] == 0
            assert mine["saves_present"] == 0
