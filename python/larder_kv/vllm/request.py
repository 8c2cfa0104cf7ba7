"""What a request asks of Larder, and how its prompt is named."""
from __future__ import annotations

import hashlib
import pathlib
from array import array
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.vllm import model

if TYPE_CHECKING:
    from vllm.v1.request import Request

SWITCHES = ("skip_save", "skip_load", "ttl_ms", "tiers")


class Switches:
    """`larder` in a request's kv_transfer_params."""

    __slots__ = ("skip_save", "skip_load", "ttl_ms", "tiers")

    def __init__(self, params: dict[str, Any] | None):
        given = (params or {}).get("larder") or {}
        unknown = sorted(set(given) - set(SWITCHES))
        if unknown:
            raise ValueError(
                f"kv_transfer_params has unknown larder switches "
                f"{unknown}; there are {', '.join(SWITCHES)}")
        self.skip_save = bool(given.get("skip_save", False))
        self.skip_load = bool(given.get("skip_load", False))
        self.ttl_ms = int(given.get("ttl_ms", 0))
        tiers = given.get("tiers")
        if tiers is not None and (
                not tiers or not set(tiers) <= set(_lib.TIERS)):
            raise ValueError(f"tiers is a list of {_lib.TIERS}, "
                             f"not {tiers!r}")
        self.tiers = frozenset(tiers) if tiers is not None else None


_adapters: dict[tuple[str, int], bytes] = {}


def _adapter(path: str) -> bytes:
    """The content of an adapter, not its name."""
    folder = pathlib.Path(path)
    stamp = max((f.stat().st_mtime_ns for f in folder.glob("adapter*")),
                default=0)
    known = _adapters.get((path, stamp))
    if known is None:
        digest = hashlib.sha256(model.directory_digest(path).encode())
        config = folder / "adapter_config.json"
        if config.is_file():
            digest.update(config.read_bytes())
        known = _adapters[path, stamp] = digest.digest()
    return known


def _encode(value: Any) -> bytes:
    """Any nesting of what vLLM puts into extra keys, without ambiguity."""
    if isinstance(value, (list, tuple)):
        inner = b"".join(_encode(v) for v in value)
        return b"(%d:%s)" % (len(value), inner)
    if isinstance(value, bytes):
        return b"b%d:%s" % (len(value), value)
    text = f"{type(value).__name__}:{value}".encode()
    return b"s%d:%s" % (len(text), text)


class Prompt:
    """The keys of a request's chunks, as far as its tokens are known."""

    __slots__ = ("request", "keys", "_plain", "_mm", "_adapter")

    def __init__(self, request: Request):
        self.request = request
        self.keys = _lib.Keys()
        self._mm = 0
        lora = request.lora_request
        self._adapter = _adapter(lora.lora_path) if lora else b""
        self._plain = not (lora or request.mm_features or request.cache_salt
                           or getattr(request, "prompt_embeds", None)
                           is not None)

    def extend(self, space: _lib.Space, tokens: int) -> None:
        """Names the chunks of the first so many tokens."""
        size = space.chunk_tokens
        first, end = self.keys.count, tokens // size
        if end <= first:
            return
        ids = self.request.all_token_ids[first * size:end * size]
        space.chain(array("I", ids), self.keys,
                    None if self._plain else self._extra(size, first, end))

    def _extra(self, size: int, first: int, end: int) -> list[bytes]:
        from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

        found = []
        for i in range(first, end):
            keys, self._mm = generate_block_hash_extra_keys(
                self.request, i * size, (i + 1) * size, self._mm)
            found.append(_encode((keys or (), self._adapter)))
        return found
