"""Run inside an engine's process by Engine.ask("held", NAME): looks at saves
that are made beside the steps, and at the blocks that are held for them."""
import hashlib
import threading
import time

import watch

_gate = threading.Event()
_gate.set()
_seen = {"waiting": 0, "compared": 0, "changed": 0}
_before = {}  # of a save's number: what its blocks had when it was ordered


def _holds(llm):
    return watch._scheduler(llm).connector._scheduler.holds


def now(llm):
    """What is held, and what vLLM's pool says."""
    scheduler = watch._scheduler(llm)
    holds, pool = _holds(llm), scheduler.kv_cache_manager.block_pool
    return {"saves": len(holds._jobs), "blocks": len(holds._blocks),
            "most": pool.num_gpu_blocks // 2, "peak": holds._peak,
            "behind": sum(t.behind for t in
                          scheduler.connector._scheduler.requests.values()),
            "seen": dict(_seen),
            "used": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "references": sum(b.ref_cnt for b in pool.blocks if not b.is_null),
            "pending": scheduler.connector.has_pending_push_work()}


def clear(llm):
    """The peak begins anew."""
    holds = _holds(llm)
    holds._peak = len(holds._blocks)


def _digest(worker, move):
    """Of all pages that the save reads, by this file's own walk: of a window
    that is shorter than a chunk, what it reaches at the chunk's end."""
    import torch

    found = hashlib.sha256()
    size = worker.model.chunk_tokens
    for group, (first, ids) in zip(worker.model.groups, move.tables):
        layers = worker._kv.kv_cache_groups[group.index].layer_names
        for place, block in enumerate(ids, first):
            end = (place + 1) * group.block_tokens
            if group.window_tokens and (
                    -end % size >= group.window_tokens - 1):
                continue
            for name in layers if block else ():
                tensor = worker._caches[name]
                parts = tensor.shape[0] // worker._kv.num_blocks
                page = tensor[block * parts:(block + 1) * parts]
                found.update(page.contiguous().view(torch.uint8).numpy())
    return found.digest()


def look(llm):
    """From now on saves wait at the gate, and what they then read must be what
    was there when they were ordered."""
    worker = watch._worker(llm)
    if "_hand_over" in vars(worker):
        return
    hand_over, save = worker._hand_over, worker._save

    def ordered():
        for move in worker._unsaved:
            _before[move.job] = _digest(worker, move)
        hand_over()

    def gated(move, timeout_ms):
        if move.job not in _before:
            return save(move, timeout_ms)
        _seen["waiting"] += 1
        assert _gate.wait(60), "open() did not come"
        _seen["waiting"] -= 1
        done = save(move, timeout_ms)
        _seen["compared"] += 1
        _seen["changed"] += _digest(worker, move) != _before.pop(move.job)
        return done

    worker._hand_over, worker._save = ordered, gated


def shut(llm):
    _gate.clear()


def open(llm):
    _gate.set()


def seen(llm):
    """{"waiting", "compared", "changed"}; begins anew."""
    found = dict(_seen)
    _seen["compared"] = _seen["changed"] = 0
    return found


def let_loose(llm, loose):
    """The test of the test: nothing is held any more (False: again)."""
    holds = _holds(llm)
    vars(holds).pop("needed", None)
    if loose:
        holds.needed = lambda move: iter(())


def reset(llm):
    """vLLM's own reset: [whether it was done, seconds]."""
    began = time.monotonic()
    return [llm.reset_prefix_cache(), time.monotonic() - began]
