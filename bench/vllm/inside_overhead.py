"""Run inside an engine's process by Engine.ask("inside_overhead", NAME): times
of the connector's members, as vLLM itself calls them."""
import time
from array import array

# Every member of the connector that vLLM's scheduler calls in a step.
MEMBERS = ("get_num_new_matched_tokens", "update_state_after_alloc",
           "build_connector_meta", "update_connector_output",
           "request_finished", "request_finished_all_groups",
           "get_kv_connector_stats", "take_events", "has_pending_push_work",
           "has_pending_block_frees", "get_loaded_kv_cache_group_ids",
           "get_external_cache_hit_sources", "register_finished_partial_tail")

_steps = []  # one dict for each step: member to nanoseconds
_arrivals = []  # (tokens, nanoseconds)
_clock = time.perf_counter_ns


def _scheduler(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler


def _timed(function, name):
    def run(*args, **kwargs):
        began = _clock()
        try:
            return function(*args, **kwargs)
        finally:
            took = _clock() - began
            if _steps:
                step = _steps[-1]
                step[name] = step.get(name, 0) + took
    return run


def install(llm):
    """From now on every call is timed; a step begins with schedule()."""
    scheduler = _scheduler(llm)
    connector = scheduler.connector
    for name in MEMBERS:
        if hasattr(connector, name):
            setattr(connector, name, _timed(getattr(connector, name), name))
    arrive, schedule = connector.on_new_request, scheduler.schedule

    def arrived(request):
        began = _clock()
        arrive(request)
        _arrivals.append((request.num_tokens, _clock() - began))

    def scheduled(*args, **kwargs):
        _steps.append({})
        began = _clock()
        out = schedule(*args, **kwargs)
        step = _steps[-1]
        step["schedule"] = _clock() - began
        step["tokens"] = out.total_num_scheduled_tokens
        step["requests"] = len(out.num_scheduled_tokens)
        step["new"] = len(out.scheduled_new_reqs)
        return out

    connector.on_new_request = arrived
    scheduler.schedule = scheduled
    return _cost()


def _cost():
    """Nanoseconds that timing one call costs."""
    _steps.append({})
    run = _timed(lambda: None, "nothing")
    began = _clock()
    for _ in range(10000):
        run()
    took = (_clock() - began) / 10000
    _steps.clear()
    return took


def taken(llm):
    """What was measured since the last call."""
    found = {"steps": list(_steps), "arrivals": list(_arrivals)}
    _steps.clear()
    _arrivals.clear()
    return found


def wake(llm, times=100):
    """Nanoseconds, each time, of waking a thread that sleeps: no arrival that
    is looked up beside the engine takes less."""
    import queue
    import threading

    jobs, found = queue.SimpleQueue(), []
    thread = threading.Thread(target=lambda: list(iter(jobs.get, None)))
    thread.start()
    for _ in range(times):
        time.sleep(0.005)
        began = _clock()
        jobs.put(0)
        found.append(_clock() - began)
    jobs.put(None)
    thread.join()
    return found


# ---- copies ----

def _worker():
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    return get_kv_transfer_group()._worker


def _save(worker, step):
    """Nanoseconds of wait_for_save(), after a forward's worth of work: what
    the engine's threads do after that is part of it."""
    import torch

    worker.counts.take()
    one = torch.ones(1024, 1024)
    worker.begin(step)
    for _ in range(3):
        one @ one
    began = _clock()
    worker.save(step)
    took = _clock() - began
    counts = worker.counts.take()
    assert counts["saved_shards"] and not counts.get("saves_present"), counts
    assert not counts.get("save_failures"), counts
    return took


def copies(llm, chunks, times, seed, alone=False):
    """Saves `times` prefixes of so many chunks, then loads them, each through
    blocks that the one before did not use; alone: saves by one thread. Answers
    GB/s of every move, and whether what was loaded last is what was saved."""
    import random

    import torch
    from larder_kv import _lib
    from larder_kv.engine.moves import Move
    from larder_kv.vllm import meta

    worker = _worker()
    ahead = worker._ahead
    team, ahead.team = ahead.team, None if alone else ahead.team
    size = worker.model.chunk_tokens
    each = chunks * size // worker.model.groups[0].block_tokens
    draw = random.Random(seed)
    moves = []
    for i in range(2 * times):
        first = 1 + i * each % (worker._kv.num_blocks - each)
        ids = array("I", range(first, first + each))
        if i < times:
            keys = _lib.Keys()
            tokens = [draw.randrange(2000) for _ in range(chunks * size)]
            worker.space.chain(array("I", tokens), keys)
        else:
            keys = None  # those of what was saved, the last one first
        moves.append((keys, ids))
    names = [keys.data(0, chunks) for keys, _ in moves[:times]]
    names += reversed(names)

    rates, shard = [], worker._layout.bytes(0)
    for i, (name, (_, ids)) in enumerate(zip(names, moves)):
        move = Move("bench", name, 0, 0, chunks * size, [(0, ids)])
        if i < times:
            rates.append(chunks * shard / _save(worker, meta.Step([], [move])))
            continue
        began = _clock()
        status, request = worker._run(move, 60000, True)
        rates.append(request.bytes / (_clock() - began))
        assert status == _lib.OK and not request.failed, (status, i)
    ahead.team = team
    tensors = {t.data_ptr(): t for t in worker._caches.values()}.values()
    one, two = list(moves[0][1]), list(moves[-1][1])
    return {"shard": shard, "saves": rates[:times], "loads": rates[times:],
            "same": all(torch.equal(t[one].view(torch.int16),
                                    t[two].view(torch.int16))
                        for t in tensors)}


def mark(llm):
    """Fills the KV memory so that no two pages are alike, and waits until it
    is in huge pages."""
    import torch

    if _worker()._huge is not None:
        _worker()._huge.wait(120)
    for t in {t.data_ptr(): t for t in _worker()._caches.values()}.values():
        flat = torch.arange(t.numel(), dtype=torch.int32).view(t.shape)
        t.copy_((flat * 2654435761 >> 12) % 4099)
    return True
