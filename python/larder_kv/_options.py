"""A connector's options: names, ranges and defaults are in the library's one
table (`larder options`)."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64
from typing import Any

from larder_kv._lib import check, library



class Options:
    """One attribute for each option; texts and words are str."""

    url: str
    chunk: int
    lookup_ms: int
    load: str
    load_ms: int
    load_threads: int
    save: str
    save_ms: int
    node_dram: int
    node_ssd: int
    node_dir: str

    def __init__(self, given: dict[str, Any]):
        for name in given:
            self._read(name, str(given[name]))
        for name in names():
            if name not in given:
                self._read(name, None)

    def _read(self, name: str, value: str | None) -> None:
        number = c_uint64()
        text = ctypes.create_string_buffer(512)
        check(library().larder_connector_option(
            name.encode(), None if value is None else value.encode(),
            byref(number), text, len(text)))
        is_text = self.__annotations__[name] == "str"
        setattr(self, name,
                text.value.decode() if is_text else number.value)


def names() -> list[str]:
    """Every option there is."""
    found: list[str] = []
    while (name := library().larder_connector_option_name(len(found))):
        found.append(name.decode())
    return found
