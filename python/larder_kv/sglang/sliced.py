"""KV pages whose inside is described to Larder (options pages=slices, shared).

What is stored does not depend on the order of bytes in SGLang's host memory or
on the number of tensor-parallel ranks: docs/concepts/layout.md. A shard is a
slice of the model's heads and layers, and each rank saves and loads its own.
"""
from __future__ import annotations

import json
import mmap
import time
from array import array
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import Any

from larder_kv import _lib
from larder_kv.engine.kv import whole_slices
from larder_kv.sglang.items import Result, digests
from larder_kv.sglang.pool import Pool

# Of what all pools have in common: what the description makes needless.
NEEDLESS = ("version",)


def _refuse(why: str) -> _lib.LarderError:
    return _lib.LarderError(
        _lib.E_UNSUPPORTED, f"larder: pages=slices, shared: {why}; use "
        "pages=rank")


class Memory:
    """Where pages lie: the pieces of page i at base + offset + i * stride."""

    def __init__(self, base: int, size: int, pages: int, stride: int,
                 piece_bytes: int, offsets: list[int]):
        self.base, self.bytes, self.pages = base, size, pages
        self.stride, self.piece_bytes = stride, piece_bytes
        self.offsets = offsets  # K, V, K, V...
        self.each = len(offsets) // 2  # of K: one piece, or one a layer


def memory_of(pool: Any, layers: int) -> Memory:
    """Of SGLang's host memory, by the addresses that it gives itself."""
    import torch

    tokens = int(pool.page_size)
    pages = int(pool.size) // tokens

    def page(number: int) -> tuple[list[int], int]:
        found, sizes = pool.get_page_buffer_meta(
            torch.arange(number * tokens, (number + 1) * tokens))
        if len(set(sizes)) != 1 or len(found) not in (2, 2 * layers):
            raise _refuse("K and V of a page are not alike")
        return [int(one) for one in found], int(sizes[0])

    (first, piece), (last, _) = page(0), page(pages - 1)
    stride = (last[0] - first[0]) // (pages - 1) if pages > 1 else piece
    if any(b - a != stride * (pages - 1) for a, b in zip(first, last)):
        raise _refuse("the pages of a layer do not follow each other")
    base = min(first)
    return Memory(base, max(last) + piece - base, pages, stride, piece,
                  [one - base for one in first])


class Scratch(Memory):
    """Pages like those of another memory, in one of its own."""

    def __init__(self, like: Memory, pages: int):
        size = len(like.offsets) * pages * like.piece_bytes
        self._map = mmap.mmap(-1, size)
        super().__init__(addressof(c_char.from_buffer(self._map)), size, pages,
                         like.piece_bytes, like.piece_bytes,
                         [i * pages * like.piece_bytes
                          for i in range(len(like.offsets))])

    def address(self, page: int, piece: int) -> int:
        return self.base + self.offsets[piece] + page * self.stride


def _strides(layout: str, layers: int, heads: int, row: int,
             tokens: int) -> tuple[int, int, int]:
    """From layer to layer in a piece, from head to head, from token to
    token."""
    if layout == "page_first":
        return heads * row, row, layers * heads * row
    if layout == "page_first_direct":
        return tokens * heads * row, row, heads * row
    if layout == "layer_first":
        return 0, row, heads * row
    raise _refuse(f"the layout {layout} is not described")


