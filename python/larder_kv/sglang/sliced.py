"""KV pages whose inside is described to Larder (option pages=slices).

What is stored does not depend on the order of bytes in SGLang's host memory or
on the number of tensor-parallel ranks: docs/concepts/layout.md. A shard is a slice of
the model's heads and layers, and each rank saves and loads its own.
"""
from __future__ import annotations

import json
import time
from array import array
from collections.abc import Sequence
from typing import Any

from larder_kv import _lib
from larder_kv.sglang.items import Result, digests
from larder_kv.sglang.pool import Pool

# Of what all pools have in common: what the description makes needless.
NEEDLESS = ("version",)


def _refuse(why: str) -> _lib.LarderError:
    return _lib.LarderError(
        _lib.E_UNSUPPORTED, f"larder: pages=slices: {why}; use pages=rank")


class _Memory:
    """Where a pool's pages lie, from the addresses that it gives itself."""

    def __init__(self, pool: Any, layers: int):
        import torch

        tokens = int(pool.page_size)
        self.pages = int(pool.size) // tokens

        def page(number: int) -> list[int]:
            found, sizes = pool.get_page_buffer_meta(
                torch.arange(number * tokens, (number + 1) * tokens))
            self.piece_bytes = int(sizes[0])
            if len(set(sizes)) != 1 or len(found) not in (2, 2 * layers):
                raise _refuse("K and V of a page are not alike")
            return [int(one) for one in found]

        first, last = page(0), page(self.pages - 1)
        self.each = len(first) // 2  # of K: one piece, or one a layer
        self.stride = ((last[0] - first[0]) // (self.pages - 1)
                       if self.pages > 1 else self.piece_bytes)
        if any(b - a != self.stride * (self.pages - 1)
               for a, b in zip(first, last)):
            raise _refuse("the pages of a layer do not follow each other")
        self.base = min(first)
        self.bytes = max(last) + self.piece_bytes - self.base
        self.offsets = [one - self.base for one in first]  # K, V, K, V...


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


class Sliced(Pool):
    """The KV pool, by slices."""

    def __init__(self, pool: Any, config: Any, engine: dict[str, Any],
                 heads: int | None, label: str, node: _lib.Node):
        """heads: KV heads of the model, as far as that is known."""
        here, layers = int(pool.head_num), int(pool.layer_num)
        if config.is_mla_model or config.pp_size * config.attn_cp_size > 1:
            raise _refuse("latent attention, pipeline and context parallelism "
                          "are not described")
        if heads != here * config.tp_size:
            raise _refuse(f"{config.tp_size} ranks with {here} KV heads each "
                          f"do not divide the model's {heads}")
        width = getattr(pool, "v_head_dim", None) or pool.head_dim
        if width != pool.head_dim or layers != getattr(
                pool, "target_layer_num", layers):
            raise _refuse("K and V of different widths, and drafts, are not "
                          "described")
        self.pool, self.name, self.flat = pool, "kv", False
        self.page_tokens = int(pool.page_size)
        memory = _Memory(pool, layers)
        row = memory.piece_bytes * memory.each // (
            self.page_tokens * layers * here)
        self._layout = self._described(memory, row, heads,
                                       here * config.tp_rank, here, layers)
        common = {k: v for k, v in engine.items() if k not in NEEDLESS}
        self.descriptor = json.dumps(common | {
            "sliced": 1, "heads": heads, "layers": layers, "row": row,
            "dtype": str(pool.dtype)}, sort_keys=True).encode()
        self.shards = self._layout.slices()
        self.shard = 0
        self.space = node.space(self.descriptor, self.shards,
                                self.page_tokens, label)

    def _described(self, memory: _Memory, row: int, heads: int, first: int,
                   here: int, layers: int) -> _lib.Layout:
        layer_step, head_step, token_step = _strides(
            str(self.pool.layout), layers, here, row, self.page_tokens)
        where = [_lib.Layer(b"kv", 0, offset, memory.stride,
                            memory.piece_bytes) for offset in memory.offsets]
        pages = []
        for layer in range(layers):
            at = 2 * layer if memory.each > 1 else 0
            pages.append(_lib.Page(layer, 2, (_lib.Part * 2)(*(
                _lib.Part(at + part, 0, layer * layer_step, head_step,
                          token_step, row) for part in range(2)))))
        numbers = (_lib.c_uint32 * layers)(*range(layers))
        return _lib.Layout(
            self.page_tokens,
            [_lib.Group(_lib.RULE_ALL, self.page_tokens, 0,
                        (_lib.Layer * len(where))(*where), len(where))],
            [_lib.Region(b"host memory", memory.base, memory.bytes)],
            memory.pages,
            pages=[_lib.Pages(heads, first, here, 1, numbers, layers, layers,
                              (_lib.Page * layers)(*pages))],
            model_layers=layers, null_block=None)

    def _move(self, keys: Sequence[str], indices: Any, depth: int,
              timeout_ms: int) -> tuple[_lib.Move, Any]:
        """And what it points to."""
        ids = array("I", [at // self.page_tokens
                          for at in self._starts(indices)])
        table = _lib.Table(ids.buffer_info()[0], depth, len(ids))
        return _lib.Move(
            keys=digests(keys), tables=(_lib.Table * 1)(table),
            first_key=depth, begin=depth * self.page_tokens,
            end=(depth + len(ids)) * self.page_tokens, writers=1,
            timeout_ms=timeout_ms, flags=_lib.PUT_ANNOUNCED), ids

    def get(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        """A load is whole or fails: of one that failed a half is tried, and
        so on. What lies behind a page that is missing is of no use."""
        good = len(keys)
        status, cause = _lib.OK, 0
        end = time.monotonic() + timeout_ms / 1000
        while good:
            left_ms = int((end - time.monotonic()) * 1000)
            if left_ms < 1:
                status, good = _lib.E_DEADLINE, 0
                break
            move, _ids = self._move(
                keys[:good], indices[:good * self.page_tokens], before[0],
                left_ms)
            got = self.space.load(self._layout, move)
            if got == _lib.OK:
                break
            status, cause = got, move.cause
            if got != _lib.MISS:
                good = 0
            good //= 2
        return ([Result(_lib.OK, 0)] * good
                + [Result(status, cause)] * (len(keys) - good))

    def put(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        move, _ids = self._move(keys, indices, before[0], timeout_ms)
        status = self.space.save(self._layout, move)
        if status == _lib.OK and (move.failed or move.skipped):
            status = move.item if move.failed else _lib.DECLINED
        return [Result(status, 0)] * len(keys)
