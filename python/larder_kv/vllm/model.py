"""What a model's KV is: its groups, its name, and where its pages lie."""
from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from larder_kv import _lib
from larder_kv._find import nvrtc_path
from larder_kv._options import Options
from larder_kv.vllm.label import label_of
from larder_kv.engine.kv import (GroupInfo, Model, Slices, lookup_layout,
                                 stored)
from larder_kv.engine.weights import snapshot, weights_digest
from larder_kv.vllm import pages, shared, versions

if TYPE_CHECKING:
    import torch
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

Log = Callable[[int, str], None]  # level, line

CHUNK_MIN = 256  # tokens
FORMAT = 1  # of the descriptor
SLICED = 1  # likewise, of one whose shards are slices


# ---- groups ----


def _kind(spec: KVCacheSpec) -> tuple[str, int, int]:
    """Its kind, rule and window."""
    names = [c.__name__ for c in type(spec).__mro__]
    if "UniformTypeKVCacheSpecs" in names:
        inner = {_kind(s) for s in spec.kv_cache_specs.values()}
        if len(inner) != 1:
            raise versions.Unsupported(
                "larder: a KV cache group that mixes kinds of layers "
                f"({sorted(i[0] for i in inner)}) is not supported")
        return inner.pop()
    if "MambaSpec" in names:
        return "state", _lib.RULE_LAST, 0
    if "SlidingWindowSpec" in names:
        # Some drafts look further back than the window.
        more = int(getattr(spec, "extra_retained_tokens", 0) or 0)
        return names[0], _lib.RULE_TRAILING, int(spec.sliding_window) + more
    if ("FullAttentionSpec" not in names or "RSWASpec" in names
            or "SinkFullAttentionSpec" in names):
        raise versions.Unsupported(
            f"larder: KV cache groups of kind {names[0]} are not supported")
    return names[0], _lib.RULE_ALL, 0


def _groups(config: KVCacheConfig) -> tuple[GroupInfo, ...]:
    indexes = getattr(config, "prefix_cacheable_group_ids", None)
    if indexes is None:
        indexes = [i for i, g in enumerate(config.kv_cache_groups)
                   if getattr(g, "enable_kv_transfer", True)]
    found = []
    for i in indexes:
        if getattr(config.kv_cache_groups[i], "host_resident", False):
            raise versions.Unsupported(
                "larder: KV that HiSparse keeps in the host's memory, in "
                "blocks of its own, is not supported")
        spec = config.kv_cache_groups[i].kv_cache_spec
        kind, rule, window = _kind(spec)
        found.append(GroupInfo(i, kind, rule, spec.block_size, window))
    return tuple(found)


def _block_bytes(config: KVCacheConfig, group: GroupInfo) -> int:
    """Of a rank's pages of one block, in all layers."""
    of = config.kv_cache_groups[group.index]
    names = {c.__name__ for c in type(of.kv_cache_spec).__mro__}
    layers = (1 if "UniformTypeKVCacheSpecs" in names  # sums them up itself
              else len(of.layer_names))
    return of.kv_cache_spec.page_size_bytes * layers


