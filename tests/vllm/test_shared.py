"""The shared tier: an engine computes, is stopped, and its node is deleted; an
engine on another, cold node that has nothing in common with it but a directory
hits the whole prefix, with identical logprobs."""
import contextlib
import shutil

import pytest

import rig
from larder_kv import _lib

CHUNK = 256
LONG = {"2k": rig.prompt("2k", 2100), "5k": rig.prompt("5k", 5300)}


class Told:
    def __init__(self):
        self.own = {}


def make_tier(path):
    path.mkdir()
    _lib.check(_lib.library().larder_shared_create(f"dir:{path}".encode(), None,
                                                10000))


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    told = Told()
    tier = tmp_path_factory.mktemp("shared") / "tier"
    make_tier(tier)
    given = {"dirs": 1, "shared": f"dir:{tier}", "shared_poll_ms": 50}
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("one")
        with rig.node(folder, **given) as node:
            with rig.engine(version, "dense", node.url()) as engine:
                engine.ask_one(rig.prompt("warm up", 300))
                for name, ids in LONG.items():
                    engine.ask_one(ids)
                    told.own[name] = engine.ask_one(ids)
                told.about = engine.ask("inside", "space")
        shutil.rmtree(folder)
        told.node = stack.enter_context(rig.node(
            tmp_path_factory.mktemp("other"), **given))
        told.engine = stack.enter_context(rig.engine(
            version, "dense", told.node.url()))
        told.engine.ask_one(rig.prompt("warm up", 200))
        told.store = stack.enter_context(rig.Store(told.node.url(),
                                                   told.about))
        yield told


@pytest.mark.parametrize("name", LONG)
def test_cold_start(told, name, version, figure):
    ids = LONG[name]
    chunks = (len(ids) - 1) // CHUNK
    before = told.store.stats().loads_shared
    cold = rig.hit(told.engine, ids, chunks * CHUNK, "external_unspecified")
    rig.check_same(cold, told.own[name])
    assert told.store.stats().loads_shared - before >= chunks
    again = rig.hit(told.engine, ids, chunks * CHUNK, "host")
    rig.check_same(again, told.own[name])
    figure(f"vLLM {version}, {len(ids)} tokens on a cold node, first token "
           f"after: own hit {told.own[name]['ttft'] * 1e3:.0f} ms, shared "
           f"tier {cold['ttft'] * 1e3:.0f} ms, then from its dram "
           f"{again['ttft'] * 1e3:.0f} ms")


@pytest.mark.parametrize("name", LONG)
def test_cold_start_sees_one_bit(told, name):
    """The test of the test: one sign bit in a page that the hit loads."""
    ids = LONG[name]
    with told.store.flipped(ids, (len(ids) - 1) // CHUNK - 1):
        answer = rig.hit(told.engine, ids, rig.whole(len(ids) - 1, CHUNK))
        assert not rig.same(answer, told.own[name])
