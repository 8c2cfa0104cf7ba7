"""What vLLM does not offer, and is changed or looked up in its own objects:
here and nowhere else. Each says for which releases, and why.

No release from 0.24 to 0.33 offers any of it.
"""
from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1)

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool

# ---- resets ----


def settle_resets(pool: BlockPool, settle: Callable[[], object]) -> None:
    """All releases. vLLM refuses a reset while references are out, and asks
    nobody to give them back; the connector is asked after that. So the pool
    waits for the saves under way first."""
    reset = pool.reset_prefix_cache

    def settled() -> bool:
        settle()
        return reset()

    pool.reset_prefix_cache = settled  # type: ignore[method-assign]


# ---- the connector's owners ----


def owners(connector: KVConnectorBase_V1) -> list[KVConnectorBase_V1]:
    """All releases. It, and those that it is a child of, as of a
    MultiConnector; the outermost last. A child is given a configuration of its
    own, and what vLLM goes by is its owner's, whom only the call shows."""
    found = [connector]
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, KVConnectorBase_V1) and owner is not connector:
            found.append(owner)
        frame = frame.f_back
    return found


def recompute_failed(found: list[KVConnectorBase_V1]) -> bool:
    """All releases. A load that fails is computed: the default, "fail", would
    end the request. vLLM does not tell a default from an operator's word, and
    reads this after the connector was made. Gives whether that was changed."""
    configs = [one._kv_transfer_config for one in found]
    changed = configs[-1].kv_load_failure_policy != "recompute"
    for config in configs:
        config.kv_load_failure_policy = "recompute"
    return changed


# ---- a forward that failed ----


def handled() -> BaseException | None:
    """All releases, runner V1: it asks for saves in a `finally`, also when an
    error or a signal has ended the forward, and does not say so. What is being
    handled then, and was not when the step began, is that. (finish_forward(),
    since 0.30, is called by runner V2 only, which asks for no saves then.)"""
    return sys.exc_info()[1]


# ---- the engine's sleep between two steps ----
#
# All releases. vLLM's engine sleeps for a millisecond after each step that
# computes nothing, so that other threads get on. A step has waited for the load
# by then (see Mover), and the sleep only makes its end seen later, and its
# request scheduled later still: on a GPU that is a tenth of a short hit. So
# where the only worker runs in the engine's own thread, the engine's module
# gets a `time` of its own, whose sleep() asks the worker first.

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
