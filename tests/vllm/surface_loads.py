"""How the scheduler hears of loads, and how long lookups and holds keep it,
without an engine."""
import queue
import threading
import time
from array import array
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import hold, kv, lookup, mover
from larder_kv.engine.counts import Counts
from larder_kv.engine.mover import Rank
from larder_kv.engine.moves import Move
from larder_kv.vllm import meta, patches, scheduler, worker

from surface_sleep import dense, engine

__all__ = ["dense", "engine"]  # fixtures
LONG = 30  # seconds, that nothing here takes


def bare_worker():
    one = worker.Worker.__new__(worker.Worker)
    one._lock = threading.Lock()
    one._ended = threading.Condition(one._lock)
    one._empty, one._loading, one._until, one.news = True, 1, 0.0, False
    one._done, one._failed, one._bad_blocks = set(), set(), set()
    one._engine = "an engine"
    return one


def test_an_empty_step_waits_for_a_load(monkeypatch):
    monkeypatch.setattr(mover, "LOAD_SECONDS", LONG)
    one = bare_worker()

    def end():
        with one._lock:
            one._loading -= 1
            one._done.add("a")
            one._ended.notify()

    timer = threading.Timer(0.05, end)
    timer.start()
    began = time.monotonic()
    assert one.finished()[0] == {"a"}
    assert time.monotonic() - began < LONG
    assert one.finished()[0] == set()  # nothing is under way
    timer.join()


@pytest.mark.parametrize("empty, loading", [(False, 1), (True, 0)])
def test_other_steps_do_not(monkeypatch, empty, loading):
    monkeypatch.setattr(mover, "LOAD_SECONDS", LONG)
    one = bare_worker()
    one._empty, one._loading = empty, loading
    began = time.monotonic()
    assert one.finished()[0] == set()
    assert time.monotonic() - began < LONG


@pytest.mark.parametrize("ahead", [0.2, LONG])
def test_a_load_that_ends_soon_is_waited_for(monkeypatch, ahead):
    """Longer than others are."""
    monkeypatch.setattr(mover, "LOAD_SECONDS", 0.0)
    monkeypatch.setattr(mover, "LOAD_MOST", LONG / 2)
    one = bare_worker()
    one._until = time.monotonic() + ahead
    waited = []
    monkeypatch.setattr(one._ended, "wait", waited.append)
    one.finished()
    assert (0 < waited[0] <= 0.2) if ahead < LONG else waited == [0.0]


def test_expected(monkeypatch):
    one = scheduler.Scheduler.__new__(scheduler.Scheduler)
    one.finder = SimpleNamespace(rate=lookup.Rate())
    look = lookup.Lookup("a", b"", 1, None, 1.0)
    look.claimed, look.tier_bytes = 100.0, (30, 20, 0)
    one.loading = {b"k": SimpleNamespace(lookup=look)}
    assert one._expected() == 0
    one.finder.rate.load_speed = 10.0
    assert one._expected() == 105.0


def test_a_load_runs_beside_its_step(engine):
    """Since 0.29 vLLM calls start_load_kv() when the forward is over."""
    one = engine()
    saved = one.pages(1)
    one.save(1)
    one.connector.bind_connector_metadata(meta.Step(loads=[one.move(5)]))
    end, done = time.monotonic() + LONG, (set(), set(), set())
    while not done[0] and time.monotonic() < end:
        time.sleep(0.001)
        done = one.mover.finished()
    assert done == ({"r"}, set(), set()) and torch.equal(one.pages(5), saved)
    one.connector.start_load_kv(None)
    one.connector.wait_for_save()
    assert one.mover._jobs.empty() and not one.mover._loading


# ---- loads that begin before their step ----


def move_of(name="a"):
    return Move(name, b"", 0, 0, 1, [])


@pytest.mark.parametrize("early, idle, now", [
    (True, True, True), (False, True, False), (True, False, False)])
def test_which_loads_begin_at_once(monkeypatch, early, idle, now):
    begun = []
    beside = SimpleNamespace(early=early, begin_now=begun.append)
    monkeypatch.setitem(worker._here, "an engine", beside)
    one = scheduler.Scheduler.__new__(scheduler.Scheduler)
    one._engine, one.step = "an engine", meta.Step()
    one._idle = lambda: idle
    move = move_of()
    one._load(SimpleNamespace(early=None), move)
    assert (begun, one.step.loads) == (([move], []) if now else ([], [move]))


@pytest.mark.parametrize("idle, fits, goes, how", [
    (True, True, True, "early"), (True, True, False, "now"),
    (True, False, True, "now"), (False, True, True, "step")])
