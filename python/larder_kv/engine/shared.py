"""The name of a space that engines of several kinds share (pages=shared).

Each engine's own name of a model holds what only that engine knows. This one is
made of what all of them have: the model's folder, and what their pages hold.
Whatever else could change the bytes is refused, so that equal names mean equal
bytes, up to the last bits that differ between any two engines.
"""
from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from larder_kv import _lib
from larder_kv.engine.weights import snapshot, weights_digest

FORMAT = 1  # of the descriptor
CHUNK_MIN = 256  # tokens
# Of a model's config.json: what does not change KV.
NOT_CONFIG = ("_name_or_path", "transformers_version", "_commit_hash",
              "architectures_version")
DTYPES = ("bfloat16", "float16", "float32")


def refused(why: str) -> _lib.LarderError:
    return _lib.LarderError(
        _lib.E_UNSUPPORTED,
        f"larder: pages=shared: {why}; leave the option pages out")


@dataclass(frozen=True)
class Weights:
    """Where an engine has its model from."""

    path: str
    revision: str | None
    load_format: str
    name: str  # the option weights
    overrides: Mapping[str, Any] | None  # of config.json


@dataclass(frozen=True)
class Rows:
    """What an engine's pages hold, and how they are cut."""

    dtype: str
    heads: int  # KV heads of the model
    layers: int
    width: int  # bytes of a token in one head, of K and of V
    page_tokens: int  # of SGLang's


def config_of(path: str, revision: str | None) -> dict[str, Any]:
    """A model's config.json; {}: it cannot be read."""
    folder = path if os.path.exists(path) else snapshot(path, revision)
    if not folder:
        return {}
    try:
        found = json.loads((pathlib.Path(folder) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in found.items() if k not in NOT_CONFIG}


def _model(of: Weights) -> str:
    config = config_of(of.path, of.revision)
    if not config:
        raise refused(f"{of.path} has no config.json that can be read here")
    if of.load_format == "dummy":
        raise refused("weights that each engine makes up (dummy)")
    merged = config | dict(of.overrides or {})
    inner = [key for key, value in merged.items()
             if key.endswith("_config") and value]
    if inner:
        raise refused(f"models with {inner[0]} in their config.json (quantized "
                      "weights, images, parts of their own)")
    if re.search(r'"(longrope|su)"', json.dumps(merged)):
        raise refused("LongRoPE, whose factors engines choose by their own "
                      "greatest length")
    folder = (of.path if os.path.exists(of.path)
              else snapshot(of.path, of.revision))
    weights = weights_digest(folder)
    if not weights and not of.name:
        raise refused(f"the weights of {of.path} cannot be looked at from "
                      "here; name them with the option weights, in every "
                      "engine alike")
    text = json.dumps([merged, weights, of.name], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def chunk_of(page_tokens: int, wanted: int) -> int:
    """Tokens in a chunk. wanted: the option chunk."""
    if page_tokens < 1:
        raise refused("the option page_tokens is needed, which is --page-size "
                      "of the SGLang servers")
    found = wanted or page_tokens * -(-CHUNK_MIN // page_tokens)
    if found % page_tokens:
        raise refused(f"chunk={found} is no multiple of SGLang's page of "
                      f"{page_tokens} tokens")
    return found


def descriptor(of: Weights, rows: Rows) -> bytes:
    """The same for every engine with this model. The chunk's tokens and the
    number of slices are hashed with it, by the library."""
    if rows.dtype not in DTYPES:
        raise refused(f"KV of type {rows.dtype}; there are "
                      f"{', '.join(DTYPES)}")
    return json.dumps({
        "shared": FORMAT,
        "keys": f"sglang pages of {rows.page_tokens}",
        "model": _model(of),
        "dtype": rows.dtype,
        "heads": rows.heads,
        "layers": rows.layers,
        "groups": [[_lib.RULE_ALL, 0, [rows.width, rows.width]]],
    }, sort_keys=True).encode()