def chunk_of(config: KVCacheConfig, groups: tuple[GroupInfo, ...],
             wanted: int, sliced: bool = False) -> int:
    """Tokens in a chunk: a multiple of every block, and a shard of it fits
    the store. sliced: whatever a rank holds."""
    unit = math.lcm(*(g.block_tokens for g in groups))
    if wanted == 0 and sliced:
        return unit * math.ceil(CHUNK_MIN / unit)
    if wanted == 0:
        count = math.ceil(CHUNK_MIN / unit)
        most = max(_block_bytes(config, g) * (unit // g.block_tokens)
                   for g in groups)
        while count > 1 and most * count > _lib.VALUE_MAX:
            count //= 2
        return unit * count
    if wanted % unit != 0:
        raise versions.Unsupported(
            f"larder: chunk={wanted} is no multiple of this model's block of "
            f"{unit} tokens; use {unit * max(1, round(wanted / unit))}")
    return wanted


# ---- names ----


# Of a configuration: where it is from, the type in which weights were stored
# (vLLM's own is in the name), labels. No KV is made of these.
_BESIDE = frozenset("""_name_or_path _commit_hash transformers_version dtype
    torch_dtype _attn_implementation_autoset id2label label2id problem_type
    finetuning_task task_specific_params tokenizer_class""".split())
# What every configuration had, or has, for no model in particular: releases of
# transformers add and drop it. At these values it says nothing.
_NOTHING = dict.fromkeys("""prefix sep_token_id decoder_start_token_id
    bad_words_ids forced_bos_token_id forced_eos_token_id suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty
    cross_attention_hidden_size""".split()) | dict.fromkeys(
    """output_hidden_states output_attentions torchscript use_bfloat16
    tf_legacy_loss do_sample early_stopping output_scores
    return_dict_in_generate remove_invalid_values add_cross_attention
    is_decoder is_encoder_decoder tie_encoder_decoder""".split(), False) | {
    "return_dict": True, "pruned_heads": {}, "chunk_size_feed_forward": 0,
    "max_length": 20, "min_length": 0, "num_beams": 1, "num_beam_groups": 1,
    "diversity_penalty": 0.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "num_return_sequences": 1}


def _settings(value: Any) -> Any:
    """Those that count. A model's own defaults do: another release may have
    others."""
    if not isinstance(value, dict):
        return value
    found = {name: _settings(one) for name, one in value.items()}
    return {name: one for name, one in found.items()
            if name not in _BESIDE and _NOTHING.get(name, _settings) != one
            } if "model_type" in found else found


def _folder(model: ModelConfig) -> str:
    """Where the weights are, or ""."""
    # Apart from the rest: streamed from object storage, for one.
    where = getattr(model, "model_weights", "") or model.model
    return where if os.path.exists(where) else snapshot(where, model.revision)


def fingerprint(model: ModelConfig, known: bool = False) -> str:
    """What was loaded: its configuration and its weights, not their path.
    known: weights that cannot be looked at here have a name, or are none."""
    settings = json.loads(model.hf_config.to_json_string(use_diff=False))
    digest = hashlib.sha256(json.dumps(_settings(settings),
                                       sort_keys=True).encode())
    where = getattr(model, "model_weights", "") or model.model
    weights = weights_digest(_folder(model))
    if not weights:
        commit = getattr(model.hf_config, "_commit_hash", None)
        if commit is None and not known:
            raise versions.Unsupported(
                f"larder: the weights of {where} cannot be looked at from "
                "here, and others in their place would not be noticed: name "
                'them, "kv_connector_extra_config": {"weights": "NAME"}, with '
                "a new name whenever they change")
        weights = json.dumps([model.model, model.revision, commit])
    digest.update(weights.encode())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packing(config: VllmConfig, kv: KVCacheConfig,
             asked: str | None) -> list[str]:
    """Who decides the order of bytes inside a page. asked: the order that
    connectors want, ours or others beside it."""
    from vllm.platforms import current_platform

    named = [current_platform.device_type, versions.minor(),
             str(getattr(kv, "kv_cache_layout", None)),
             str(os.environ.get("VLLM_KV_CACHE_LAYOUT"))]
    if current_platform.is_cuda():
        # By these vLLM chooses the attention backend, whose order it is.
        named += [str(current_platform.get_device_capability()),
                  str(getattr(getattr(config, "attention_config", None),
                              "backend", None)),
                  str(os.environ.get("VLLM_ATTENTION_BACKEND")),
                  f"flashinfer={_version('flashinfer-python')}"]
        invariant = os.environ.get("VLLM_BATCH_INVARIANT")
        named += [f"invariant={invariant}"] if invariant else []
    named += [f"asked={asked}"] if asked else []
    return named + _instructions()[2:]


def _instructions() -> list[str]:
    """What packs the tokens of a block, head by head."""
    import torch
    from vllm.platforms import current_platform

    named = [current_platform.device_type, versions.minor()]
    if current_platform.is_cpu():
        amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
        named += [torch.backends.cpu.get_cpu_capability(), f"amx={amx}"]
    return named


_LOADERS = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor")


def _loader(config: VllmConfig, draft: ModelConfig | None) -> str:
    """Who loads the weights: one name for all that make the same of the files
    that are there. (Mistral's own files, where there are such, are loaded by
    some of them.)"""
    name = str(config.load_config.load_format)
    for model in (config.model_config, draft) if name in _LOADERS else ():
        files = ([] if model is None or not (folder := _folder(model))
                 else list(pathlib.Path(folder).glob("*.safetensors")))
        if model is not None and (not files or any(
                file.name.startswith("consolidated") for file in files)):
            return name
    return "auto" if name in _LOADERS else name


def _kv_type(config: VllmConfig) -> str:
    """Of the cache. The model's own type is what is taken for "auto", but
    for checkpoints that say otherwise."""
    model, name = config.model_config, str(config.cache_config.cache_dtype)
    quantized = (model.quantization is not None
                 or getattr(model, "quantization_config", None) is not None
                 or any(getattr(one, "quantization_config", None) is not None
                        for one in (model.hf_config, model.hf_text_config)))
    if name == str(model.dtype).removeprefix("torch.") and not quantized:
        return "auto"
    return ("fp8_e4m3" if name == "fp8" and _instructions()[0] == "cuda"
            else name)


# Settings of vLLM's CacheConfig that decide what bytes a page has, beside
# cache_dtype; with none of them set a space has the name it had before.
_PAGES = ("kv_cache_dtype_skip_layers", "mamba_cache_dtype",
          "mamba_ssm_cache_dtype", "use_replayssm", "use_kda_recoverssm")


def _formats(config: VllmConfig) -> dict[str, str]:
    """What else decides the bytes of KV, as far as it is set: pages of the
    same size may hold other types, and the same weights may be quantized in
    other ways."""
    cache = config.cache_config
    found = {name: repr(sorted(value) if isinstance(value, list) else value)
             for name in _PAGES
             if (value := getattr(cache, name, None)) and value != "auto"}
    if "use_replayssm" in found:
        found["replayssm_buffer_len"] = repr(cache.replayssm_buffer_len)
    how = getattr(config.model_config, "quantization_config", None)
    if how is not None:
        found["quantization_config"] = repr(how)
    return found


def _replicas(config: VllmConfig, kv: KVCacheConfig,
              groups: tuple[GroupInfo, ...]) -> int:
    """Consecutive tensor-parallel ranks that hold the same bytes: known only
    where all layers are alike."""
    tp = config.parallel_config.tensor_parallel_size
    if len(groups) != 1 or groups[0].rule != _lib.RULE_ALL or _draft(config):
        return 1
    heads = (1 if config.model_config.use_mla
             else config.model_config.get_total_num_kv_heads())
    if tp <= heads or not pages.alike(config, kv, groups[0], heads):
        return 1
    return tp // heads if tp % heads == 0 else 1


def _draft(config: VllmConfig) -> Any:
    """The model that drafts, if it is one: these have the target there."""
    speculative = config.speculative_config
    if getattr(speculative, "method", None) in ("ngram", "ngram_gpu",
                                                "suffix"):
        return None
    return getattr(speculative, "draft_model_config", None)


def _long(model: ModelConfig) -> bool | int | None:
    """Which of LongRoPE's factors vLLM takes: it goes by max_model_len."""
    text = model.hf_config.to_json_string(use_diff=False)
    if not re.search(r'"(longrope|su)"', text):
        return None
    found = re.search(r'"original_max_position_embeddings": (\d+)', text)
    return model.max_model_len > int(found[1]) if found else (
        model.max_model_len)


def _images(model: ModelConfig) -> list[str]:
    """What changes how images become KV."""
    multimodal = model.multimodal_config
    return [str(getattr(multimodal, name, None))
            for name in ("mm_processor_kwargs", "video_pruning_rate",
                         "media_io_kwargs")]


def describe(config: VllmConfig, kv: KVCacheConfig, chunk: int,
             asked: str | None = None, weights: str = "",
             by_rank: str = "", together: Options | None = None) -> Model:
    """The model as both sides see it. asked: see _packing(); weights: their
    name, where they cannot be looked at; by_rank: why pages are stored as they
    are; together: with SGLang, by these options."""
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size",
                 "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise versions.Unsupported(f"larder: {name} > 1 is not supported")
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise versions.Unsupported(
            "larder: calculate_kv_scales makes KV that only the engine that "
            "computed it can read; use a checkpoint with scales")
    groups = _groups(kv)
    if (config.speculative_config is not None
            and parallel.pipeline_parallel_size > 1):
        # All ranks but the last are never asked to save then.
        raise versions.Unsupported(
            "larder: pipeline parallelism with speculative decoding is not "
            "supported: use one of them")
    if not groups:
        raise versions.Unsupported(
            "larder: this model has no KV cache that can be stored")
    draft = _draft(config)
    slices = by_rank or pages.slices_of(
        config, kv, groups, draft is not None,
        chunk_of(kv, groups, chunk, sliced=True))
    if (isinstance(slices, str) and len(groups) > 1
            and parallel.pipeline_parallel_size > 1):
        raise versions.Unsupported(
            "larder: pipeline parallelism with more than one KV cache group "
            f"is not supported here: {slices}")
    if together is not None:
        return shared.describe(config, groups, slices, draft, together)
    known = bool(weights) or config.load_config.load_format == "dummy"
    described = {
        "model": fingerprint(config.model_config, known),
        "draft": fingerprint(draft, known) if draft is not None else None,
        "load_format": _loader(config, draft),
        "dtype": str(config.model_config.dtype),
        "kv_dtype": _kv_type(config),
        "quantization": str(config.model_config.quantization),
        "long": _long(config.model_config),
        "images": _images(config.model_config),
    }
    described.update(_formats(config))
    if weights:
        described["weights"] = weights
    return (_by_rank(config, kv, groups, chunk, asked, described, slices)
            if isinstance(slices, str) else
            _by_slice(config, kv, groups, chunk, described, slices))


def _by_rank(config: VllmConfig, kv: KVCacheConfig,
             groups: tuple[GroupInfo, ...], chunk: int, asked: str | None,
             described: dict[str, Any], why: str) -> Model:
    """A shard is a rank's pages as they are: all that shapes them counts."""
    parallel = config.parallel_config
    replicas = _replicas(config, kv, groups)
    shards = (parallel.tensor_parallel_size // replicas
              * parallel.pipeline_parallel_size)
    if shards > _lib.SHARDS_MAX:
        raise versions.Unsupported(
            f"larder: {shards} ranks with KV of their own are more than "
            f"{_lib.SHARDS_MAX}")
    described |= {
        "format": FORMAT,
        "engine": "vllm",
        "packing": _packing(config, kv, asked),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "partition": (os.environ.get("VLLM_PP_LAYER_PARTITION")
                      if parallel.pipeline_parallel_size > 1 else None),
        "groups": [[g.kind, g.rule, g.block_tokens, g.window_tokens]
                   for g in groups],
    }
    return Model(groups, chunk_of(kv, groups, chunk),
                 json.dumps(described, sort_keys=True).encode(), shards,
                 replicas, label_of(config), opaque=why)


def _by_slice(config: VllmConfig, kv: KVCacheConfig,
              groups: tuple[GroupInfo, ...], chunk: int,
              described: dict[str, Any], slices: Slices) -> Model:
    """A shard is a slice of the model: no rank's shape counts. Where a head's
    bytes of a block are opaque, what packed them does, and the block's size."""
    parallel = config.parallel_config
    tp = parallel.tensor_parallel_size
    here = max(1, slices.heads // tp)
    replicas = max(1, tp // slices.heads)
    tokens = chunk_of(kv, groups, chunk, sliced=True)
    lookup = lookup_layout(tokens, slices.groups, slices)
    head_bytes = [kv.kv_cache_groups[g.index].kv_cache_spec.page_size_bytes
                  // here for g in slices.groups]
    # An engine that needs more of a group stores the same (pages._parts()).
    rules = [_lib.RULE_TRAILING if g.window_tokens else g.rule
             for g in slices.groups]
    described |= {
        "sliced": SLICED,
        "heads": slices.heads,
        "layers": slices.model_layers,
    }
    if slices.rows:
        described["groups"] = [
            [rule, g.window_tokens, layers, rows] for g, rule, layers, rows
            in zip(slices.groups, rules, slices.layers, slices.rows)]
    else:
        described |= {
            "engine": "vllm",
            "packing": _instructions(),
            "groups": [[g.kind, rule, g.block_tokens, g.window_tokens,
                        layers, of_head] for g, rule, layers, of_head
                       in zip(slices.groups, rules, slices.layers,
                              head_bytes)],
        }
    try:
        return Model(groups, tokens,
                     json.dumps(described, sort_keys=True).encode(),
                     lookup.slices(), replicas, label_of(config), slices,
                     ranks=tp // replicas * parallel.pipeline_parallel_size,
                     chunk_bytes=sum(
                         of_head * slices.heads * len(layers)
                         * (tokens // g.block_tokens) for g, layers, of_head
                         in zip(slices.groups, slices.layers, head_bytes)))
    finally:
        lookup.close()


# ---- memory ----


def _page(name: str, tensor: torch.Tensor, blocks: int) -> tuple[int, int]:
    """Stride and bytes of a layer's page, of a tensor whose first dimension
    counts blocks, or parts of blocks."""
    size, stride = tensor.shape, tensor.stride()
    parts = size[0] // blocks if blocks else 0
    count = math.prod(size[1:])
    span = 1 + sum((n - 1) * s for n, s in zip(size[1:], stride[1:]))
    if (parts == 0 or size[0] % blocks != 0 or span != count
            or (parts > 1 and stride[0] != count)):
        raise versions.Unsupported(
            f"larder: the KV cache of layer {name} has shape {tuple(size)} "
            f"and strides {tuple(stride)}, which is not supported")
    unit = tensor.element_size()
    return stride[0] * parts * unit, count * parts * unit


def pieces(name: str, cache: Any, blocks: int) -> list[torch.Tensor]:
    """A layer's tensors, each with blocks in its first dimension, and the
    others inside of a block."""
    found: list[torch.Tensor] = []
    for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
        if tensor.device.type not in ("cpu", "cuda"):
            raise versions.Unsupported(
                f"larder: the KV cache is on {tensor.device.type}; only that "
                "of the CPU and of CUDA can be stored")
        split = tensor.dim() > 1 and tensor.shape[0] == 2 != blocks
        for part in tensor.unbind(0) if split else [tensor]:
            # All blocks of a head, then those of the next (vLLM's LHBNC).
            apart = (part.dim() == 4 and part.shape[1] > 1
                     and part.stride(1) > part.stride(0))
            found += part.unbind(1) if apart else [part]
    return found


class _Pages(NamedTuple):
    """The same bytes of every block, and the layers' tensors that have them."""

    base: int
    stride: int
    size: int
    inside: list[tuple[str, torch.Tensor]]


def _mixed(parts: list[tuple[str, torch.Tensor]], blocks: int) -> int:
    """Bytes of a block in which each head has rows of all these layers, in
    this order (vLLM's BHLNC). 0: it is not so."""
    one = parts[0][1]
    if (len(parts) < 2 or one.dim() != 4 or one.shape[0] != blocks
            or one.shape[1] < 2 or not one[0, 0].is_contiguous()):
        return 0
    rows, unit = one[0, 0].numel(), one.element_size()
    size = one.stride(1) * one.shape[1]
    good = (one.stride(1) == rows * len(parts) and one.stride(0) >= size
            and all((t.shape, t.stride(), t.dtype) == (
                one.shape, one.stride(), one.dtype)
                and t.data_ptr() == one.data_ptr() + i * rows * unit
                for i, (_, t) in enumerate(parts)))
    return size * unit if good else 0


def _pages_of(parts: list[tuple[str, torch.Tensor]],
              blocks: int) -> list[_Pages]:
    """Of all layers that have one block table."""
    ordered = sorted(parts, key=lambda part: part[1].data_ptr())
    if size := _mixed(ordered, blocks) if parts else 0:
        one = ordered[0][1]
        return [_Pages(one.data_ptr(), one.stride(0) * one.element_size(),
                       size, ordered)]
    return [_Pages(tensor.data_ptr(), *_page(name, tensor, blocks),
                   [(name, tensor)]) for name, tensor in parts]


def _gpu(device: torch.device, log: Log | None) -> _lib.Gpu | None:
    return (_lib.Gpu(device.index or 0, nvrtc_path(), log)
            if device.type == "cuda" else None)


def _backends(config: VllmConfig | None) -> tuple[Any, str]:
    """A layer's attention backend, by the layer's name; and the cache's type,
    which it wants to know."""
    if config is None:
        return None, "auto"
    layers = config.compilation_config.static_forward_context
    return (lambda name: layers[name].get_attn_backend()
            if name in layers else None, str(config.cache_config.cache_dtype))


def _stored_in(model: Model, group: int,
               inside: list[tuple[str, torch.Tensor]]) -> int:
    """Which of the space's groups has layers of one of the engine's."""
    if model.slices is None:
        return group
    numbers = [pages.index_of(name) for name, _ in inside]
    found = [i for i, layers in enumerate(model.slices.layers)
             if not set(layers).isdisjoint(numbers)]
    if len(found) != 1:
        raise pages.Unknown(
            f"rows of layer {inside[0][0]} lie between those of layers that "
            "are stored in another group")
    return found[0]


def _parts(model: Model, name: str, cache: Any,
           blocks: int) -> list[tuple[str, torch.Tensor]]:
    found = pieces(name, cache, blocks)
    if model.slices is not None and len(found) > 1:
        raise pages.Unknown(f"the KV cache of layer {name} has blocks in "
                            f"{len(found)} places, not in one")
    return [(name, tensor) for tensor in found]


def layout(model: Model, kv: KVCacheConfig, caches: dict[str, Any],
           log: Log | None = None, gpu: _lib.Gpu | None = None,
           tp: int = 1, rank: int = 0,
           config: VllmConfig | None = None) -> _lib.Layout:
    """The worker's memory, each allocation once. gpu: if it was opened. tp,
    rank: of the tensor-parallel ranks this is one. config: it knows the
    layers."""
    regions: dict[int, int] = {}  # base to index
    devices = set()
    found: list[_lib.Region] = []
    layers: list[list[_lib.Layer]] = [[] for _ in stored(model)]
    tables: list[list[int]] = [[] for _ in layers]  # of these
    tensors: list[list[pages.Inside]] = [[] for _ in layers]
    for table, info in enumerate(model.groups):
        parts = [part for name in kv.kv_cache_groups[info.index].layer_names
                 for part in _parts(model, name, caches[name], kv.num_blocks)]
        devices |= {tensor.device for _, tensor in parts}
        for page in _pages_of(parts, kv.num_blocks):
            name, tensor = page.inside[0]
            i = _stored_in(model, table, page.inside)
            storage = tensor.untyped_storage()
            base = storage.data_ptr()
            if base not in regions:
                regions[base] = len(found)
                found.append(_lib.Region(name.encode(), base,
                                         storage.nbytes()))
            tensors[i] += [
                pages.Inside(name, tensor, len(layers[i]),
                             tensor.data_ptr() - page.base)
                for name, tensor in page.inside]
            tables[i].append(table)
            layers[i].append(_lib.Layer(name.encode(), regions[base],
                                        page.base - base, page.stride,
                                        page.size))
    groups = [_lib.Group(info.rule, info.block_tokens, info.window_tokens,
                         (_lib.Layer * len(own))(*own), len(own))
              for info, own in zip(stored(model), layers)]
    if len(devices) > 1:
        raise versions.Unsupported(
            "larder: a worker's KV cache on several devices "
            f"({', '.join(sorted(map(str, devices)))}) is not supported")
    if gpu is None and devices:
        gpu = _gpu(devices.pop(), log)
    inside = (pages.described(model.slices, tensors, kv.num_blocks, tp, rank,
                              *_backends(config)) if model.slices else ())
    return _lib.Layout(model.chunk_tokens, groups, found, kv.num_blocks, gpu,
                       inside, model.slices.model_layers if inside else 0,
                       tables=[table for own in tables for table in own],
                       table_count=len(model.groups))
