"""What vLLM does not offer, and is changed or looked up in its own objects:
here and nowhere else. Each says for which releases it is needed, and why; where
a release offers the same, that is used. Releases are told apart by what they
have. Read for this: 0.24 to 0.33.
"""
from __future__ import annotations

import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1)

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from larder_kv.engine.mover import Mover

# ---- resets ----


def settle_resets(pool: BlockPool, settle: Callable[[], object]) -> None:
    """All releases. vLLM refuses a reset while references are out, and asks the
    connector (reset_cache) only after that. So the pool waits for the saves
    under way first. has_pending_push_work() helps only where the engine goes on
    stepping: not in a program's own process, after its last request."""
    reset = pool.reset_prefix_cache

    def settled() -> bool:
        settle()
        return reset()

    pool.reset_prefix_cache = settled  # type: ignore[method-assign]


# ---- the connector's owners ----


def owners(connector: KVConnectorBase_V1) -> list[KVConnectorBase_V1]:
    """All releases. It, and those that it is a child of, as of a
    MultiConnector; the outermost last. A child is given a configuration of its
    own, which does not name its owner's; vLLM goes by the owner's. Only the
    call shows that one."""
    found = [connector]
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, KVConnectorBase_V1) and owner is not connector:
            found.append(owner)
        frame = frame.f_back
    return found


def asked_layout(found: list[KVConnectorBase_V1],
                 kv: KVCacheConfig) -> str | None:
    """Up to 0.28: the layout of KV that the connectors ask for, which is the
    outermost's to say. Since 0.29 the KV cache says what it became."""
    if getattr(kv, "kv_cache_layout", None) is not None:
        return None
    return found[-1].get_required_kvcache_layout(found[-1]._vllm_config)


def recompute_failed(found: list[KVConnectorBase_V1]) -> str:
    """All releases. A load that fails is computed: the default, "fail", would
    end the request. vLLM reads it after the connector was made, and does not
    tell a default from an operator's word: its object has the same fields in
    the same order, and no record of those that were given. So it is changed,
    unless the operator says that it shall stay. Gives what to say of that; or
    ""."""
    configs = [one._kv_transfer_config for one in found]
    if configs[-1].kv_load_failure_policy == "recompute":
        return ""
    if os.environ.get("VLLM_LARDER_KEEP_POLICY") == "1":
        return ("kv_load_failure_policy=fail is kept: a request whose load "
                "fails ends with an error")
    for config in configs:
        config.kv_load_failure_policy = "recompute"
    return ("kv_load_failure_policy=fail, which is also vLLM's default, is "
            "taken for recompute: a request whose load fails is computed. "
            "Write recompute there, or set VLLM_LARDER_KEEP_POLICY=1 to keep "
            "fail")


# ---- a prompt that is handed off ----


def shorten(request: Request, back: int) -> None:
    """All releases. The prefill side of a model with recurrent state, or with a
    drafter of several tokens, must not compute a prompt's last tokens: the
    decode side begins behind the state, which cannot be taken back. vLLM has no
    way to say so; its own connectors change the request as well."""
    del request.prompt_token_ids[-back:], request._all_token_ids[-back:]
    request.num_prompt_tokens -= back
    request.max_tokens = 1


# ---- a forward that failed ----


def handled() -> BaseException | None:
    """All releases, runner V1: it asks for saves in a `finally`, also when an
    error or a signal has ended the forward, and does not say so. What is being
    handled then, and was not when the step began, is that. Runner V2 asks for
    no saves then. finish_forward(), since 0.30, is called by runner V2 only;
    save_kv_layer() not for layers with a recurrent state, nor from a graph."""
    return sys.exc_info()[1]


# ---- the engine's sleep between two steps ----
#
# All releases. vLLM's engine sleeps for a millisecond after each step that
# computes nothing. A step has waited for the load by then (see Mover), and the
# sleep only delays its request: on a GPU by a tenth of a short hit. So where
# the only worker runs in the engine's own thread, the engine's module gets a
# `time` of its own, whose sleep() asks the worker first.

NAP_SECONDS = 0.001  # as vLLM sleeps; what is longer is another sleep

_thread = threading.local()


def watch(worker: Mover) -> None:
    """From now on the worker is asked (goes_on) before this thread, the
    engine's, sleeps after a step. Does nothing with a vLLM that sleeps
    otherwise."""
    _thread.worker = worker
    core = sys.modules.get("vllm.v1.engine.core")
    if getattr(core, "time", None) is time:
        own = types.ModuleType("time")
        vars(own).update(vars(time))
        own.sleep = _sleep  # type: ignore[attr-defined]
        core.time = own  # type: ignore[union-attr]


def leave(worker: Mover) -> None:
    if getattr(_thread, "worker", None) is worker:
        _thread.worker = None


def _sleep(seconds: float) -> None:
    worker = getattr(_thread, "worker", None)
    if worker is None or seconds > NAP_SECONDS or not worker.goes_on():
        time.sleep(seconds)
