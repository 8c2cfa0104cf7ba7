"""One block of each group, saved and loaded on the engine's own memory.

Where a release of vLLM was not tested, this is tried before it is used: the
block that comes back has to be the one that was saved, as vLLM's own tensors
show it. The node is a small one in this process, so that nothing is left
anywhere. The blocks have what they had before afterwards.
"""
from __future__ import annotations

import dataclasses
from array import array
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.engine.kv import GroupInfo, Model
from larder_kv.vllm import model, versions

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

FROM, TO = 1, 2  # blocks; 0 is vLLM's null block
TIMEOUT_MS = 20000


def run(described: Model, kv: KVCacheConfig, caches: dict[str, Any]) -> None:
    """Raises Unsupported if a block does not come back as it was."""
    for group in described.groups if kv.num_blocks > TO else ():
        one = dataclasses.replace(described, groups=(group,), shards=1,
                                  replicas=1, slices=None, ranks=0,
                                  chunk_tokens=group.block_tokens)
        names = kv.kv_cache_groups[group.index].layer_names
        pages = {name: _pages(name, caches[name], kv.num_blocks)
                 for name in names}
        before = [page.clone() for pair in pages.values() for page in pair]
        try:
            _try(one, kv, caches, group, pages)
        finally:
            for page, old in zip((page for pair in pages.values()
                                  for page in pair), before):
                page.copy_(old)


def _pages(name: str, cache: Any, blocks: int) -> list[torch.Tensor]:
    """The layer's pages of both blocks: those of FROM first."""
    found = []
    for block in (FROM, TO):
        for tensor in model.pieces(name, cache, blocks):
            parts = tensor.shape[0] // blocks
            found.append(tensor[block * parts:(block + 1) * parts])
    return found


def _bytes(page: torch.Tensor) -> bytes:
    import torch

    return page.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def _fill(page: torch.Tensor) -> None:
    import torch

    noise = torch.randint(0, 256, (page.numel() * page.element_size(),),
                          dtype=torch.uint8)
    page.copy_(noise.view(page.dtype).reshape(page.shape))


def _try(one: Model, kv: KVCacheConfig, caches: dict[str, Any],
         group: GroupInfo, pages: dict[str, list[torch.Tensor]]) -> None:
    for pair in pages.values():
        for page in pair:
            _fill(page)
    want = {name: [_bytes(page) for page in pair[:len(pair) // 2]]
            for name, pair in pages.items()}
    layout = model.layout(one, kv, caches)
    node = _lib.Node(f"embed:?dram={max(64 << 20, 4 * layout.bytes(0))}")
    space = node.space(b"trial", 1, group.block_tokens)
    try:
        keys = _lib.Keys()
        space.chain(array("I", bytes(4 * group.block_tokens)), keys)
        for run, block in ((space.save, FROM), (space.load, TO)):
            ids = array("I", [block])
            tables = (_lib.Table * 1)((ids.buffer_info()[0], 0, 1))
            move = _lib.Move(keys=keys.data(0, 1), tables=tables, writers=1,
                             end=group.block_tokens, timeout_ms=TIMEOUT_MS)
            status = run(layout, move)
            if status != _lib.OK or move.failed:
                _refuse(f"a {group.kind} block cannot be "
                        f"{'saved' if block == FROM else 'loaded'}: "
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
        + versions.ADVICE)
