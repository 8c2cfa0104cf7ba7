"""How the scheduler hears of loads, and how long lookups and holds keep it,
without an engine."""
import threading
import time
from types import SimpleNamespace

import pytest
from larder_kv.vllm import hold, lookup, meta, scheduler, worker
from vllm.v1.outputs import KVConnectorOutput

LONG = 30  # seconds, that nothing here takes


class Beside:
    """A worker in the scheduler's process."""

    def __init__(self):
        self.ended = set()

    def take_loaded(self, told):
        found = set(self.ended)
        self.ended -= told
        return found


@pytest.fixture
def heard(monkeypatch):
    """heard(told): what vLLM is shown of an output with these."""
    one = scheduler.Scheduler.__new__(scheduler.Scheduler)
    one._engine, one._sooner = "an engine", set()
    beside = Beside()

    def heard(*told, bad=()):
        output = KVConnectorOutput(finished_recving=set(told) or None,
                                   invalid_block_ids=set(bad))
        one._look_sooner(output)
        return output.finished_recving or set()

    heard.beside = beside
    monkeypatch.setitem(worker._here, "an engine", beside)
    return heard


def test_loads_are_heard_of_once(heard):
    assert heard() == set()
    heard.beside.ended.add("a")
    assert heard() == {"a"}
    heard.beside.ended.add("b")
    assert heard() == {"b"}  # not a again
    assert heard("a") == set()
    assert heard("b", "c") == {"c"}  # one that failed is told alone
    assert heard() == set() and not heard.beside.ended
    heard.beside.ended.add("a")  # another, of the same name
    assert heard("a") == {"a"}
    assert heard() == set()


def test_failed_loads_are_sorted_out_alone(heard):
    heard.beside.ended.add("a")
    assert heard("b", bad=[7]) == {"b"}
    assert heard() == {"a"}
    assert heard("a") == set()


def test_nobody_beside():
    one = scheduler.Scheduler.__new__(scheduler.Scheduler)
    one._engine, one._sooner = "nowhere", set()
    output = KVConnectorOutput(finished_recving={"a"})
    one._look_sooner(output)
    assert output.finished_recving == {"a"}


def bare_worker():
    one = worker.Worker.__new__(worker.Worker)
    one._lock = threading.Lock()
    one._ended = threading.Condition(one._lock)
    one._empty, one._loading = True, 1
    one._done, one._failed, one._bad_blocks = set(), set(), set()
    return one


def test_an_empty_step_waits_for_a_load(monkeypatch):
    monkeypatch.setattr(worker, "LOAD_SECONDS", LONG)
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
    monkeypatch.setattr(worker, "LOAD_SECONDS", LONG)
    one = bare_worker()
    one._empty, one._loading = empty, loading
    began = time.monotonic()
    assert one.finished()[0] == set()
    assert time.monotonic() - began < LONG


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
        chunk_tokens=32, groups=[SimpleNamespace(block_tokens=16, rule=0)])
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=2),
        model_config=SimpleNamespace(disable_cascade_attn=True))
    options = SimpleNamespace(save_ms=250, save_threads="1")
    counts = SimpleNamespace(set=lambda *_: None, time=lambda *_: None)
    one = hold.Holds(config, options, described, counts, False)
    one.bind(Pool(64))
    yield one
    one.close()


def save(holds, job, first):
    """One chunk's, of blocks `first` and the next."""
    from array import array

    holds.take(meta.Move("a", b"", 0, 0, 32, [(0, array(
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
