"""The cores of an engine that computes on the CPU.

vLLM binds the threads of its forward to cores, each to its own, and the first
of them is the worker's main thread. Between two forwards these threads spin for
some milliseconds, ready for more work: a save that the engine waits for is
copied by them. A thread that is started by the main thread inherits its binding
to a single core; those that work beside the forward take that back.
"""
from __future__ import annotations

import contextlib
import ctypes
import os

_started: set[int] = set()  # see remember


def team() -> ctypes.c_void_p | None:
    """What runs a function in all threads of torch's OpenMP, if it is called
    by the thread that computes with torch: see larder_prefix_fill_by(). None:
    there are no others."""
    import torch

    if (torch.get_num_threads() < 2 or "ATen parallel backend: OpenMP"
            not in torch.__config__.parallel_info()):
        return None
    try:
        # Torch loads its OpenMP for all; one that was preloaded comes first.
        found = ctypes.CDLL(None).GOMP_parallel
    except AttributeError:
        return None
    return ctypes.cast(found, ctypes.c_void_p)


def remember() -> None:
    """Where this process may run. Called by the plug-in, which vLLM loads
    before it binds a thread; later it can only be seen from threads that are
    not bound, if there are any."""
    _started.update(os.sched_getaffinity(0))


def spread() -> None:
    """This thread may run wherever this process could, or a thread of it can,
    and nowhere else: what the engine was confined to when it was started
    holds."""
    allowed = set(_started)
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                allowed |= os.sched_getaffinity(int(task))
        os.sched_setaffinity(0, allowed)
