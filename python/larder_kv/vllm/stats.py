"""What is counted, for vLLM's log line and Prometheus."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics, KVConnectorStats)

from larder_kv.engine.counts import BY_REASON, COUNTERS, GAUGES, TIMES

BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)


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
