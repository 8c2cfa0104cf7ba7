"""Looking prompts up: in threads, so that the scheduler never waits.

A lookup stages a prompt's chunks, as many as are worth loading, in one round
trip, and holds them until the load is done. What all lookups hold together is
bounded: one that finds too much held already stages nothing, and is made again
when there is room.
"""
from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import handoff, kv

logger = logging.getLogger("larder")

THREADS = 2
HOLD_PART = 4  # of the node's dram: one in so many bytes may be held
HOLD_UNKNOWN = 1 << 28  # if the node does not say how much it has
FETCH_MAX = 1 << 30  # bytes of fetched prefixes
FETCH_FILE = 2 * FETCH_MAX  # of one, in whole blocks
RATE_TOKENS = 64  # a step with fewer says little about prefill
STAGE_SECONDS = 0.002  # of staging that is not reading
PROBE_SECONDS, PROBE_CHUNKS = 2.0, 2
LOAD_BYTES = 1 << 24  # of a load that says something about the speed of loads
LINK_SPEED = 2e10  # bytes a second: of a GPU's link, until it is known
JOIN_SECONDS = 5
RELEASE_CHUNKS = 64  # more than this: a thread gives them back
LOOKS_MAX = 256  # requests that wait for adapters' files
TAKES_MAX = 64  # hand-offs that are waited for; more go without waiting
LIMITS = {_lib.LIMIT_TIER: "tier", _lib.LIMIT_SLOWER: "slower",
          _lib.LIMIT_BYTES: "crowded"}  # why not all that was found
LOST = ("absent", "evicted", "corrupt", "stale", "io")  # causes


class Unnamed(Exception):
    """A prompt that cannot be named goes without the store."""


class Names(Protocol):
    """The keys of a prompt, to be made by a thread."""

    files: bool  # have to be looked at for that
    failed: Unnamed | None

    def make(self, space: _lib.Space) -> bytes: ...

    def give_up(self) -> None: ...


class Events(Protocol):
    """Who announces what a lookup found; called in the lookup's thread."""

    def survey(self, match: Callable[[bytes, int, int], _lib.Match],
               keys: bytes, limit: int, known: _lib.Match) -> bytes: ...

    def looked(self, look: Lookup) -> None: ...


class Arrival:
    """A request, as the node hears of it: once, with all of its prompt. names:
    its keys are still to be made."""

    __slots__ = ("request_id", "keys", "chunks", "tokens", "hint", "names")

    def __init__(self, request_id: str, keys: bytes, chunks: int, tokens: int,
                 hint: int, names: Names | None = None):
        self.request_id = request_id
        self.keys = keys
        self.chunks = chunks
        self.tokens = tokens
        self.hint = hint
        self.names = names

    def name(self, space: _lib.Space) -> None:
        if self.names is not None:
            self.keys, self.names = self.names.make(space), None

    @property
    def number(self) -> int:
        """Hashed by who announces it, not by the scheduler."""
        digest = hashlib.blake2b(self.request_id.encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "little")


