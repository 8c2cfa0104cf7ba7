"""Room for the saves of a step, reserved while its forward runs.

A worker that saves inside wait_for_save() keeps the engine waiting: there it
should copy and do nothing else. What a step saves is known before its forward,
so a thread asks the node for room meanwhile. Its rooms are filled when the
bytes are there, or given back if nobody comes for them.
"""
from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from larder_kv.engine import cores

if TYPE_CHECKING:
    from ctypes import c_void_p

    from larder_kv import _lib
    from larder_kv.engine.moves import Move

    # Asks for room: the request, and what larder_prefix_reserve() gave.
    Reserve = Callable[[Move], tuple[_lib.Move, int, _lib.Rooms | None]]

logger = logging.getLogger("larder")


class Job:
    """One save's room."""

    __slots__ = ("move", "request", "status", "rooms", "fill", "done",
                 "dropped")

    def __init__(self, move: Move):
        self.move = move
        self.request: _lib.Move | None = None
        self.status = -1
        self.rooms: _lib.Rooms | None = None
        self.fill: Callable[[], int] | None = None
        self.done = False
        self.dropped = False  # nobody comes for it


class Ahead:
    def __init__(self, reserve: Reserve, team: c_void_p | None = None):
        self._reserve = reserve
        self.team = team  # who fills it: see larder_prefix_fill_by()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.begun: dict[int, Job] = {}  # by the move's id()
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, daemon=True,
                                       name="larder-reserve")
        self.thread.start()

    def start(self, moves: list[Move]) -> None:
        """A step begins. What the one before has left is given back."""
        self._drop()
        for move in moves:
            job = Job(move)
            self.begun[id(move)] = job
            self._jobs.put(job)

    def take(self, move: Move, ms: int) -> tuple[Job | None, int]:
        """The room of a move, waiting so long for it, and how long is left
        then (1 at least). None: there is none, or not in time."""
        job = self.begun.pop(id(move), None)
        if job is None or job.done:
            return job, ms
        end = time.monotonic() + ms / 1000
        with self._changed:
            while not job.done:
                left = end - time.monotonic()
                if left <= 0:
                    job.dropped = True
                    return None, 1
                self._changed.wait(left)
        return job, max(1, int((end - time.monotonic()) * 1000))

    def _drop(self) -> None:
        jobs, self.begun = self.begun, {}
        for job in jobs.values():
            with self._changed:
                job.dropped = True
                rooms, job.rooms = job.rooms, None
            if rooms is not None:
                rooms.release()

    def _work(self) -> None:
        cores.spread()
        while (job := self._jobs.get()) is not None:
            if job.dropped:
                continue
            rooms = None
            try:
                job.request, job.status, rooms = self._reserve(job.move)
                if rooms is not None:
                    job.fill = rooms.filler(job.request, self.team)
            except Exception:
                logger.exception("larder: room for %s", job.move.request_id)
            with self._changed:
                if not job.dropped:
                    job.rooms, rooms = rooms, None
                job.done = True  # last: it is looked at without the lock
                self._changed.notify_all()
            if rooms is not None:
                rooms.release()

    def close(self, seconds: float) -> None:
        """Gives all back, and waits so long for its thread to end."""
        self._drop()
        self._jobs.put(None)
        self.thread.join(timeout=seconds)
