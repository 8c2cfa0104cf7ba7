"""Some blocks of each group, saved and loaded on the engine's own memory.

Where a release of vLLM was not tested, this is tried before it is used: the
blocks that come back have to be those that were saved, as vLLM's own tensors
show it. Every group is tried by itself, its pages as they are; and then all
together, as the model is cut, if it is. The node is a small one in this
process, so that nothing is left anywhere. The blocks have what they had before
afterwards.
"""
from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.engine.kv import Model, stored
from larder_kv.vllm import model, versions

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

    Layout = Callable[[Model], _lib.Layout]  # of the engine's memory

TIMEOUT_MS = 20000


def run(described: Model, kv: KVCacheConfig, caches: dict[str, Any],
        layout_of: Layout) -> None:
    """Raises Unsupported if a block does not come back as it was."""
    for group in described.groups:
        _run(dataclasses.replace(
            described, groups=(group,), shards=1, replicas=1, slices=None,
            ranks=0, chunk_tokens=group.block_tokens), kv, caches, layout_of)
    chunk = math.lcm(*(g.block_tokens for g in described.groups))
    # Of a longer one a group stores no more than its window.
    if described.slices is not None and all(
            not g.window_tokens or g.window_tokens > chunk
            for g in stored(described)):
        _run(dataclasses.replace(described, chunk_tokens=chunk), kv, caches,
             layout_of)


def _run(one: Model, kv: KVCacheConfig, caches: dict[str, Any],
         layout_of: Layout) -> None:
    """A chunk, from some blocks of each group to others."""
    blocks, at = [], 1  # 0 is vLLM's null block
    for group in one.groups:
        count = one.chunk_tokens // group.block_tokens
        blocks.append((range(at, at + count), range(at + count,
                                                    at + 2 * count)))
        at += 2 * count
    if at > kv.num_blocks:
        return
    pages = {name: _pages(name, caches[name], kv.num_blocks, *ids)
             for group, ids in zip(one.groups, blocks)
             for name in kv.kv_cache_groups[group.index].layer_names}
    before = [page.clone() for pair in pages.values() for page in pair]
    try:
        _try(one, blocks, layout_of(one), pages)
    finally:
        for page, old in zip((page for pair in pages.values()
                              for page in pair), before):
            page.copy_(old)


def _pages(name: str, cache: Any, blocks: int,
           *both: range) -> list[torch.Tensor]:
    """The layer's pages of these blocks: those that are saved first."""
    found = []
    for ids in both:
        for tensor in model.pieces(name, cache, blocks):
            parts = tensor.shape[0] // blocks
            found += [tensor[block * parts:(block + 1) * parts]
                      for block in ids]
    return found


def _bytes(page: torch.Tensor) -> bytes:
    import torch

    return page.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def _fill(page: torch.Tensor) -> None:
    import torch

    noise = torch.randint(0, 256, (page.numel() * page.element_size(),),
                          dtype=torch.uint8)
    page.copy_(noise.view(page.dtype).reshape(page.shape))


def _try(one: Model, blocks: list[tuple[range, range]], layout: _lib.Layout,
         pages: dict[str, list[torch.Tensor]]) -> None:
    for pair in pages.values():
        for page in pair:
            _fill(page)
    want = {name: [_bytes(page) for page in pair[:len(pair) // 2]]
            for name, pair in pages.items()}
    size = sum(layout.bytes(i) for i in range(len(stored(one))))
    node = _lib.Node(f"embed:?dram={max(64 << 20, 4 * size)}")
    space = node.space(b"trial", one.shards, one.chunk_tokens)
    try:
        keys = _lib.Keys()
        space.chain(array("I", bytes(4 * one.chunk_tokens)), keys)
        for run, which in ((space.save, 0), (space.load, 1)):
            ids = [array("I", pair[which]) for pair in blocks]
            tables = (_lib.Table * len(ids))(
                *((each.buffer_info()[0], 0, len(each)) for each in ids))
            move = _lib.Move(keys=keys.data(0, 1), tables=tables, writers=1,
                             end=one.chunk_tokens, timeout_ms=TIMEOUT_MS)
            status = run(layout, move)
            if status != _lib.OK or move.failed:
                _refuse(f"{', '.join(g.kind for g in one.groups)} blocks "
                        f"cannot be {'loaded' if which else 'saved'}: "
                        + str(_lib.fail(status)))
    finally:
        space.close()
        node.close()
        layout.close()
        if layout.gpu is not None:
            layout.gpu.close()
    for name, pair in pages.items():
        half = len(pair) // 2
        if want[name] != [_bytes(page) for page in pair[half:]] or (
                want[name] != [_bytes(page) for page in pair[:half]]):
            _refuse(f"a block of layer {name} is not loaded as it was saved")


def _refuse(why: str) -> None:
    raise versions.Unsupported(
        f"larder: vLLM {versions.vllm.__version__} was not tested, and {why}; "
        + versions.advice())
