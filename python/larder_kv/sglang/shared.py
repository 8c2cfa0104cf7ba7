"""KV pages that SGLang shares with vLLM (option pages=shared):
docs/concepts/layout.md.

vLLM's connector stores chunks of several of SGLang's pages, and names each by
SGLang's hash of its last page. So a chunk is found by the hashes that SGLang
gives. The pages behind the last whole chunk of a prompt lie each by itself, for
SGLang alone. When the rest of their chunk comes, they are read back, and the
chunk is saved whole.

A chunk that is named by a hash holds the pages that end with that hash,
wherever they lie in a prompt: what is loaded by it is right whatever SGLang
says of their place. Only whether it is found depends on that.
"""
from __future__ import annotations

import ctypes
import json
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import shared
from larder_kv.engine.shared import refused
from larder_kv.sglang import name as names
from larder_kv.sglang.items import Result, digests
from larder_kv.sglang.pool import Pool
from larder_kv.sglang.sliced import (Inside, Scratch, Sliced, load_most,
                                     saved)

KNOWN_MAX = 65536  # pages of which it is remembered where they lie
ALONE = b""  # by itself
# Arguments of the server that change KV, and that the name does not have.
REFUSED = (
    "quantization", "quantization_param_path", "modelopt_quant",
    "rl_quant_profile", "torchao_config", "custom_weight_loader",
    "model_loader_extra_config", "dllm_algorithm", "speculative_algorithm",
    "quantize_and_serve", "enable_lora", "lora_paths",
    "enable_page_major_kv_layout")
UNSET = (None, "", False, "auto", "{}", [], {})


def _name(args: Any, weights: str, inside: Inside) -> bytes:
    for one in REFUSED:
        if getattr(args, one, None) not in UNSET:
            raise refused(f"SGLang's argument {one} changes KV in a way that "
                          "vLLM does not know")
    if getattr(args, "kv_cache_dtype", None) not in UNSET:
        raise refused(f"KV of type {args.kv_cache_dtype}")
    overrides = getattr(args, "json_model_override_args", None) or "{}"
    return shared.descriptor(
        shared.Weights(args.model_path, getattr(args, "revision", None),
                       str(getattr(args, "load_format", "auto")), weights,
                       json.loads(overrides)),
        shared.Rows(str(inside.pool.dtype).removeprefix("torch."),
                    inside.heads, inside.layers, inside.row,
                    inside.page_tokens))