class Lookup:
    """What a thread finds out about a prompt. The thread sets it, then done;
    the scheduler sets left. Both under Finder.lock, and who comes second
    releases."""

    __slots__ = ("request_id", "arrival", "keys", "limit", "tiers_wanted",
                 "began", "until", "deadline", "done", "left", "lease",
                 "memory", "booked", "crowded", "chunks", "matched", "stored",
                 "reason", "tier_bytes", "found", "ended", "tiers", "claimed",
                 "over", "waited", "then", "own", "taken", "staged", "member")

    def __init__(self, request_id: str, keys: bytes, limit: int,
                 tiers: frozenset[str] | None, seconds: float,
                 member: str = ""):
        self.request_id = request_id
        self.member = member  # of the node's cluster: is asked first
        self.arrival: Arrival | None = None  # to be announced before it
        self.keys = keys
        self.limit = limit  # chunks that could be claimed at all
        self.tiers_wanted = tiers
        self.began = self.ended = time.monotonic()
        self.until = self.began + seconds  # the request waits so long
        self.deadline = self.until  # of calls
        self.done = False
        self.left = False  # nobody waits for it any more
        self.lease: _lib.Lease | None = None
        self.memory: _lib.Memory | None = None  # in place of the lease
        self.booked = 0  # bytes held
        self.crowded = False  # not staged, for others hold too much
        self.chunks = 0  # staged and held
        self.matched = 0  # in the store
        self.stored = 0  # of these: not found to be lost when they were read
        self.reason = ""  # why not more
        self.tier_bytes = (0,) * len(_lib.TIERS)
        self.found = 0.0  # when matched was known
        self.tiers = b""  # of every chunk, for events
        self.claimed = 0.0  # when; its load began then
        self.over = threading.Lock()  # released when it is done
        self.over.acquire()
        self.waited = False
        # Called in the thread when it is done, before anybody hears of that.
        self.then: Callable[[], None] | None = None
        # The engine has all of it: nothing is staged, only what the store has
        # is found out, which need not be saved again.
        self.own = False
        self.taken: handoff.Taken | None = None  # a hand-off's decode side
        self.staged: Callable[[Lookup], None] | None = None  # ... is told

    def wait(self, seconds: float) -> None:
        """For its end, once: who asks again has waited."""
        if not self.waited:
            self.waited = True
            self.over.acquire(timeout=seconds)

    @property
    def token(self) -> bytes:
        """What workers load by."""
        return self.lease.token if self.lease is not None else b""

    def left_ms(self) -> int:
        return max(1, int((self.deadline - time.monotonic()) * 1000))


