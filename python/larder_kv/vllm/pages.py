"""What is inside vLLM's pages, as far as it is known.

Where it is, a chunk's shards are slices of the model (docs/concepts/layout.md),
and engines of other tensor and pipeline parallel sizes share them. On CUDA
every token's bytes are known, so that engines of other block sizes and
attention backends share them too. The CPU's pages are packed for its
instructions, head by head: a head's bytes of a block are opaque. Elsewhere a
page is opaque, and a shard is a rank's.

What a CUDA page holds follows from the layer's KVCacheSpec, which both sides of
a connector have. How its axes lie is a worker's matter: from 0.29 on vLLM says
that a layer's tensor is [blocks, heads, tokens, K and V]; before, the layer's
attention backend says what its shape means. Strides are the tensor's own.
"""
from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from larder_kv import _lib
from larder_kv.engine.kv import GroupInfo, Slices, whole_slices
from larder_kv.vllm import versions

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

FIRST = (0, 32)  # whose pages are [blocks, heads, tokens, bytes]
PIPELINES = (1, 2, 4)


class Unknown(versions.Unsupported):
    """A worker's pages are not what its model's are taken to be."""

    def __init__(self, why: str):
        super().__init__(f"larder: {why}; store KV as it is: "
                         '"kv_connector_extra_config": {"pages": "rank"}')
        self.why = why


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


# ---- groups ----


class _Part(NamedTuple):
    """Layers of one of the engine's groups that are stored together."""

    info: GroupInfo
    number: int  # of the engine's group, among those that are stored
    layers: tuple[int, ...]
    rows: tuple[int, ...]

    def key(self) -> tuple[Any, ...]:
        return self.info.window_tokens, self.info.block_tokens, self.rows


def _windows(config: VllmConfig) -> tuple[bool, ...]:
    """Of each of the model's layers: whether it has a window. Empty: that is
    not known."""
    types = getattr(config.model_config.hf_text_config, "layer_types", None)
    kinds = {"sliding_attention": True, "full_attention": False}
    found = tuple(kinds.get(one) for one in types or ())
    return () if None in found else found


def _parts(config: VllmConfig, kv: KVCacheConfig, number: int, info: GroupInfo,
           layers: tuple[int, ...], rows: tuple[int, ...],
           chunk: int) -> list[_Part]:
    """Without its hybrid manager vLLM has layers with a window in one group
    with the others, and needs all of their KV. All of it is stored, if a chunk
    is not longer than the window: then what is stored is what it is with the
    manager."""
    spec = kv.kv_cache_groups[info.index].kv_cache_spec
    window = getattr(spec, "sliding_window", None) or 0
    known = _windows(config)
    if (info.rule != _lib.RULE_ALL or window <= chunk
            or len(known) <= max(layers, default=0)):
        return [_Part(info, number, layers, rows)]
    inside = dataclasses.replace(info, kind="SlidingWindowSpec",
                                 window_tokens=window)
    found = [_Part(inside, number, tuple(i for i in layers if known[i]), rows),
             _Part(info, number, tuple(i for i in layers if not known[i]),
                   rows)]
    # (A rank of a pipeline may have none of one.)
    pipeline = config.parallel_config.pipeline_parallel_size > 1
    return [part for part in found if part.layers or pipeline]


def _all_ranks(config: VllmConfig, key: tuple[Any, ...], here: set[int],
               keys: int) -> set[int] | None:
    """A stored group's layers on all ranks of a pipeline; here: on those that
    this rank has. None: that is not known."""
    layers = config.model_config.get_total_num_hidden_layers()
    if keys == 1:
        return set(range(layers))
    known = _windows(config)
    if keys != 2 or len(known) != layers:
        return None
    found = {i for i in range(layers) if known[i] == (key[0] > 0)}
    return found if here <= found else None


def _borders(layers: int) -> list[int]:
    from vllm.distributed.utils import get_pp_indices

    found = {get_pp_indices(layers, rank, size)[0]
             for size in PIPELINES if size <= layers for rank in range(size)}
    return [*sorted(found), layers]


