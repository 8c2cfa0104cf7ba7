"""KV events: which of vLLM's blocks are in the store, and no longer.

Announced as stored: chunks whose save every rank reported done, and chunks
that a lookup found. As removed: announced chunks that a lookup does not find
any more, everything at a reset, and the oldest when more are announced than
are remembered. Both: those that have left memory for disk, or this node for
another place. What is announced is looked for again in turn, a few chunks at a
time while the engine steps: nobody may ask for what was evicted. So what a
subscriber believes to be there was there when this engine last looked.

Chunks of different prompts may begin with the same blocks. Such a block is
announced as removed when the last chunk that has it is.

Nothing of this is made unless vLLM publishes events (kv_events_config).
"""
from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorWorkerMetadata)
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (get_kv_cache_spec_kind,
                                        get_kv_cache_spec_sliding_window)

from larder_kv import _lib
from larder_kv.engine import kv, reports

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from larder_kv.engine.moves import Move

# Where a chunk is, from the nearest on: in the node's memory, on its disks, or
# elsewhere (another member, or the shared tier). What it is there, as vLLM
# names it.
DRAM, SSD, AWAY = range(3)
MEDIA = ("CPU", "STORAGE", "STORAGE")
OWNER = "larder"
CHUNKS_MAX = 65536  # that are remembered as announced
JOBS_MAX = 4096  # saves that no rank, or not every rank, has reported
MATCHES_MAX = 32  # more questions to the node, for one lookup
# How many announced chunks are looked for again at once, and how often: 160 a
# second take a hundredth of a core, and no lookup waits longer than for 16.
AGAIN_CHUNKS = 16
AGAIN_SECONDS = 0.1
# A chunk, for a lookup: its place, or one of these.
UNKNOWN, GONE = 8, 9
_GONE = ("absent", "evicted", "corrupt", "stale")


def enabled(config: VllmConfig) -> bool:
    wanted = config.kv_events_config
    return wanted is not None and wanted.enable_kv_cache_events


class Saved(reports.Saved, KVConnectorWorkerMetadata):
    """As vLLM carries it from the workers to the scheduler."""


