"""The engine's sleep between two steps, left out while a load is under way.

vLLM's engine sleeps for a millisecond after each step that computes nothing, so
that other threads get on. A step has waited for the load by then (see worker),
and the sleep only makes its end seen later, and its request scheduled later
still: on a GPU that is a tenth of a short hit. So where the only worker runs in
the engine's own thread, the engine's module gets a `time` of its own, whose
sleep() asks the worker first.
"""
from __future__ import annotations

import sys
import threading
import time
import types
from typing import Protocol

NAP_SECONDS = 0.001  # as vLLM sleeps; what is longer is another sleep

_thread = threading.local()


class Awake(Protocol):
    def goes_on(self) -> bool:
        """Whether the engine's next step is to come at once."""


def watch(worker: Awake) -> None:
    """From now on the worker is asked before this thread, the engine's, sleeps
    after a step. Does nothing with a vLLM that sleeps otherwise."""
    _thread.worker = worker
    core = sys.modules.get("vllm.v1.engine.core")
    if getattr(core, "time", None) is time:
        own = types.ModuleType("time")
        vars(own).update(vars(time))
        own.sleep = _sleep  # type: ignore[attr-defined]
        core.time = own  # type: ignore[union-attr]


def leave(worker: Awake) -> None:
    if getattr(_thread, "worker", None) is worker:
        _thread.worker = None


def _sleep(seconds: float) -> None:
    worker = getattr(_thread, "worker", None)
    if worker is None or seconds > NAP_SECONDS or not worker.goes_on():
        time.sleep(seconds)
