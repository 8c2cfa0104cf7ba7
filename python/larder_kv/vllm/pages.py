"""What is inside vLLM's pages, as far as it is known.

Where it is, a chunk's shards are slices of the model (docs/layout.md), and
engines of other tensor and pipeline parallel sizes share them. The CPU's pages
are packed for its instructions, head by head: a head's bytes of a block are
opaque. Elsewhere a page is opaque, and a shard is a rank's.
"""
from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.engine.kv import GroupInfo, Slices
from larder_kv.vllm import versions

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

FIRST = (0, 32)  # whose pages are [blocks, heads, tokens, bytes]
# As C cuts them: a rank that holds a part of a slice only saves nothing of it.
HEAD_SLICES = 16
PIPELINES = (1, 2, 4)


def index_of(name: str) -> int | None:
    """A layer's number in the model; None: its name has not one number."""
    found = [int(part) for part in name.split(".") if part.isdigit()]
    return found[0] if len(found) == 1 else None


def _indexes(kv: KVCacheConfig, group: GroupInfo) -> tuple[int, ...] | None:
    found = [index_of(name)
             for name in kv.kv_cache_groups[group.index].layer_names]
    if None in found or len(set(found)) != len(found):
        return None
    return tuple(sorted(found))


def _head_slices(heads: int) -> int:
    return max(n for n in range(1, HEAD_SLICES + 1) if heads % n == 0)


def _heads(config: VllmConfig, kv: KVCacheConfig,
           groups: tuple[GroupInfo, ...]) -> int | None:
    """The model's KV heads, if every layer has as many. None: it is not so."""
    tp = config.parallel_config.tensor_parallel_size
    heads = (1 if config.model_config.use_mla
             else config.model_config.get_total_num_kv_heads())
    here = max(1, heads // tp)
    for group in groups:
        spec = kv.kv_cache_groups[group.index].kv_cache_spec
        names = {c.__name__ for c in type(spec).__mro__}
        if ("UniformTypeKVCacheSpecs" in names
                or getattr(spec, "num_kv_heads", None) != here
                or spec.page_size_bytes % here != 0):
            return None
    return heads if heads % tp == 0 or tp % heads == 0 else None


def slices_of(config: VllmConfig, kv: KVCacheConfig,
              groups: tuple[GroupInfo, ...], draft: bool) -> Slices | str:
    """How the model is cut; or why its pages stay opaque, in words. The same
    on the scheduler's side and the workers'. draft: there is one, a model."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return f"pages of {current_platform.device_type} are not described yet"
    numbers = re.match(r"(\d+)\.(\d+)", versions.minor())
    if numbers is None or (int(numbers[1]), int(numbers[2])) < FIRST:
        return f"pages of vLLM {versions.minor()} are not described"
    if any(g.rule == _lib.RULE_LAST for g in groups):
        return "recurrent state is one rank's"
    if draft:
        return "layers of a draft have no place in the model"
    heads = _heads(config, kv, groups)
    if heads is None:
        return "layers differ in KV heads"
    tp = config.parallel_config.tensor_parallel_size
    if 1 < _head_slices(heads) < min(tp, heads):
        return f"a rank of {tp} holds less than a slice of {heads} KV heads"
    layers = config.model_config.get_total_num_hidden_layers()
    found = [_indexes(kv, group) for group in groups]
    pp = config.parallel_config.pipeline_parallel_size
    if pp > 1:
        if pp not in PIPELINES or os.environ.get("VLLM_PP_LAYER_PARTITION"):
            return "a rank of this pipeline holds parts of slices"
        # One group (describe() sees to it), of which this rank has a part.
        found = [tuple(range(layers)) if one is not None else None
                 for one in found]
    if None in found or sorted(i for one in found for i in one) != (
            list(range(layers))):
        return "not every layer has KV of its own"
    return Slices(heads, layers, tuple(found))


def _strides(name: str, tensor: torch.Tensor, blocks: int,
             here: int) -> tuple[int, int]:
    """From head to head in a page, and bytes of a head's rows in a block."""
    size, stride = tensor.shape, tensor.stride()
    inner = size[2:] if tensor.dim() == 4 else size[1:]
    step, whole = 1, True
    for n, s in zip(reversed(inner), reversed(stride[-len(inner):])):
        whole = whole and (n == 1 or s == step)
        step *= n
    heads = size[1] if tensor.dim() == 4 else 1
    if size[0] != blocks or heads != here or not whole:
        raise versions.Unsupported(
            f"larder: the KV cache of layer {name} has shape {tuple(size)} "
            f"and strides {tuple(stride)}, which is not [blocks, {here} heads, "
            "tokens, bytes]")
    unit = tensor.element_size()
    return (stride[1] if tensor.dim() == 4 else step) * unit, step * unit


def described(slices: Slices, groups: tuple[GroupInfo, ...],
              tensors: list[list[tuple[str, torch.Tensor]]], blocks: int,
              tp: int, rank: int) -> list[_lib.Pages]:
    """For a rank's layout. tensors: of each group's layers here, by name, in
    the order of the layout's layers."""
    found = []
    here = max(1, slices.heads // tp)
    for group, layers, places in zip(groups, slices.layers, tensors):
        pages: list[Any] = []
        for place, (name, tensor) in enumerate(places):
            stride, size = _strides(name, tensor, blocks, here)
            part = _lib.Part(layer=place, head_stride=stride, row_stride=size,
                             bytes=size)
            pages.append(_lib.Page(index_of(name), 1, (_lib.Part * 1)(part)))
        pages.sort(key=lambda page: page.layer)
        found.append(_lib.Pages(
            heads=slices.heads, head_first=rank * slices.heads // tp,
            head_count=here, row_tokens=group.block_tokens,
            model_layers=(_lib.c_uint32 * len(layers))(*layers),
            model_layer_count=len(layers), page_count=len(pages),
            pages=(_lib.Page * len(pages))(*pages)))
    return found
