"""Emptying the spaces, when the engine asks for it: its weights may be others
now.

If the node cannot be reached for that, what it holds must not be used either:
the engine goes without the store until a reset has got through, which arrivals
try again. All but the try itself is the scheduler's thread's.
"""
from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from larder_kv import _lib

logger = logging.getLogger("larder")

AGAIN_SECONDS = 2.0  # between two tries
# While the engine waits: a node waits 2 s for a member that does not answer.
# What takes longer is tried again.
NOW_MS = 3000
LATER_MS = 10000  # in a thread of its own


class Announced(Protocol):
    """Who has announced what is in the space."""

    def reset(self) -> None: ...


class Drop:
    def __init__(self, spaces: Callable[[], Iterable[_lib.Space]],
                 events: Announced | None,
                 later: Callable[[Callable[[], None]], None]):
        """spaces: all that the engine's KV is in; called by any thread.
        later: has a thread call something."""
        self._spaces = spaces
        self._events = events
        self._later = later
        self._due = False  # the engine has asked for it, and it was not done
        # A try from before the engine has asked again says nothing.
        self._asked = 0  # times
        self._done = 0  # as of which of them: set by the thread that tries
        self._trying = False  # it does
        self._next = 0.0

    def now(self, settled: bool) -> bool:
        """settled: no save of before is under way, which would come after.
        False: there is something of before, here or elsewhere."""
        self._due = True
        self._asked += 1
        self._next = time.monotonic() + AGAIN_SECONDS
        dropped, why = (self._try(NOW_MS) if settled
                        else (False, "saves are under way"))
        if dropped:
            self._end()
        if why:
            logger.warning(
                "larder: the space was reset, but not everywhere: %s" if dropped
                else "larder: the space was not reset, and this engine goes "
                "without the store until it is: %s", why)
        return not why

    def due(self, settled: bool) -> bool:
        """Whether the store must not be used. Has it tried again."""
        if self._due and self._done == self._asked:
            self._end()
            logger.warning("larder: the space was reset, and is used again")
        elif (self._due and settled and not self._trying
              and time.monotonic() >= self._next):
            self._trying = True
            self._later(functools.partial(self._again, self._asked))
        return self._due

    def _end(self) -> None:
        self._due = False
        if self._events is not None:
            self._events.reset()

    def _try(self, timeout_ms: int) -> tuple[bool, str]:
        """Whether the node gives nothing of before any more; what was wrong."""
        why = ""
        try:
            for space in self._spaces():
                try:
                    space.reset(timeout_ms)
                except _lib.LarderError as error:
                    if error.status not in (_lib.E_IO, _lib.E_TIER_OFF):
                        raise
                    why = str(error)
        except _lib.LarderError as error:
            return False, str(error)
        return True, why

    def _again(self, asked: int) -> None:
        dropped, _ = self._try(LATER_MS)
        if dropped:
            self._done = asked
        self._next = time.monotonic() + AGAIN_SECONDS
        self._trying = False
