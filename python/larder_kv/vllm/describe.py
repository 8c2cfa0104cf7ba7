"""What vLLM calls the chunks of the store, for a node that answers routers
(docs/guide/routing.md): their tokens, and vLLM's own hashes of its blocks.

A chunk is described when its save is ordered, and when a lookup finds it, at
most once in AGAIN_SECONDS: a node forgets descriptions at its end, and when it
has too many. A node that does not want them says so without a round trip, and
is not asked again for a while.
"""
from __future__ import annotations

import logging
import socket
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils

from larder_kv import _lib
from larder_kv.engine import kv

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from larder_kv.engine.moves import Move

logger = logging.getLogger("vllm.larder")

AGAIN_SECONDS = 60.0
OFF_SECONDS = 10.0  # after a node that does not want it
CHUNKS_MAX = 65536  # that are remembered as described
TIMEOUT_MS = 1000


def make(config: VllmConfig, cache: KVCacheConfig, described: kv.Model,
         space: _lib.Space, later: Callable[[Callable[[], None]], None],
         pod: str) -> Describer | None:
    """None: no group of the model keeps all of its blocks."""
    group = next((i for i, g in enumerate(described.groups)
                  if g.rule == _lib.RULE_ALL), None)
    if group is None:
        return None
    _, hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(cache, config)
    return Describer(described, group, hash_tokens, space, later,
                     *names(config, pod))


def names(config: VllmConfig, pod: str) -> tuple[str, str]:
    """What routers call this engine and its model: as its own KV events do
    (topic kv@POD@MODEL), unless it is given; else host and model."""
    events = config.kv_events_config
    parts = (events.topic if events is not None else "").split("@")
    own = parts[1:] if len(parts) == 3 and parts[0] == "kv" else ("", "")
    served = config.model_config.served_model_name
    if isinstance(served, (list, tuple)):
        served = served[0] if served else ""
    return (pod or own[0] or socket.gethostname(),
            own[1] or served or config.model_config.model)


class Describer:
    """saving() and found() are called by the scheduler's thread."""

    def __init__(self, described: kv.Model, group: int, hash_tokens: int,
                 space: _lib.Space,
                 later: Callable[[Callable[[], None]], None],
                 pod: str, model: str):
        one = described.groups[group]
        self._chunk = described.chunk_tokens
        self._per_chunk = self._chunk // one.block_tokens
        self._per_block = one.block_tokens // hash_tokens
        self._space = space
        self._later = later
        self._names = (pod.replace("@", "_")[:63], model[:127])
        self._group = (kv.stored_in(described, group), one.index,
                       one.block_tokens)
        self._off_until = 0.0
        self._known: OrderedDict[bytes, float] = OrderedDict()

    def saving(self, move: Move, request: Request) -> None:
        """A save that is ordered."""
        first = move.begin // self._chunk
        at = (first - move.first_key) * _lib.KEY_BYTES
        self._take(request, move.keys[at:], first, move.end // self._chunk)

    def found(self, look: Any, request: Request) -> None:
        """A lookup that is done."""
        self._take(request, look.keys, 0, look.matched)

    def _take(self, request: Request, keys: bytes, first: int,
              end: int) -> None:
        now = time.monotonic()
        if now < self._off_until or not _plain(request):
            return
        skip = 0  # of those that were described lately
        while (first + skip < end
               and now - self._known.get(_key(keys, skip), -AGAIN_SECONDS)
               < AGAIN_SECONDS):
            skip += 1
        keys = keys[skip * _lib.KEY_BYTES:(end - first) * _lib.KEY_BYTES]
        first += skip
        if first >= end:
            return
        tokens = request.all_token_ids[:end * self._chunk]
        count = end * self._per_chunk * self._per_block
        hashes = request.block_hashes[:count]
        if len(tokens) < end * self._chunk or len(hashes) < count:
            return  # vLLM has not hashed them yet
        for i in range(end - first):
            self._known[_key(keys, i)] = now
            self._known.move_to_end(_key(keys, i))
        while len(self._known) > CHUNKS_MAX:
            self._known.popitem(last=False)
        self._later(lambda: self._send(keys, first, end - first, tokens,
                                       hashes))

    def _send(self, keys: bytes, first: int, count: int, tokens: list[int],
              hashes: list[bytes]) -> None:
        """In a thread. What is lost is described again when it is used."""
        before = max(first * self._per_chunk - 1, 0)
        mine = [kv_cache_utils.maybe_convert_block_hash(one) for one in
                hashes[(before + 1) * self._per_block - 1::self._per_block]]
        numbers = isinstance(mine[0], int)
        plain = [one.to_bytes(8, "big") if numbers else bytes(one)
                 for one in mine]
        try:
            wanted = self._space.describe(
                keys, first, count, array("I", tokens),
                b"".join(plain[1:] if first else plain),
                plain[0] if first else None, *self._names, *self._group,
                len(plain[0]), numbers, TIMEOUT_MS)
        except _lib.LarderError as error:
            logger.debug("larder: describe: %s", error)
            wanted = False
        if not wanted:
            self._off_until = time.monotonic() + OFF_SECONDS
            self._known.clear()


def _plain(request: Request) -> bool:
    """Whether its hashes are of nothing but its tokens."""
    return not (request.lora_request or request.mm_features
                or request.cache_salt
                or getattr(request, "prompt_embeds", None) is not None)


def _key(keys: bytes, chunk: int) -> bytes:
    return keys[chunk * _lib.KEY_BYTES:(chunk + 1) * _lib.KEY_BYTES]
