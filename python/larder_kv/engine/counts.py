"""What a connector counts."""
from __future__ import annotations

import threading
from typing import Any

TIMES = {
    "lookup_ms": "from a request's arrival until it is known what the store "
                 "has",
    "stage_ms": "until that is in memory, checked and held",
    "copy_ms": "from the order to load until all ranks have reported it",
    "resume_ms": "from there until the request is scheduled",
    "load_ms": "of one load on one rank",
    "save_ms": "of the saves of a step on one rank, or of one beside the "
               "steps (save_threads)",
    "handoff_ms": "from a hand-off's arrival at the decode side until all of "
                  "it is staged, or no more is waited for",
    "hold_ms": "from the order to save until its blocks are given back",
}
TIMES_MAX = 10000  # of a kind, between two looks
# With a label that says why: "missed_tokens:absent" in the data.
BY_REASON = {
    "missed_requests": "requests of which not all chunks were loaded or in "
                       "vLLM's own cache",
    "missed_tokens": "tokens of these chunks",
    "saves_dropped": "saves that were given up",
    "handoffs_refused": "requests that went without their hand-off",
    "handoffs_short": "prompts that were not all there, as the decode side",
}
# As they are now, the largest of all ranks; in the log the largest of a while.
GAUGES = {
    "held_blocks": "blocks that saves beside the steps hold",
    "held_blocks_peak": "the most that were held since the start",
    "save_queue": "saves that wait for a thread",
}
COUNTERS = {
    "hits": "requests for which a prefix was loaded",
    "hit_tokens": "tokens whose KV was loaded instead of computed",
    "local": "lookups that vLLM's own prefix cache made needless",
    "late": "lookups that were not done in lookup_ms",
    "handoffs_given": "prompts that were handed off, as the prefill side",
    "handoffs_taken": "prompts that were loaded whole, as the decode side",
    "handoff_bytes": "bytes that were staged for hand-offs, as the decode "
                     "side",
    "waited": "times a request waited for another that loads the same",
    "skipped_numbered_images": "requests whose images have no lasting name",
    "loads": "loads that were done",
    "loaded_bytes": "bytes loaded",
    "load_failures": "loads that failed: the request was computed",
    "saved_shards": "shards saved",
    "saved_bytes": "bytes saved",
    "saves_present": "shards that the store had already",
    "save_failures": "shards that were not saved",
    "saves_late": "steps whose saves were not done in save_ms",
}


class Counts:
    """Counted by any thread since the last take()."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: dict[str, Any] = {}
        self._now: dict[str, int] = {}  # of gauges

    def add(self, name: str, by: int = 1) -> None:
        if by:
            with self._lock:
                self._data[name] = self._data.get(name, 0) + by

    def add_all(self, **more: int) -> None:
        with self._lock:
            data = self._data
            for name, by in more.items():
                if by:
                    data[name] = data.get(name, 0) + by

    def time(self, name: str, ms: float) -> None:
        with self._lock:
            times = self._data.setdefault(name, [])
            if len(times) < TIMES_MAX:
                times.append(ms)

    def set(self, name: str, value: int) -> None:
        with self._lock:
            if self._now.get(name, 0) != value:
                self._now[name] = self._data[name] = value

    def take(self) -> dict[str, Any] | None:
        if not self._data:
            return None
        with self._lock:
            data, self._data = self._data, {}
        return data