class _Known:
    """Of pages: the key of the chunk that they lie in, or ALONE."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, page: bytes) -> bytes | None:
        with self._lock:
            return self._chunks.get(page)

    def add(self, keys: bytes, chunk: bytes) -> None:
        with self._lock:
            for at in range(0, len(keys), _lib.KEY_BYTES):
                page = keys[at:at + _lib.KEY_BYTES]
                self._chunks[page] = chunk
                self._chunks.move_to_end(page)
            while len(self._chunks) > KNOWN_MAX:
                self._chunks.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()


def _key(keys: bytes, i: int) -> bytes:
    return keys[i * _lib.KEY_BYTES:(i + 1) * _lib.KEY_BYTES]


class Shared(Pool):
    """The KV pool, by chunks of its pages."""

    def __init__(self, inside: Inside, args: Any, options: Options,
                 label: str, node: _lib.Node):
        self.inside, self.pool = inside, inside.pool
        self.name, self.flat = "kv", False
        self.page_tokens = inside.page_tokens
        self.chunk_tokens = shared.chunk_of(self.page_tokens, options.chunk)
        self._each = self.chunk_tokens // self.page_tokens
        self.before = max(1, self._each - 1)
        self.descriptor = _name(args, options.weights, inside)
        self._layout = inside.layout(self.chunk_tokens)
        self.shards, self.shard = self._layout.slices(), 0
        self.space = node.space(self.descriptor, self.shards,
                                self.chunk_tokens, label)
        # Another space: a chunk's tokens are in a space's name.
        self._alone = (Sliced(inside, self.descriptor, label, node)
                       if self._each > 1 else None)
        self._known = _Known()
        self._scratch = Scratch(inside.memory, self._each)
        self._whole = inside.layout(self.chunk_tokens, self._scratch)
        self._parts = inside.layout(self.page_tokens, self._scratch)
        self._scratch_lock = threading.Lock()

    def _move(self, keys: bytes, depth: int, ids: Any,
              timeout_ms: int) -> tuple[_lib.Move, Any]:
        return self.inside.move(keys, depth // self._each, depth, ids,
                                timeout_ms)

    def _ends(self, keys: bytes, first: int, at: int) -> list[int]:
        """The last pages of chunks, from the one that page `at` lies in, by
        their place in keys. first: pages before keys."""
        begin = (first + at) // self._each * self._each - first
        return list(range(begin + self._each - 1,
                          len(keys) // _lib.KEY_BYTES, self._each))

    # ---- lookups ----

    def match(self, keys: bytes, before: tuple[int, bytes],
              timeout_ms: int) -> int:
        """Pages from the first on: chunks, then pages that lie by themselves
        up to where the next chunk begins, and so on."""
        count, end = len(keys) // _lib.KEY_BYTES, _end(timeout_ms)
        at, begin = 0, -1
        while begin < at < count and time.monotonic() < end and (
                begin < 0 or (before[0] + at) % self._each == 0):
            begin = at
            at += self._match_chunks(keys, before[0], at, _left(end))
            if self._alone is not None and at < count:
                at += self._match_alone(keys, before[0], at, _left(end))
        return at

    def _match_chunks(self, keys: bytes, first: int, at: int,
                      timeout_ms: int) -> int:
        ends = self._ends(keys, first, at)
        found = self.space.match(
            self._layout, b"".join(_key(keys, i) for i in ends), len(ends),
            timeout_ms).chunks if ends else 0
        begin = at
        for end in ends[:found]:
            self._known.add(keys[at * _lib.KEY_BYTES:
                                 (end + 1) * _lib.KEY_BYTES], _key(keys, end))
            at = end + 1
        return at - begin

    def _match_alone(self, keys: bytes, first: int, at: int,
                     timeout_ms: int) -> int:
        rest = self._each - (first + at) % self._each
        some = keys[at * _lib.KEY_BYTES:(at + rest) * _lib.KEY_BYTES]
        found = self._alone.match(some, (first + at, b""), timeout_ms)
        self._known.add(some[:found * _lib.KEY_BYTES], ALONE)
        return found

    def tell(self, keys: bytes, timeout_ms: int) -> None:
        count = len(keys) // _lib.KEY_BYTES // self._each
        if count:
            self.space.announce(
                b"".join(_key(keys, i) for i in self._ends(keys, 0, 0)), count,
                tokens=len(keys) // _lib.KEY_BYTES * self.page_tokens,
                timeout_ms=timeout_ms)

    # ---- loads ----

    def _runs(self, keys: bytes, first: int
              ) -> Iterator[tuple[int, int, list[bytes]]]:
        """Pages in a row that lie in chunks, and those chunks; or none, and
        they lie by themselves."""
        count = len(keys) // _lib.KEY_BYTES
        begin, at, chunks = 0, 0, []
        while at < count:
            end = at + self._each - 1 - (first + at) % self._each
            known = self._known.get(_key(keys, min(end, count - 1)))
            if known is None:  # never looked up: it may be in a chunk
                known = _key(keys, end) if end < count else ALONE
            if at > begin and bool(chunks) != bool(known):
                yield begin, at, chunks
                begin, chunks = at, []
            chunks += [known] if known else []
            at = min(end + 1, count)
        if begin < count:
            yield begin, count, chunks

    def get(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        data, ids = digests(keys), self.inside.blocks(indices)
        found: list[Result] = []
        end = _end(timeout_ms)
        for begin, behind, chunks in self._runs(data, before[0]):
            depth = before[0] + begin
            if chunks:
                found += self._load(chunks, ids[begin:behind], depth,
                                    _left(end))
            else:
                found += self._alone.get(
                    keys[begin:behind],
                    indices[begin * self.page_tokens:
                            behind * self.page_tokens], (depth, b""),
                    _left(end))
            if found[-1].status != _lib.OK:
                break
        return found + [Result(_lib.MISS, 0)] * (len(keys) - len(found))

    def _load(self, chunks: list[bytes], ids: Any, depth: int,
              timeout_ms: int) -> list[Result]:
        def load(pages: int, left_ms: int) -> tuple[int, int]:
            need = (depth % self._each + pages - 1) // self._each + 1
            move, _ids = self._move(b"".join(chunks[:need]), depth,
                                    ids[:pages], left_ms)
            return self.space.load(self._layout, move), move.cause

        return load_most(len(ids), timeout_ms, load)

    # ---- saves ----

    def put(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        """Whole chunks; and pages before and behind them by themselves."""
        data, end = digests(keys), _end(timeout_ms)
        count, depth = len(keys), before[0]
        head = -depth % self._each  # pages that a chunk lacks
        status, at = [], 0
        if 0 < head <= count:
            if self._complete(data, indices, before, head, _left(end)):
                status, at = [_lib.OK] * head, head
            else:
                at = head
                status = self._put_alone(keys, indices, depth, 0, head, end)
        whole = 0 if head > count else (count - at) // self._each * self._each
        if whole:
            status += self._put_chunks(data, indices, depth, at, whole, end)
        at += whole
        if at < count:
            status += self._put_alone(keys, indices, depth, at, count, end)
        return [Result(one, 0) for one in status]

    def _put_alone(self, keys: Sequence[str], indices: Any, depth: int,
                   begin: int, behind: int, end: float) -> list[int]:
        found = self._alone.put(
            keys[begin:behind],
            indices[begin * self.page_tokens:behind * self.page_tokens],
            (depth + begin, b""), _left(end))
        if found[0].status == _lib.OK:
            self._known.add(digests(keys[begin:behind]), ALONE)
        return [one.status for one in found]

    def _put_chunks(self, keys: bytes, indices: Any, depth: int, at: int,
                    count: int, end: float) -> list[int]:
        ends = self._ends(keys, depth, at)
        ids = self.inside.blocks(
            indices[at * self.page_tokens:(at + count) * self.page_tokens])
        move, _ids = self._move(b"".join(_key(keys, i) for i in ends),
                                depth + at, ids, _left(end))
        status = saved(self.space, self._layout, move)
        if status == _lib.OK:
            for i in ends:
                self._known.add(keys[(i + 1 - self._each) * _lib.KEY_BYTES:
                                     (i + 1) * _lib.KEY_BYTES], _key(keys, i))
        return [status] * count

    def _complete(self, keys: bytes, indices: Any, before: tuple[int, bytes],
                  head: int, timeout_ms: int) -> bool:
        """Saves the chunk whose last pages these are: its first ones are read
        back. False: they are not there, or it was not kept."""
        depth, known = before
        first = depth % self._each
        known = known[-first * _lib.KEY_BYTES:]
        if len(known) < first * _lib.KEY_BYTES:
            return False
        end = _end(timeout_ms)
        with self._scratch_lock:
            if not self._read_back(known, depth - first, first, _left(end)):
                return False
            from_, sizes = self.pool.get_page_buffer_meta(
                indices[:head * self.page_tokens])
            pieces = len(self._scratch.offsets)
            for i, (address, size) in enumerate(zip(from_, sizes)):
                ctypes.memmove(self._scratch.address(first + i // pieces,
                                                     i % pieces),
                               int(address), int(size))
            key = _key(keys, head - 1)
            move, _ids = self._move(key, depth - first,
                                    array("I", range(self._each)), _left(end))
            if saved(self.space, self._whole, move) != _lib.OK:
                return False
        self._known.add(known + keys[:head * _lib.KEY_BYTES], key)
        return True

    def _read_back(self, keys: bytes, depth: int, count: int,
                   timeout_ms: int) -> bool:
        """The first pages of a chunk, into the scratch: from the chunk of
        another prompt that begins likewise, or one by one."""
        ids = array("I", range(count))
        chunk = self._known.get(_key(keys, count - 1))
        if chunk:
            move, _ids = self._move(chunk, depth, ids, timeout_ms)
            return self.space.load(self._whole, move) == _lib.OK
        move, _ids = self.inside.move(keys, depth, depth, ids, timeout_ms)
        return self._alone.space.load(self._parts, move) == _lib.OK

    # ---- the rest ----

    def reset(self) -> int:
        self._known.clear()
        status = super().reset()
        other = self._alone.reset() if self._alone is not None else _lib.OK
        return other if status == _lib.OK else status

    def close(self) -> None:
        if self._alone is not None:
            self._alone.close()
        super().close()
        self._whole.close()
        self._parts.close()


def _end(timeout_ms: int) -> float:
    return time.monotonic() + timeout_ms / 1000


def _left(end: float) -> int:
    """Milliseconds. What begins when they are over ends at once."""
    return max(1, int((end - time.monotonic()) * 1000))
