"""A load that begins before its blocks are known.

A hit is told to the engine, which allocates blocks and tells which: some tenths
of a millisecond, that a short hit on a GPU can ill afford. So where the engine
waits for a lookup and nothing else is to be done, a worker's thread begins as
soon as the lookup has ended: it asks the node and sends the first bytes to the
GPU, into buffers. With the blocks it is let go on, or it ends if they do not
come.

The scheduler's thread makes it, the lookup's begins it, a load's runs it.
"""
from __future__ import annotations

import ctypes
import queue
import threading
from typing import TYPE_CHECKING, Any

from larder_kv import _lib

if TYPE_CHECKING:
    from larder_kv.engine.moves import Move

WAIT_MS = 20  # for the blocks
ENTER_SECONDS = 0.0005  # that the thread gets to begin


class Early:
    def __init__(self, jobs: queue.SimpleQueue[Any], groups: int,
                 request: _lib.Move):
        self.tables = (_lib.Table * groups)()
        self.request = request
        self.request.tables = self.tables
        self.gate = ctypes.c_uint32(0)
        self.move: Move | None = None  # its blocks, once they are known
        self.begun = False
        self._jobs = jobs
        self._entered = threading.Lock()
        self._entered.acquire()

    def begin(self, keys: bytes, token: bytes, begin: int, end: int) -> None:
        """keys: from the first chunk on; token: of the lease on them."""
        self.request.keys = keys
        self.request.begin, self.request.end = begin, end
        if token:
            self.request.token[:] = token
        self.begun = True
        self._jobs.put(self)

    def enter(self) -> None:
        """Its thread is at it."""
        self._entered.release()

    def wait_entered(self) -> None:
        """The thread needs the interpreter, which who calls would keep."""
        if self.begun:
            self._entered.acquire(timeout=ENTER_SECONDS)

    def fits(self, move: Move) -> bool:
        return (self.begun and self.request.begin == move.begin
                and self.request.end == move.end)

    def go_on(self, move: Move, event: Any) -> bool:
        """With these blocks, after the event. False: it has ended."""
        for i, (first, ids) in enumerate(move.tables):
            self.tables[i] = _lib.Table(ids.buffer_info()[0], first, len(ids))
        if event is not None:
            self.request.after = event.cuda_event
        move.after = event
        self.move = move
        return _lib.gate_open(self.gate)

    def goes_on(self) -> bool:
        """After its end: whether it got its blocks."""
        return self.gate.value == _lib.GATE_OPEN

    def close(self) -> None:
        """Nobody will come with blocks."""
        _lib.gate_close(self.gate)
