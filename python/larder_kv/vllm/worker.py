"""A worker's side: moves KV between the engine's pages and the store.

Loads run in threads and are reported when they are done; saves are copied in
wait_for_save(), after the forward that computed them, so that no block is held.
"""
from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.vllm import events, meta, model
from larder_kv.vllm.stats import Counts

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("vllm.larder")


class Worker:
    def __init__(self, config: VllmConfig, options: Options,
                 described: model.Model, kv: KVCacheConfig,
                 node: _lib.Node):
        self.options = options
        self.model = described
        self.node = node
        self.counts = Counts()
        self.space = node.space(described.descriptor, described.shards,
                                described.chunk_tokens)
        self._kv = kv
        self._layout: _lib.Layout | None = None
        self._caches: dict[str, Any] = {}  # keeps the memory alive
        self._max_tokens = config.model_config.max_model_len
        self._shard, self._writer = _rank(config, described)
        self.reports = events.Reports() if events.enabled(config) else None
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._jobs: queue.SimpleQueue[meta.Move | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def register(self, caches: dict[str, Any]) -> None:
        self._layout = model.layout(self.model, self._kv, caches)
        self._caches = caches
        for i in range(self.options.load_threads):
            thread = threading.Thread(target=self._work, daemon=True,
                                      name=f"larder-load-{i}")
            self._threads.append(thread)
            thread.start()
        self._say_sizes()

    def _say_sizes(self) -> None:
        per_token = max(model.bytes_per_token(self.model, self._layout), 1)
        try:
            stats = self.node.stats()
        except _lib.LarderError:
            logger.info("larder: space %s, chunks of %d tokens, %d bytes per "
                        "token", self.model.name, self.model.chunk_tokens,
                        per_token)
            return
        logger.info(
            "larder: %s, space %s, chunks of %d tokens, %d bytes per token; "
            "dram holds %d tokens, ssd %d", self.node.url, self.model.name,
            self.model.chunk_tokens, per_token,
            stats.dram_max_bytes / per_token, stats.ssd_max_bytes / per_token)
        if stats.dram_max_bytes < per_token * self._max_tokens:
            logger.error(
                "larder: the node's dram of %d bytes is smaller than one "
                "request of max_model_len=%d (%d bytes): such prefixes cannot "
                "be loaded whole; raise dram of `larder serve` (node_dram)",
                stats.dram_max_bytes, self._max_tokens,
                per_token * self._max_tokens)

    # ---- loads ----

    def start_loads(self, step: meta.Step) -> None:
        for move in step.loads:
            self._jobs.put(move)

    def _work(self) -> None:
        while (move := self._jobs.get()) is not None:
            began = time.monotonic()
            try:
                status, request = self._run(move, self.options.load_ms, True)
            except Exception:
                logger.exception("larder: load of %s", move.request_id)
                status, request = -1, None
            ms = (time.monotonic() - began) * 1000
            if status == _lib.OK:
                self.counts.add("loads")
                self.counts.add("loaded_bytes", request.bytes)
                self.counts.time("load_ms", ms)
            else:
                cause = ("error" if request is None else
                         _lib.CAUSES[request.cause]
                         if status == _lib.MISS
                         else _lib.status_text(status))
                self.counts.add("load_failures")
                logger.warning(
                    "larder: load of %s failed after %.0f ms (%s): it is "
                    "computed", move.request_id, ms, cause)
            with self._lock:
                self._done.add(move.request_id)
                if status != _lib.OK:
                    self._failed.add(move.request_id)
                    for _, ids in move.tables:
                        self._bad_blocks.update(ids)
                    self._bad_blocks.discard(_lib.NULL_BLOCK)

    def _run(self, move: meta.Move, timeout_ms: int,
             load: bool) -> tuple[int, _lib.Move]:
        tables = (_lib.Table * len(move.tables))(
            *((ids.buffer_info()[0], first, len(ids))
              for first, ids in move.tables))
        request = _lib.Move(
            keys=move.keys, tables=tables,
            first_key=move.first_key, begin=move.begin, end=move.end,
            shard=self._shard, writers=self.model.replicas,
            writer=self._writer, timeout_ms=timeout_ms, ttl_ms=move.ttl_ms)
        if move.memory:
            return self._place(move.memory, request), request
        run = self.space.load if load else self.space.save
        return run(self._layout, request), request

    def _place(self, path: str, request: _lib.Move) -> int:
        """Tried twice: too many open files, or too little memory, may pass,
        and vLLM cannot be told of a failure."""
        for pause in (0.1, None):
            try:
                status = self.space.place(self._layout, request, path)
            except OSError:
                if pause is None:
                    raise
                status = _lib.E_IO
            if status == _lib.OK or pause is None:
                break
            time.sleep(pause)
        return status

    # ---- saves ----

    def save(self, step: meta.Step) -> None:
        if not step.saves:
            return
        began = time.monotonic()
        end = began + self.options.save_ms / 1000
        late = False
        for move in step.saves:
            left = int((end - time.monotonic()) * 1000)
            late = late or left <= 0
            done = not late and self._save(move, left)
            if self.reports is not None:
                self.reports.add(move.job, done)
        if late:
            self.counts.add("saves_late")
        self.counts.time("save_ms", (time.monotonic() - began) * 1000)

    def _save(self, move: meta.Move, timeout_ms: int) -> bool:
        """Whether the store has all of it now."""
        try:
            status, request = self._run(move, timeout_ms, False)
        except Exception:
            logger.exception("larder: save of %s", move.request_id)
            status = -1
        if status < 0:
            self.counts.add("save_failures")
            return False
        self.counts.add("saved_shards", request.shards)
        self.counts.add("saved_bytes", request.bytes)
        self.counts.add("saves_present", request.present)
        self.counts.add("save_failures", request.failed)
        return request.failed == 0

    # ---- results ----

    def finished(self) -> tuple[set[str], set[str], set[int]]:
        """Loads that ended since the last call, those of them that failed, and
        the blocks these were for."""
        with self._lock:
            found = self._done, self._failed, self._bad_blocks
            # Never one that a load may still add to: an id that is given
            # twice ends the engine.
            self._done, self._failed = set(), set()
            self._bad_blocks = set()
        return found

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout=self.options.load_ms / 1000 + 1)
        if not any(thread.is_alive() for thread in self._threads):
            self.space.close()
            self.node.close()


def _rank(config: VllmConfig, described: model.Model) -> tuple[int, int]:
    """This rank's shard, and its number among those with the same one."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp = config.parallel_config.tensor_parallel_size
    rank = get_tp_group().rank_in_group
    pp_rank = get_pp_group().rank_in_group
    return (pp_rank * (tp // described.replicas) + rank // described.replicas,
            rank % described.replicas)
