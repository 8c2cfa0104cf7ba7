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


# ---- copies ----

def _worker():
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    return get_kv_transfer_group()._worker


def copies(llm, chunks, times, seed):
    """Saves `times` prefixes of so many chunks, then loads them, each through
    blocks that the one before did not use. Answers GB/s of every move, and
    whether the last page that was loaded is what was saved."""
    import random

    import torch
    from larder_kv import _lib
    from larder_kv.vllm import meta

    worker = _worker()
    size = worker.model.chunk_tokens
    block = worker.model.groups[0].block_tokens
    each = chunks * size // block
    total = worker._kv.num_blocks - 1
    draw = random.Random(seed)
    tensors = list({t.data_ptr(): t for t in worker._caches.values()}.values())
    place = 0

    def take():
        nonlocal place
        if place + each > total:
            place = 0
        found = array("I", range(1 + place, 1 + place + each))
        place += each
        return found

    def run(keys, ids, load):
        move = meta.Move("bench", keys, 0, 0, chunks * size, [(0, ids)])
        began = _clock()
        status, request = worker._run(move, 60000, load)
        took = _clock() - began
        assert status == _lib.OK and not request.failed, (status, load)
        assert not (not load and request.present), "it was there"
        return request.bytes / took, request.bytes / request.shards

    saves, loads, names, shard = [], [], [], 0
    for _ in range(times):
        keys = _lib.Keys()
        worker.space.chain(array("I", [draw.randrange(2000) for _ in range(
            chunks * size)]), keys)
        names.append(keys.data(0, chunks))
        ids = take()
        rate, shard = run(names[-1], ids, False)
        saves.append(rate)
        last = [t[list(ids)].clone() for t in tensors]
    # Somebody else's blocks, and the last first: that is what was kept.
    for keys in reversed(names):
        ids = take()
        rate, _ = run(keys, ids, True)
        if not loads:
            same = all(torch.equal(t[list(ids)].view(torch.int16),
                                   one.view(torch.int16))
                       for t, one in zip(tensors, last))
        loads.append(rate)
    return {"shard": shard, "saves": saves, "loads": loads, "same": same}