class Inside:
    """What is inside the pages of the KV pool."""

    def __init__(self, pool: Any, config: Any, heads: int | None):
        """heads: KV heads of the model, as far as that is known."""
        here, layers = int(pool.head_num), int(pool.layer_num)
        if config.is_mla_model or config.pp_size * config.attn_cp_size > 1:
            raise _refuse("latent attention, pipeline and context parallelism "
                          "are not described")
        if heads != here * config.tp_size:
            raise _refuse(f"{config.tp_size} ranks with {here} KV heads each "
                          f"do not divide the model's {heads}")
        if not whole_slices(heads, config.tp_size):
            raise _refuse(f"{config.tp_size} ranks cut slices of {heads} KV "
                          "heads apart")
        width = getattr(pool, "v_head_dim", None) or pool.head_dim
        if width != pool.head_dim or layers != getattr(
                pool, "target_layer_num", layers):
            raise _refuse("K and V of different widths, and drafts, are not "
                          "described")
        self.pool, self.heads, self.layers = pool, heads, layers
        self.page_tokens = int(pool.page_size)
        self.memory = memory_of(pool, layers)
        self.row = self.memory.piece_bytes * self.memory.each // (
            self.page_tokens * layers * here)
        self._first, self._here = here * config.tp_rank, here
        self._steps = _strides(str(pool.layout), layers, here, self.row,
                               self.page_tokens)

    def layout(self, chunk_tokens: int,
               memory: Memory | None = None) -> _lib.Layout:
        """Of the pool, or of other memory with such pages."""
        memory = memory or self.memory
        layer_step, head_step, token_step = self._steps
        where = [_lib.Layer(b"kv", 0, offset, memory.stride,
                            memory.piece_bytes) for offset in memory.offsets]
        pages = []
        for layer in range(self.layers):
            at = 2 * layer if memory.each > 1 else 0
            pages.append(_lib.Page(layer, 2, (_lib.Part * 2)(*(
                _lib.Part(at + part, 0, layer * layer_step, head_step,
                          token_step, self.row) for part in range(2)))))
        numbers = (_lib.c_uint32 * self.layers)(*range(self.layers))
        return _lib.Layout(
            chunk_tokens,
            [_lib.Group(_lib.RULE_ALL, self.page_tokens, 0,
                        (_lib.Layer * len(where))(*where), len(where))],
            [_lib.Region(b"host memory", memory.base, memory.bytes)],
            memory.pages,
            pages=[_lib.Pages(self.heads, self._first, self._here, 1, numbers,
                              self.layers, self.layers,
                              (_lib.Page * self.layers)(*pages))],
            model_layers=self.layers, null_block=None)

    def blocks(self, indices: Any) -> array:
        """The pages that begin at every page_tokens-th index."""
        return array("I", [int(at) // self.page_tokens for at in
                           indices[::self.page_tokens].tolist()])

    def move(self, keys: bytes, first_key: int, depth: int, ids: array,
             timeout_ms: int) -> tuple[_lib.Move, Any]:
        """Of pages whose first has so many before it. keys: of their chunks,
        of which the first is number first_key. And what it points to."""
        table = _lib.Table(ids.buffer_info()[0], depth, len(ids))
        return _lib.Move(
            keys=keys, tables=(_lib.Table * 1)(table), first_key=first_key,
            begin=depth * self.page_tokens,
            end=(depth + len(ids)) * self.page_tokens, writers=1,
            timeout_ms=timeout_ms, flags=_lib.PUT_ANNOUNCED), ids


def load_most(count: int, timeout_ms: int,
              load: Callable[[int, int], tuple[int, int]]) -> list[Result]:
    """Of pages in a row. load(pages, milliseconds) gives status and cause, and
    is whole or fails: of one that failed a half is tried, and so on. What lies
    behind a page that is missing is of no use."""
    good, status, cause = count, _lib.OK, 0
    end = time.monotonic() + timeout_ms / 1000
    while good:
        left_ms = int((end - time.monotonic()) * 1000)
        if left_ms < 1:
            status, good = _lib.E_DEADLINE, 0
            break
        got, why = load(good, left_ms)
        if got == _lib.OK:
            break
        status, cause = got, why
        if got != _lib.MISS:
            good = 0
        good //= 2
    return ([Result(_lib.OK, 0)] * good
            + [Result(status, cause)] * (count - good))


def saved(space: _lib.Space, layout: _lib.Layout, move: _lib.Move) -> int:
    """The status of all of it."""
    status = space.save(layout, move)
    return move.item if status == _lib.OK else status


def name_of(inside: Inside, engine: dict[str, Any]) -> bytes:
    """Of the space with pages=slices."""
    common = {k: v for k, v in engine.items() if k not in NEEDLESS}
    return json.dumps(common | {
        "sliced": 1, "heads": inside.heads, "layers": inside.layers,
        "row": inside.row, "dtype": str(inside.pool.dtype)},
        sort_keys=True).encode()


class Sliced(Pool):
    """The KV pool by slices, page by page."""

    def __init__(self, inside: Inside, descriptor: bytes, label: str,
                 node: _lib.Node):
        self.inside, self.descriptor = inside, descriptor
        self.pool, self.name, self.flat = inside.pool, "kv", False
        self.page_tokens = self.chunk_tokens = inside.page_tokens
        self._layout = inside.layout(self.page_tokens)
        self.shards, self.shard = self._layout.slices(), 0
        self.space = node.space(descriptor, self.shards, self.page_tokens,
                                label)

    def get(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        data, ids = digests(keys), self.inside.blocks(indices)

        def load(pages: int, left_ms: int) -> tuple[int, int]:
            move, _ids = self.inside.move(
                data[:pages * _lib.KEY_BYTES], before[0], before[0],
                ids[:pages], left_ms)
            return self.space.load(self._layout, move), move.cause

        return load_most(len(keys), timeout_ms, load)

    def put(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        move, _ids = self.inside.move(digests(keys), before[0], before[0],
                                      self.inside.blocks(indices), timeout_ms)
        return [Result(saved(self.space, self._layout, move), 0)] * len(keys)
