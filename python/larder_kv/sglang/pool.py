"""One of SGLang's host pools, and the space that holds its pages."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from larder_kv import _lib
from larder_kv.sglang import name as names
from larder_kv.sglang.items import Batch, Result, tensor_piece

GOOD_PUT = (_lib.OK, _lib.PRESENT)


class Place:
    """Which part of a page this rank holds: shard number `shard` of `shards`.
    A page is found only if all its shards are there, so that all ranks find
    the same."""

    def __init__(self, config: Any, replicated: bool):
        """replicated: the ranks of a tensor-parallel group hold the same."""
        tp = 1 if replicated else config.tp_size
        self.shape = {"tensor": tp, "pipeline": config.pp_size,
                      "context": config.attn_cp_size}
        self.shards = tp * config.pp_size * config.attn_cp_size
        self.shard = ((config.pp_rank * config.attn_cp_size
                       + config.attn_cp_rank) * tp
                      + (0 if replicated else config.tp_rank))
        if self.shards > _lib.SHARDS_MAX:
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED, f"larder: {self.shards} ranks with KV of "
                f"their own are more than {_lib.SHARDS_MAX}")


class Pool:
    """Its pages, by SGLang's hashes. Every call may come from any thread."""

    before = 1  # keys of pages before those of a call, that it wants to know

    def __init__(self, pool: Any, name: str, flat: bool, place: Place,
                 engine: dict[str, Any], label: str, node: _lib.Node):
        """flat: SGLang gives and takes pages as tensors, by itself."""
        self.pool, self.name = pool, name
        self.page_tokens = self.chunk_tokens = int(pool.page_size)
        self.shard, self.shards = place.shard, place.shards
        sizes = [] if flat else self._probe()
        # Without pieces pages go by way of a flat tensor, made here.
        self.flat = flat or not sizes
        if sum(sizes) > _lib.VALUE_MAX:
            raise _lib.LarderError(
                _lib.E_SIZE, f"larder: a page of pool {name} has {sum(sizes)} "
                f"bytes, and the store takes {_lib.VALUE_MAX}: use a smaller "
                "--page-size")
        described = engine | place.shape | names.of_pool(
            pool, name, self.flat,
            sizes if place.shape["pipeline"] == 1 else ())
        self.descriptor = json.dumps(described, sort_keys=True).encode()
        self._layout = _lib.Layout(
            self.page_tokens, [_lib.Group(_lib.RULE_ALL, self.page_tokens, 0)])
        self.space = node.space(self.descriptor, place.shards,
                                self.page_tokens, label)

    def _probe(self) -> list[int]:
        """The bytes of a page's pieces; [] if the pool names no pieces."""
        import torch

        try:
            _, sizes = self.pool.get_page_buffer_meta(
                torch.arange(self.page_tokens))
        except (AssertionError, AttributeError, NotImplementedError,
                ValueError):  # some name pieces of allocated pages only
            return []
        return [int(size) for size in sizes]

    # ---- lookups ----

    def match(self, keys: bytes, before: tuple[int, bytes],
              timeout_ms: int) -> int:
        """How many are there from the first on; one round trip. before: of
        them, see get()."""
        return int(self.space.match(self._layout, keys,
                                    len(keys) // _lib.KEY_BYTES,
                                    timeout_ms).chunks)

    def exists(self, keys: Sequence[str], timeout_ms: int) -> list[bool]:
        """Of each page, whether this rank's part is there."""
        found = Batch(keys, self.shard).run(
            self.space, _lib.OP_EXISTS, timeout_ms)
        return [one.status == _lib.OK for one in found]

    def tell(self, keys: bytes, timeout_ms: int) -> None:
        """A request has these pages."""
        count = len(keys) // _lib.KEY_BYTES
        self.space.announce(keys, count, tokens=count * self.page_tokens,
                            timeout_ms=timeout_ms)

    # ---- pages ----

    def get(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        """Into the pages that begin at every page_tokens-th index. before:
        pages before the first one in its prompt, and the keys of the last of
        them, as far as they are known."""
        if not self.flat:
            return self._run(_lib.OP_GET, keys, indices, before, timeout_ms)
        pages = [self.pool.get_dummy_flat_data_page() for _ in keys]
        found = self.get_tensors(keys, pages, timeout_ms)
        for at, page, one in zip(self._starts(indices), pages, found):
            if one.status == _lib.OK:
                self.pool.set_from_flat_data_page(at, page)
        return found

    def put(self, keys: Sequence[str], indices: Any,
            before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        if not self.flat:
            return self._run(_lib.OP_PUT, keys, indices, before, timeout_ms)
        pages = [self.pool.get_data_page(at, flat=True).contiguous()
                 for at in self._starts(indices)]
        return self.put_tensors(keys, pages, before, timeout_ms)

    def get_tensors(self, keys: Sequence[str], pages: Sequence[Any],
                    timeout_ms: int) -> list[Result]:
        batch = Batch(keys, self.shard)
        return self._checked(batch, _lib.OP_GET, timeout_ms,
                             [tensor_piece(page) for page in pages])

    def put_tensors(self, keys: Sequence[str], pages: Sequence[Any],
                    before: tuple[int, bytes],
                    timeout_ms: int) -> list[Result]:
        batch = Batch(keys, self.shard, before)
        return self._checked(batch, _lib.OP_PUT, timeout_ms,
                             [tensor_piece(page) for page in pages])

    def _starts(self, indices: Any) -> list[int]:
        return [int(at) for at in indices[::self.page_tokens].tolist()]

    def _run(self, op: int, keys: Sequence[str], indices: Any,
             before: tuple[int, bytes], timeout_ms: int) -> list[Result]:
        addresses, sizes = self.pool.get_page_buffer_meta(indices)
        return self._checked(Batch(keys, self.shard, before), op,
                             timeout_ms, list(zip(addresses, sizes)))

    def _checked(self, batch: Batch, op: int, timeout_ms: int,
                 pieces: list[tuple[int, int]]) -> list[Result]:
        """A page that is shorter than its memory is none of this pool's."""
        batch.pieces([p[0] for p in pieces], [p[1] for p in pieces])
        found = batch.run(self.space, op, timeout_ms)
        each = len(pieces) // batch.count
        size = sum(p[1] for p in pieces[:each])
        if op == _lib.OP_GET:
            for one in found:
                if one.status == _lib.OK and one.length != size:
                    one.status = _lib.E_SIZE
        return found

    def reset(self) -> int:
        """Drops every page."""
        return self.space.reset()

    def close(self) -> None:
        self.space.close()
        self._layout.close()
