"""Room that is reserved before the bytes are there, on a real node."""
import threading
import time
from types import SimpleNamespace

import pytest

from larder_kv import _lib
from larder_kv.engine.ahead import Ahead
from test_lib import (  # fixtures too
    CHUNK, array, move_of, node, pages, space, tokens_of)

SOURCE = [3, 9, 1, 2, 20, 11, 5, 6]
TARGET = [7, 8, 10, 12, 13, 14, 15, 16]


class Saves:
    """What a worker gives to Ahead: moves, and how room for one is asked."""

    def __init__(self, space, pages):
        self.space, self.pages = space, pages
        self.go = threading.Event()
        self.go.set()
        self.ahead = Ahead(self.reserve)

    def move(self, seed):
        keys = _lib.Keys()
        self.space.chain(tokens_of(seed, 4 * CHUNK), keys)
        return SimpleNamespace(request_id=str(seed), keys=keys)

    def reserve(self, move):
        self.go.wait()
        if move.keys is None:
            raise ValueError("no keys")
        request = move_of(move.keys, [array("I", SOURCE)], 4 * CHUNK)
        return request, *self.space.reserve(self.pages.layout, request)

    def matched(self, move):
        return self.space.match(self.pages.layout, move.keys.data(0, 4), 4,
                                20000).chunks

    def loads(self, move):
        """Whether what is there is what fill(1) left in SOURCE."""
        self.pages.fill(1)
        saved = [self.pages.block(b) for b in SOURCE]
        self.pages.fill(2)
        load = move_of(move.keys, [array("I", TARGET)], 4 * CHUNK)
        assert self.space.load(self.pages.layout, load) == _lib.OK
        return [self.pages.block(b) for b in TARGET] == saved


@pytest.fixture
def saves(space, pages):  # noqa: F811
    one = Saves(space, pages)
    yield one
    one.go.set()
    one.ahead.close(20)
    assert not one.ahead.thread.is_alive()
    assert space.node.stats().dram_leased_chunks == 0


def test_filled_later(saves):
    one, other = saves.move(1), saves.move(2)
    saves.pages.fill(5)
    saves.ahead.start([one, other])
    jobs = [saves.ahead.take(m, 20000)[0] for m in (one, other)]
    assert [j.status for j in jobs] == [_lib.OK, _lib.OK]
    assert [j.request.shards for j in jobs] == [4, 4]
    assert saves.matched(one) == saves.matched(other) == 0
    saves.pages.fill(1)
    for job in jobs:
        assert job.fill() == _lib.OK
        assert (job.request.shards, job.request.failed) == (4, 0)
    assert saves.matched(one) == saves.matched(other) == 4
    assert saves.loads(one) and saves.loads(other)
    # There already: room for nothing.
    saves.ahead.start([one])
    job, left = saves.ahead.take(one, 20000)
    assert 0 < left <= 20000
    assert (job.request.shards, job.request.present) == (0, 4)
    assert job.rooms.fill(job.request) == _lib.OK
    assert (job.request.shards, job.request.present) == (0, 4)


def test_given_back_by_the_next_step(saves):
    moves = [saves.move(i) for i in range(10)]
    for move in moves:
        saves.ahead.start([move])
    for move in moves[:-1]:
        assert saves.ahead.take(move, 0)[0] is None
    job = saves.ahead.take(moves[-1], 20000)[0]
    assert job.request.shards == 4
    assert sum(saves.matched(m) for m in moves) == 0
    job.rooms.release()
    job.rooms.release()  # once more does nothing


def test_late(saves):
    move = saves.move(3)
    saves.go.clear()
    saves.ahead.start([move])
    began = time.monotonic()
    assert saves.ahead.take(move, 50) == (None, 1)
    assert time.monotonic() - began < 15
    saves.go.set()  # its room comes, and nobody wants it any more
    after = saves.move(4)
    saves.ahead.start([after])
    job = saves.ahead.take(after, 20000)[0]
    assert job.request.shards == 4
    job.rooms.release()
    assert saves.matched(move) == 0


def test_not_to_be_had(saves):
    move = saves.move(5)
    move.keys = None
    saves.ahead.start([move])
    job = saves.ahead.take(move, 20000)[0]
    assert job.rooms is None and job.status < 0
    assert saves.ahead.take(saves.move(6), 20000)[0] is None  # never asked for
