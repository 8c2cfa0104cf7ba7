"""SGLang's HiCacheStorage on a node of Larder.

SGLang calls it from several threads, which it ends and starts again at every
flush. A failed call is a miss, or a page that is not kept: nothing is raised
once the backend is attached. close() waits for the calls under way, and later
ones are misses; so are those after SGLang has replaced its weights in memory.
"""
from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage,
                                                  PoolHitPolicy,
                                                  PoolTransferResult)

from larder_kv import _lib, _node
from larder_kv._options import Options
from larder_kv.engine import hold, mover
from larder_kv.sglang import name as names
from larder_kv.sglang import updates
from larder_kv.sglang.items import Result, digests
from larder_kv.sglang.pool import GOOD_PUT, Place, Pool
from larder_kv.sglang.shared import Shared
from larder_kv.sglang.sliced import Inside, Sliced, name_of

logger = logging.getLogger("larder")

KV, MAMBA = "kv", "mamba"
PLACE = "larder: --hicache-storage-backend-extra-config"
# Entries of the extra config that are SGLang's own.
SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1",
           "allocator", "tp_lcm_size")
SGLANGS_BEGIN = ("prefetch_", "hicache_")
USED = ("url", "secret_file", "weights", "pages", "chunk", "lookup_ms",
        "load_ms", "save_ms", "node_dram", "node_dram_start", "node_ssd",
        "node_dir", "node_idle_s")
CLOSE_SECONDS = 15.0  # that close() waits for calls under way
REQUESTS_MAX = 64  # requests that the node does not know of yet
QUIET_SECONDS = 10.0  # between two warnings of a kind
SEEDED = (0, 5, 20)  # page hashes hold extra_key and cache_salt since


def options_of(extra: dict[str, Any] | None) -> Options:
    given = {key: value for key, value in (extra or {}).items()
             if key not in SGLANGS and not key.startswith(SGLANGS_BEGIN)}
    options = Options(given, PLACE)
    useless = sorted(set(given) - set(USED))
    if "chunk" in given and options.pages != "shared":
        useless = ["chunk"]
    if useless:
        raise _lib.LarderError(
            _lib.E_INVALID, f"{PLACE}: option {useless[0]} does nothing with "
            f"SGLang: leave it out; there are {', '.join(USED)}")
    return options


class _Calls:
    """Calls under way, which close() waits for."""

    def __init__(self, weights: int) -> None:
        """weights: what updates.count() is as long as they are the same."""
        self._changed = threading.Condition()
        self._count = 0
        self._open = True
        self._weights = weights

    @contextlib.contextmanager
    def one(self, pages: bool = True) -> Iterator[bool]:
        """Whether it may be made. pages: it looks at, loads or saves some."""
        with self._changed:
            may = self._open and not (
                pages and updates.count() != self._weights)
            self._count += may
        try:
            yield may
        finally:
            if may:
                with self._changed:
                    self._count -= 1
                    self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """False: one is still under way."""
        with self._changed:
            self._open = False
            return self._changed.wait_for(lambda: self._count == 0, seconds)


