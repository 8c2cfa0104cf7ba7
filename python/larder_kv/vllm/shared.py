"""A space that vLLM shares with SGLang (option pages=shared):
docs/concepts/layout.md."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import shared
from larder_kv.engine.kv import GroupInfo, Model, Slices, lookup_layout
from larder_kv.engine.shared import refused
from larder_kv.vllm.label import label_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def _dtype(config: VllmConfig) -> str:
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    kept = str(config.cache_config.cache_dtype)
    if kept not in ("auto", dtype):
        raise refused(f"KV of type {kept}, of a model in {dtype}")
    return dtype


def _check(config: VllmConfig, groups: tuple[GroupInfo, ...],
           slices: Slices | str, draft: Any) -> Slices:
    """What both engines have under one name, and nothing else."""
    model = config.model_config
    if isinstance(slices, str):
        raise refused(slices)
    if not slices.rows:
        raise refused("vLLM's pages on a CPU are packed for its instructions, "
                      "and no other engine can read them")
    if (len(groups) != 1 or len(slices.groups) != 1
            or slices.groups[0].rule != _lib.RULE_ALL or model.use_mla):
        raise refused("only models whose layers all have full attention, and "
                      "none that is latent")
    if len(set(slices.rows[0])) != 1 or len(slices.rows[0]) != 2:
        raise refused("K and V of different widths")
    if draft is not None:
        raise refused("a model that drafts")
    if (model.quantization is not None
            or getattr(model, "quantization_config", None) is not None):
        raise refused(f"quantized weights ({model.quantization})")
    if getattr(config.cache_config, "kv_cache_dtype_skip_layers", None):
        raise refused("layers with KV of other types")
    if model.multimodal_config is not None:
        raise refused("models that take images or sound")
    if (callable(getattr(model, "hf_overrides", None))
            or getattr(model, "hf_config_path", None)
            or getattr(model, "model_weights", None)):
        raise refused("a model whose configuration, or weights, are not in "
                      "its folder")
    return slices


def describe(config: VllmConfig, groups: tuple[GroupInfo, ...],
             slices: Slices | str, draft: Any, options: Options) -> Model:
    cut = _check(config, groups, slices, draft)
    model, parallel = config.model_config, config.parallel_config
    chunk = shared.chunk_of(options.page_tokens, options.chunk)
    block = groups[0].block_tokens
    if chunk % block:
        raise refused(f"chunk={chunk} is no multiple of vLLM's block of "
                      f"{block} tokens: give both engines another chunk")
    width = cut.rows[0][0]
    name = shared.descriptor(
        shared.Weights(model.model, model.revision,
                       str(config.load_config.load_format), options.weights,
                       getattr(model, "hf_overrides", None)),
        shared.Rows(_dtype(config), cut.heads, cut.model_layers, width,
                    options.page_tokens))
    lookup = lookup_layout(chunk, cut.groups, cut)
    try:
        replicas = max(1, parallel.tensor_parallel_size // cut.heads)
        return Model(
            groups, chunk, name, lookup.slices(), replicas, label_of(config),
            cut, ranks=(parallel.tensor_parallel_size // replicas
                        * parallel.pipeline_parallel_size),
            chunk_bytes=2 * width * cut.heads * cut.model_layers * chunk,
            page_tokens=options.page_tokens)
    finally:
        lookup.close()
