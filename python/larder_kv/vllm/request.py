"""What a request asks of Larder, and how its prompt is named."""
from __future__ import annotations

import hashlib
import os
import pathlib
import time
from array import array
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.vllm import model

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

SWITCHES = ("skip_save", "skip_load", "ttl_ms", "tiers", "class", "closed",
            "template")


class Switches:
    """`larder` in a request's kv_transfer_params."""

    __slots__ = ("skip_save", "skip_load", "ttl_ms", "tiers", "hint")

    def __init__(self, params: dict[str, Any] | None):
        given = (params or {}).get("larder") or {}
        unknown = sorted(set(given) - set(SWITCHES))
        if unknown:
            raise ValueError(
                f"kv_transfer_params has unknown larder switches {unknown}; "
                f"there are {', '.join(SWITCHES)}")
        for name in ("skip_save", "skip_load"):
            value = given.get(name, False)
            if not isinstance(value, bool):
                raise ValueError(f"{name} is true or false, not {value!r}")
            setattr(self, name, value)
        self.ttl_ms = given.get("ttl_ms", 0)
        if type(self.ttl_ms) is not int or not 0 <= self.ttl_ms < 1 << 32:
            raise ValueError(f"ttl_ms is a number of milliseconds, not "
                             f"{self.ttl_ms!r}")
        tiers = given.get("tiers")
        if tiers is not None and (not isinstance(tiers, list) or not tiers
                                  or not set(tiers) <= set(_lib.TIERS)):
            raise ValueError(f"tiers is a list of {_lib.TIERS}, "
                             f"not {tiers!r}")
        self.tiers = frozenset(tiers) if tiers is not None else None
        self.hint = _hint(given)


def _hint(given: dict[str, Any]) -> int:
    """What the node is told of the request, besides its chain."""
    kind = given.get("class", 0)
    if type(kind) is not int or not 0 <= kind <= _lib.HINT_CLASS:
        raise ValueError(f"class is 1, 2 or 3, not {kind!r}")
    for name, bit in (("closed", _lib.HINT_CLOSED),
                      ("template", _lib.HINT_TEMPLATE)):
        value = given.get(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{name} is true or false, not {value!r}")
        kind |= bit if value else 0
    return kind


NO_SWITCHES = Switches(None)


def switches_of(params: dict[str, Any] | None) -> Switches:
    """Most requests have none, and share these."""
    return Switches(params) if params and "larder" in params else NO_SWITCHES


# By path and number.
_adapters: dict[tuple[str, int], tuple[float, list[tuple], bytes]] = {}
ADAPTER_SECONDS = 1.0  # between looks at an adapter's files


def _adapter(lora: LoRARequest) -> bytes:
    """The content of an adapter, not its name, as it was when its number was
    first seen: vLLM keeps what it loaded under a number. One whose files
    cannot be seen from here is named by its path."""
    path = lora.lora_path
    checked, stamp, known = _adapters.get((path, lora.lora_int_id),
                                          (0.0, [], b""))
    reloads = getattr(lora, "load_inplace", False)
    now = time.monotonic()
    if known and not reloads and now - checked < ADAPTER_SECONDS:
        return known
    where = path if os.path.isdir(path) else model.snapshot(path, None)
    files = sorted(pathlib.Path(where).glob("adapter*")) if where else []
    found = [(f.name, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
             for f in files for s in (f.stat(),)]
    if known and found != stamp and not reloads:
        raise ValueError(
            f"adapter {lora.lora_name} was changed in {path} after it was "
            "loaded, so it is not known what vLLM computes with; unload it "
            "and load it again")
    if not known or found != stamp:
        weights = model.directory_digest(where) if where else ""
        digest = hashlib.sha256((weights or path).encode())
        for file in files:
            if file.suffix == ".json":
                digest.update(file.read_bytes())
        known = digest.digest()
    _adapters[path, lora.lora_int_id] = (now, found, known)
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


class Names:
    """The keys of a prompt that has just arrived and whose tokens alone decide
    its KV: made by the thread that looks it up, or by who needs them before.
    Both make the same. The tokens are copied at arrival: vLLM adds to its list,
    and a thread that made the copy would hold up the scheduler's (the GIL)."""

    __slots__ = ("_tokens", "data")

    def __init__(self, tokens: array):
        self._tokens = tokens
        self.data = b""

    def make(self, space: _lib.Space) -> bytes:
        if not self.data:
            keys = _lib.Keys()
            space.chain(self._tokens, keys)
            self.data = keys.data(0, keys.count)
        return self.data


class Prompt:
    """The keys of a request's chunks, as far as its tokens are known."""

    __slots__ = ("request", "_keys", "_later", "_mm", "_adapter")

    def __init__(self, request: Request):
        self.request = request
        self._keys = _lib.Keys()
        self._later: Names | None = None  # the first of them
        self._mm = 0
        lora = request.lora_request
        self._adapter = _adapter(lora) if lora else b""

    def _plain(self) -> bool:
        """Whether nothing but its tokens decides its KV. A session may get
        images later."""
        r = self.request
        return not (r.lora_request or r.mm_features or r.cache_salt
                    or getattr(r, "prompt_embeds", None) is not None)

    @property
    def keys(self) -> _lib.Keys:
        """What is named."""
        if self._later is not None and self._later.data:
            self._keys.extend(self._later.data)
            self._later = None
        return self._keys

    def later(self) -> Names | None:
        """For one that has just arrived: what names all of it, if a thread can
        do that."""
        r = self.request
        ids = r.prompt_token_ids
        if ids is None or len(ids) != r.num_tokens or not self._plain():
            return None
        self._later = Names(array("I", ids))
        return self._later

    def extend(self, space: _lib.Space, tokens: int) -> None:
        """Names the chunks of the first so many tokens."""
        if self._later is not None:
            self._later.make(space)
        keys, size = self.keys, space.chunk_tokens
        first, end = keys.count, tokens // size
        if end <= first:
            return
        ids = self.request.all_token_ids[first * size:end * size]
        space.chain(array("I", ids), keys,
                    None if self._plain() else self._extra(size, first, end))

    def _extra(self, size: int, first: int, end: int) -> list[bytes]:
        from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

        found = []
        for i in range(first, end):
            keys, self._mm = generate_block_hash_extra_keys(
                self.request, i * size, (i + 1) * size, self._mm)
            # As without: what is like plain text is shared with it.
            found.append(_encode((keys or (), self._adapter))
                         if keys or self._adapter else b"")
        return found
