"""What a request asks of Larder, and how its prompt is named."""
from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv.engine.lookup import Unnamed
from larder_kv.vllm import adapters

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.larder")

SWITCHES = ("skip_save", "skip_load", "ttl_ms", "tiers", "class", "closed",
            "template", "member", "handoff")
# What routers put into kv_transfer_params to say where a prompt is: llm-d's
# word, and that of vLLM's KV hints.
SOURCE, FETCH = "remote_kv_source", "kv.fetch"
PLACES = frozenset(("larder", SOURCE, FETCH))


class Switches:
    """`larder` in a request's kv_transfer_params."""

    __slots__ = ("skip_save", "skip_load", "ttl_ms", "tiers", "hint", "member",
                 "handoff")

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
        self.member = (given["member"] if "member" in given
                       else _address(params))
        if (not isinstance(self.member, str) or "\0" in self.member
                or len(self.member.encode()) > _lib.MEMBER_MAX):
            raise ValueError(f"member is the name of a node of the cluster, "
                             f"not {self.member!r}")
        self.hint = _hint(given)
        # What a prefill engine has answered: checked where it is used.
        self.handoff: Any = given.get("handoff")


def _address(params: dict[str, Any] | None) -> str:
    """HOST:PORT where a router believes that the prompt is: "": nowhere. It is
    advice, so what cannot be read is no error."""
    source = (params or {}).get(SOURCE)
    fetch = (params or {}).get(FETCH)
    text = ""
    if isinstance(source, dict) and isinstance(source.get("remote_host"), str):
        host = source["remote_host"]
        host = f"[{host}]" if ":" in host and host[0] != "[" else host
        text = f"{host}:{source.get('remote_port', 0)}"
    elif isinstance(fetch, dict):
        text = str(fetch.get("source_control_endpoint", ""))
        text = text.rpartition("://")[2]
    fits = (text.isascii() and "\0" not in text
            and len(text) <= _lib.MEMBER_MAX)
    return text if fits else ""


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
    return (Switches(params) if params and not PLACES.isdisjoint(params)
            else NO_SWITCHES)


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
    """The keys of a prompt that has just arrived: made by the thread that looks
    it up; or, if its tokens alone decide its KV, by who needs them before. Both
    make the same. The tokens are copied at arrival: vLLM adds to its list, and
    a thread that made the copy would hold up the scheduler's (the GIL)."""

    __slots__ = ("prompt", "_tokens", "files", "data", "made", "failed")

    def __init__(self, prompt: Prompt, tokens: array, files: bool):
        self.prompt = prompt
        self._tokens = tokens
        self.files = files  # must be looked at: only a thread makes them
        self.data = b""
        self.made = False  # set last
        self.failed: Unnamed | None = None

    def make(self, space: _lib.Space) -> bytes:
        if not self.made:
            if self.failed is not None:
                raise self.failed
            try:
                data = self._make(space)
            except Exception as error:
                self.fail(str(error))
            if self.failed is not None:  # or it was given up meanwhile
                raise self.failed
            self.data = data
            self.made = True
        return self.data

    def fail(self, why: str) -> None:
        """Says so, once."""
        if self.failed is None:
            self.failed = Unnamed(why)
            logger.warning("larder: request %s goes without the store: %s",
                           self.prompt.request.request_id, why)

    def give_up(self) -> None:
        self.prompt.give_up()

    def _make(self, space: _lib.Space) -> bytes:
        keys, size = _lib.Keys(), space.chunk_tokens
        extra = (self.prompt.look(len(self._tokens) // size, size)
                 if self.files else None)
        space.chain(self._tokens, keys, extra)
        return keys.data(0, keys.count)


class Prompt:
    """The keys of a request's chunks, as far as its tokens are known."""

    __slots__ = ("request", "_keys", "_later", "_mm", "_adapter")

    def __init__(self, request: Request):
        self.request = request
        self._keys = _lib.Keys()
        self._later: Names | None = None  # the first of them
        self._mm = 0
        lora = request.lora_request
        # None: its files must be looked at.
        self._adapter = adapters.known(lora) if lora else b""

    def _plain(self) -> bool:
        """Whether nothing but its tokens decides its KV. A session may get
        images later."""
        r = self.request
        return not (r.lora_request or r.mm_features or r.cache_salt
                    or getattr(r, "prompt_embeds", None) is not None)

    @property
    def keys(self) -> _lib.Keys:
        """What is named."""
        if self._later is not None and self._later.made:
            self._keys.extend(self._later.data)
            self._later = None
        return self._keys

    def later(self, chunks: int) -> Names | None:
        """For one that has just arrived: what names all of it, if a thread can
        do that. It must, where files have to be looked at."""
        r = self.request
        ids = r.prompt_token_ids
        files = self._adapter is None
        if files:
            ids = r.all_token_ids[:r.num_tokens]
        elif (chunks == 0 or ids is None or len(ids) != r.num_tokens
              or not self._plain()):
            return None
        self._later = Names(self, array("I", ids), files)
        if files and (lost := adapters.lost(r.lora_request)):
            self._later.fail(lost)
        return self._later

    def waits(self) -> bool:
        """Whether it is for a thread to name it, and that has not been done."""
        names = self._later
        return (names is not None and names.files and not names.made
                and names.failed is None)

    def seen(self) -> bool:
        """Whether no files have to be looked at."""
        return self._adapter is not None

    def give_up(self) -> None:
        """It does not wait any longer, and vLLM may load its adapter."""
        if self.waits():
            adapters.missed(self.request.lora_request)
            self._later.fail("its adapter's files could not be looked at in "
                             "time")

    def look(self, chunks: int, size: int) -> list[bytes]:
        """What else than its tokens names its first chunks. Reads files."""
        self._adapter = adapters.look(self.request.lora_request)
        return self._extra(size, 0, chunks)

    def extra_of(self, size: int, first: int,
                 end: int) -> list[bytes] | None:
        """What else than its tokens names these chunks of so many tokens."""
        if self._plain():
            return None
        before, self._mm = self._mm, 0
        found = self._extra(size, first, end)
        self._mm = before
        return found

    def extend(self, space: _lib.Space, tokens: int) -> None:
        """Names the chunks of the first so many tokens; not while waits()."""
        if self._later is not None:
            self._later.make(space)
        elif self._adapter is None:
            self._adapter = adapters.look(self.request.lora_request)
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
