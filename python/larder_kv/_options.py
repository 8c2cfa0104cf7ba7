"""A connector's options: names, ranges and defaults are in the library's one
table (`larder options`)."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64
from typing import Any

from larder_kv import _lib

PLACE = "larder: kv_connector_extra_config"


class Options:
    """One attribute for each option; texts and words are str."""

    url: str
    secret_file: str
    chunk: int
    weights: str
    pod: str
    events_ownership: str
    pages: str
    page_tokens: int
    lookup_ms: int
    load: str
    load_ms: int
    load_threads: int
    save: str
    save_ms: int
    save_threads: str
    node_dram: int
    node_dram_start: int
    node_ssd: int
    node_dir: str
    node_idle_s: int

    def __init__(self, given: dict[str, Any] | None = None,
                 place: str = PLACE):
        """place: where they were given, for messages."""
        given = given or {}
        self._place = place
        missing = sorted(set(type(self).__annotations__) - set(names()))
        if missing:
            raise _lib.LarderError(
                _lib.E_VERSION, "larder: liblarder is of another version: it "
                f"has no option {missing[0]}; install larder-kv again")
        for name in [*given, *type(self).__annotations__]:
            self._read(name, given.get(name))

    def _read(self, name: str, value: Any) -> None:
        """Sets one; None: its default."""
        if not (value is None or isinstance(value, (str, int, float))):
            raise _lib.LarderError(
                _lib.E_INVALID, f"{self._place}: option {name}: a text or a "
                f"number is wanted, not {value!r}")
        if value is not None:
            value = str(value)
        if "\0" in name or "\0" in (value or ""):
            raise _lib.LarderError(
                _lib.E_INVALID,
                f"{self._place}: option {name!r}: NUL in a text")
        number = c_uint64()
        text = ctypes.create_string_buffer(512)
        status = _lib.library().larder_connector_option(
            name.encode(), None if value is None else value.encode(),
            byref(number), text, len(text))
        if status < 0:
            error = _lib.fail(status)
            raise _lib.LarderError(status, f"{self._place}: {error}")
        kind = type(self).__annotations__.get(name)
        if kind is not None:
            setattr(self, name,
                    text.value.decode() if kind == "str" else number.value)


def names() -> list[str]:
    """Every option that the library has."""
    found: list[str] = []
    while (name := _lib.library().larder_connector_option_name(len(found))):
        found.append(name.decode())
    return found
