"""The two sides of a hand-off, as vLLM has them: docs/guide/handoff.md.

A request with do_remote_decode is the prefill side's: its chain is promised
when it arrives, its tail is saved with its last step, and its answer carries
what the decode side needs, in kv_transfer_params.larder.handoff. A request with
that is the decode side's.
"""
from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.engine import handoff
from larder_kv.engine.moves import Move

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


class Handoffs:
    """The scheduler's, of its thread only."""

    def __init__(self, described: Model, node: _lib.Node, space: _lib.Space,
                 finder: Finder, counts: Counts, alone: bool):
        """alone: no other connector's keys are in the answer."""
        self._model = described
        self._node = node
        self._space = space
        self._finder = finder
        self._counts = counts
        self._alone = alone
        self._warned = False
        self._member = ""  # the node's name, as it last said it

    def possible(self) -> bool:
        """Recurrent state: it would have to be that before the last token. A
        window that is shorter than a tail can be: an earlier block of the tail
        might be gone. A drafter needs hidden states, which are not stored."""
        groups, size = self._model.groups, self._model.chunk_tokens
        return (not self._finder.fetches and not self._finder.eagle
                and len({g.block_tokens for g in groups}) == 1
                and all(g.rule == _lib.RULE_ALL
                        or g.rule == _lib.RULE_TRAILING
                        and g.window_tokens > size for g in groups))

    def tails(self) -> handoff.Tails:
        if self._finder.tails is None:
            self._finder.tails = handoff.Tails(self._node, self._model)
        return self._finder.tails

    def _named(self, t: Tracked) -> handoff.Handoff:
        """Names all of the prompt, its tail too."""
        request, tails = t.request, self.tails()
        tokens = request.num_prompt_tokens
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
        return handoff.Handoff(keys.data(0, chunks),
                               tails.name(whole, rest, extra), tokens)

    # ---- prefill ----

    def wants_decode(self, params: dict[str, Any] | None) -> bool:
        return bool(params and params.get("do_remote_decode"))

    def give(self, t: Tracked) -> None:
        """It has arrived, and will be handed off."""
        if not self.possible() or not t.saves or t.prompt.waits():
            self._counts.add("handoffs_refused:unable")
            if not self._warned:
                self._warned = True
                logger.warning("larder: hand-offs of this engine go without "
                               "promise and tail: it saves nothing, or its "
                               "model has recurrent state")
            return
        t.gives = hand = self._named(t)
        hand.member = self._member
        tails = self.tails()

        def promise() -> None:
            handoff.promise(hand, self._space, self._finder.layout, tails)
            self._member = hand.member

        self._finder.later(promise)

    def tail_tokens(self, t: Tracked, known: int) -> tuple[int, int] | None:
        """The tail that is to be saved now, once: so many tokens are
        computed."""
        hand = t.gives
        if hand is None or hand.tail_saved or known < hand.tokens:
            return None
        hand.tail_saved = True
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
        good = (request.status.name in HANDED and hand.tail_saved
                and not t.behind)
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
                    tables, in_tail=True)

    # ---- decode ----

    def wants_prefill(self, params: dict[str, Any] | None,
                      switches: Switches) -> bool:
        """It has a hand-off; or it came together with the request for the
        prefill side. Beside another connector that is for that one to say."""
        return switches.handoff is not None or bool(
            self._alone and params and params.get("do_remote_prefill"))

    def take(self, t: Tracked) -> handoff.Handoff | None:
        """It has arrived. None: it is served without its hand-off."""
        given = t.switches.handoff
        if not self.possible() or not t.loads or t.prompt.waits():
            self._counts.add("handoffs_refused:unable")
            return None
        hand = self._named(t)
        if given is None:
            hand.early = True
            hand.member = t.switches.member
            hand.in_pieces = self._finder.whole
            return hand
        try:
            return handoff.check(given, self._space, self._model.name, hand)
        except handoff.Refused as why:
            self.refused(t.request.request_id, str(why))
            return None

    def refused(self, request_id: str, why: str) -> None:
        """Of any thread."""
        self._counts.add(f"handoffs_refused:{why}")
        logger.warning("larder: request %s goes without its hand-off: %s",
                       request_id, why)

    def staged(self, look: Lookup) -> None:
        """It waits no longer, and has all, a part or nothing. Of any
        thread."""
        if look.left:  # the request was given up
            return
        self._counts.time("handoff_ms", (look.ended - look.began) * 1000)
        self._counts.add("handoff_bytes", sum(look.tier_bytes))
        if not look.taken.whole:
            why = look.reason if look.reason not in ("", "none") else "absent"
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
            move.tail = self.tail_move(t, after, last, tables(after, last))
        return move
