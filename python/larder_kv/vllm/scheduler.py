"""The scheduler's side: which prefixes are in the store, and what the workers
shall move.

Nothing here waits. A request's prompt is named when it arrives; a thread looks
it up and stages it, and the scheduler is told None until that is done, at most
for lookup_ms after the arrival. A hit is claimed only for what is staged and
held.

A request is asked about again after a failed load, and after a preemption. Once
it has claimed, it claims nothing more until it was preempted: so a failed load
ends in computing.
"""
from __future__ import annotations

import logging
import queue
import threading
import time
from array import array
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.vllm import meta, model, versions
from larder_kv.vllm.request import Prompt, Switches
from larder_kv.vllm.stats import Counts, LarderStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.larder")

LOOKUP_THREADS = 2
FETCH_MAX = 1 << 30  # bytes of one request's fetched prefix
RATE_TOKENS = 64


class Lookup:
    """What a thread finds out about a prompt. The thread sets it, then done;
    the scheduler sets left. Both under Scheduler._lock."""

    __slots__ = ("request_id", "keys", "limit", "tiers_wanted", "began",
                 "until", "done", "left", "lease", "memory", "chunks",
                 "matched", "reason", "tier_bytes", "ended")

    def __init__(self, request_id: str, keys: bytes, limit: int,
                 tiers: frozenset[str] | None, seconds: float):
        self.request_id = request_id
        self.keys = keys
        self.limit = limit  # chunks that could be claimed at all
        self.tiers_wanted = tiers
        self.began = self.ended = time.monotonic()
        self.until = self.began + seconds
        self.done = False
        self.left = False  # nobody waits for it any more
        self.lease: _lib.Lease | None = None
        self.memory: _lib.Memory | None = None  # in place of the lease
        self.chunks = 0  # staged and held
        self.matched = 0  # in the store
        self.reason = ""  # why not more
        self.tier_bytes = (0, 0)

    def release(self) -> None:
        """Gives up what it holds; once, by who knows that it may."""
        lease, self.lease = self.lease, None
        memory, self.memory = self.memory, None
        if lease is not None:
            lease.release()
        if memory is not None:
            memory.close()

    def left_ms(self) -> int:
        return max(1, int((self.until - time.monotonic()) * 1000))


class Tracked:
    """A request, from its arrival to its end."""

    __slots__ = ("request", "prompt", "switches", "loads", "saves", "tables",
                 "saved", "preemptions", "lookup", "claimed", "local",
                 "loading")

    def __init__(self, request: Request, switches: Switches):
        self.request = request
        self.switches = switches
        self.prompt = Prompt(request)
        self.loads = self.saves = True
        self.loading: bytes | None = None  # its entry in Scheduler.loading
        self.reset()

    def reset(self) -> None:
        """At its arrival, and when it was preempted."""
        self.preemptions = self.request.num_preemptions
        self.tables: list[list[int]] = []
        self.saved = 0  # chunks that need not be saved any more
        self.claimed = False
        self.local = 0
        self.lookup: Lookup | None = None


