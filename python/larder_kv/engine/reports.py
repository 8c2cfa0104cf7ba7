"""What became of saves: a worker reports it to its scheduler."""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Saved:
    """The saves that ended in a step: by how many ranks, and which failed on
    any."""

    ranks: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def aggregate(self, other: Saved) -> Saved:
        for job, count in other.ranks.items():
            self.ranks[job] = self.ranks.get(job, 0) + count
        self.failed |= other.failed
        return self


class Reports:
    """A worker's: what became of saves that have a number."""

    def __init__(self, kind: type[Saved] = Saved) -> None:
        self.kind = kind
        self._lock = threading.Lock()
        self._saved = kind()
        self._last = 0  # that began
        self._open: set[int] = set()
        self.tell: Callable[[int], None] | None = None  # see hold.write_on()

    def begin(self, job: int) -> None:
        """Numbers only grow."""
        with self._lock:
            self._last = job
            self._open.add(job)

    def add(self, job: int, done: bool) -> None:
        """Its end."""
        with self._lock:
            self._saved.ranks[job] = 1
            if not done:
                self._saved.failed.add(job)
            self._open.discard(job)
            if self.tell is not None:
                self.tell(min(self._open) - 1 if self._open else self._last)

    def take(self) -> Saved | None:
        if not self._saved.ranks:
            return None
        with self._lock:
            saved, self._saved = self._saved, self.kind()
        return saved
