"""The scheduler's side: which prefixes are in the store, and what the workers
shall move.

Nothing here waits while the engine computes. When a request arrives, a thread
names its prompt, looks it up and stages it; the scheduler is told None until
that is done, at most for lookup_ms after the arrival. A hit is claimed only for
what is staged and held.

An engine that computes nothing would sleep and ask again: on a GPU, where a hit
takes little more than that, a moment is waited for the lookup, and everywhere
workers wait a moment for a load (Step.empty).

A request is asked about again after a failed load, and after a preemption. Once
it has claimed, it claims nothing more until it was preempted: so a failed load
ends in computing.
"""
from __future__ import annotations

import functools
import logging
import os
import pathlib
import time
from array import array
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import handoff, hold
from larder_kv.engine.counts import Counts
from larder_kv.engine.drop import Drop
from larder_kv.engine.explain import Explain
from larder_kv.engine.kv import Model
from larder_kv.engine.lookup import Arrival, Finder, Unnamed
from larder_kv.engine.moves import Move
from larder_kv.vllm import adapters, limits, meta, versions, worker
from larder_kv.vllm.describe import Describer
from larder_kv.vllm.events import Events, Saved
from larder_kv.vllm.handoff import Handoffs
from larder_kv.vllm.request import switches_of
from larder_kv.vllm.tracked import Tracked

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.larder")

LOOK_SECONDS = 0.003  # that a GPU engine with nothing else to do waits
SOURCES = {"ssd": "disk", "peer": "p2p"}  # vLLM's words for tiers below dram