def _grouped(config: VllmConfig, parts: list[_Part]) -> (
        list[tuple[tuple[Any, ...], tuple[int, ...]]] | str):
    """What is stored together: the keys, and their layers in the model."""
    layers = config.model_config.get_total_num_hidden_layers()
    found: dict[tuple[Any, ...], set[int]] = {}
    for part in parts:
        found.setdefault(part.key(), set()).update(part.layers)
    if config.parallel_config.pipeline_parallel_size > 1:
        # Of the others' layers a rank has not even the names.
        all_ = {key: _all_ranks(config, key, here, len(found))
                for key, here in found.items()}
        if None in all_.values():
            return "it is not known which groups the other ranks' layers are of"
        borders = _borders(layers)
        for first, end in zip(borders, borders[1:]):
            if any(one.isdisjoint(range(first, end)) for one in all_.values()):
                return "a rank of this pipeline holds parts of slices"
        found = all_
    if sorted(i for one in found.values() for i in one) != list(range(layers)):
        return "not every layer has KV of its own"
    return sorted(((key, tuple(sorted(one))) for key, one in found.items()),
                  key=lambda one: one[1])


# ---- slices ----


_COUNTS = re.compile("key_value_heads|kv_heads|head_kv|attention_groups"
                     "|query_group_num|block_configs")


def _counts(config: dict[Any, Any]) -> Iterator[Any]:
    """All that a model's configuration says of its numbers of KV heads. (Of
    its dicts some have numbers as keys.)"""
    for name, value in config.items():
        if _COUNTS.search(str(name)) and value is not None:
            yield from value if isinstance(value, (list, tuple)) else [value]
        elif isinstance(value, dict):
            yield from _counts(value)


def specs_of(group: Any) -> list[Any]:
    """Of a group's layers. One whose layers differ has a spec for each; to the
    scheduler vLLM shows the first in place of them all."""
    found = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return list(found.values()) if found else [group.kv_cache_spec]


def shown(kv: KVCacheConfig) -> KVCacheConfig:
    """As vLLM shows it to the scheduler."""
    found = copy.copy(kv)
    found.kv_cache_groups = [copy.copy(one) for one in kv.kv_cache_groups]
    for group in found.kv_cache_groups:
        group.kv_cache_spec = specs_of(group)[0]
    return found


def alike(config: VllmConfig, kv: KVCacheConfig, group: GroupInfo,
          heads: int) -> bool:
    """Whether each layer of a group is known to have this many KV heads where
    there are more ranks than that: then the ranks' pages have one head each,
    of whatever the layer has, and do not tell."""
    if config.model_config.use_mla:
        return all(any("MLA" in c.__name__ for c in type(spec).__mro__)
                   for spec in specs_of(kv.kv_cache_groups[group.index]))
    found = list(_counts(config.model_config.hf_text_config.to_dict()))
    return bool(found) and all(one == heads for one in found)


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
                or spec.page_size_bytes % here != 0
                or (tp > heads and not alike(config, kv, group, heads))):
            return None
    return heads if heads % tp == 0 or tp % heads == 0 else None


