"""Loads that are made in the step that needs them, layer by layer.

An ordinary load is over before its request is scheduled. Here the request is
scheduled at once: its KV comes in the order of the layers, in a few parts, and
the forward waits for each part where it needs it (wait_for_layer_load), on the
GPU. So the first layers are computed while the rest arrives.

What was loaded is known to be right only when all of it is there: at the end of
the forward. A load that failed is told to vLLM with that step's output, by its
blocks; vLLM throws away what the step computed of it and computes it anew. That
is sound only where vLLM looks at a step's output before it schedules the next
(refusal() says where not), and if nobody else has used the blocks meanwhile:
vLLM has entered them into its prefix cache when it allocated them, and leaves
them there. So the step has no other request, its saves are dropped, and the
blocks are taken out of that cache before the next step is scheduled.

A step with a load is as long as the load: it is made so only while nothing else
runs.
"""
from __future__ import annotations

import time
from typing import TYPE_CHECKING

from larder_kv import _lib
from larder_kv.engine.layers import PAUSE_SECONDS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from larder_kv.engine.kv import Model
    from larder_kv.engine.moves import Move
    from larder_kv.vllm.tracked import Tracked


def refusal(config: VllmConfig, kv: KVCacheConfig, described: Model,
            url: str, cuda: bool) -> str:
    """Why loads cannot be made layer by layer; "": they can."""
    parallel = config.parallel_config
    groups = described.groups
    if not cuda:
        return "the KV cache is not on a GPU"
    if (len(groups) != 1 or len(kv.kv_cache_groups) != 1
            or groups[0].rule != _lib.RULE_ALL):
        return "this model has several KV cache groups, or a window"
    if not url.startswith("unix:"):
        return "the node is not reached by shared memory"
    if getattr(config, "use_v2_model_runner", False):
        return ("vLLM's V2 model runner cannot compute a failed load anew; "
                "set VLLM_USE_V2_MODEL_RUNNER=0")
    if config.scheduler_config.async_scheduling:
        return ("with async scheduling vLLM cannot compute a failed load "
                "anew; use --no-async-scheduling")
    if parallel.world_size > 1:
        return ("of several ranks one does not know in time that another's "
                "load has failed")
    if config.speculative_config is not None:
        return "speculative decoding computes further in the same step"
    mode = config.compilation_config.cudagraph_mode
    if mode is not None and mode.has_full_cudagraphs():
        return ("a full CUDA graph does not wait for layers; use "
                "cudagraph_mode=PIECEWISE, or --enforce-eager")
    return ""


class Claims:
    """Which loads are made so."""

    def __init__(self) -> None:
        self.on = False
        self.pool: BlockPool | None = None  # vLLM's
        self._new: set[str] = set()  # that the next step begins
        self._pause = 0.0  # until when
        self._running: set[str] = set()  # in the last step, and not finished
        self._now: Tracked | None = None  # whose load a step has
        self._sent = False  # that step was built
        self._blocks: set[int] = set()  # that it is for, and those behind

    def wants(self, request_id: str) -> bool:
        """Whether a load is made so: nobody else is in the step."""
        return (self.on and self.pool is not None and self._now is None
                and not (self._running | self._new) - {request_id}
                and time.monotonic() >= self._pause)

    def alone(self) -> bool:
        """Whether the next step has a load: others wait for the one after."""
        return self._now is not None and not self._sent

    def begins(self, request_id: str) -> None:
        """With the next step."""
        if self.on:
            self._new.add(request_id)

    def claim(self, t: Tracked, move: Move, blocks: list[int]) -> None:
        """blocks: its own, from the first that is loaded on."""
        move.layered = True
        self._now, self._sent = t, False
        self._blocks = set(blocks)
        self._blocks.discard(_lib.NULL_BLOCK)

    def step(self, out: SchedulerOutput) -> None:
        """One is built."""
        if self.on:
            self._running = set(out.num_scheduled_tokens)
            self._new.clear()
            self._sent = self._now is not None

    def unseen(self) -> bool:
        """Whether a step with a load has ended and vLLM did not show its
        output: there was nothing in it. It is asked before the next step is
        built."""
        return self._sent and self._now is not None

    def gone(self, request_id: str) -> None:
        self._running.discard(request_id)

    def over(self, invalid: set[int] | None) -> tuple[Tracked | None, bool]:
        """The step has ended: whose load it had, and whether that failed."""
        t, self._now, self._sent = self._now, None, False
        failed = t is not None and bool(invalid and invalid & self._blocks)
        if failed:
            self._pause = time.monotonic() + PAUSE_SECONDS
            self.pool.evict_blocks(self._blocks)
        return t, failed
