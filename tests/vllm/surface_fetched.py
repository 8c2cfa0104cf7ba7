"""Loads whose failure vLLM cannot be told of: they are fetched before they are
claimed, and workers wait until they can open them (test_surface.py)."""
import ctypes
import errno
import resource
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import lookup, mover
from larder_kv.vllm import versions, worker

from surface import config_of, dense, full_of, kv_of, window_of
from surface_requests import (CONNECTOR, TOKENS, Pages, asked, came, side,
                              store)

__all__ = ["dense", "side"]  # fixtures


@pytest.fixture
def placed(side, monkeypatch):
    """A prefix that was fetched for a claim, and the worker that places it. At
    its pauses `placed.pause(n)` is called."""
    one = side()
    pages = Pages(one, TOKENS)
    assert one.space.save(pages.layout, pages.move()) == _lib.OK
    one.finder.fetches = True
    t = came(one, asked(TOKENS))
    assert one.matched(t.request, 0) == (pages.end, True)
    beside = worker.Worker.__new__(worker.Worker)
    beside.space, beside._layout = one.space, pages.layout
    beside._closing = False
    pauses = []
    found = SimpleNamespace(
        worker=beside, pages=pages, path=t.lookup.memory.path, pauses=pauses,
        pause=lambda: None)

    def sleep(seconds):
        pauses.append(seconds)
        found.pause()

    monkeypatch.setattr(mover, "time", SimpleNamespace(sleep=sleep))
    yield found
    pages.layout.close()


def test_a_load_waits_for_descriptors(placed):
    """The worker has none left for a while, longer than any deadline: the load
    is made when it has one again, and no failure is reported before."""
    want = placed.pages.used()
    placed.pages.memory.zero_()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def pause():
        if len(placed.pauses) == 20:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    placed.pause = pause
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError) as caught:
            open(placed.path, "rb")
        assert caught.value.errno == errno.EMFILE
        status = placed.worker._place(placed.path, placed.pages.move())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert status == _lib.OK and len(placed.pauses) == 20
    assert max(placed.pauses) == placed.pauses[-1] == mover.PLACE_MOST
    assert torch.equal(placed.pages.used(), want)


def test_a_load_does_not_wait_for_what_never_comes(placed):
    assert placed.worker._place(placed.path + "0",
                                placed.pages.move()) == _lib.E_IO
    assert len(placed.pauses) == 1
    placed.worker._closing = True
    assert placed.worker._place(placed.path + "0",
                                placed.pages.move()) == _lib.E_IO
    assert len(placed.pauses) == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_of_a_long_prefix_a_part_is_fetched(side, monkeypatch, parts):
    """What is larger than may be fetched at a time is not lost as a whole."""
    one = side()
    end = store(one, TOKENS)
    chunk = one.model.chunk_tokens
    size = sum(came(one, asked(TOKENS, "all")).lookup.tier_bytes)
    one.finder.fetches = True
    monkeypatch.setattr(lookup, "FETCH_MAX", size // parts)
    t = came(one, asked(TOKENS, "part"))
    want = end // chunk // parts * chunk
    assert t.lookup.chunks * chunk == want
    assert one.matched(t.request, 0) == ((want, True) if want else (0, False))
    assert t.lookup.reason == ("full" if parts > 1 else "none")


@pytest.mark.parametrize("ranks, traced, loads", [
    (1, 0, True), (2, 1, True), (2, 0, False)])
def test_memory_that_workers_may_not_open(side, dense, monkeypatch, ranks,
                                          traced, loads):
    """It is found out at the start: a load that fails would end the engine."""
    config = config_of(dense, kv_transfer_config=CONNECTOR)
    kv = kv_of(full_of(config), window_of(config, window=512))
    monkeypatch.setattr(config.parallel_config, "world_size", ranks)
    monkeypatch.setattr(versions, "reports_failed_requests",
                        lambda: False)
    prctl = ctypes.CDLL(None).prctl
    before = prctl(3, 0, 0, 0, 0)
    prctl(4, traced, 0, 0, 0)
    try:
        one = side(config=config, kv=kv)
    finally:
        prctl(4, before, 0, 0, 0)
    assert one.loads == loads and one.saves