class Finder:
    def __init__(self, options: Options, described: kv.Model,
                 node: _lib.Node, space: _lib.Space, events: Events | None,
                 gpu: bool = False, reports: bool = True, eagle: bool = False):
        """gpu: the engine computes on one. reports: the engine can be told
        that a request's load failed. eagle: its drafter needs the hidden
        states before the first token that is computed."""
        self.lock = threading.Lock()
        self.rate = Rate(LINK_SPEED if gpu else 0.0)
        self.layout = kv.rules(described)
        groups = described.groups
        self.whole = len(groups) == 1 and groups[0].rule == _lib.RULE_ALL
        # An engine that cannot be told of a failed load: only of one group
        # whose blocks are all there can it compute the rest.
        self.fetches = not self.whole and not reports
        self.eagle = eagle
        self._options = options
        self._block = groups[0].block_tokens
        self._size = described.chunk_tokens
        self._space = space
        self._events = events
        self._probed = 0.0  # when
        self._held = 0  # bytes, of all lookups
        self._node = node
        self._hold_max = HOLD_UNKNOWN
        self._hold_known = False
        self._learn_room()
        self._jobs: queue.SimpleQueue[
            Lookup | Arrival | Callable[[], None] | None] = queue.SimpleQueue()
        self._left: deque[Lookup] = deque()  # with much to give back
        self.tails: handoff.Tails | None = None  # once there were hand-offs
        self._takers: list[threading.Thread] = []
        # Those whose files have to be looked at first: a disk may hang, and
        # shall hold up nobody else.
        self._looks: queue.SimpleQueue[Lookup | Arrival | None] = (
            queue.SimpleQueue())
        self._threads = [
            threading.Thread(target=self._work, name=f"larder-lookup-{i}",
                             daemon=True) for i in range(THREADS)]
        self._threads.append(threading.Thread(
            target=self._look_at_files, name="larder-files", daemon=True))
        for thread in self._threads:
            thread.start()

    def _learn_room(self) -> None:
        """Until the node has said how much it has: it may come later."""
        with contextlib.suppress(_lib.LarderError):
            most = self._node.stats().dram_max_bytes // HOLD_PART
            self._hold_max = min(most, FETCH_MAX) if self.fetches else most
            self._hold_known = True

    # ---- the scheduler's ----

    def begin(self, request_id: str, keys: bytes, limit: int,
              tiers: frozenset[str] | None, seconds: float,
              arrival: Arrival | None = None, own: bool = False,
              member: str = "") -> Lookup:
        """seconds: that the request has left to wait. own: the engine seems to
        have all of it already. member: of the cluster, that may have it."""
        look = Lookup(request_id, keys, limit, tiers, seconds, member)
        look.arrival, look.own = arrival, own
        look.stored = limit if own else 0  # until it is found out
        self._put(look, arrival)
        return look

    def take(self, request_id: str, hand: handoff.Handoff,
             tails: handoff.Tails, arrival: Arrival | None,
             refused: Callable[[str], None],
             staged: Callable[[Lookup], None]) -> Lookup:
        """A hand-off's decode side. It may wait for the prefill side, so it
        gets a thread of its own: lookups of others do not wait for it.
        staged: is called when that is over."""
        look = Lookup(request_id, hand.keys, hand.chunks, None,
                      hand.wait_seconds)
        look.arrival, look.taken = arrival, handoff.Taken(hand, refused)
        look.staged = staged
        self.tails = tails
        self._takers = [one for one in self._takers if one.is_alive()]
        if len(self._takers) >= TAKES_MAX:
            look.deadline = look.began  # what is there by then
            self._jobs.put(look)
            return look
        thread = threading.Thread(target=self._look, args=(look,),
                                  name="larder-handoff", daemon=True)
        thread.start()
        self._takers.append(thread)
        return look

    def tell(self, arrival: Arrival) -> None:
        """Of a request that is not looked up."""
        self._put(arrival, arrival)

    def later(self, call: Callable[[], None]) -> None:
        """A thread does it."""
        self._jobs.put(call)

    def _put(self, job: Lookup | Arrival, arrival: Arrival | None) -> None:
        names = arrival.names if arrival is not None else None
        if names is None or not names.files or names.failed is not None:
            self._jobs.put(job)
        elif self._looks.qsize() < LOOKS_MAX:
            self._looks.put(job)
        else:
            names.give_up()
            self._jobs.put(job)

    def leave(self, look: Lookup) -> None:
        """Nobody waits for it, or needs what it holds, any more."""
        with self.lock:
            first, look.left = not look.left, True
            done = look.done
            if first and done:
                self._held -= look.booked
                look.booked = 0
        if not first or not done:
            return
        if look.chunks > RELEASE_CHUNKS:
            self._left.append(look)
            self._jobs.put(look)  # whichever job is next, these come before
        else:
            self._release(look)

    def claimable(self, look: Lookup) -> int:
        """Tokens of the prefix that can be claimed."""
        if look.taken is not None:
            return self._taken_tokens(look)
        end = look.chunks * self._size
        if self.eagle and self.whole and end > 0:
            # As the engine's own lookup does: the drafter needs the last
            # block's hidden states. (Other models: see _find.)
            end -= self._block
        return end

    def _taken_tokens(self, look: Lookup) -> int:
        """All of the prompt: the engine computes its last token again by
        itself. Or, if the tail did not come, chunks, and not the last token."""
        hand = look.taken.hand
        if look.taken.whole:
            return hand.claims
        end = min(look.chunks, hand.most // self._size) * self._size
        if self.eagle and end > 0:  # as in claimable(); what is staged of
            # other models is of use only as far as it goes
            end = end - self._block if self.whole else 0
        return end

    def most(self, look: Lookup) -> int:
        """Tokens that could be claimed at all."""
        return (look.taken.hand.most if look.taken is not None
                else look.limit * self._size)

    def close(self) -> bool:
        """False: a thread is still at work, with the node and the space."""
        for _ in range(THREADS):
            self._jobs.put(None)
        self._looks.put(None)
        threads = [*self._threads, *self._takers]
        end = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(timeout=max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return False
        self.layout.close()
        if self.tails is not None:
            self.tails.close()
        return True

    # ---- the threads' ----

    def _look_at_files(self) -> None:
        while (job := self._looks.get()) is not None:
            arrival = job.arrival if isinstance(job, Lookup) else job
            with contextlib.suppress(Unnamed):
                arrival.name(self._space)
            self._jobs.put(job)

    def _work(self) -> None:
        while (look := self._jobs.get()) is not None:
            self._release_left()
            if isinstance(look, Arrival):
                self._announce(look, self._options.lookup_ms)
                continue
            if not isinstance(look, Lookup):
                try:
                    look()
                except Exception:  # lookups need this thread
                    logger.exception("larder: a job of a lookup's thread "
                                     "failed")
                continue
            if not look.done:  # else it was left
                self._look(look)

    def _look(self, look: Lookup) -> None:
        try:
            if look.arrival is not None:
                look.arrival.name(self._space)
                if look.taken is None:
                    look.keys = look.arrival.keys
            if not look.left:
                if look.taken is not None:
                    self._take(look)
                else:
                    self._find(look)
        except Unnamed:  # which was said
            look.reason = "error"
        except _lib.LarderError as error:
            # The library warns when the node begins to refuse it.
            look.reason = {_lib.E_OFFLINE: "offline",
                           _lib.E_DENIED: "denied",
                           _lib.E_VERSION: "version",
                           _lib.E_DEADLINE: "deadline",
                           _lib.E_FULL: "full"}.get(error.status, "error")
            logger.debug("larder: lookup of %s: %s", look.request_id, error)
        except Exception:
            look.reason = "error"
            logger.exception("larder: lookup of %s", look.request_id)
        if look.found == 0.0:
            look.stored = 0  # not found out: what begin() took for granted
        look.ended = time.monotonic()
        if look.staged is not None:
            look.staged(look)
        if look.chunks == 0 and not (look.taken and look.taken.whole):
            self._release(look)  # others may have the room
        with self.lock:
            look.done = True
            left = look.left
        if look.then is not None and not left:
            look.then()
        look.over.release()
        if left:
            self._release(look)
        if look.arrival is not None:
            self._announce(look.arrival, self._options.lookup_ms)
        if self._events is not None and look.taken is None:
            self._events.looked(look)
        if look.reason == "slower":
            self._probe(look)

    def _take(self, look: Lookup) -> None:
        """Stages a hand-off, whatever it costs: the engine was chosen so as
        not to compute it."""
        lease, match = look.taken.stage(self._space, self.layout, self.tails,
                                        look.left_ms, lambda: look.left)
        look.found = time.monotonic()
        look.matched = look.stored = match.found
        look.reason = _lib.CAUSES[match.cause]
        sizes = list(match.tier_bytes[:len(_lib.TIERS)])
        sizes[0] += look.taken.tail_bytes
        look.tier_bytes = tuple(sizes)
        look.lease, look.chunks = lease, match.chunks
        with self.lock:
            look.booked = sum(look.tier_bytes)
            self._held += look.booked

    def _release_left(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._release(self._left.popleft())

    def _announce(self, arrival: Arrival, timeout_ms: int) -> None:
        try:
            arrival.name(self._space)
            if arrival.chunks > 0:
                self._space.announce(arrival.keys, arrival.chunks,
                                     arrival.tokens, arrival.hint,
                                     arrival.number, max(1, timeout_ms))
        except Exception as error:
            logger.debug("larder: announce: %s", error)

    def _release(self, look: Lookup) -> None:
        lease, look.lease = look.lease, None
        memory, look.memory = look.memory, None
        if look.taken is not None:
            look.taken.release()
        if lease is not None:
            lease.release()
        if memory is not None:
            memory.close()
        with self.lock:
            self._held -= look.booked
            look.booked = 0

    def fits(self, look: Lookup) -> bool:
        """Whether there is room for what it found. One may always be held,
        however large."""
        return (self._held == 0
                or self._held + sum(look.tier_bytes) <= self._hold_max)

    def _book(self, look: Lookup) -> bool:
        """Others may have taken the room meanwhile."""
        with self.lock:
            if not self.fits(look):
                return False
            look.booked = sum(look.tier_bytes)
            self._held += look.booked
        return True

    def _limits(self, look: Lookup) -> dict[str, Any]:
        """What is worth staging, for the node to go by."""
        found: dict[str, Any] = {}
        if look.member:
            found["member"] = look.member.encode()
        held = self._held
        if held > 0:
            found["bytes_max"] = max(0, self._hold_max - held)
        if self.fetches:
            found["bytes_max"] = min(found.get("bytes_max", FETCH_MAX),
                                     FETCH_MAX)
        if look.tiers_wanted is not None:
            found["tiers"] = sum(1 << i for i, name in enumerate(_lib.TIERS)
                                 if name in look.tiers_wanted)
        if self._options.load != "always":
            found.update(self.rate.worth(self._size))
        return found

    def _find(self, look: Lookup) -> None:
        if self._events is not None or look.own:
            match = self._space.match(self.layout, look.keys, look.limit,
                                      look.left_ms())
            look.matched = look.stored = match.chunks
        if self._events is not None:
            look.tiers = self._events.survey(
                self._space.match_group, look.keys, look.limit, match)
        if look.own:
            look.found = time.monotonic()
            look.reason = _lib.CAUSES[match.cause]
            return
        limits = self._limits(look)
        lease, match = self._stage(look.keys, look.limit, look.left_ms(),
                                   limits)
        look.found = time.monotonic()
        look.matched = look.stored = match.found
        if match.found > 0 and not self._hold_known:
            self._learn_room()
        if (self.eagle and not self.whole and lease is not None
                and match.chunks == match.found):
            # The drafter needs hidden states before the first token that is
            # computed; here a hit ends with a chunk.
            lease.release()
            lease = None
            if match.chunks > 1:
                lease, match = self._stage(look.keys, match.chunks - 1,
                                           look.left_ms(), limits)
        if (self.fetches and match.limit == _lib.LIMIT_BYTES
                and match.tried_bytes > FETCH_MAX):
            lease, match = self._stage_less(look, match, limits)
        if match.chunks < match.tried and _lib.CAUSES[match.cause] in LOST:
            look.stored = match.chunks
        look.reason = LIMITS.get(match.limit, _lib.CAUSES[match.cause])
        below = match.tried_below_bytes
        look.tier_bytes = (
            tuple(match.tier_bytes[:len(_lib.TIERS)]) if lease is not None
            else (match.tried_bytes - below, below) + (0,) * (
                len(_lib.TIERS) - 2))
        look.crowded = match.limit == _lib.LIMIT_BYTES
        if lease is None:
            return
        if not self._book(look):
            lease.release()
            look.crowded, look.reason = True, "crowded"
            return
        look.lease = lease
        if self.fetches:
            self._fetch(look, lease, match.chunks)
        look.chunks = match.chunks

    def _stage_less(self, look: Lookup, match: _lib.Match,
                    limits: dict[str, Any],
                    ) -> tuple[_lib.Lease | None, _lib.Match]:
        """As many chunks as may be fetched."""
        chunks = match.tried * FETCH_MAX // match.tried_bytes
        lease = None
        if chunks > 0:
            lease, match = self._stage(look.keys, chunks, look.left_ms(),
                                       limits)
        if chunks == 0 or match.limit != _lib.LIMIT_BYTES:
            match.limit = _lib.LIMIT_NONE
            match.cause = _lib.CAUSES.index("full")
        return lease, match

    def _stage(self, keys: bytes, chunks: int, timeout_ms: int,
               limits: dict[str, Any],
               ) -> tuple[_lib.Lease | None, _lib.Match]:
        began = time.monotonic()
        lease, match = self._space.stage(self.layout, keys, chunks, timeout_ms,
                                         _lib.StageParams(**limits))
        late = lease is None and _lib.CAUSES[match.cause] == "deadline"
        self.rate.staged(match, match.tried * self._size,
                         time.monotonic() - began, late)
        return lease, match

    def _probe(self, look: Lookup) -> None:
        """Stages a little of what was declined, for nobody: else a disk that
        was slow once would be thought slow for ever. What is in dram is tried
        again some time."""
        began = time.monotonic()
        if began - self._probed < PROBE_SECONDS:
            return
        self._probed = began
        chunks, ms = look.matched, max(1, self._options.lookup_ms)
        try:
            match = self._space.match(self.layout, look.keys, chunks, ms)
            if match.below == 0:
                # Only a load measures that. Where none is tried it may be
                # that one was held up by something else.
                self.rate.load_speed *= 2
                return
            chunks = min(match.chunks, match.tier_chunks[0] + PROBE_CHUNKS)
            lease, _ = self._stage(look.keys, chunks, ms, {})
            if lease is not None:
                lease.release()
        except _lib.LarderError as error:
            logger.debug("larder: probe: %s", error)

    def _fetch(self, look: Lookup, lease: _lib.Lease, chunks: int) -> None:
        """Copies it to the engine's own memory: claimed is only what cannot
        fail any more."""
        try:
            look.memory = self._space.fetch(self.layout, lease, look.keys,
                                            chunks, look.left_ms(), FETCH_FILE)
        finally:
            look.lease = None
            lease.release()


class Rate:
    """How many tokens a second prefill computes, as measured. Steps may
    overlap: their outputs come in order."""

    def __init__(self, load_speed: float = 0.0) -> None:
        self.tokens_per_second = 0.0
        self.load_speed = load_speed  # bytes a second, from dram; 0: unknown
        self.doubt = 1.0  # so many times longer than the node expects
        self._steps: deque[tuple[float, int]] = deque(maxlen=8)
        self._ended = 0.0

    def begins(self, tokens: int) -> None:
        """A step of so many tokens was scheduled."""
        self._steps.append((time.monotonic(), tokens))

    def ends(self) -> None:
        """The output of the oldest one is there."""
        if not self._steps:
            return
        began, tokens = self._steps.popleft()
        now = time.monotonic()
        took = now - max(began, self._ended)
        self._ended = now
        if tokens < RATE_TOKENS or took <= 0:
            return
        known = self.tokens_per_second
        rate = tokens / took
        self.tokens_per_second = (rate if known == 0
                                  else known + (rate - known) / 4)

    def idle(self) -> bool:
        """Whether no step that computes is under way."""
        return not any(tokens for _, tokens in self._steps)

    def staged(self, match: _lib.Match, tokens: int, took: float,
               late: bool = False) -> None:
        """Staging it took so long; late: and was not done then. What lost is
        believed at once, the rest by halves."""
        if (match.tried_below_bytes > 0 and match.tried_us > 0
                and match.limit != _lib.LIMIT_BYTES):
            times = max(0.0, took - STAGE_SECONDS) * 1e6 / match.tried_us
            times *= 2 if late else 1
            lost = late or took * self.tokens_per_second > tokens
            self.doubt = max(1.0, times if lost and times > self.doubt
                             else (times * self.doubt) ** 0.5)

    def loaded(self, size: int, took: float) -> None:
        """A load of so many bytes took so long, until the scheduler knew."""
        if size >= LOAD_BYTES and took > 0:
            known = self.load_speed or size / took
            self.load_speed = known + (size / took - known) / 4

    def worth(self, chunk_tokens: int) -> dict[str, int]:
        """For the node, which loads only what is faster than to compute it.
        Unknown rates do not decide."""
        if self.tokens_per_second == 0:
            return {}
        found = {
            "chunk_ns": max(1, int(1e9 * chunk_tokens
                                   / self.tokens_per_second)),
            # so many times longer than the node expects
            "below_percent": min(int(100 * self.doubt), (1 << 31) - 1)}
        if self.load_speed > 0:
            found["dram_speed"] = int(self.load_speed)
        return found

    def computes(self, tokens: int) -> float:
        """Seconds that computing them takes."""
        rate = self.tokens_per_second
        return tokens / rate if rate > 0 else float("inf")
