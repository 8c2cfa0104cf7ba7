"""What the connector counts, for vLLM's log line and Prometheus."""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics, KVConnectorStats)

TIMES = {
    "lookup_ms": "from a request's arrival until it is known what the store "
                 "has",
    "stage_ms": "until that is in memory, checked and held",
    "copy_ms": "from the order to load until all ranks have reported it",
    "resume_ms": "from there until the request is scheduled",
    "load_ms": "of one load on one rank",
    "save_ms": "of the saves of a step on one rank, or of one beside the "
               "steps (save_threads)",
    "hold_ms": "from the order to save until its blocks are given back",
}
TIMES_MAX = 10000  # of a kind, between two looks
# With a label that says why: "missed_tokens:absent" in the data.
BY_REASON = {
    "missed_requests": "requests of which not all chunks were loaded or in "
                       "vLLM's own cache",
    "missed_tokens": "tokens of these chunks",
    "saves_dropped": "saves that were given up",
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
    "waited": "times a request waited for another that loads the same",
    "skipped_numbered_images": "requests whose images have no lasting name",
    "loads": "loads that were done",
    "loads_layered": "of these, layer by layer in the step (load_layers)",
    "loaded_bytes": "bytes loaded",
    "load_failures": "loads that failed: the request was computed",
    "saved_shards": "shards saved",
    "saved_bytes": "bytes saved",
    "saves_present": "shards that the store had already",
    "save_failures": "shards that were not saved",
    "saves_late": "steps whose saves were not done in save_ms",
}
BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)


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

    def take(self) -> LarderStats | None:
        if not self._data:
            return None
        with self._lock:
            data, self._data = self._data, {}
        return LarderStats(data=data)


@dataclass
class LarderStats(KVConnectorStats):
    def __getitem__(self, name: str) -> Any:
        """The MultiConnector of 0.24 and 0.29 asks its children's for "data",
        as of what came from another process."""
        return getattr(self, name)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            if name in self.data and name in GAUGES:
                self.data[name] = max(self.data[name], value)
            elif name in self.data:
                self.data[name] = self.data[name] + value
            else:
                self.data[name] = value
        return self

    def is_empty(self) -> bool:
        return not self.data

    def reduce(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {}
        for name, value in sorted(self.data.items()):
            if isinstance(value, list):
                ordered = sorted(value)
                found[f"{name}_median"] = round(ordered[len(value) // 2], 2)
                found[f"{name}_max"] = round(ordered[-1], 2)
            else:
                found[name] = value
        return found


class LarderProm(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames,
                 per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames,
                         per_engine_labelvalues)
        self._by_engine: dict[int, dict[str, Any]] = {
            engine: {} for engine in per_engine_labelvalues}
        for name, text in COUNTERS.items():
            self._add(name, self._counter_cls(
                name=f"vllm:larder_{name}", documentation=f"Larder: {text}.",
                labelnames=labelnames))
        for name, text in GAUGES.items():
            self._add(name, self._gauge_cls(
                name=f"vllm:larder_{name}", documentation=f"Larder: {text}.",
                multiprocess_mode="mostrecent", labelnames=labelnames))
        for name, text in TIMES.items():
            self._add(name, self._histogram_cls(
                name=f"vllm:larder_{name}",
                documentation=f"Larder: milliseconds {text}.",
                buckets=BUCKETS, labelnames=labelnames))
        self._by_reason = {
            name: self._counter_cls(
                name=f"vllm:larder_{name}", documentation=f"Larder: {text}.",
                labelnames=[*labelnames, "reason"])
            for name, text in BY_REASON.items()}

    def _add(self, name: str, metric: Any) -> None:
        for engine, values in self.per_engine_labelvalues.items():
            self._by_engine[engine][name] = metric.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any],
                engine_idx: int = 0) -> None:
        metrics = self._by_engine[engine_idx]
        for name, value in transfer_stats_data.items():
            family, _, reason = name.partition(":")
            if family in self._by_reason:
                self._by_reason[family].labels(
                    *self.per_engine_labelvalues[engine_idx],
                    reason).inc(value)
            elif name not in metrics:
                continue
            elif name in GAUGES:
                metrics[name].set(value)
            elif isinstance(value, list):
                for one in value:
                    metrics[name].observe(one)
            else:
                metrics[name].inc(value)
