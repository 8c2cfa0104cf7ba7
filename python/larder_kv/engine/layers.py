"""A load that is made in the step that needs it, layer by layer, by a worker.

The KV comes in the order of the layers, in a few parts, and the forward waits
for each part where it needs it, on the GPU. So the first layers are computed
while the rest arrives. What was loaded is known to be right only when all of it
is there: at the end of the forward. A connector has to see to it that what was
computed from a load that failed is thrown away.
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
    from larder_kv._options import Options
    from larder_kv.engine.counts import Counts
    from larder_kv.engine.moves import Move

    # What the library is told of a move, with a deadline in milliseconds.
    Request = Callable[[Move, int], _lib.Move]

logger = logging.getLogger("larder")

DEADLINE_MS = 2000  # at most: the engine waits for such a load
MORE_MS = 1000  # beyond it, for who waits
PAUSE_SECONDS = 60.0  # after one that failed, loads are ordinary ones


def wanted(options: Options, why: str, say: bool) -> int:
    """In how many parts; 0: loads are ordinary ones."""
    if options.load_layers == 0:
        return 0
    if say and why:
        logger.warning("larder: load_layers=%d does nothing here: %s",
                       options.load_layers, why)
    return 0 if why else options.load_layers


class Job:
    """A load. Its thread sets status, then done; the rest is the engine's."""

    __slots__ = ("move", "began", "done", "status", "request", "waited",
                 "missed", "at")

    def __init__(self, move: Move):
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

    def start(self, move: Move) -> None:
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
