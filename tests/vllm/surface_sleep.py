"""Sleep, as vLLM 0.33 asks for it (Worker.sleep() and wake_up()): a connector
of a worker with real pages and a real node, without an engine
(test_surface.py). Where vLLM has no sleep mode nobody calls these members; they
are there all the same."""
import threading
import time
from array import array

import pytest
import rig
import torch
from larder_kv import _lib
from larder_kv.engine.mover import Rank
from larder_kv.engine.moves import Move
from larder_kv.vllm import LarderConnector, meta, worker
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorRole)

from surface import config_of, dense, full_of, kv_of

__all__ = ["dense"]  # a fixture

BLOCKS = 16
CHUNK = 256


class Engine:
    """The worker's half of an engine, and how vLLM calls it."""

    def __init__(self, path, url, monkeypatch, **options):
        monkeypatch.setattr(worker, "_rank", lambda *_: Rank(0, 0, 0))
        config = config_of(path, kv_transfer_config=rig.transfer(
            url, **options))
        self.connector = LarderConnector(
            config, KVConnectorRole.WORKER,
            kv_of(full_of(config), blocks=BLOCKS))
        self.block = config.cache_config.block_size
        self.memory = torch.randn(BLOCKS, 2, self.block, 128).bfloat16()
        self.connector.register_kv_caches({"layers.0": self.memory})
        self.keys = _lib.Keys()
        self.mover.space.chain(array("I", range(CHUNK)), self.keys)
        self.jobs = 0

    @property
    def mover(self):
        return self.connector._worker

    def step(self, **moves):
        self.connector.bind_connector_metadata(meta.Step(**moves))
        self.connector.start_load_kv(None)
        self.connector.wait_for_save()

    def move(self, first, **more):
        """The chunk, in the blocks from first on."""
        ids = array("I", range(first, first + CHUNK // self.block))
        return Move("r", self.keys.data(0, 1), 0, 0, CHUNK, [(0, ids)], **more)

    def save(self, first, held=False):
        self.jobs += 1
        self.step(saves=[self.move(first, held=held, job=self.jobs)])

    def load(self, first):
        """The requests whose loads ended, and those that failed."""
        self.step(loads=[self.move(first)])
        done, failed = set(), set()
        end = time.monotonic() + 60
        while not done:
            assert time.monotonic() < end
            time.sleep(0.001)
            found = self.mover.finished()
            done |= found[0]
            failed |= found[1]
        return done, failed

    def pages(self, first):
        return self.memory[first:first + CHUNK // self.block].clone()


@pytest.fixture
def engine(dense, tmp_path, monkeypatch):
    made = []
    with rig.node(tmp_path) as node:
        def make(**options):
            made.append(Engine(dense, node.url(), monkeypatch, **options))
            return made[-1]

        yield make
        for one in made:
            one.connector.shutdown()


def threads():
    return {t.name for t in threading.enumerate()
            if t.name.startswith("larder-load") or t.name.startswith(
                "larder-save")}


def test_vllm_is_told_that_it_can_sleep():
    supports = getattr(LarderConnector, "supports_sleep_mode", None)
    assert (supports is None) == (
        not hasattr(KVConnectorBase_V1, "supports_sleep_mode"))
    assert supports is None or supports(None)


def test_sleep_and_wake(engine):
    """What was saved before is loaded after it, and nothing reads or writes the
    pages meanwhile: vLLM takes them away."""
    one = engine()
    saved = one.pages(1)
    one.save(1)
    assert threads()
    for _ in range(3):
        one.connector.unregister_kv_caches()
        one.connector.unregister_kv_caches()  # as vLLM may
        assert not threads()
        assert one.mover._layout is None and not one.mover._caches
        one.memory.fill_(7)
        one.connector.restore_kv_caches()
        one.connector.restore_kv_caches()
        assert threads() and one.mover._layout is not None
        assert one.load(5) == ({"r"}, set())
        assert torch.equal(one.pages(5), saved)
        assert (one.pages(1) == 7).all()


def test_saves_under_way_are_made_before_it_sleeps(engine):
    one = engine(save_threads=1)
    saved = one.pages(1)
    one.save(1, held=True)
    one.connector.unregister_kv_caches()
    one.memory.fill_(7)
    report = one.connector.build_connector_worker_meta()
    assert report.ranks == {1: 1} and not report.failed
    one.connector.restore_kv_caches()
    assert one.load(5) == ({"r"}, set())
    assert torch.equal(one.pages(5), saved)
    assert one.mover.counts.take()["saved_shards"] == 1


def test_a_step_while_it_sleeps(engine):
    """An engine that is asleep may step, with nothing to do."""
    one = engine()
    one.connector.unregister_kv_caches()
    one.step()
    assert one.mover.finished() == (set(), set(), set())
    assert one.connector.build_connector_worker_meta() is None
    one.connector.restore_kv_caches()
    one.save(1)
    assert one.load(5) == ({"r"}, set())


def test_a_copy_that_does_not_end(engine, monkeypatch):
    """Then it must not sleep: the copy would go on in memory that is gone. It
    is told so, goes on as before, and sleeps when the copy has ended."""
    one = engine(load_ms=1000, save_threads=1, load_threads=1)
    saved = one.pages(1)
    one.save(1)
    goes, at_it = threading.Event(), threading.Event()
    load = one.mover.space.load

    def slow(*given):
        first = not at_it.is_set()
        at_it.set()
        if first:
            goes.wait(60)
        return load(*given)

    monkeypatch.setattr(one.mover.space, "load", slow)
    one.step(loads=[one.move(5)])
    assert at_it.wait(60)
    with pytest.raises(RuntimeError, match="still under way"):
        one.connector.unregister_kv_caches()
    with pytest.raises(RuntimeError, match="still under way"):
        one.connector.unregister_kv_caches()
    assert one.load(9) == ({"r"}, set())
    one.save(12, held=True)
    goes.set()
    one.connector.unregister_kv_caches()
    assert not threads()
    assert one.mover.finished()[0] == {"r"}
    assert torch.equal(one.pages(5), saved)
    assert torch.equal(one.pages(9), saved)
    one.memory.fill_(7)
    one.connector.restore_kv_caches()
    assert one.load(5) == ({"r"}, set())
    assert torch.equal(one.pages(5), saved)
