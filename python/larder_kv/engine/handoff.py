"""Hand-offs between engines: what both sides need (docs/guide/handoff.md).

A prompt is handed off as the chunks that reuse has anyway, and a tail: the KV
behind its last whole chunk. Tails are in a space of their own, whose chunks are
blocks of the engine. Their keys follow the last whole chunk's; the last block's
missing tokens are named PAD, which no token is. So a tail is part of no chain
that an ordinary request asks for.
"""
from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import logging
import math
import os
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

from larder_kv import _lib
from larder_kv.engine import kv
from larder_kv.engine.explain import Half

logger = logging.getLogger("larder")

PAD = 0xFFFFFFFF
TOKEN_BYTES = 16
TELL_MS = 1000  # that the node has to answer
TAIL_MS = 120000  # a tail is of no use for longer
# The decode side waits so long. (The node gives up 5 s after the answer what
# has not come by then.)
WAIT_SECONDS = 10.0
# It is asked together with the prefill side: it waits so long for the promise,
# asking again after each pause, and then for what was promised.
EARLY_SECONDS, EARLY_PAUSE, EARLY_WAIT_SECONDS = 1.0, 0.005, 60.0
# Early, and from another node: so many chunks are staged at a time, so that
# they travel while the prefill side computes the next ones.
PIECE = 8
VERSION = 2
FIELDS = {"v": int, "space": str, "tokens": int, "chain": str, "key": str,
          "token": str, "tail": str, "member": str, "seal": str}


class Refused(Exception):
    """What the decode side was given is not a hand-off of this prompt, or not
    of this tenant. The text is the reason, in one word."""


def last_tokens(tokens: int, unit: int) -> int:
    """A prompt's tokens in its last block of so many."""
    return (tokens - 1) % unit + 1


