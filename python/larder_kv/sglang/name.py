"""The names of spaces: all that changes what a page's bytes mean.

SGLang's page hashes hold tokens, extra_key and cache_salt, and nothing else:
two engines with other models, types or orders of bytes use the same keys.
"""
from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from larder_kv import _lib
from larder_kv.engine.shared import config_of
from larder_kv.engine.weights import snapshot, weights_digest

FORMAT = 1  # of the descriptor
# Arguments of the server that change the bytes of KV, beside the model's
# files. One that this version of SGLang lacks is left out.
ARGUMENTS = (
    "load_format", "dtype", "kv_cache_dtype", "quantization",
    "quantization_param_path", "modelopt_quant", "json_model_override_args",
    "model_impl", "context_length", "attention_backend",
    "prefill_attention_backend", "decode_attention_backend",
    "enable_page_major_kv_layout", "prefill_kv_cache_dequant_dtype",
    "mamba_ssm_dtype", "mamba_backend", "enable_int8_mamba_checkpoint",
    "enable_mamba_cache_stochastic_rounding", "mamba_cache_philox_rounds",
    "qsa_indexer_dtype", "device", "language_model_only",
    "speculative_algorithm", "speculative_draft_load_format",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_model_quantization", "rl_quant_profile",
    "model_loader_extra_config", "custom_weight_loader", "torchao_config",
    "dllm_algorithm", "dllm_algorithm_config")
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def server_args() -> Any:
    """SGLang's arguments in this process."""
    try:
        from sglang.srt.runtime_context import get_server_args
    except ImportError:  # before 0.5.20
        from sglang.srt.server_args import (
            get_global_server_args as get_server_args)
    return get_server_args()


def version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def fingerprint(path: str, revision: str | None, named: str,
                load_format: str) -> str:
    """What was loaded: its configuration and its weights, not their path.
    named: the option weights."""
    place = path if os.path.exists(path) else snapshot(path, revision)
    weights = "" if load_format == "dummy" else weights_digest(place)
    if not weights and not named and load_format != "dummy":
        raise _lib.LarderError(
            _lib.E_UNSUPPORTED, f"larder: the weights of {path} cannot be "
            "looked at from here, and others in their place would not be "
            'noticed: name them, "weights": "NAME" in '
            "--hicache-storage-backend-extra-config, with a new name whenever "
            "they change")
    text = json.dumps([config_of(path, revision), weights or [path, revision],
                       named], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def kv_heads(args: Any) -> int | None:
    """Of the model, by its config.json."""
    found = config_of(args.model_path, getattr(args, "revision", None))
    text = found.get("text_config", found)
    heads = text.get("num_key_value_heads", text.get("num_attention_heads"))
    return heads if isinstance(heads, int) else None


def of_engine(args: Any, weights: str) -> dict[str, Any]:
    """What all pools of an engine have in common."""
    given = {name: _content(str(value)) for name in ARGUMENTS
             if (value := getattr(args, name, None)) not in (None, "", False)}
    load_format = str(getattr(args, "load_format", "auto"))
    found: dict[str, Any] = {
        "format": FORMAT,
        "engine": "sglang",
        "version": version(),
        "model": fingerprint(args.model_path, getattr(args, "revision", None),
                             weights, load_format),
        "arguments": given,
    }
    draft = getattr(args, "speculative_draft_model_path", None)
    if draft:
        found["draft"] = fingerprint(
            draft, getattr(args, "speculative_draft_model_revision", None),
            weights, str(getattr(args, "speculative_draft_load_format", "")
                         or load_format))
    if getattr(args, "lora_paths", None):
        found["adapters"] = adapters(args.lora_paths, weights)
    return found


def adapters(given: Any, weights: str) -> list[str]:
    """What the server's LoRA adapters are made of. SGLang's page hashes hold an
    adapter's name and path, and others may lie there by now. (One that is
    loaded later gets a random name.)"""
    found = []
    for one in given.items() if isinstance(given, dict) else given:
        if isinstance(one, tuple):
            path = one[1]
        else:
            path = getattr(one, "lora_path", one)
        path = str(path).rsplit("=", 1)[-1]
        place = path if os.path.exists(path) else snapshot(path, None)
        digest = weights_digest(place)
        if not digest and not weights:
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED, f"larder: the adapter {path} cannot be "
                "looked at from here, and another in its place would not be "
                'noticed: name the weights, "weights": "NAME" in '
                "--hicache-storage-backend-extra-config")
        text = json.dumps([digest or path, _content(os.path.join(
            place, "adapter_config.json"))])
        found.append(hashlib.sha256(text.encode()).hexdigest())
    return sorted(found)


def _content(value: str) -> str:
    """Of a file its content: its path stays when that changes."""
    try:
        return hashlib.sha256(pathlib.Path(value).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return value


def of_pool(pool: Any, name: str, whole: bool,
            sizes: Sequence[int]) -> dict[str, Any]:
    """How a pool's page lies in memory. whole: it is taken as one flat tensor
    that SGLang makes of it, and not piece by piece; sizes: of the pieces, for
    those who hold all layers."""
    found: dict[str, Any] = {
        "pool": name,
        "kind": type(pool).__name__,
        "tag": getattr(pool, "storage_format_tag", None),
        "layout": str(getattr(pool, "layout", None)),
        "flat": whole,
        "page_tokens": int(pool.page_size),
        "sizes": list(sizes),
    }
    for field in ("dtype", "head_num", "head_dim", "v_head_dim",
                  "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim",
                  "head_group_num"):
        value = getattr(pool, field, None)
        if value is not None:
            found[field] = str(value)
    return found


def label_of(args: Any, name: str) -> str:
    """What people call the space: "Qwen3-8B bf16 kv"."""
    model = str(getattr(args, "served_model_name", None) or args.model_path)
    dtype = str(getattr(args, "dtype", ""))
    kv = str(getattr(args, "kv_cache_dtype", None) or "auto")
    words = [model.rstrip("/").rsplit("/", 1)[-1]]
    if dtype not in ("", "auto"):
        words.append(_SHORT.get(dtype, dtype))
    if kv != "auto":
        words += ["kv", _SHORT.get(kv, kv)]
    return " ".join([*words, "sglang", name])