def test_which_loads_go_on(monkeypatch, idle, fits, goes, how):
    """One that has begun goes on with its blocks, or ends: then it is made as
    if it had not begun."""
    now, went = [], []
    beside = SimpleNamespace(early=True, begin_now=now.append,
                             go_on=lambda *of: went.append(of) or goes)
    monkeypatch.setitem(worker._here, "an engine", beside)
    one = scheduler.Scheduler.__new__(scheduler.Scheduler)
    one._engine, one.step = "an engine", meta.Step()
    one._idle = lambda: idle
    closed, move = [], move_of()
    begun = SimpleNamespace(fits=lambda move: fits,
                            close=lambda: closed.append(True))
    t = SimpleNamespace(early=begun)
    one._load(t, move)
    assert t.early is None
    assert bool(closed) == (how != "early")
    assert went == ([(begun, move)] if idle and fits else [])
    assert now == ([move] if how == "now" else [])
    assert one.step.loads == ([move] if how == "step" else [])


class Store:
    """A space whose early loads end as they are told."""

    def __init__(self, status):
        self.status, self.calls = status, []

    def load_early(self, layout, request, gate, wait_ms):
        self.calls.append((request.begin, request.end))
        deadline = time.monotonic() + LONG
        while gate.value == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.status if gate.value == _lib.GATE_OPEN else -7


@pytest.mark.parametrize("opened, status", [
    (True, _lib.OK), (True, -62), (False, _lib.OK)])
def test_an_early_load(opened, status):
    """What got its blocks is told of, what did not is nobody's."""
    one = bare_worker()
    one.early, one._loading, one._threads = True, 0, [None]
    one._jobs, one._event = queue.SimpleQueue(), lambda: None
    one._layout, one._rank = None, Rank(0, 0, 0)
    one.model = SimpleNamespace(replicas=1, groups=[None])
    one.options = SimpleNamespace(load_ms=7)
    one.counts, one.space = Counts(), Store(status)
    begun = one.early_load()
    begun.wait_entered()  # it has not begun: nothing to wait for
    begun.begin(b"k" * 32, b"t" * 16, 16, 32)
    assert bytes(begun.request.token) == b"t" * 16
    thread = threading.Thread(target=one._work_early,
                              args=(one._jobs.get(), time.monotonic()))
    thread.start()
    try:
        begun.wait_entered()
        move = Move("a", b"", 0, 16, 32, [(1, array("I", [5]))])
        assert begun.fits(move)
        assert not begun.fits(Move("a", b"", 0, 16, 48, []))
        if opened:
            assert one.go_on(begun, move)
            assert begun.tables[0].count == 1 and begun.tables[0].first == 1
        else:
            begun.close()
    finally:
        patches.leave(one)
        thread.join()
    assert one.space.calls == [(16, 32)]
    assert one._loading == 0
    assert one._done == ({"a"} if opened else set())
    assert one._failed == ({"a"} if opened and status else set())
    assert one._bad_blocks == ({5} if opened and status else set())
    assert not opened or move.after is None
    if not opened:
        assert not one.go_on(begun, move) and one._loading == 0
        patches.leave(one)


def test_no_early_load_where_threads_are_busy():
    one = bare_worker()
    one.early, one._loading, one._threads = True, 1, [None]
    assert one.early_load() is None
    one.early, one._loading = False, 0
    assert one.early_load() is None


def test_a_load_begins_at_once(monkeypatch):
    """What begins it goes on when the thread is at it; it does not wait where
    all threads are busy."""
    monkeypatch.setattr(mover, "ENTER_SECONDS", LONG)
    one = bare_worker()
    one._loading, one._threads = 0, [None]
    one._jobs, one._event = queue.SimpleQueue(), lambda: "an event"
    one.options = SimpleNamespace(load_ms=7)
    one._request = lambda move, ms: (move.after, ms)
    seen = []

    def work():
        move = one._jobs.get()
        move.ready.acquire()
        seen.append((move.request_id, move.request, one._loading))
        move.entered.release()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        one.begin_now(move_of())
        assert seen == [("a", ("an event", 7), 1)]
        one.begin_now(move_of("b"))  # nobody takes it
        assert one._loading == 2 and one._jobs.get().request_id == "b"
    finally:
        patches.leave(one)
        thread.join()


# ---- the engine's sleep ----


@pytest.fixture
def core(monkeypatch):
    """vLLM's engine, with a clock that has its sleeps written down."""
    from vllm.v1.engine import core

    slept = []
    monkeypatch.setattr(core, "time", time)
    monkeypatch.setattr(time, "sleep", slept.append)
    yield SimpleNamespace(time=lambda: core.time, slept=slept)
    patches._thread.worker = None


def test_no_sleep_while_a_load_is_waited_for(core):
    one = bare_worker()
    core.time().sleep(0.001)
    assert core.slept == [0.001]  # nobody watches yet
    patches.watch(one)
    core.time().sleep(0.001)
    assert core.slept == [0.001]
    core.time().sleep(0.5)  # another sleep
    assert core.slept == [0.001, 0.5]
    one._empty = False  # the step did not wait
    core.time().sleep(0.001)
    assert core.slept == [0.001, 0.5, 0.001]
    assert core.time().monotonic is time.monotonic


