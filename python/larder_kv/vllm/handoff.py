"""The two sides of a hand-off, as vLLM has them: docs/guide/handoff.md.

A request with do_remote_decode is the prefill side's: its chain is promised
when it arrives, its tail is saved with its last step, and its answer carries
what the decode side needs, in kv_transfer_params.larder.handoff. A request with
that is the decode side's.
"""
from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.engine import handoff
from larder_kv.engine.explain import Half
from larder_kv.engine.moves import Move
from larder_kv.vllm import patches

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from larder_kv.engine.counts import Counts
    from larder_kv.engine.kv import Model
    from larder_kv.engine.lookup import Finder, Lookup
    from larder_kv.vllm.request import Switches
    from larder_kv.vllm.tracked import Tracked

logger = logging.getLogger("vllm.larder")

# The block tables of these tokens, one for each group.
Tables = Callable[[int, int], list[tuple[int, array]]]
PROMISED_SECONDS = 2.0  # a promise that takes longer is not waited for
HANDED = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")  # RequestStatus
# What vLLM's own connector notes in a request whose prompt it has shortened.
SHORTENED = "_p_side_truncated"


class Handoffs:
    """The scheduler's, of its thread only, if nothing else is said."""

    def __init__(self, described: Model, node: _lib.Node, space: _lib.Space,
                 finder: Finder, counts: Counts, alone: bool,
                 lookahead: int = 1):
        """alone: no other connector's keys are in the answer. lookahead:
        tokens behind a prompt that drafters see when it is computed."""
        self._model = described
        self._node = node
        self._space = space
        self._finder = finder
        self._counts = counts
        self._alone = alone
        self._warned = False
        self._all = all(g.rule == _lib.RULE_ALL for g in described.groups)
        # The last tokens of a prompt, which only the decode side computes: a
        # state that has seen all of it is of no use for that, and what drafters
        # made of the prefill side's own drafts is none either.
        self._spare = max(int(described.has_state), lookahead - 1)
        self._lock = threading.Lock()  # of making the tails' space
        # The node's name, as it last said it; None: it has not yet.
        self._member: str | None = None

    def possible(self) -> bool:
        """An engine that cannot be told of a failed load of such a model loads
        only what was fetched before."""
        return not self._finder.fetches

    def tails(self) -> handoff.Tails:
        if self._finder.tails is None:
            with self._lock:  # a thread may be at a reset
                if self._finder.tails is None:
                    self._finder.tails = handoff.Tails(self._node,
                                                       self._model)
        return self._finder.tails

    def spaces(self) -> Iterator[_lib.Space]:
        """All that this engine's KV is in: for a reset, of any thread. What
        handed something off may have been an earlier life of this engine."""
        yield self._space
        if self.possible():
            yield self.tails().space

    def _named(self, t: Tracked, tokens: int) -> handoff.Handoff:
        """Names so much of the prompt, its tail too."""
        request, tails = t.request, self.tails()
        t.prompt.extend(self._space, tokens)
        begin = tails.begin(tokens)
        keys = t.prompt.keys
        chunks = begin // self._model.chunk_tokens
        whole = _lib.Keys()
        whole.extend(keys.data(0, chunks))
        rest = array("I", request.all_token_ids[begin:tokens])
        first = begin // tails.unit
        extra = t.prompt.extra_of(tails.unit, first,
                                  first - (-len(rest) // tails.unit))
        hand = handoff.Handoff(keys.data(0, chunks),
                               tails.name(whole, rest, extra), tokens)
        hand.prompt = request.num_prompt_tokens
        # What is claimed whole is computed again from its last token on, when
        # vLLM has given away what the token behind it does not see.
        hand.claims = tokens if self._all else hand.most
        return hand

    # ---- prefill ----

    def wants_decode(self, params: dict[str, Any] | None) -> bool:
        return bool(params and params.get("do_remote_decode"))

    def shorten(self, request: Request) -> None:
        """Before anything else is known of it: takes those tokens away that the
        prefill side must not compute. Once: another connector, or an earlier
        call, may have done it."""
        back, params = self._spare, request.kv_transfer_params
        if (not back or not self.possible() or params.get(SHORTENED)
                or request.prompt_token_ids is None
                or request.num_prompt_tokens <= back
                or getattr(request, "skip_reading_prefix_cache", False)):
            return
        patches.shorten(request, back)
        params[SHORTENED] = True

    def give(self, t: Tracked) -> None:
        """It has arrived, and will be handed off. Its prompt is named, or it
        saves nothing."""
        half = t.record.half = Half("prefill", t.request.num_prompt_tokens)
        if (not self.possible() or not t.saves
                or self._spare
                and not t.request.kv_transfer_params.get(SHORTENED)):
            half.why = "unable"
            self._counts.add("handoffs_refused:unable")
            if not self._warned:
                self._warned = True
                logger.warning("larder: request %s cannot be handed off: this "
                               "engine saves nothing, or its vLLM cannot "
                               "report a failed load of this model, or the "
                               "prompt is too short for it",
                               t.request.request_id)
            return
        t.gives = hand = self._named(t, t.request.num_prompt_tokens)
        hand.half, hand.member = half, self._member or ""
        tails = self.tails()

        def promise() -> None:
            if handoff.promise(hand, self._space, self._finder.layout, tails):
                half.promised = time.monotonic()
                self._member = hand.member
            else:
                half.why = "promise"
            half.member = hand.member

        self._finder.later(promise)

    def waits(self, t: Tracked) -> bool:
        """Whether the node has still to say its name, which goes into the
        answer: for an engine's first promise. The request has been asked about
        by vLLM."""
        return (self._member is None and t.gives is not None
                and not t.gives.promised.is_set()
                and time.monotonic() < t.asked + PROMISED_SECONDS)

    def tail_tokens(self, t: Tracked, known: int) -> tuple[int, int] | None:
        """The tail that is to be saved now, once: so many tokens are
        computed."""
        hand = t.gives
        if hand is None or hand.tail_saved or known < hand.tokens:
            return None
        hand.tail_saved, hand.half.saved = True, time.monotonic()
        if not hand.tail:
            return None
        tails = self.tails()
        begin = tails.begin(hand.tokens)
        return begin, begin + hand.tail_blocks * tails.unit

    def answer(self, request: Request, t: Tracked) -> dict[str, Any] | None:
        """Its end: what goes into its answer."""
        hand, t.gives = t.gives, None
        if hand is None:
            return None
        tails = self.tails()
        ended = request.status.name not in HANDED or not hand.tail_saved
        good = not ended and not t.behind
        half = hand.half
        half.ended = time.monotonic() if good else 0.0
        half.why = half.why if good else "ended" if ended else "busy"
        said = ((_lib.HANDOFF_ANSWERED,) if good
                else (_lib.HANDOFF_FAILED, _lib.HANDOFF_OVER))

        def tell() -> None:
            hand.promised.wait(PROMISED_SECONDS)
            for what in said:
                # A node that came back under another name forgot it anyway.
                with contextlib.suppress(handoff.Refused):
                    hand.tell(self._space, tails, what)

        self._finder.later(tell)
        if not good:
            return None
        self._counts.add("handoffs_given")
        found: dict[str, Any] = {"larder": {"handoff": handoff.answer(
            hand, self._space, self._model.name)}}
        if self._alone:
            found.update(do_remote_prefill=True, do_remote_decode=False)
        return found

    def tail_move(self, t: Tracked, begin: int, end: int,
                  tables: list[tuple[int, array]]) -> Move:
        """Of blocks of the tail."""
        unit, hand = self.tails().unit, t.gives or t.lookup.taken.hand
        first = self.tails().begin(hand.tokens)
        keys = hand.tail[(begin - first) // unit * _lib.KEY_BYTES:]
        return Move(t.request.request_id, keys, begin // unit, begin, end,
                    tables, in_tail=handoff.last_tokens(hand.tokens, unit))

    def fill_tables(self, tables: list[tuple[int, array]], end: int,
                    saves: bool) -> None:
        """Up to the tail's end, which need not be that of the group's own
        blocks: what is behind the prompt is nobody's, whatever is saved for it,
        and is not loaded."""
        for (first, ids), group in zip(tables, self._model.groups):
            lacks = end // group.block_tokens - first - len(ids)
            if lacks > 0 and (ids or not saves):
                ids.extend([ids[-1] if saves else _lib.NULL_BLOCK] * lacks)

    # ---- decode ----

    def wants_prefill(self, params: dict[str, Any] | None,
                      switches: Switches) -> bool:
        """It has a hand-off; or it came together with the request for the
        prefill side. Beside another connector that is for that one to say."""
        return switches.handoff is not None or bool(
            self._alone and params and params.get("do_remote_prefill"))

    def take(self, t: Tracked) -> handoff.Handoff | None:
        """It has arrived. Its prompt is named, or it loads nothing. None: it
        is served without its hand-off."""
        given = t.switches.handoff
        half = Half("decode", t.request.num_prompt_tokens)
        half.early = given is None
        t.record.half = t.record.half or half  # it may be both sides
        tokens = t.request.num_prompt_tokens - self._spare
        if not self.possible() or not t.loads or tokens <= 0:
            half.why = "unable"
            self._counts.add("handoffs_refused:unable")
            return None
        hand = self._named(t, tokens)
        hand.half = half
        if given is None:
            hand.early = True
            hand.member = half.member = t.switches.member
            hand.in_pieces = self._finder.whole
            return hand
        try:
            hand = handoff.check(given, self._space, self._model.name, hand)
        except handoff.Refused as why:
            self.refused(t.request.request_id, half, str(why))
            return None
        hand.half, half.member = half, hand.member
        return hand

    def refused(self, request_id: str, half: Half, why: str) -> None:
        """Of any thread."""
        half.why = why
        self._counts.add(f"handoffs_refused:{why}")
        logger.warning("larder: request %s goes without its hand-off: %s",
                       request_id, why)

    def staged(self, look: Lookup) -> None:
        """It waits no longer, and has all, a part or nothing. Of any
        thread."""
        if look.left:  # the request was given up
            return
        half = look.taken.hand.half
        half.ended, half.whole = look.ended, look.taken.whole
        self._counts.time("handoff_ms", (look.ended - look.began) * 1000)
        self._counts.add("handoff_bytes", sum(look.tier_bytes))
        if not look.taken.whole:
            why = look.reason if look.reason not in ("", "none") else "absent"
            half.why = half.why or why
            self._counts.add(f"handoffs_short:{why}")

    def load(self, t: Tracked, begin: int, tables: Tables) -> Move:
        """All of it from this token on: first the chunks, then the tail."""
        hand, unit = t.lookup.taken.hand, self.tails().unit
        size = self._model.chunk_tokens
        middle = self.tails().begin(hand.tokens)
        first = min(begin, middle) // size
        move = Move(t.request.request_id,
                    hand.keys[first * _lib.KEY_BYTES:] if begin < middle
                    else b"", first, min(begin, middle), middle,
                    tables(min(begin, middle), middle), token=t.lookup.token)
        if hand.tail:
            last = middle + hand.tail_blocks * unit
            after = max(begin, middle)
            found = tables(after, last)
            if any(ids for _, ids in found):  # else none of it is claimed
                self.fill_tables(found, last, False)
                move.tail = self.tail_move(t, after, last, found)
        return move
