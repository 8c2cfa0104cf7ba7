"""What people call a space: of an engine's configuration, so that this needs no
engine to be imported."""
from __future__ import annotations

from typing import Any

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def label_of(config: Any) -> str:
    """vLLM's model and its dtype, and that of its KV where it has its own:
    "Qwen3-8B bf16", "Qwen3-8B bf16 kv fp8"."""
    model = config.model_config
    name = getattr(model, "served_model_name", None) or model.model
    if not isinstance(name, str):  # several: the first
        name = name[0]
    name = name.rstrip("/").rsplit("/", 1)[-1]
    dtype = str(model.dtype).removeprefix("torch.")
    kv = str(config.cache_config.cache_dtype)
    words = [name, _SHORT.get(dtype, dtype)]
    if kv not in ("auto", dtype):
        words += ["kv", _SHORT.get(kv, kv)]
    return " ".join(words)
