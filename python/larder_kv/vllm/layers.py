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

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from larder_kv import _lib

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from larder_kv._options import Options
    from larder_kv.vllm import meta, model
    from larder_kv.vllm.stats import Counts
    from larder_kv.vllm.tracked import Tracked

    # What the library is told of a move, with a deadline in milliseconds.
    Request = Callable[[meta.Move, int], _lib.Move]

logger = logging.getLogger("vllm.larder")

DEADLINE_MS = 2000  # at most: the engine waits for such a load
MORE_MS = 1000  # beyond it, for who waits
PAUSE_SECONDS = 60.0  # after one that failed, loads are ordinary ones


def refusal(config: VllmConfig, kv: KVCacheConfig, described: model.Model,
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


def wanted(options: Options, why: str, say: bool) -> int:
    """In how many parts; 0: loads are ordinary ones."""
    if options.load_layers == 0:
        return 0
    if say and why:
        logger.warning("larder: load_layers=%d does nothing here: %s",
                       options.load_layers, why)
    return 0 if why else options.load_layers


# ---- the scheduler's ----


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

    def claim(self, t: Tracked, move: meta.Move, blocks: list[int]) -> None:
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


# ---- a worker's ----


class Job:
    """A load. Its thread sets status, then done; the rest is the engine's."""

    __slots__ = ("move", "began", "done", "status", "request", "waited",
                 "missed", "at")

    def __init__(self, move: meta.Move):
        self.move = move
        self.at = time.monotonic()
        self.began = threading.Event()
        self.done = threading.Event()
        self.status = -1
        self.request: _lib.Move | None = None
        self.waited: set[int] = set()  # layers
        self.missed = False  # a wait failed


class Loads:
    def __init__(self, options: Options, counts: Counts, space: _lib.Space,
                 layout: _lib.Layout, request: Request, parts: int,
                 names: list[str]):
        """names: of the layout's layers, each as often as it is there."""
        self._counts = counts
        self._space, self._layout = space, layout
        self._request = request
        self._layers = _lib.Layers(layout, parts)
        self._last = {name: i for i, name in enumerate(names)}
        self._job: Job | None = None
        self._bad: set[int] = set()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ms = min(options.load_ms, DEADLINE_MS)
        self._thread = threading.Thread(target=self._work, daemon=True,
                                        name="larder-layers")
        self._thread.start()

    # ---- the engine's thread ----

    def start(self, move: meta.Move) -> None:
        """Before the forward."""
        self.finish()
        self._layers.begin()
        self._job = job = Job(move)
        self._jobs.put(job)
        job.began.wait(1.0)  # it needs the GIL once, before the forward does

    def wait(self, name: str) -> None:
        """Before a layer is computed. Blocks no longer than until its copies
        are queued."""
        job, layer = self._job, self._last.get(name)
        if job is None or layer is None or job.missed:
            return
        status = self._layers.wait(layer, _stream(), self._ms + MORE_MS)
        job.missed = status != _lib.OK
        job.waited.add(layer)

    def finish(self) -> bool:
        """After the forward: whether what it computed counts. The load has its
        deadline; nothing of it is under way then."""
        job, self._job = self._job, None
        if job is None:
            return True
        job.done.wait()
        done = job.status == _lib.OK and not job.missed
        if done and len(job.waited) < len(self._last):
            done = False
            logger.error("larder: the forward did not wait for its layers: "
                         "it is computed anew; set load_layers to 0")
        self._count(job, done)
        if not done:
            for _, ids in job.move.tables:
                self._bad.update(ids)
            self._bad.discard(_lib.NULL_BLOCK)
        return done

    def bad_blocks(self) -> set[int]:
        """Of a load that failed, once."""
        self.finish()
        bad, self._bad = self._bad, set()
        return bad

    def _count(self, job: Job, done: bool) -> None:
        counts, ms = self._counts, (time.monotonic() - job.at) * 1000
        if done:
            counts.add("loads")
            counts.add("loads_layered")
            counts.add("loaded_bytes", job.request.bytes)
            counts.time("load_ms", ms)
            return
        cause = ("error" if job.request is None else
                 _lib.CAUSES[job.request.cause]
                 if job.status == _lib.MISS else _lib.status_text(job.status))
        counts.add("load_failures")
        logger.warning(
            "larder: load of %s failed after %.0f ms (%s), layer by layer: it "
            "is computed; loads are ordinary ones for %d s",
            job.move.request_id, ms, cause, PAUSE_SECONDS)

    # ---- the load's ----

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                request = self._request(job.move, self._ms)
                job.began.set()
                job.status = self._layers.load(self._space, self._layout,
                                               request)
                job.request = request
            except Exception:
                logger.exception("larder: load of %s", job.move.request_id)
                self._layers.fail()
            finally:
                job.move.after = None
                job.began.set()
                job.done.set()

    def close(self, seconds: float) -> bool:
        """Whether its thread has ended."""
        self._jobs.put(None)
        self._thread.join(timeout=seconds)
        if self._thread.is_alive():
            return False
        self._layers.close()
        return True


def _stream() -> int:
    """The stream that the engine computes in."""
    import torch

    return torch.cuda.current_stream().cuda_stream