def test_no_sleep_before_a_loaded_request_is_scheduled(core):
    one = bare_worker()
    patches.watch(one)
    one._loading, one._done = 0, {"a"}
    core.time().sleep(0.001)
    assert one.finished()[0] == {"a"}
    core.time().sleep(0.001)  # a step's output may be looked at a step later
    assert not core.slept
    core.time().sleep(0.001)
    assert core.slept == [0.001]
    patches.leave(one)
    one._loading = 1
    core.time().sleep(0.001)
    assert core.slept == [0.001, 0.001]


def test_other_threads_sleep(core):
    patches.watch(bare_worker())
    thread = threading.Thread(target=core.time().sleep, args=(0.001,))
    thread.start()
    thread.join()
    assert core.slept == [0.001]


def test_idle():
    rate = lookup.Rate()
    assert rate.idle()
    rate.begins(0)
    assert rate.idle()
    rate.begins(100)
    assert not rate.idle()
    rate.ends()
    assert not rate.idle()
    rate.ends()
    assert rate.idle()


def test_a_lookup_is_waited_for_once():
    look = lookup.Lookup("a", b"", 1, None, 1.0)
    threading.Timer(0.05, look.over.release).start()
    began = time.monotonic()
    look.wait(LONG)
    assert time.monotonic() - began < LONG
    look.wait(LONG)
    assert time.monotonic() - began < LONG


# ---- holds ----


class Pool:
    def __init__(self, blocks):
        self.num_gpu_blocks = self.free = blocks
        self.blocks = [SimpleNamespace(block_id=i, ref_cnt=0)
                       for i in range(blocks)]

    def get_num_free_blocks(self):
        return self.free

    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            block.ref_cnt -= 1

    def reset_prefix_cache(self):
        return True


@pytest.fixture
def holds():
    described = SimpleNamespace(
        chunk_tokens=32, slices=None, groups=[SimpleNamespace(
            block_tokens=16, rule=_lib.RULE_ALL, window_tokens=0)])
    options = SimpleNamespace(save_ms=250)
    counts = SimpleNamespace(set=lambda *_: None, time=lambda *_: None)
    one = hold.Holds(options, described, counts, 2, True, True)
    one.bind(Pool(64))
    yield one
    one.close()


@pytest.mark.parametrize("window,ids,wanted", [
    (64, [0, 0, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8]),
    (66, [0, 0, 3, 4, 5, 6, 7, 8], [4, 5, 6, 7, 8]),
    (33, [0, 0, 0, 0, 0, 6, 7, 8], [7, 8]),
    (64, [1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8]),
    (2, [0, 0, 0, 0, 0, 0, 0, 8], [8])])
def test_held_of_a_short_window(holds, window, ids, wanted):
    """Of a window shorter than a chunk a save reads what it reaches at the
    chunk's end: that is held, though vLLM has the front of the chunk back."""
    holds._size = 128
    holds._stored = kv.stored_blocks(SimpleNamespace(
        chunk_tokens=128, slices=None, groups=[SimpleNamespace(
            block_tokens=16, rule=_lib.RULE_TRAILING, window_tokens=window)]))
    move = Move("a", b"", 0, 128, 256, [(8, array("I", ids))])
    assert list(holds.needed(move)) == wanted


def save(holds, job, first):
    """One chunk's, of blocks `first` and the next."""
    holds.take(Move("a", b"", 0, 0, 32, [(0, array(
        "I", [first, first + 1]))], job=job, held=True))


def test_room(holds):
    """Half of the pool while as much is free; an eighth always."""
    assert holds.room(2) == 16
    holds._pool.free = 20
    assert holds.room(2) == 10
    holds._pool.free = 2
    assert holds.room(2) == 4
    for i in range(3):
        save(holds, i + 1, 2 * i + 1)
    assert holds.room(2) == 1
    save(holds, 4, 7)
    assert holds.room(2) == 0


def test_no_descriptors_for_a_board(holds, monkeypatch):
    """The engine goes on: reports come with steps."""
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_lib.os, "memfd_create", refuse)
    assert holds.board == ""
    monkeypatch.undo()
    assert holds.board == ""  # for good


def test_the_board_gives_back(holds):
    """What every rank has ended is given back without a report; the report
    that follows changes nothing."""
    write = [hold.write_on(holds.board, rank) for rank in range(2)]
    for i in range(3):
        save(holds, i + 1, 2 * i + 1)
    write[0](3)
    holds.look()
    assert len(holds._jobs) == 3
    write[1](2)
    holds.look()
    assert list(holds._jobs) == [3]
    assert sum(b.ref_cnt for b in holds._pool.blocks) == 2
    holds.report({1: 2, 2: 2})
    assert sum(b.ref_cnt for b in holds._pool.blocks) == 2
    holds.report({3: 2})
    assert not holds and not holds._blocks
    assert sum(b.ref_cnt for b in holds._pool.blocks) == 0