class Scheduler:
    def __init__(self, config: VllmConfig, options: Options,
                 described: Model, node: _lib.Node,
                 events: Events | None = None, alone: bool = True):
        """alone: it is no child of a MultiConnector."""
        self.options = options
        self.model = described
        self.node = node
        self.space = node.space(described.descriptor, described.shards,
                                described.chunk_tokens, described.label,
                                chunk_bytes=described.chunk_bytes,
                                page_tokens=described.page_tokens)
        self.counts = Counts()
        self.events = events
        self.describer: Describer | None = None
        gpu = current_platform.is_cuda()
        self.holds = hold.Holds(
            options, described, self.counts, config.parallel_config.world_size,
            limits.holds(config, options, gpu), not limits.spread(config))
        self.pool: BlockPool | None = None  # vLLM's
        # That each of vLLM's hashes is of; 0: not known.
        self.hash_tokens = (described.groups[0].block_tokens
                            if len(described.groups) == 1 else 0)
        self._job = 0  # the last one's number
        self._engine = config.kv_transfer_config.engine_id
        self._alone = config.parallel_config.data_parallel_size == 1
        self._caches = config.cache_config.enable_prefix_caching
        self._waits = gpu  # for a lookup
        self.explain = Explain(
            self.counts, described.chunk_tokens,
            pathlib.Path(_lib.default_socket()).parent / "explain",
            "vllm")  # as `larder explain` expects it
        role = config.kv_transfer_config
        self.saves = role.is_kv_producer and options.save != "never"
        self.loads = role.is_kv_consumer and options.load != "never"
        self.requests: dict[str, Tracked] = {}
        # Hand-offs whose prompts a thread has still to name.
        self.unnamed: list[Tracked] = []
        # By the first chunk: what is being loaded; and what has been, for those
        # that vLLM has not scheduled since. Others do not find it in its cache
        # before.
        self.loading: dict[bytes, Tracked] = {}
        self.landed: dict[bytes, Tracked] = {}
        self.ended: dict[str, Tracked] = {}  # before their loads
        self.step = meta.Step()
        self._blocks = [g.block_tokens for g in described.groups]
        self._rule = [g.rule for g in described.groups]
        self._has_state = described.has_state
        self._state: Any = None  # vLLM's, of states, in the step that is made
        self._indexes = [g.index for g in described.groups]
        self._windows = [g.window_tokens for g in described.groups]
        self._numbered = limits.numbers_images(config)
        drafts = config.speculative_config
        self.finder = Finder(options, described, node, self.space, events,
                             gpu, versions.reports_failed_requests(),
                             drafts is not None and bool(drafts.use_eagle()))
        if events is not None:
            events.watch(self.space.match_group, self.finder.later)
        self.handoffs = Handoffs(
            described, node, self.space, self.finder, self.counts, alone,
            getattr(config, "num_prefill_lookahead_tokens", 1))
        self.drop = Drop(self.handoffs.spaces, events, self.finder.later)
        if self.finder.fetches and (why := limits.unfit(config)):
            logger.warning("larder: this vLLM cannot report a failed load of "
                           "this model, and %s: nothing is loaded; use vLLM "
                           "0.30 or later", why)
            self.loads = False
        if self.loads and (why := limits.refuses_hits(config, options)):
            logger.warning("larder: nothing is loaded: %s", why)
            self.loads = False

    # ---- arrival and lookup ----

    def arrive(self, request: Request) -> None:
        """A request that cannot be named goes without Larder."""
        try:
            self._arrive(request)
        except Exception as error:
            logger.warning("larder: request %s goes without the store: %s",
                           request.request_id, error)
            self._without(request, "error")

    def _arrive(self, request: Request) -> None:
        switches = switches_of(request.kv_transfer_params)
        if self.drop.due(not self.holds):
            self._without(request, "reset")
            return
        if request.mm_features and self._numbered:
            self.counts.add("skipped_numbered_images")
            self._without(request, "images")
            return
        params = request.kv_transfer_params
        gives = self.handoffs.wants_decode(params)
        saves = self.saves and not switches.skip_save
        if gives and saves:
            self.handoffs.shorten(request)
        t = Tracked(request, switches)
        t.saves = saves
        t.loads = (self.loads and not switches.skip_load
                   and not getattr(request, "skip_reading_prefix_cache",
                                   False))
        if not t.loads:
            t.record.why = "skip" if self.loads else "off"
        chunks = request.num_tokens // self.model.chunk_tokens
        if not t.saves and not t.loads:
            chunks = 0
            if t.prompt.seen():
                self._without(request, t.record.why)
                return
        takes = self.handoffs.wants_prefill(params, switches)
        names = (None if (gives or takes) and t.prompt.seen()
                 else t.prompt.later(chunks))
        if names is None:
            t.prompt.extend(self.space, request.num_tokens)
        self.requests[request.request_id] = t
        arrival = None
        if chunks > 0 or names is not None:
            arrival = Arrival(
                request.request_id, t.prompt.keys.data(0, chunks), chunks,
                request.num_tokens, switches.hint, names)
        if not gives and not takes:
            self._look_up(t, arrival)
            return
        t.sides = gives, takes
        if names is None:
            self._hand_off(t, arrival)
            return
        t.until = time.monotonic() + self.options.lookup_ms / 1000
        self.unnamed.append(t)
        self.finder.tell(arrival)

    def _hand_off(self, t: Tracked, arrival: Arrival | None = None) -> None:
        """Its prompt is named, or cannot be: it goes without the store."""
        request, (gives, takes) = t.request, t.sides
        t.sides = None
        self._named(t, request.num_tokens)
        if gives:
            self.handoffs.give(t)
        taken = self.handoffs.take(t) if takes else None
        if taken is None:
            self._look_up(t, arrival)
            return
        t.until = time.monotonic() + taken.wait_seconds
        t.lookup = t.record.look = self.finder.take(
            request.request_id, taken, self.handoffs.tails(), arrival,
            functools.partial(self.handoffs.refused, request.request_id,
                              taken.half),
            self.handoffs.staged)

    def _name(self, t: Tracked) -> None:
        """Goes on with its hand-off if a thread has named its prompt."""
        if t.sides is None or t.prompt.waits():
            return
        try:
            self._hand_off(t)
        except Exception as error:
            logger.warning("larder: request %s goes on without the store: %s",
                           t.request.request_id, error)
            t.loads = t.saves = False

    def _without(self, request: Request, why: str) -> None:
        if request.lora_request:
            adapters.missed(request.lora_request)
        self.explain.skip(request.request_id, request.num_tokens, why)

    def _look_up(self, t: Tracked, arrival: Arrival | None = None) -> None:
        """Begins a lookup of as much as may be claimed: the last token is
        always computed. arrival: the node hears of the request, which has just
        arrived."""
        limit = (t.request.num_tokens - 1) // self.model.chunk_tokens
        now = time.monotonic()
        t.until = t.until or now + self.options.lookup_ms / 1000
        if t.loads and limit > 0:
            t.lookup = self.finder.begin(
                t.request.request_id, t.prompt.keys.data(0, limit), limit,
                t.switches.tiers, t.until - now, arrival,
                arrival is not None and self._own(t.request, limit),
                t.switches.member)
            t.record.look = t.lookup
        elif arrival is not None:
            self.finder.tell(arrival)

    def _own(self, request: Request, chunks: int) -> bool:
        """Whether vLLM's own cache has the last block of so many chunks, in
        every group: it gives the last ones away first, so it has all that it
        needs of them then, most likely."""
        hashes, unit = request.block_hashes, self.hash_tokens
        if (not self._caches or self.pool is None or not unit
                or self.finder.eagle and not self.finder.whole
                or len(hashes) != request.num_tokens // unit):
            return False
        last = chunks * self.model.chunk_tokens // unit - 1
        return self.pool.get_cached_block(hashes[last],
                                          self._indexes) is not None

    # ---- what the scheduler asks ----

    def matched(self, request: Request, local: int) -> tuple[int | None, bool]:
        t = self.requests.get(request.request_id)
        if t is None:
            return 0, False
        if request.num_preemptions != t.preemptions and not self._again(t):
            return 0, False
        self._name(t)
        look = t.lookup
        t.asked = t.asked or time.monotonic()
        if self.handoffs.waits(t):
            return None, False
        if not t.claimed:
            t.record.local_tokens = local
        if look is None or t.claimed or look.left:
            return (None if self._unnamed(t) else 0), False
        if local >= self.finder.most(look) and not t.prompt.waits():
            return 0, False  # vLLM has all that could be claimed
        if look.own:  # it had, and has less now
            self._leave(t)
            self._look_up(t)
            return None, False
        if not look.done and self._waits and self._idle():
            self._early(t, local)
            look.wait(LOOK_SECONDS)
            if t.early is not None:
                t.early.wait_entered()
        if not look.done:
            if time.monotonic() < look.until:
                return None, False
            self.counts.add("late")
            t.record.why = "late"
            t.prompt.give_up()
            self._leave(t)
            return 0, False
        if self.describer is not None:
            self.describer.found(look, request)
        if look.crowded:
            return self._turn(t, local), False
        end = self.finder.claimable(look)
        if end <= local:
            return 0, False
        if look.taken is None and self._sibling(t, local):
            return None, False
        t.local = local
        return end - local, True

    def _unnamed(self, t: Tracked) -> bool:
        """Whether it still waits for its names, and not for a lookup: vLLM
        must not load an adapter before its files were looked at."""
        if t.prompt.waits() and time.monotonic() < t.until:
            return True
        t.prompt.give_up()
        return False

    def _early(self, t: Tracked, local: int) -> None:
        """Lets a load begin with the end of the lookup, if the worker is in
        this process and nothing can be in the way of it: see early."""
        look = t.lookup
        beside = worker.here(self._engine)
        if (beside is None or t.early is not None or self.loading
                or self.landed or self.finder.fetches
                or look.taken is not None
                or look.limit * self.model.chunk_tokens <= local):
            return
        begun = t.early = beside.early_load()
        if begun is None:
            return

        def begin() -> None:  # in the lookup's thread
            end = self.finder.claimable(look)
            if end > local and not look.crowded:
                begun.begin(look.keys, look.token, local, end)

        look.then = begin

    def _turn(self, t: Tracked, local: int) -> int | None:
        """Others hold too much: it waits for its turn while that is less than
        computing, and is looked up again when there is room. All of that in
        the time that it has since its arrival. If that was over before vLLM
        had room for it, it has not waited for the store: it has it now."""
        look, now = t.lookup, time.monotonic()
        tokens = look.matched * self.model.chunk_tokens - local
        if t.asked >= t.until:
            t.until = t.asked + self.options.lookup_ms / 1000
        t.turn = t.turn or min(
            t.until, now + self.finder.rate.computes(tokens) / 2)
        if now >= t.turn or tokens <= 0:
            self._leave(t)
            return 0
        if self.finder.fits(look):
            self._leave(t)
            self._look_up(t)
        return None

    def _sibling(self, t: Tracked, local: int) -> bool:
        """Whether another request loads what this one would, or has just done
        so: it will be a local hit then."""
        if not self._caches:
            return False
        first = local // self.model.chunk_tokens
        key = t.prompt.keys.data(first, first + 1)
        other = self.loading.get(key) or self.landed.get(key)
        if (other is None or other is t
                or time.monotonic() >= t.lookup.deadline):
            return False
        self.counts.add("waited")
        return True

    def _again(self, t: Tracked) -> bool:
        """It was preempted: it has more tokens now, and no blocks. False: it
        is not looked up again."""
        self._leave(t)
        self._give_up(t)
        t.reset()
        t.record.again()
        if not self._named(t, t.request.num_tokens):
            return False
        self._look_up(t)
        return True

    def _named(self, t: Tracked, tokens: int) -> bool:
        """Names so many tokens' chunks. False: a thread has still to do that;
        or it failed, and the request goes without the store from now on."""
        if t.prompt.waits():
            return False
        try:
            t.prompt.extend(self.space, tokens)
            return True
        except Unnamed:  # which was said
            t.loads = t.saves = False
            if t.lookup is None:
                t.record.why = "error"
            return False
        except Exception as error:
            logger.warning("larder: request %s goes on without the store: %s",
                           t.request.request_id, error)
            t.loads = t.saves = False
            return False

    def _leave(self, t: Tracked) -> None:
        """Nobody waits for its lookup, or needs its lease, any more."""
        if t.early is not None:
            t.early.close()
            t.early = None
        if t.lookup is not None:
            self.finder.leave(t.lookup)
        if t.loading is not None:
            if self.loading.get(t.loading) is t:
                del self.loading[t.loading]
            t.loading = None

    def _land(self, t: Tracked, key: bytes | None) -> None:
        """Its load, which began with that chunk, is over; None: it was
        scheduled, or is gone."""
        if t.landed is not None and self.landed.get(t.landed) is t:
            del self.landed[t.landed]
        t.landed = key
        if key is not None:
            self.landed[key] = t

    def allocated(self, request: Request, blocks: KVCacheBlocks,
                  external: int) -> None:
        t = self.requests.get(request.request_id)
        if t is None:
            return
        t.prompt.give_up()  # vLLM 0.32 does not heed every None
        self._name(t)
        if t.claimed:
            return
        if external == 0:
            own = t.lookup is not None and t.lookup.own
            if own or t.lookup is not None and t.lookup.chunks > 0:
                self.counts.add("local")
            if not own:
                self._leave(t)
            return
        t.claimed = True
        begin, end = t.local, t.local + external
        ids = blocks.get_block_ids()
        if t.lookup is None:  # a reset came in between
            self._load(t, self._void(t, begin, end, ids))
            return
        taken = t.lookup.taken
        move = (self.handoffs.load(t, begin, lambda a, b: self._tables(
                    ids, a, b)) if taken is not None and taken.whole
                else self._chunks(t, begin, end, ids))
        t.loading = (move if move.keys else move.tail).keys[:_lib.KEY_BYTES]
        self.loading[t.loading] = t
        t.blocks = move.tables + (move.tail.tables if move.tail else [])
        if taken is not None and taken.whole:
            self.counts.add("handoffs_taken")
        t.lookup.claimed = time.monotonic()
        t.record.claim(begin, external)
        self.counts.add("hit_tokens", external)
        self.counts.add("hits")
        self._load(t, move)

    def _chunks(self, t: Tracked, begin: int, end: int, ids: Any) -> Move:
        """The load of these tokens."""
        size = self.model.chunk_tokens
        first = begin // size
        return Move(
            t.request.request_id, t.prompt.keys.data(first, -(-end // size)),
            first, begin, end, self._tables(ids, begin, end),
            memory=t.lookup.memory.path if t.lookup.memory else "",
            token=t.lookup.token)

    def _void(self, t: Tracked, begin: int, end: int, ids: Any) -> Move:
        """A load of what nobody has: it fails, and vLLM computes."""
        first, last = (begin // self.model.chunk_tokens,
                       -(-end // self.model.chunk_tokens))
        move = Move(t.request.request_id,
                    os.urandom((last - first) * _lib.KEY_BYTES), first, begin,
                    end, self._tables(ids, begin, end))
        t.loading, t.blocks = move.keys[:_lib.KEY_BYTES], move.tables
        return move

    def _load(self, t: Tracked, move: Move) -> None:
        """With the step that is being made; or at once, where the worker is in
        this process and nothing can be in the way of it."""
        beside = worker.here(self._engine)
        begun, t.early = t.early, None
        if beside is not None:
            if beside.early and self._idle():
                if (begun is not None and begun.fits(move)
                        and beside.go_on(begun, move)):
                    return
                if begun is not None:
                    begun.close()
                beside.begin_now(move)
                return
        if begun is not None:
            begun.close()
        self.step.loads.append(move)

    def _tables(self, ids: Any, begin: int,
                end: int) -> list[tuple[int, array]]:
        found = []
        for index, block in zip(self._indexes, self._blocks):
            first, last = begin // block, -(-end // block)
            found.append((first, array("I", ids[index][first:last])))
        return found

    # ---- a step ----

    def build(self, out: SchedulerOutput) -> meta.Step:
        """What a step needs that only decodes is asked first: after a forward
        no cache holds any of this, and every call more costs."""
        tokens = out.total_num_scheduled_tokens
        self.finder.rate.begins(tokens)
        for t in self.unnamed:
            self._name(t)
        if self.unnamed:
            self.unnamed = [t for t in self.unnamed if t.sides is not None]
        if (out.scheduled_new_reqs
                or out.scheduled_cached_reqs.resumed_req_ids):
            self._resumed(out)
        self.holds.look()
        if self.saves:
            self._saves(out)
        step, self.step = self.step, meta.Step()
        if not tokens:
            step.empty = self._idle()
            if step.empty and self.loading:
                step.until = self._expected()
        if step.saves and any(move.held for move in step.saves):
            step.board = self.holds.board
        return step

    def _idle(self) -> bool:
        """Whether nobody computes: neither this engine, nor others that go in
        step with it."""
        return self._alone and self.finder.rate.idle()

    def _expected(self) -> float:
        """When the first of the loads under way should end; 0: unknown."""
        speed = self.finder.rate.load_speed
        if speed <= 0:
            return 0.0
        return min(t.lookup.claimed + sum(t.lookup.tier_bytes) / speed
                   for t in self.loading.values())

    def _resumed(self, out: SchedulerOutput) -> None:
        new = [new.req_id for new in out.scheduled_new_reqs]
        for req_id in (*new, *out.scheduled_cached_reqs.resumed_req_ids):
            if (t := self.requests.get(req_id)) is not None:
                t.record.schedule()
                self._land(t, None)

    def _saves(self, out: SchedulerOutput) -> None:
        size = self.model.chunk_tokens
        self._state = (getattr(out, "kv_connector_block_state", None)
                       if self._has_state else None)
        scheduled = out.num_scheduled_tokens
        drafts = out.scheduled_spec_decode_tokens
        for new in out.scheduled_new_reqs:
            t = self.requests.get(new.req_id)
            if t is not None and t.saves:
                t.tables = [list(new.block_ids[i]) for i in self._indexes]
                self._begin_saving(t)
                self._save(t, new.num_computed_tokens,
                           scheduled[new.req_id]
                           - len(drafts.get(new.req_id, ())))
        # Of these there may be many, and few have anything to save.
        cached = out.scheduled_cached_reqs
        requests, resumed = self.requests, cached.resumed_req_ids
        for req_id, ids, computed in zip(cached.req_ids, cached.new_block_ids,
                                         cached.num_computed_tokens):
            t = requests.get(req_id)
            if t is None or not t.saves:
                continue
            if ids is not None:
                if req_id in resumed:
                    t.tables = [list(ids[k]) for k in self._indexes]
                    self._begin_saving(t)
                else:
                    for table, k in zip(t.tables, self._indexes):
                        table.extend(ids[k])
            if t.unsure and t.lookup.done:
                t.unsure, t.saved = False, min(t.saved, t.lookup.stored)
            if (computed + scheduled[req_id] >= (t.saved + 1) * size
                    or t.gives is not None):
                self._save(t, computed, scheduled[req_id]
                           - len(drafts.get(req_id, ())))
        if self._state is not None:
            self._states(self._state.boundary_state_offloads)

    def _begin_saving(self, t: Tracked) -> None:
        """Nobody waits for the lookup of a prompt that vLLM has itself. Until
        its end the store is taken to have it: this engine saved it before. A
        later step saves what the store turns out to have lost. A prompt that
        is handed off may have no later step."""
        t.unsure = t.lookup is not None and t.lookup.own and not t.lookup.done
        t.saved = t.lookup.stored if t.lookup is not None else 0
        if t.unsure and t.gives is not None:
            t.unsure, t.saved = False, 0

    def _save(self, t: Tracked, computed: int, scheduled: int) -> None:
        """Saves what this step completes: it computes so many tokens after
        those computed before. Tokens that are not known yet (async scheduling)
        are left for a later step."""
        size = self.model.chunk_tokens
        known = min(computed + scheduled, t.request.num_tokens)
        if self.options.save == "prompt":
            known = min(known, t.request.num_prompt_tokens)
        end = whole = known // size
        if self.holds.on:
            end = min(end, t.saved + self.holds.room(self.holds.chunk_blocks))
        t.behind = end < whole  # a later step tries again
        if t.gives is not None:
            self._save_tail(t, computed, known)
        if end <= t.saved or not self._named(t, end * size):
            return
        tables = self._tables(dict(zip(self._indexes, t.tables)),
                              t.saved * size, end * size)
        for i, rule in enumerate(self._rule):
            if rule == _lib.RULE_LAST:
                tables[i] = (0, array("I"))  # offered by vLLM, see _states
            elif rule == _lib.RULE_TRAILING:
                self._forget(tables[i], i, computed)
        self._emit(t, t.saved, end, tables, self.holds.on)
        t.record.saved_chunks += end - t.saved
        t.saved = end

    def _save_tail(self, t: Tracked, computed: int, known: int) -> None:
        """The last of a prompt that is handed off, with the step that computes
        it."""
        found = self.handoffs.tail_tokens(t, known)
        if found is None:
            return
        begin, end = found
        ids, held = dict(zip(self._indexes, t.tables)), self.holds.on
        # Only vLLM knows where a state is by now.
        if now := getattr(self._state, "resolve_block_ids", None):
            ids = dict(enumerate(now(t.request.request_id)))
        tables = self._tables(ids, begin, end)
        for i, rule in enumerate(self._rule):
            if rule == _lib.RULE_TRAILING:
                self._forget(tables[i], i, computed)
            elif rule == _lib.RULE_LAST:
                first, of_state = tables[i]
                tables[i] = first + len(of_state) - 1, of_state[-1:]
                held = held and self.holds.shared(list(of_state[-1:]))
        self.handoffs.fill_tables(tables, end, True)
        move = self.handoffs.tail_move(t, begin, end, tables)
        move.ttl_ms, move.held = handoff.TAIL_MS, held
        self.step.saves.append(move)
        if move.held:
            self._job += 1
            move.job = self._job
            self.holds.take(move)

    def _forget(self, table: tuple[int, array], group: int,
                computed: int) -> None:
        """Blocks that lay before the window when the step began: vLLM has
        given them away, which our copy of its table does not show."""
        first, ids = table
        gone = max(0, computed - self._windows[group] + 1)
        for i in range(min(len(ids), gone // self._blocks[group] - first)):
            ids[i] = _lib.NULL_BLOCK

    def _emit(self, t: Tracked, first: int, end: int,
              tables: list[tuple[int, array]], held: bool) -> None:
        size = self.model.chunk_tokens
        parent = max(first - 1, 0)  # its key comes along: the chain is linked
        move = Move(
            t.request.request_id, t.prompt.keys.data(parent, end), parent,
            first * size, end * size, tables, t.switches.ttl_ms)
        self.step.saves.append(move)
        move.held = held
        if held or self.events is not None:
            self._job += 1
            move.job = self._job
        if held:
            self.holds.take(move)
        if self.events is not None:
            self.events.saving(move, t.request)
        if self.describer is not None:
            self.describer.saving(move, t.request)

    def _states(self, offers: dict[str, list[tuple[int, int, int]]]) -> None:
        """States that vLLM has at a boundary: (group, block, tokens)."""
        size = self.model.chunk_tokens
        for req_id, states in offers.items():
            t = self.requests.get(req_id)
            if t is None or not t.saves:
                continue
            by_end: dict[int, dict[int, int]] = {}
            for group, block, tokens in states:
                if tokens % size == 0 and tokens > 0:
                    by_end.setdefault(tokens, {})[group] = block
            for tokens, blocks in by_end.items():
                if not self._named(t, tokens):
                    break
                tables = [
                    (tokens // self._blocks[i] - 1,
                     array("I", [blocks[index]] if index in blocks else []))
                    for i, index in enumerate(self._indexes)]
                held = (self.holds.on
                        and self.holds.shared(list(blocks.values())))
                if held and not self.holds.room(len(blocks)):
                    self.counts.add("saves_dropped:busy")
                    continue
                self._emit(t, tokens // size - 1, tokens // size, tables,
                           held)

    def _give_up(self, t: Tracked) -> None:
        """What was not saved in time is not there any more."""
        if t.behind:
            t.behind = False
            self.counts.add("saves_dropped:busy")

    def finished_step(self, output: KVConnectorOutput) -> None:
        failed = getattr(output, "failed_recving", ())
        if output.invalid_block_ids:
            self._lose(output.invalid_block_ids)
        for req_id in output.finished_recving or ():
            t = self.ended.pop(req_id, None) or self.requests.get(req_id)
            # Not another's: a MultiConnector tells all of its children.
            if t is not None and t.loading is not None:
                bad = req_id in failed or t.lost
                if bad and t.lookup is not None:
                    t.lookup.stored = 0  # what is lost is saved again
                t.record.report(bad)
                self._loaded(t, bad)
                key = t.loading
                self._leave(t)
                self._land(t, None if bad or req_id not in self.requests
                           else key)
        reports = output.kv_connector_worker_meta
        if isinstance(reports, Saved):
            self.holds.report(reports.ranks)
            if self.events is not None:
                self.events.saved(reports)

    def _lose(self, invalid: set[int]) -> None:
        """A rank has told of these blocks before all have ended the load."""
        for t in (*self.requests.values(), *self.ended.values()):
            if t.loading is not None and any(
                    not invalid.isdisjoint(ids) for _, ids in t.blocks):
                t.lost = True

    def _loaded(self, t: Tracked, failed: bool) -> None:
        look = t.lookup
        if (look is not None and not failed
                and not any(look.tier_bytes[1:])):
            self.finder.rate.loaded(look.tier_bytes[0],
                                    time.monotonic() - look.claimed)

    def finished(self, request: Request) -> dict[str, Any] | None:
        """What its answer carries for a decode engine."""
        t = self.requests.pop(request.request_id, None)
        if t is None:
            return None
        t.sides = None
        answer = self.handoffs.answer(request, t)
        self.explain.end(t.record)
        self._give_up(t)
        self._land(t, None)
        if t.loading is not None:
            self.ended[request.request_id] = t  # its load needs what it holds
        else:
            self._leave(t)
        return answer

    # ---- the rest ----

    def stats(self) -> dict[str, Any] | None:
        """Asked for after each step."""
        self.finder.rate.ends()
        return self.counts.take()

    def reset(self) -> bool:
        """Drops the space. What was looked up before is not claimed, and what
        runs is not saved: it may be of other weights."""
        for t in self.requests.values():
            if t.loading is None:
                self._leave(t)
                t.lookup = None  # what it found is not there any more
            t.saves = t.saves and not t.tables and not t.claimed
        if self.drop.now(self.holds.settle()):
            return True
        for t in self.requests.values():
            t.loads = t.saves = False
        return False

    def hit_sources(self, request: Request, tokens: int) -> dict[str, int]:
        """Tokens that are loaded, by where they were found."""
        t = self.requests.get(request.request_id)
        sizes = (t.lookup.tier_bytes
                 if t is not None and t.lookup is not None else ())
        found = {"host": tokens}
        for tier, size in list(zip(_lib.TIERS, sizes))[1:]:
            name = SOURCES.get(tier, "external_unspecified")
            part = tokens * size // sum(sizes) if size else 0
            found[name] = found.get(name, 0) + part
            found["host"] -= part
        return {name: count for name, count in found.items() if count}

    def take_events(self) -> list[Any]:
        return [] if self.events is None else self.events.take(self.requests)

    def close(self) -> None:
        for t in [*self.requests.values(), *self.ended.values()]:
            self._leave(t)
        self.explain.close()
        self.holds.close()
        if self.finder.close():
            self.space.close()
            self.node.close()
