"""Run inside an engine's process by Engine.ask("asleep", NAME): sleep and wake
as vLLM 0.33 has them (EngineCore.sleep(), Worker.sleep() and wake_up()), on the
CPU build of a release whose engine pauses in the same way.

While it sleeps, its KV memory is gone: nothing is in it any more, and whoever
touches it ends the process."""
import ctypes
import mmap
import threading

import watch

MADV_DONTNEED, PROT_NONE = 4, 0
PROT_BOTH = mmap.PROT_READ | mmap.PROT_WRITE

_gone = []


def _connector():
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()


def _core(llm):
    return llm.llm_engine.engine_core.engine_core


def _pages(worker):
    """Whole pages of every allocation: first byte, and bytes."""
    size = mmap.PAGESIZE
    found = {}
    for cache in worker._caches.values():
        for one in cache if isinstance(cache, (list, tuple)) else [cache]:
            storage = one.untyped_storage()
            first = -(-storage.data_ptr() // size) * size
            end = (storage.data_ptr() + storage.nbytes()) // size * size
            found[first] = end - first
    return list(found.items())


def _call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, name)
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert call(*args) == 0, f"{name}: errno {ctypes.get_errno()}"


def sleep(llm, mode="abort", clear=True, soon=()):
    """soon: functions of other files, [file, name] each, that are called when
    it has begun to let go of its memory. Answers what the worker still did
    then, and what it does now."""
    core, worker = _core(llm), watch._worker(llm)
    assert core.pause_scheduler(mode, clear_cache=clear) is None
    _gone[:] = _pages(worker)
    busy = worker._loading
    timer = threading.Timer(0.3, _run, args=(llm, soon))
    timer.start()
    _connector().unregister_kv_caches()
    timer.join()
    for first, size in _gone:
        _call("madvise", first, size, MADV_DONTNEED)
        _call("mprotect", first, size, PROT_NONE)
    return {"busy": busy, "loading": worker._loading,
            "pages": sum(size for _, size in _gone)}


def _run(llm, calls):
    for module, name in calls:
        getattr(__import__(module), name)(llm)


def wake(llm):
    for first, size in _gone:
        _call("mprotect", first, size, PROT_BOTH)
    _connector().restore_kv_caches()
    _core(llm).resume_scheduler()