class Scheduler:
    def __init__(self, config: VllmConfig, options: Options,
                 described: model.Model, node: _lib.Node):
        self.options = options
        self.model = described
        self.node = node
        self.space = node.space(described.descriptor, described.shards,
                                described.chunk_tokens)
        self.layout = model.rules(described)
        self.counts = Counts()
        role = config.kv_transfer_config
        self.saves = role.is_kv_producer and options.save != "never"
        self.loads = role.is_kv_consumer and options.load != "never"
        self.requests: dict[str, Tracked] = {}
        self.loading: dict[bytes, Tracked] = {}
        self.ended: dict[str, Tracked] = {}  # before their loads
        self.step = meta.Step()
        self._blocks = [g.block_tokens for g in described.groups]
        self._rule = [g.rule for g in described.groups]
        self._indexes = [g.index for g in described.groups]
        self._eagle = _uses_eagle(config)
        self._fetches = (len(described.groups) > 1
                         and not versions.reports_failed_requests())
        self._numbered = _numbers_images(config)
        self._rate = Rate()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Lookup | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"larder-lookup-{i}",
                             daemon=True) for i in range(LOOKUP_THREADS)]
        for thread in self._threads:
            thread.start()

    # ---- arrival and lookup ----

    def arrive(self, request: Request) -> None:
        """A request that cannot be named goes without Larder."""
        try:
            self._arrive(request)
        except Exception as error:
            logger.warning("larder: request %s goes without the store: %s",
                           request.request_id, error)

    def _arrive(self, request: Request) -> None:
        switches = Switches(request.kv_transfer_params)
        if request.mm_features and self._numbered:
            self.counts.add("skipped_numbered_images")
            return
        t = Tracked(request, switches)
        t.saves = self.saves and not switches.skip_save
        t.loads = (self.loads and not switches.skip_load
                   and not getattr(request, "skip_reading_prefix_cache",
                                   False))
        if not t.saves and not t.loads:
            return
        t.prompt.extend(self.space, request.num_tokens)
        self.requests[request.request_id] = t
        self._look_up(t)

    def _look_up(self, t: Tracked) -> None:
        """Begins a lookup of as much as may be claimed: the last token is
        always computed."""
        limit = (t.request.num_tokens - 1) // self.model.chunk_tokens
        if t.loads and limit > 0:
            t.lookup = Lookup(t.request.request_id,
                              t.prompt.keys.data(0, limit), limit,
                              t.switches.tiers, self.options.lookup_ms / 1000)
            self._jobs.put(t.lookup)

    def _work(self) -> None:
        while (look := self._jobs.get()) is not None:
            try:
                if not look.left:
                    self._find(look)
            except _lib.LarderError as error:
                look.reason = {_lib.E_OFFLINE: "offline",
                               _lib.E_DEADLINE: "deadline"}.get(
                                   error.status, "error")
                logger.debug("larder: lookup of %s: %s", look.request_id,
                             error)
            except Exception:
                look.reason = "error"
                logger.exception("larder: lookup of %s", look.request_id)
            look.ended = time.monotonic()
            with self._lock:
                look.done = True
                left = look.left
            if left:
                look.release()

    def _find(self, look: Lookup) -> None:
        match = self.space.match(self.layout, look.keys, look.limit,
                                 look.left_ms())
        look.matched = match.chunks
        look.reason = _lib.CAUSES[match.cause]
        chunks, match = self._worth(look, match)
        if chunks == 0:
            return
        lease, staged = self.space.stage(self.layout, look.keys, chunks,
                                         look.left_ms())
        if lease is None:
            look.reason = _lib.CAUSES[staged.cause]
            return
        look.tier_bytes = (match.tier_bytes[0], match.tier_bytes[1])
        look.lease = lease
        if self._fetches:
            # This vLLM cannot be told of a failed load of such a model: claim
            # only what cannot fail any more.
            try:
                look.memory = self.space.fetch(
                    self.layout, lease, look.keys, staged.chunks,
                    look.left_ms(), FETCH_MAX)
            finally:
                look.lease = None
                lease.release()
        look.chunks = staged.chunks

    def _worth(self, look: Lookup,
               match: _lib.Match) -> tuple[int, _lib.Match]:
        """How many of the matched chunks to load: where loading them is
        expected to be faster than computing them."""
        chunks = match.chunks
        while chunks > 0:
            if look.tiers_wanted is not None and any(
                    match.tier_bytes[i] > 0 and name not in look.tiers_wanted
                    for i, name in enumerate(_lib.TIERS)):
                look.reason = "tier"
            elif self.options.load == "always" or self._rate.wins(
                    chunks * self.model.chunk_tokens, match.load_us):
                break
            else:
                look.reason = "slower"
            chunks //= 2
            if chunks > 0:
                match = self.space.match(self.layout, look.keys, chunks,
                                         look.left_ms())
        return chunks, match

    # ---- what the scheduler asks ----

    def matched(self, request: Request, local: int) -> tuple[int | None, bool]:
        t = self.requests.get(request.request_id)
        if t is None:
            return 0, False
        if request.num_preemptions != t.preemptions:
            self._again(t)
        look = t.lookup
        if look is None or t.claimed or look.left:
            return 0, False
        if not look.done:
            if time.monotonic() < look.until:
                return None, False
            self.counts.add("late")
            look.reason = "late"
            self._leave(t)
            return 0, False
        end = self._claimable(look)
        if end <= local:
            return 0, False
        if self._sibling(t, local):
            return None, False
        t.local = local
        return end - local, True

    def _claimable(self, look: Lookup) -> int:
        """Tokens of the prefix that can be claimed."""
        size = self.model.chunk_tokens
        end = look.chunks * size
        if self._eagle and end > 0:
            # As vLLM's own lookup does: the drafter needs the last block's
            # hidden states.
            end -= self._blocks[0] if len(self._blocks) == 1 else size
        return end

    def _sibling(self, t: Tracked, local: int) -> bool:
        """Whether another request loads what this one would: it will be a
        local hit then."""
        first = local // self.model.chunk_tokens
        other = self.loading.get(t.prompt.keys.data(first, first + 1))
        if other is None or other is t or time.monotonic() >= t.lookup.until:
            return False
        self.counts.add("waited")
        return True

    def _again(self, t: Tracked) -> None:
        """It was preempted: it has more tokens now, and no blocks."""
        self._leave(t)
        t.reset()
        t.prompt.extend(self.space, t.request.num_tokens)
        self._look_up(t)

    def _leave(self, t: Tracked) -> None:
        """Nobody waits for its lookup, or needs its lease, any more."""
        look = t.lookup
        if look is not None:
            with self._lock:
                look.left = True
                done = look.done
            if done:
                look.release()
        if t.loading is not None:
            if self.loading.get(t.loading) is t:
                del self.loading[t.loading]
            t.loading = None

    def allocated(self, request: Request, blocks: KVCacheBlocks,
                  external: int) -> None:
        t = self.requests.get(request.request_id)
        if t is None or t.claimed:
            return
        if external == 0:
            if t.lookup is not None and t.lookup.chunks > 0:
                self.counts.add("local")
            self._leave(t)
            return
        t.claimed = True
        size = self.model.chunk_tokens
        begin, end = t.local, t.local + external
        ids = blocks.get_block_ids()
        first = begin // size
        last = -(-end // size)
        t.loading = t.prompt.keys.data(first, first + 1)
        self.loading[t.loading] = t
        self.step.loads.append(meta.Move(
            request.request_id, t.prompt.keys.data(first, last), first, begin,
            end, self._tables(ids, begin, end),
            memory=t.lookup.memory.path if t.lookup.memory else ""))
        self.counts.add("hit_tokens", external)
        self.counts.add("hits")

    def _tables(self, ids: Any, begin: int,
                end: int) -> list[tuple[int, array]]:
        found = []
        for index, block in zip(self._indexes, self._blocks):
            first, last = begin // block, -(-end // block)
            found.append((first, array("I", ids[index][first:last])))
        return found

    # ---- a step ----

    def build(self, out: SchedulerOutput) -> meta.Step:
        self._rate.begins(out.total_num_scheduled_tokens)
        if self.saves:
            self._saves(out)
        step, self.step = self.step, meta.Step()
        return step

    def _saves(self, out: SchedulerOutput) -> None:
        size = self.model.chunk_tokens
        scheduled = out.num_scheduled_tokens
        drafts = out.scheduled_spec_decode_tokens
        for new in out.scheduled_new_reqs:
            t = self.requests.get(new.req_id)
            if t is not None and t.saves:
                t.tables = [list(new.block_ids[i]) for i in self._indexes]
                t.saved = t.lookup.matched if t.lookup else 0
                self._save(t, new.num_computed_tokens
                           + scheduled[new.req_id]
                           - len(drafts.get(new.req_id, ())))
        cached = out.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            t = self.requests.get(req_id)
            if t is None or not t.saves:
                continue
            ids = cached.new_block_ids[i]
            if req_id in cached.resumed_req_ids:
                t.tables = [list(ids[k]) for k in self._indexes]
                t.saved = t.lookup.matched if t.lookup else 0
            elif ids is not None:
                for table, k in zip(t.tables, self._indexes):
                    table.extend(ids[k])
            end = cached.num_computed_tokens[i] + scheduled[req_id]
            if end // size > t.saved:
                self._save(t, end - len(drafts.get(req_id, ())))
        state = getattr(out, "kv_connector_block_state", None)
        if state is not None and self.model.has_state:
            self._states(state.boundary_state_offloads)

    def _save(self, t: Tracked, computed: int) -> None:
        """Saves what this step completes. Tokens that are not known yet (async
        scheduling) are left for a later step."""
        size = self.model.chunk_tokens
        known = min(computed, t.request.num_tokens)
        if self.options.save == "prompt":
            known = min(known, t.request.num_prompt_tokens)
        end = known // size
        if end <= t.saved:
            return
        t.prompt.extend(self.space, end * size)
        begin = t.saved * size
        tables = self._tables(self._padded(t), begin, end * size)
        for i, rule in enumerate(self._rule):
            if rule == _lib.RULE_LAST:
                tables[i] = (0, array("I"))  # offered by vLLM, see _states
        self._emit(t, t.saved, end, tables)
        t.saved = end

    def _padded(self, t: Tracked) -> dict[int, list[int]]:
        return dict(zip(self._indexes, t.tables))

    def _emit(self, t: Tracked, first: int, end: int,
              tables: list[tuple[int, array]]) -> None:
        size = self.model.chunk_tokens
        parent = max(first - 1, 0)  # its key comes along: the chain is linked
        self.step.saves.append(meta.Move(
            t.request.request_id, t.prompt.keys.data(parent, end), parent,
            first * size, end * size, tables, t.switches.ttl_ms))

    def _states(self, offers: dict[str, list[tuple[int, int, int]]]) -> None:
        """States that vLLM has at a boundary: (group, block, tokens)."""
        size = self.model.chunk_tokens
        for req_id, offered in offers.items():
            t = self.requests.get(req_id)
            if t is None or not t.saves:
                continue
            by_end: dict[int, dict[int, int]] = {}
            for group, block, tokens in offered:
                if tokens % size == 0 and tokens > 0:
                    by_end.setdefault(tokens, {})[group] = block
            for tokens, blocks in by_end.items():
                t.prompt.extend(self.space, tokens)
                tables = [
                    (tokens // self._blocks[i] - 1,
                     array("I", [blocks[index]] if index in blocks else []))
                    for i, index in enumerate(self._indexes)]
                self._emit(t, tokens // size - 1, tokens // size, tables)

    def finished_step(self, output: KVConnectorOutput) -> None:
        for req_id in output.finished_recving or ():
            t = self.ended.pop(req_id, None) or self.requests.get(req_id)
            if t is not None:
                self._leave(t)

    def finished(self, request: Request) -> None:
        t = self.requests.pop(request.request_id, None)
        if t is None:
            return
        if t.loading is not None:
            self.ended[request.request_id] = t  # its load needs what it holds
        else:
            self._leave(t)

    # ---- the rest ----

    def stats(self) -> LarderStats | None:
        """Asked for after each step."""
        self._rate.ends()
        return self.counts.take()

    def reset(self) -> bool:
        try:
            self.space.reset()
            return True
        except _lib.LarderError as error:
            logger.warning("larder: the space was not reset: %s", error)
            return False

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for t in [*self.requests.values(), *self.ended.values()]:
            self._leave(t)
        for thread in self._threads:
            thread.join(timeout=5)
        self.space.close()
        self.layout.close()
        self.node.close()


class Rate:
    """How many tokens a second prefill computes, as measured."""

    def __init__(self) -> None:
        self.tokens_per_second = 0.0
        self._began = 0.0
        self._tokens = 0

    def begins(self, tokens: int) -> None:
        """A step of so many tokens was scheduled."""
        self._began = time.monotonic()
        self._tokens = tokens

    def ends(self) -> None:
        """Its output is there. A step of few tokens says little."""
        if self._tokens < RATE_TOKENS:
            return
        rate = self._tokens / max(time.monotonic() - self._began, 1e-6)
        known = self.tokens_per_second
        self.tokens_per_second = (rate if known == 0
                                  else known + (rate - known) / 4)
        self._tokens = 0

    def wins(self, tokens: int, load_us: int) -> bool:
        """Whether loading beats computing; unknown rates do not decide."""
        rate = self.tokens_per_second
        return rate == 0 or load_us * 1e-6 * rate < tokens


def _uses_eagle(config: VllmConfig) -> bool:
    speculative = config.speculative_config
    return speculative is not None and bool(speculative.use_eagle())


def _numbers_images(config: VllmConfig) -> bool:
    """Whether images are named by a number of the process: such names repeat
    after a restart."""
    if config.cache_config.enable_prefix_caching:
        return False
    multimodal = config.model_config.multimodal_config
    return multimodal is not None and not multimodal.mm_processor_cache_gb