def _spec_rows(spec: Any, here: int) -> tuple[int, ...] | str:
    """What a token has in one head on CUDA, part by part, in bytes; or why that
    is not known."""
    names = [c.__name__ for c in type(spec).__mro__]
    if names[0] not in ("FullAttentionSpec", "SlidingWindowSpec",
                        "MLAAttentionSpec"):
        return f"pages of kind {names[0]} are not described"
    if (getattr(spec, "page_size_padded", None) is not None
            or getattr(spec, "compress_ratio", 1) != 1
            or getattr(spec, "tokens_per_state", 1) != 1):
        return "pages with padding or compressed tokens are not described"
    if names[0] == "MLAAttentionSpec":
        return ((spec.page_size_bytes // spec.block_size,)
                if spec.page_size_bytes % spec.block_size == 0
                else "tokens of a page differ in size")
    mode = getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE")
    if (mode not in ("NONE", "FP8_PER_TENSOR")
            or getattr(spec, "num_head_slots", None) is not None
            or getattr(spec, "state_content_bytes", None) is not None):
        return f"pages with scales inside ({mode}) are not described"
    size = getattr(spec, "head_size", None)
    value = getattr(spec, "head_size_v", None) or size
    if size is None or (value != size and not hasattr(spec, "num_head_slots")):
        return "K and V differ in size"
    rows = tuple(n * spec.dtype.itemsize for n in (size, value))
    if spec.page_size_bytes != spec.block_size * here * sum(rows):
        return "pages hold more than K and V"
    return rows


def _cuda_rows(config: VllmConfig, kv: KVCacheConfig,
               groups: tuple[GroupInfo, ...],
               here: int) -> tuple[tuple[int, ...], ...] | str:
    found = [_spec_rows(kv.kv_cache_groups[g.index].kv_cache_spec, here)
             for g in groups]
    why = [one for one in found if isinstance(one, str)]
    return why[0] if why else tuple(found)


def slices_of(config: VllmConfig, kv: KVCacheConfig,
              groups: tuple[GroupInfo, ...], draft: bool,
              chunk: int) -> Slices | str:
    """How the model is cut; or why its pages stay opaque, in words. The same
    on the scheduler's side and the workers'. draft: there is one, a model.
    chunk: its tokens."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() and not current_platform.is_cuda():
        return f"pages of {current_platform.device_type} are not described yet"
    numbers = re.match(r"(\d+)\.(\d+)", versions.minor())
    if current_platform.is_cpu() and (
            numbers is None or (int(numbers[1]), int(numbers[2])) < FIRST):
        return f"pages of vLLM {versions.minor()} are not described"
    if any(g.rule == _lib.RULE_LAST for g in groups):
        return "recurrent state is one rank's"
    if draft:
        return "layers of a draft have no place in the model"
    heads = _heads(config, kv, groups)
    if heads is None:
        return "layers differ in KV heads"
    tp = config.parallel_config.tensor_parallel_size
    here = max(1, heads // tp)
    rows = (_cuda_rows(config, kv, groups, here)
            if current_platform.is_cuda() else tuple(
                (kv.kv_cache_groups[g.index].kv_cache_spec.page_size_bytes
                 // here,) for g in groups))
    if isinstance(rows, str):
        return rows
    if not whole_slices(heads, tp):
        return f"{tp} ranks cut slices of {heads} KV heads apart"
    layers = config.model_config.get_total_num_hidden_layers()
    found = [_indexes(kv, group) for group in groups]
    pp = config.parallel_config.pipeline_parallel_size
    if pp > 1 and (pp not in PIPELINES
                   or os.environ.get("VLLM_PP_LAYER_PARTITION")):
        return "a rank of this pipeline holds parts of slices"
    if None in found:
        return "not every layer has KV of its own"
    parts = [part for i, (info, here_, row) in enumerate(
        zip(groups, found, rows)) for part in _parts(
            config, kv, i, info, here_, row, chunk)]
    stored = _grouped(config, parts)
    if isinstance(stored, str):
        return stored
    first = [next(p for p in parts if p.key() == key) for key, _ in stored]
    # Rather the one without a window, of which every engine needs all.
    of = [min((p.info.window_tokens > 0, i) for p in parts
              for i, (key, _) in enumerate(stored)
              if p.number == number and p.key() == key)[1]
          for number in range(len(groups))]
    return Slices(
        heads, layers, tuple(part.info for part in first),
        tuple(one for _, one in stored), tuple(of),
        tuple(part.rows for part in first)
        if current_platform.is_cuda() else ())


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
        raise Unknown(
            f"the KV cache of layer {name} has shape {tuple(size)} and strides "
            f"{tuple(stride)}, which is not [blocks, {here} heads, tokens, "
            "bytes]")
    unit = tensor.element_size()
    return (stride[1] if tensor.dim() == 4 else step) * unit, step * unit


class Inside(NamedTuple):
    """A layer's tensor, and its place in the engine's memory."""

    name: str
    tensor: torch.Tensor
    place: int  # of its pages, among the layout's layers
    offset: int  # in a page


Backend = Callable[[str], Any]  # of a layer, by name


def _axes(name: str, tensor: torch.Tensor, backend: Backend | None,
          tokens: int, here: int, size: int, cache_dtype: str) -> str:
    """What each of the tensor's axes counts: b blocks, h heads, t tokens, c
    bytes; p is K and V."""
    shape = getattr(backend(name) if backend is not None else None,
                    "get_kv_cache_shape", None)
    if shape is None:  # from 0.29 on
        return {4: "bhtc", 3: "btc"}.get(tensor.dim(), "")
    # An axis is the one that grows with what it counts.
    given = (tensor.shape[0], tokens, here, size)
    plain, found = shape(*given, cache_dtype), {}
    for letter, number in zip("bthc", range(4)):
        more = shape(*(n * 2 if i == number else n
                       for i, n in enumerate(given)), cache_dtype)
        found |= {i: letter for i, (a, b) in enumerate(zip(plain, more))
                  if a != b}
    last = len(plain) - 1  # a row, also where its size is the backend's own
    return "".join(found.get(i, "c" if i == last else "p" if n == 2 else "?")
                   for i, n in enumerate(plain))


def _rows(of: Inside, axes: str, blocks: int, block: int, here: int,
          rows: tuple[int, ...]) -> list[_lib.Part]:
    """Where the rows of a layer lie in its page."""
    name, tensor, place, offset = of
    unit = tensor.element_size()
    size = dict(zip(axes, tensor.shape))
    stride = {axis: n * unit for axis, n in zip(axes, tensor.stride())}
    split = size.get("b", 0) // blocks if blocks else 0
    good = (sorted(axes) in (sorted("bhtc"), sorted("btc"), sorted("bhtcp"))
            and split > 0 and size["b"] == split * blocks
            and size["t"] * split == block and size.get("h", 1) == here
            and (split == 1 or stride["b"] == size["t"] * stride["t"])
            and stride["c"] == unit and size.get("p", len(rows)) == len(rows)
            and size["c"] * unit == (rows[0] if "p" in axes else sum(rows)))
    if not good:
        raise Unknown(
            f"the KV cache of layer {name} has shape {tuple(tensor.shape)} and "
            f"strides {tuple(tensor.stride())}, whose order is not known "
            f"({axes or 'no backend'})")
    offsets = [offset + (stride["p"] * i if "p" in axes else sum(rows[:i]))
               for i in range(len(rows))]
    return [_lib.Part(layer=place, offset=first,
                      head_stride=stride.get("h", 0), row_stride=stride["t"],
                      bytes=row) for first, row in zip(offsets, rows)]


def _opaque_parts(of: Inside, blocks: int, here: int) -> list[_lib.Part]:
    stride, size = _strides(of.name, of.tensor, blocks, here)
    return [_lib.Part(layer=of.place, offset=of.offset, head_stride=stride,
                      row_stride=size, bytes=size)]


def described(slices: Slices, tensors: list[list[Inside]], blocks: int,
              tp: int, rank: int, backend: Backend | None = None,
              cache_dtype: str = "auto") -> list[_lib.Pages]:
    """For a rank's layout. tensors: of each stored group's layers here."""
    found = []
    here = max(1, slices.heads // tp)
    for i, (group, layers, inside) in enumerate(
            zip(slices.groups, slices.layers, tensors)):
        pages: list[Any] = []
        for one in inside:
            if slices.rows:
                axes = _axes(one.name, one.tensor, backend, group.block_tokens,
                             here, one.tensor.shape[-1], cache_dtype)
                parts = _rows(one, axes, blocks, group.block_tokens, here,
                              slices.rows[i])
            else:
                parts = _opaque_parts(one, blocks, here)
            pages.append(_lib.Page(index_of(one.name), len(parts),
                                   (_lib.Part * len(parts))(*parts)))
        pages.sort(key=lambda page: page.layer)
        found.append(_lib.Pages(
            heads=slices.heads, head_first=rank * slices.heads // tp,
            head_count=here,
            row_tokens=1 if slices.rows else group.block_tokens,
            model_layers=(_lib.c_uint32 * len(layers))(*layers),
            model_layer_count=len(layers), page_count=len(pages),
            pages=(_lib.Page * len(pages))(*pages)))
    return found