class LarderStorage(HiCacheStorage):
    def __init__(self, config: Any, _kwargs: Any = None):
        self._config = config
        extra = config.extra_config or {}
        self.options = options_of(extra)
        self._zero_copy = bool(extra.get("interface_v1", 0))
        if getattr(config, "dcp_size", 1) > 1:
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED, "larder: decode context parallelism is "
                "not supported")
        args = names.server_args()
        _check_version(args)
        self._lookup_ms = max(1, self.options.lookup_ms)
        self._engine = names.of_engine(args, self.options.weights)
        self._args = args
        self._calls = _Calls(updates.watch(self.options.weights))
        self._pools: dict[str, Pool] = {}
        self._counts: dict[str, int] = {}
        self._count_lock = threading.Lock()
        self._warned: dict[str, float] = {}
        url = _node.node_url(self.options, logger.info)
        self.node = _node.open_node(url, mover.say, logger.error,
                                    secret_file=self.options.secret_file)
        self._requests: queue.Queue[bytes | None] = queue.Queue(REQUESTS_MAX)
        self._teller = threading.Thread(target=self._tell, daemon=True,
                                        name="larder-tell")
        self._teller.start()

    # ---- host pools ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if getattr(mem_pool_host, "kv_buffer", None) is None:
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED, "larder: a model whose KV has no host "
                f"pool of its own ({type(mem_pool_host).__name__}) is not "
                "supported")
        self._add(mem_pool_host, KV, not self._zero_copy)

    def register_mem_host_pool_v2(self, host_pool: Any,
                                  host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(getattr(host_pool_name, "value", host_pool_name))
        if name != KV:
            self._add(host_pool, name, False)

    def _add(self, pool: Any, name: str, flat: bool) -> None:
        # The state of Mamba layers is divided among the ranks even where
        # their KV is not.
        replicated = self._config.is_mla_model and name != MAMBA
        label = names.label_of(self._args, name)
        added = (self._described(pool, name, flat, label)
                 if self.options.pages in ("slices", "shared") else None)
        if added is None:
            added = Pool(pool, name, flat, Place(self._config, replicated),
                         self._engine, label, self.node)
        if name in self._pools:
            self._pools[name].close()
        self._pools[name] = added

    def _described(self, pool: Any, name: str, flat: bool,
                   label: str) -> Pool | None:
        """None: it is stored as it is."""
        together = self.options.pages == "shared"
        if name != KV and not together:
            return None
        if name != KV or flat:
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED,
                f"larder: pages={self.options.pages}: " + (
                    f"models with a pool {name} beside KV: use pages=slices"
                    if name != KV else "it needs \"interface_v1\": 1"))
        inside = Inside(pool, self._config, names.kv_heads(self._args))
        if together:
            return Shared(inside, self._args, self.options, label, self.node)
        return Sliced(inside, name_of(inside, self._engine), label, self.node)

    def on_host_pools_registered(self) -> None:
        """Engines share KV whose descriptors are equal to the letter."""
        for name, pool in self._pools.items():
            logger.info("larder: %s, space %s, pool %s: pages of %d tokens, "
                        "%s, shard %d of %d of %s", self.node.url,
                        hashlib.sha256(pool.descriptor).hexdigest()[:12], name,
                        pool.page_tokens,
                        "by way of a tensor" if pool.flat else
                        f"in chunks of {pool.chunk_tokens}"
                        if pool.chunk_tokens != pool.page_tokens else
                        "in place",
                        pool.shard, pool.shards,
                        pool.descriptor.decode())

    # ---- lookups ----

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        with self._calls.one() as may:
            if not may or not keys:
                return 0
            data = digests(keys)
            self._remember(data, extra_info)
            return self._match(self._pools[KV], data, extra_info)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def _match(self, pool: Pool, keys: bytes, extra_info: Any = None) -> int:
        try:
            found = pool.match(keys, _before(extra_info), self._lookup_ms)
        except _lib.LarderError as error:
            self._warn("lookup", error)
            found = 0
        self._count(f"{pool.name} found", found)
        return found

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None,
                        extra_info: Any = None) -> PoolTransferResult:
        """Every length that all pools can restore: a pool of which only the
        last pages are needed may have those of 5 pages and not of 4."""
        with self._calls.one() as may:
            if not may or not keys:
                return PoolTransferResult(0, {}, [])
            data = digests(keys)
            self._remember(data, extra_info)
            whole = self._match(self._pools[KV], data, extra_info)
            hits = {KV: whole} if whole else {}
            lengths = list(range(1, whole + 1))
            for transfer in pool_transfers or ():
                if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                    continue  # never decides; without a verdict it is asked
                own = self._lengths(transfer, keys[:whole])
                if own:
                    hits[transfer.name] = max(own)
                lengths = [one for one in lengths if one in own]
            return PoolTransferResult(lengths[-1] if lengths else 0, hits,
                                      lengths)

    def _lengths(self, transfer: Any, keys: Sequence[str]) -> set[int]:
        """The lengths of prefixes for which a pool has what they need."""
        pool = self._pools.get(str(getattr(transfer.name, "value",
                                           transfer.name)))
        if pool is None or not keys:
            return set()
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            return set(range(1, self._match(pool, digests(keys)) + 1))
        need = max(1, len(transfer.keys or ()))
        try:
            there = pool.exists(keys, self._lookup_ms)
        except _lib.LarderError as error:
            self._warn("lookup", error)
            return set()
        found, run = set(), 0
        for i, one in enumerate(there):
            run = run + 1 if one else 0
            if run >= min(need, i + 1):
                found.add(i + 1)
        return found

    def _remember(self, keys: bytes, extra_info: Any) -> None:
        """The node learns by requests what to keep: it is told of this one
        beside the lookup, once for all ranks."""
        if self._config.tp_rank or self._config.pp_rank:
            return
        before = getattr(extra_info, "prefix_keys", None) or []
        with contextlib.suppress(queue.Full):
            self._requests.put_nowait(digests(before) + keys)

    def _tell(self) -> None:
        while (keys := self._requests.get()) is not None:
            with self._calls.one() as may:
                pool = self._pools.get(KV)
                if may and pool is not None:
                    with contextlib.suppress(_lib.LarderError):
                        pool.tell(keys, self._lookup_ms)

    # ---- pages, in place ----

    def batch_get_v1(self, keys: list[str], host_indices: Any,
                     extra_info: Any = None) -> list[bool]:
        return self._get(KV, keys, host_indices, extra_info)

    def batch_set_v1(self, keys: list[str], host_indices: Any,
                     extra_info: Any = None) -> list[bool]:
        return self._put(KV, keys, host_indices, extra_info)

    def batch_get_v2(self, transfers: Any,
                     extra_info: Any = None) -> dict[str, list[bool]]:
        return {one.name: self._get(one.name, one.keys or [],
                                    one.host_indices, extra_info)
                for one in transfers}

    def batch_set_v2(self, transfers: Any,
                     extra_info: Any = None) -> dict[str, list[bool]]:
        return {one.name: self._put(one.name, one.keys or [],
                                    one.host_indices, extra_info)
                for one in transfers}

    def _pool_for(self, name: Any, keys: Sequence[str], indices: Any,
                  extra_info: Any) -> Pool | None:
        pool = self._pools.get(str(getattr(name, "value", name)))
        wanted = len(keys) * pool.page_tokens if pool is not None else -1
        if not keys or pool is None:
            return None
        if indices is None or indices.numel() != wanted:
            self._warn("pages", f"{len(keys)} pages of pool {pool.name} have "
                       f"{0 if indices is None else indices.numel()} indices, "
                       f"not {wanted}")
            return None
        if (pool.chunk_tokens != pool.page_tokens
                and getattr(extra_info, "prefix_keys", None) is None):
            self._warn("pages", "pages=shared needs "
                       '"hicache_storage_pass_prefix_keys": true')
            return None
        return pool

    def _get(self, name: Any, keys: Sequence[str], indices: Any,
             extra_info: Any) -> list[bool]:
        with self._calls.one() as may:
            pool = self._pool_for(name, keys, indices, extra_info)
            if not may or pool is None:
                return [False] * len(keys)
            return self._got(pool, keys, lambda: pool.get(
                keys, indices, _before(extra_info, pool.before),
                self.options.load_ms))

    def _put(self, name: Any, keys: Sequence[str], indices: Any,
             extra_info: Any) -> list[bool]:
        with self._calls.one() as may:
            pool = self._pool_for(name, keys, indices, extra_info)
            if not may or pool is None:
                return [False] * len(keys)
            return self._kept(pool, keys, lambda: pool.put(
                keys, indices, _before(extra_info, pool.before),
                hold.deadline_ms(self.options)))

    # ---- pages, as tensors ----

    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[Any]:
        with self._calls.one() as may:
            if not may or not keys:
                return [None] * len(keys)
            pool = self._pools[KV]
            good = self._got(pool, keys, lambda: pool.get_tensors(
                keys, target_locations, self.options.load_ms))
            return [page if one else None
                    for page, one in zip(target_locations, good)]

    def get(self, key: str, target_location: Any = None,
            target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_set(self, keys: list[str], values: Any = None,
                  target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        with self._calls.one() as may:
            if not may:
                return False
            pool = self._pools[KV]
            return not keys or all(self._kept(
                pool, keys, lambda: pool.put_tensors(
                    keys, [value.contiguous() for value in values], (0, b""),
                    hold.deadline_ms(self.options))))

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    # ---- what became of them ----

    def _got(self, pool: Pool, keys: Sequence[str], run: Any) -> list[bool]:
        found = self._tried("load", keys, run)
        good = [one is not None and one.status == _lib.OK for one in found]
        self._count(f"{pool.name} loaded", sum(good))
        for one in found:
            if one is not None and one.status == _lib.MISS:
                self._count(f"{pool.name} missed: {_lib.CAUSES[one.cause]}", 1)
        return good

    def _kept(self, pool: Pool, keys: Sequence[str], run: Any) -> list[bool]:
        """A page that is there counts. One that the node declined does not:
        what comes after it in a prompt could not be used."""
        found = self._tried("save", keys, run)
        good = [one is not None and one.status in GOOD_PUT for one in found]
        self._count(f"{pool.name} saved", sum(
            one is not None and one.status == _lib.OK for one in found))
        return good

    def _tried(self, what: str, keys: Sequence[str],
               run: Any) -> list[Result | None]:
        try:
            found = run()
        except Exception as error:  # SGLang would lose the whole request
            self._warn(what, error)
            return [None] * len(keys)
        for one in found:
            if one.status < 0:
                self._warn(what, _lib.status_text(one.status))
                break
        return found

    def _count(self, name: str, by: int) -> None:
        if by:
            with self._count_lock:
                self._counts[name] = self._counts.get(name, 0) + by

    def _warn(self, what: str, why: Any) -> None:
        """Not for every page of a node that is away."""
        now = time.monotonic()
        with self._count_lock:
            if now - self._warned.get(what, -QUIET_SECONDS) < QUIET_SECONDS:
                return
            self._warned[what] = now
        logger.warning("larder: %s failed: %s", what, why)

    # ---- the rest ----

    def clear(self) -> bool:
        """Drops every page of this engine's spaces, on all nodes."""
        with self._calls.one(pages=False) as may:
            if not may:
                return False
            return all([self._reset(pool) for pool in self._pools.values()])

    def _reset(self, pool: Pool) -> bool:
        try:
            status = pool.reset()
        except _lib.LarderError as error:
            status = error.status
        if status != _lib.OK:
            logger.error("larder: the pages of pool %s could not be dropped "
                         "everywhere: %s", pool.name, _lib.status_text(status))
        return status == _lib.OK

    def close(self) -> None:
        """Releases the node; a second time it does nothing."""
        if self._teller is None:
            return
        with contextlib.suppress(queue.Full):
            self._requests.put_nowait(None)
        if not self._calls.close(CLOSE_SECONDS):
            logger.error("larder: a call has not ended after %.0f s: its node "
                         "stays open", CLOSE_SECONDS)
            return
        self._end_teller()
        for pool in self._pools.values():
            pool.close()
        self._pools = {}
        self.node.close()
        logger.info("larder: closed; pages: %s", ", ".join(
            f"{count} {name}" for name, count in sorted(self._counts.items()))
            or "none")

    def _end_teller(self) -> None:
        teller, self._teller = self._teller, None
        while teller.is_alive():  # what is queued does nothing any more
            with contextlib.suppress(queue.Full):
                self._requests.put_nowait(None)
            teller.join(0.05)


def _before(extra_info: Any, most: int = 1) -> tuple[int, bytes]:
    """Pages before those of a call, and the keys of the last of them."""
    before = getattr(extra_info, "prefix_keys", None)
    return (len(before), digests(before[-most:])) if before else (0, b"")


def _check_version(args: Any) -> None:
    """Adapters and salts are in extra_key, which older page hashes lack."""
    version = names.version()
    if _numbers(version) >= SEEDED:
        return
    if getattr(args, "enable_lora", False) or getattr(args, "lora_paths",
                                                      None):
        raise _lib.LarderError(
            _lib.E_UNSUPPORTED, f"larder: SGLang {version} leaves LoRA "
            "adapters out of its page hashes: use SGLang 0.5.20 or newer, or "
            "no adapters")
    logger.warning(
        "larder: SGLang %s leaves extra_key and cache_salt out of its page "
        "hashes: requests with different salts share KV. Use SGLang 0.5.20 or "
        "newer", version)


def _numbers(text: str) -> tuple[int, ...]:
    """The three numbers of a version, whatever follows each; 0 of one that is
    unknown."""
    found = [re.match(r"\d+", part) for part in text.split(".")[:3]]
    return tuple(int(one[0]) if one else 0 for one in found)