def tail_model(described: kv.Model, last: int) -> kv.Model:
    """For tails with so many tokens in the last block. What is next computed
    sees a window that begins as many tokens earlier as the last block has none:
    so each group's window is one that needs the right number of blocks."""
    unit = math.lcm(*(g.block_tokens for g in described.groups))

    def within(group: kv.GroupInfo) -> kv.GroupInfo:
        if group.rule != _lib.RULE_TRAILING:
            return group
        more = -(-max(0, group.window_tokens - last) // unit)
        return dataclasses.replace(
            group, window_tokens=max(more * unit + 2, unit + 1))

    slices = described.slices and dataclasses.replace(
        described.slices,
        groups=tuple(within(group) for group in described.slices.groups))
    return dataclasses.replace(
        described, chunk_tokens=unit, slices=slices,
        groups=tuple(within(group) for group in described.groups),
        descriptor=described.descriptor + b"\0tail")


class Tails:
    """The scheduler's side: where tails are kept."""

    def __init__(self, node: _lib.Node, described: kv.Model):
        model = tail_model(described, 1)
        self.unit = model.chunk_tokens
        self._model = described
        self._whole = described.chunk_tokens
        self._partly = any(g.rule != _lib.RULE_ALL
                           for g in described.groups)
        self.space = node.space(model.descriptor, model.shards, self.unit,
                                described.label)
        self._lock = threading.Lock()
        self._layouts: dict[tuple[kv.GroupInfo, ...], _lib.Layout] = {}

    def layout(self, tokens: int) -> _lib.Layout:
        """Which of its blocks the tail of such a prompt needs."""
        model = tail_model(self._model, last_tokens(tokens, self.unit))
        with self._lock:
            if model.groups not in self._layouts:
                self._layouts[model.groups] = kv.rules(model)
            return self._layouts[model.groups]

    def begin(self, tokens: int) -> int:
        """The first token of a prompt's tail. If not all groups see all there
        always is one: a chunk's window is that of the token behind it, and the
        state where a prompt ends is not offered for the chunk before."""
        return (tokens - self._partly) // self._whole * self._whole

    def name(self, keys: _lib.Keys, tokens: array,
             extra: list[bytes] | None) -> bytes:
        """The keys of a tail. keys: of the whole chunks before it; tokens:
        those behind; extra: what else names each block."""
        if not tokens:
            return b""
        padded = tokens + array("I", [PAD] * (-len(tokens) % self.unit))
        chain = _lib.Keys()
        chain.extend(keys.data(max(keys.count - 1, 0), keys.count))
        first = chain.count
        self.space.chain(padded, chain, extra)
        return chain.data(first, chain.count)

    def close(self) -> None:
        self.space.close()
        for layout in self._layouts.values():
            layout.close()


def _token_of(keys: bytes) -> bytes:
    return os.urandom(TOKEN_BYTES) if keys else b""


class Handoff:
    """One prompt, on either side: its keys, those of its tail, and the tokens
    of the two promises. b"": there is none of it."""

    def __init__(self, keys: bytes, tail: bytes, tokens: int,
                 token: bytes = b"", tail_token: bytes = b"",
                 member: str = ""):
        self.member = member  # that has it; "": the node, which is alone
        self.half = Half("")  # what is told of it
        self.keys = keys
        self.tail = tail
        self.tokens = tokens  # that are handed off
        self.prompt = tokens  # decode: of its prompt
        self.claims = tokens  # decode: if all of it is staged
        self.token = token or _token_of(keys)
        self.tail_token = tail_token or _token_of(tail)
        self.early = False  # decode: the prefill side has not answered yet
        self.in_pieces = False  # decode: every prefix of it can be staged
        self.has_tail = True  # decode: the other side's tail is the same
        self.tail_saved = False  # prefill: the order was given
        self.promised = threading.Event()  # prefill: or it could not be

    @property
    def chunks(self) -> int:
        return len(self.keys) // _lib.KEY_BYTES

    @property
    def tail_blocks(self) -> int:
        return len(self.tail) // _lib.KEY_BYTES

    @property
    def most(self) -> int:
        """Tokens that are not computed again: not the prompt's last one."""
        return min(self.tokens, self.prompt - 1)

    @property
    def wait_seconds(self) -> float:
        return EARLY_WAIT_SECONDS if self.early else WAIT_SECONDS

    @property
    def chain(self) -> str:
        """Names its whole chunks; "": there are none."""
        return self.keys[-_lib.KEY_BYTES:].hex()

    @property
    def last(self) -> str:
        return (self.tail or self.keys)[-_lib.KEY_BYTES:].hex()

    def tell(self, space: _lib.Space, tails: Tails, what: int) -> None:
        """Of both parts. A node that cannot be told forgets them by itself.
        Who was not told the tokens says nothing: the lease ends by time.
        Refused: its member is not one of the node's cluster."""
        if self.early:
            return
        for where, token in ((space, self.token),
                             (tails.space, self.tail_token)):
            if token:
                try:
                    where.handoff(token, what, TELL_MS, self.member)
                except _lib.LarderError as error:
                    if error.status == _lib.E_INVALID:
                        raise Refused("member") from None


def _sealed(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True,
                      separators=(",", ":")).encode()


def answer(hand: Handoff, space: _lib.Space, name: str) -> dict[str, Any]:
    """What the prefill side's answer carries. name: the space's."""
    fields = {"v": VERSION, "space": name, "tokens": hand.tokens,
              "chain": hand.chain, "key": hand.last,
              "token": hand.token.hex(), "tail": hand.tail_token.hex(),
              "member": hand.member}
    return {**fields, "seal": space.seal(_sealed(fields)).hex()}


def check(given: Any, space: _lib.Space, name: str,
          hand: Handoff) -> Handoff:
    """What the decode side was given, checked against its own prompt: the
    keys are its own, so that nothing that was given can name other KV. Seals of
    another space or version differ: so these are looked at first, which
    chooses the reason and nothing else."""
    if not isinstance(given, dict) or type(given.get("v")) is not int:
        raise Refused("malformed")
    if given["v"] != VERSION:
        raise Refused("space")
    if set(given) != set(FIELDS) or any(
            type(given[k]) is not kind for k, kind in FIELDS.items()):
        raise Refused("malformed")
    if given["space"] != name:
        raise Refused("space")
    fields = {k: v for k, v in given.items() if k != "seal"}
    if not hmac.compare_digest(space.seal(_sealed(fields)).hex().encode(),
                               given["seal"].encode(errors="replace")):
        raise Refused("forged")
    same = given["key"] == hand.last
    if (given["tokens"] != hand.tokens or given["chain"] != hand.chain
            or not same and not hand.chain
            or bool(given["token"]) != bool(hand.keys)
            or bool(given["tail"]) != bool(hand.tail)):
        raise Refused("prompt")
    try:
        tokens = [bytes.fromhex(given[name]) for name in ("token", "tail")]
    except ValueError:
        raise Refused("malformed") from None
    if (any(len(one) not in (0, TOKEN_BYTES) for one in tokens)
            or len(given["member"].encode()) > _lib.MEMBER_MAX):
        raise Refused("malformed")
    made = Handoff(hand.keys, hand.tail, hand.tokens, *tokens,
                   member=given["member"])
    made.prompt, made.claims = hand.prompt, hand.claims
    made.has_tail = same  # else its blocks are of another size
    return made


def promise(hand: Handoff, space: _lib.Space, layout: _lib.Layout,
            tails: Tails) -> bool:
    """Without one, the decode side does not wait: it finds what is there."""
    try:
        if hand.keys:
            hand.member = space.promise(layout, hand.keys, hand.chunks,
                                        hand.token, TELL_MS)
        if hand.tail:
            hand.member = tails.space.promise(
                tails.layout(hand.tokens), hand.tail, hand.tail_blocks,
                hand.tail_token, TELL_MS)
        return True
    except _lib.LarderError as error:
        logger.debug("larder: promise: %s", error)
        return False
    finally:
        hand.promised.set()


class Taken:
    """What the decode side holds of a hand-off."""

    def __init__(self, hand: Handoff,
                 refused: Callable[[str], None] = lambda why: None):
        """refused: is told why it goes without its hand-off."""
        self.hand = hand
        self._refused = refused
        self._wait = _lib.StageParams(
            promised=True, **({"member": hand.member.encode()}
                              if hand.member else {}))
        self.tail: _lib.Lease | None = None
        self.tail_bytes = 0
        self.whole = False  # all of it is staged

    def stage(self, space: _lib.Space, layout: _lib.Layout, tails: Tails,
              left_ms: Callable[[], int], left: Callable[[], bool],
              ) -> tuple[_lib.Lease | None, _lib.Match]:
        """As _stage(). Early, the prefill side may not have promised it yet;
        left: nobody waits for it any more."""
        end = time.monotonic() + (EARLY_SECONDS if self.hand.early else 0)
        while True:
            lease, match = self._stage(space, layout, tails, left_ms)
            if self.whole or left() or time.monotonic() >= end:
                return lease, match
            if lease is not None:
                lease.release()
            time.sleep(EARLY_PAUSE)

    def _stage(self, space: _lib.Space, layout: _lib.Layout, tails: Tails,
               left_ms: Callable[[], int],
               ) -> tuple[_lib.Lease | None, _lib.Match]:
        """Waits for what is promised; the chunks' lease, and what was found of
        them. What is held here needs the other side's lease no more."""
        hand = self.hand
        told = True
        try:
            hand.tell(space, tails, _lib.HANDOFF_RENEW)
        except Refused as why:  # what is here by now, as without a hand-off
            told, self._wait = False, _lib.StageParams()
            self._refused(str(why))
        lease, match = self._stage_chunks(space, layout, left_ms)
        if hand.tail and hand.has_tail and match.chunks == hand.chunks:
            try:
                self._stage_tail(tails, left_ms)
            except _lib.LarderError:
                if lease is not None:
                    lease.release()
                raise
        self.whole = (match.chunks == hand.chunks
                      and (self.tail is not None or not hand.tail))
        if told:
            # A member that has left the cluster ends its lease by time.
            with contextlib.suppress(Refused):
                hand.tell(space, tails, _lib.HANDOFF_OVER)
        return lease, match

    def _stage_tail(self, tails: Tails, left_ms: Callable[[], int]) -> None:
        hand = self.hand
        self.tail, found = tails.space.stage(
            tails.layout(hand.tokens), hand.tail, hand.tail_blocks, left_ms(),
            self._wait)
        if found.chunks == hand.tail_blocks:
            self.tail_bytes = sum(found.tier_bytes)
        else:
            self.release()

    def _stage_chunks(self, space: _lib.Space, layout: _lib.Layout,
                      left_ms: Callable[[], int],
                      ) -> tuple[_lib.Lease | None, _lib.Match]:
        hand, lease, match = self.hand, None, _lib.Match()
        pieces = hand.in_pieces and hand.early and hand.member
        end = 0
        while match.chunks == end < hand.chunks:
            before = lease
            end = min(end + PIECE, hand.chunks) if pieces else hand.chunks
            try:
                lease, match = space.stage(layout, hand.keys, end, left_ms(),
                                           self._wait)
            finally:  # the new one holds what this one did
                if before is not None:
                    before.release()
        return lease, match

    def release(self) -> None:
        tail, self.tail = self.tail, None
        if tail is not None:
            tail.release()