class Events:
    """All but survey(), looked() and _look_again() are called by the
    scheduler's thread."""

    def __init__(self, config: VllmConfig, cache: KVCacheConfig,
                 described: kv.Model, url: str, owned: bool = True):
        self._chunk = described.chunk_tokens
        self._groups = described.groups
        self._blocks = kv.stored_blocks(described)
        self._ranks = config.parallel_config.world_size
        _, self._hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(
            cache, config)
        specs = [cache.kv_cache_groups[g.index].kv_cache_spec
                 for g in described.groups]
        self._kinds = [(get_kv_cache_spec_kind(s).value,
                        get_kv_cache_spec_sliding_window(s)) for s in specs]
        self._watched = next((i for i, g in enumerate(described.groups)
                              if g.rule == _lib.RULE_ALL), None)
        # The same, among what is stored.
        self._matched = kv.stored_in(described, self._watched or 0)
        here = "REMOTE" if url.startswith("tcp:") else "LOCAL"
        self._owner = OWNER if owned else None
        self._localities = (here, here, "REMOTE")  # by place
        self._events: list[BlockStored | BlockRemoved] = []
        # Of a chunk's key: what was announced, by place and group, with its
        # tokens as an array. The oldest is the first.
        self._announced: OrderedDict[
            bytes, dict[tuple[int, int], BlockStored]] = OrderedDict()
        # Announced chunks that have a block, by what subscribers tell apart:
        # medium, locality, group and hash.
        self._users: Counter[tuple[Any, ...]] = Counter()
        self._jobs: OrderedDict[int, _Job] = OrderedDict()
        self._looked: deque[Any] = deque()
        self._later: Callable[[Callable[[], None]], None] | None = None
        self._again: deque[bytes] = deque()  # to be looked for again
        self._ordered = False  # until what a thread found is read
        # That, once it is there; and what was announced since it was ordered,
        # of which it says nothing.
        self._places: list[tuple[bytes, int]] | None = None
        self._newer: set[bytes] = set()
        self._next = 0.0  # when the next may be ordered

    def watch(self, match: Callable[[bytes, int, int], _lib.Match],
              later: Callable[[Callable[[], None]], None]) -> None:
        """From now on announced chunks are looked for again: match() as for
        survey(), called by a thread that later() has."""
        self._match, self._later = match, later

    def saving(self, move: Move, request: Request) -> None:
        """A save that is ordered. What its events need is taken now: the
        request may be gone when it is done."""
        job = _Job()
        for chunk in range(move.begin // self._chunk, move.end // self._chunk):
            at = (chunk - move.first_key) * _lib.KEY_BYTES
            key = move.keys[at:at + _lib.KEY_BYTES]
            made = [self._stored(request, chunk, i, DRAM)
                    for i in range(len(self._groups))
                    if self._has(move.tables[i], i, chunk)]
            if made:
                job.chunks.append((key, made))
        self._jobs[move.job] = job
        if len(self._jobs) > JOBS_MAX:
            self._jobs.popitem(last=False)

    def saved(self, reported: reports.Saved) -> None:
        """What update_connector_output() got as worker metadata."""
        for number, count in reported.ranks.items():
            job = self._jobs.get(number)
            if job is None:
                continue
            job.ranks += count
            if number in reported.failed:
                del self._jobs[number]
            elif job.ranks >= self._ranks:
                del self._jobs[number]
                for key, made in job.chunks:
                    self._announce(key, made, DRAM)

    def survey(self, match: Callable[[bytes, int, int], _lib.Match],
               keys: bytes, limit: int, known: _lib.Match) -> bytes:
        """Where each chunk of a prompt is, for the thread that looks it up:
        known is what the node said of all of it, and match(keys, chunks,
        group) asks it again. Few questions: where all of it is in one tier,
        none."""
        found = bytearray([UNKNOWN]) * limit
        matched = known.chunks
        if self._watched is None:
            return bytes(found)
        place = _place(known)
        ranges = []
        if place is not None:
            found[:matched] = bytes([place]) * matched
        elif matched > 0:
            ranges.append((0, matched))
        # Behind the match only what was announced matters.
        ranges += [(i, i + 1) for i in range(limit - 1, matched - 1, -1)
                   if _key(keys, i) in self._announced]
        for _ in range(MATCHES_MAX):
            if not ranges:
                break
            first, end = ranges.pop()
            m = match(keys[first * _lib.KEY_BYTES:end * _lib.KEY_BYTES],
                      end - first, self._matched)
            ranges += _judge(found, first, end, m)
        return bytes(found)

    def looked(self, look: Any) -> None:
        """A lookup is done: request_id, keys, tiers (of survey()) and chunks
        (that were staged)."""
        if look.tiers:
            self._looked.append(look)

    def reset(self) -> None:
        """The space was emptied."""
        self._jobs.clear()
        self._looked.clear()
        for key in list(self._announced):
            self._remove(key)

    def take(self, requests: dict[str, Any]) -> list[Any]:
        while self._looked:
            look = self._looked.popleft()
            tracked = requests.get(look.request_id)
            self._apply(look, tracked.request if tracked is not None else None)
        self._order_again()
        events, self._events = self._events, []
        return events

    # ---- looking again ----

    def _order_again(self) -> None:
        if self._ordered:
            if self._places is None:
                return
            for key, place in self._places:
                if key not in self._newer:
                    self._moved(key, place)
            self._ordered, self._places = False, None
            self._newer.clear()
        now = time.monotonic()
        if self._later is None or self._watched is None or now < self._next:
            return
        if not self._again:
            self._again.extend(self._announced)
        keys = [self._again.popleft()
                for _ in range(min(AGAIN_CHUNKS, len(self._again)))]
        if keys:
            self._ordered, self._next = True, now + AGAIN_SECONDS
            self._later(lambda: self._look_again(keys))

    def _look_again(self, keys: list[bytes]) -> None:
        places = []
        try:
            for key in keys:
                found = bytearray([UNKNOWN])
                _judge(found, 0, 1, self._match(key, 1, self._matched))
                if found[0] != UNKNOWN:
                    places.append((key, found[0]))
        except _lib.LarderError:
            pass  # the node is away: nothing is known of the rest
        finally:
            self._places = places

    def _moved(self, key: bytes, place: int) -> None:
        """It is in no nearer place than this one. What other groups than the
        one that was looked for have there is not known."""
        group = self._groups[self._watched or 0].index
        was = next((event for name, event in
                    self._announced.get(key, {}).items()
                    if name[0] < place and name[1] == group), None)
        self._remove(key, range(min(place, AWAY + 1)))
        if was is not None and place != GONE:
            self._announce(key, [msgspec.structs.replace(
                was, token_ids=list(was.token_ids), medium=MEDIA[place],
                **({"locality": self._localities[place]}
                   if hasattr(was, "locality") else {}))], place)

    # ---- what was announced ----

    def _apply(self, look: Any, request: Request | None) -> None:
        for chunk, place in enumerate(look.tiers):
            if place == UNKNOWN:
                continue
            key = _key(look.keys, chunk)
            if place == GONE:
                self._remove(key)
                continue
            if self._ordered:
                self._newer.add(key)
            staged = chunk < look.chunks
            # It is in no nearer place than the one where it was found; what
            # was staged is in memory by now.
            self._remove(key, range(DRAM + staged, place))
            if request is not None:
                self._found(key, request, chunk, look.matched, place)
                if staged:
                    self._found(key, request, chunk, look.matched, DRAM)

    def _found(self, key: bytes, request: Request, chunk: int, matched: int,
               place: int) -> None:
        """A chunk that is in the store, whoever saved it."""
        if (place, self._groups[self._watched].index) in (
                self._announced.get(key, ())):
            return
        if (chunk + 1) * self._chunk > request.num_tokens:
            return
        self._announce(key, [
            self._stored(request, chunk, i, place)
            for i, g in enumerate(self._groups)
            if self._needed(g, chunk, matched)], place)

    def _needed(self, group: kv.GroupInfo, chunk: int,
                matched: int) -> bool:
        """Whether a prefix of matched chunks needs this one of the group."""
        if group.rule == _lib.RULE_ALL:
            return True
        if group.rule == _lib.RULE_LAST:
            return chunk == matched - 1
        first = matched * self._chunk - group.window_tokens + 1
        return max(first, 0) // self._chunk <= chunk < matched

    def _announce(self, key: bytes, made: list[BlockStored],
                  place: int) -> None:
        known = self._announced.setdefault(key, {})
        for event in made:
            name = place, event.group_idx
            if name not in known:
                known[name] = msgspec.structs.replace(
                    event, token_ids=array("I", event.token_ids))
                self._users.update(self._names(name, event.block_hashes))
                self._events.append(event)
        if self._ordered:
            self._newer.add(key)
        self._announced.move_to_end(key)
        while len(self._announced) > CHUNKS_MAX:
            self._remove(next(iter(self._announced)))

    def _remove(self, key: bytes,
                places: range = range(AWAY + 1)) -> None:
        known = self._announced.get(key)
        if known is None:
            return
        for name in list(known):
            if name[0] in places:
                self._leave(name, known.pop(name).block_hashes)
        if not known:
            del self._announced[key]

    def _leave(self, name: tuple[int, int], hashes: list[Any]) -> None:
        """A chunk is there no more: its blocks that no other has there are
        removed."""
        place, group = name
        gone = []
        for block, one in zip(hashes, self._names(name, hashes)):
            self._users[one] -= 1
            if self._users[one] == 0:
                del self._users[one]
                gone.append(block)
        if gone:
            self._events.append(_make(
                BlockRemoved, block_hashes=gone, medium=MEDIA[place],
                group_idx=group, locality=self._localities[place],
                ownership=self._owner))

    def _names(self, name: tuple[int, int],
               hashes: list[Any]) -> list[tuple[Any, ...]]:
        place, group = name
        return [(MEDIA[place], self._localities[place], group, one)
                for one in hashes]

    # ---- one event ----

    def _has(self, table: tuple[int, Any], i: int, chunk: int) -> bool:
        """Whether a save with this table stores the chunk of a group."""
        first, ids = table
        begin, end = self._span(i, chunk)
        if begin < first or end > first + len(ids):
            return False
        return all(ids[b - first] != _lib.NULL_BLOCK for b in range(begin, end))

    def _span(self, i: int, chunk: int) -> tuple[int, int]:
        """The blocks of a chunk that are stored."""
        begin, end = self._blocks[i]
        return chunk * end + begin, (chunk + 1) * end

    def _stored(self, request: Request, chunk: int, i: int,
                place: int) -> BlockStored:
        group = self._groups[i]
        block = group.block_tokens
        begin, end = self._span(i, chunk)
        kind, window = self._kinds[i]
        lora = request.lora_request
        return _make(
            BlockStored,
            block_hashes=[self._hash(request, b, block)
                          for b in range(begin, end)],
            parent_block_hash=(self._hash(request, begin - 1, block)
                               if begin > 0 else None),
            token_ids=list(request.all_token_ids[begin * block:end * block]),
            block_size=block, lora_id=lora.adapter_id if lora else None,
            medium=MEDIA[place], lora_name=lora.name if lora else None,
            extra_keys=_extra_keys(request, begin, end, block),
            group_idx=group.index, kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=window,
            session_id=getattr(request, "session_id", None),
            locality=self._localities[place], ownership=self._owner)

    def _hash(self, request: Request, block: int, block_tokens: int) -> Any:
        """A block's hash is that of the hash block at its end."""
        at = (block + 1) * block_tokens // self._hash_tokens - 1
        return kv_cache_utils.maybe_convert_block_hash(
            request.block_hashes[at])


class _Job:
    """A save under way: its chunks, and how many ranks have done it."""

    __slots__ = ("chunks", "ranks")

    def __init__(self) -> None:
        self.chunks: list[tuple[bytes, list[BlockStored]]] = []
        self.ranks = 0


def _make(kind: type, **values: Any) -> Any:
    """With the fields that this version of vLLM has."""
    known = kind.__struct_fields__
    return kind(**{k: v for k, v in values.items() if k in known})


def _extra_keys(request: Request, begin: int, end: int,
                block: int) -> list[Any]:
    """As vLLM's own events have them: one entry for each block."""
    keys = [kv_cache_utils.generate_block_hash_extra_keys(
        request, b * block, (b + 1) * block, 0)[0] for b in range(begin, end)]
    convert = getattr(kv_cache_utils, "to_event_extra_keys", None)
    return convert(keys) if convert is not None else keys


def _key(keys: bytes, chunk: int) -> bytes:
    return keys[chunk * _lib.KEY_BYTES:(chunk + 1) * _lib.KEY_BYTES]


def _place(m: _lib.Match) -> int | None:
    """Where all that matched is, if it is in one place."""
    sizes = dict(zip(_lib.TIERS, m.tier_bytes))
    here = sizes["dram"], sizes["ssd"]
    away = sum(m.tier_bytes) - sum(here)
    places = [i for i, size in enumerate((*here, away)) if size]
    return places[0] if len(places) == 1 else None


def _judge(found: bytearray, first: int, end: int,
           m: _lib.Match) -> list[tuple[int, int]]:
    """Notes what a match of these chunks says; gives what to ask next."""
    got = first + m.chunks
    if got < end and _lib.CAUSES[m.cause] in _GONE:
        found[got] = GONE
    if m.chunks == 0:
        return []
    place = _place(m)
    if m.chunks == 1 and place is None:  # of shards in several: the farthest
        place = AWAY if sum(m.tier_bytes[2:]) else SSD
    if place is not None:
        found[first:got] = bytes([place]) * m.chunks
        return []
    half = first + m.chunks // 2
    return [(first, half), (half, got)]
