"""LoRA adapters, named by their content and not by their name.

An adapter is what it was when its number was first seen: vLLM keeps what it
loaded under a number. Its files are hashed then, and looked at again (names,
sizes, dates) at most once in SECONDS. That is done by the threads that look
prompts up: files may be large, or on a disk that does not answer.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
import threading
import time
from typing import TYPE_CHECKING

from larder_kv.vllm import model

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

SECONDS = 1.0


class _Adapter:
    __slots__ = ("lock", "checked", "stamp", "digest")

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while its files are looked at
        self.checked = float("-inf")
        self.stamp: list[tuple] = []
        self.digest = b""


_adapters: dict[tuple[str, int], _Adapter] = {}  # by path and number


def _reloads(lora: LoRARequest) -> bool:
    return getattr(lora, "load_inplace", False)


def known(lora: LoRARequest) -> bytes | None:
    """Its name, if no file need be looked at for that."""
    found = _adapters.get((lora.lora_path, lora.lora_int_id))
    if (found is None or not found.digest or _reloads(lora)
            or time.monotonic() - found.checked >= SECONDS):
        return None
    return found.digest


def look(lora: LoRARequest) -> bytes:
    """Its name. One whose files cannot be seen from here is named by its
    path."""
    found = _adapters.setdefault((lora.lora_path, lora.lora_int_id),
                                 _Adapter())
    with found.lock:
        digest = known(lora)
        return digest if digest is not None else _look(found, lora)


def _look(found: _Adapter, lora: LoRARequest) -> bytes:
    now, path = time.monotonic(), lora.lora_path
    where = path if os.path.isdir(path) else model.snapshot(path, None)
    files = sorted(pathlib.Path(where).glob("adapter*")) if where else []
    stamp = [(f.name, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
             for f in files for s in (f.stat(),)]
    if found.digest and stamp != found.stamp and not _reloads(lora):
        raise ValueError(
            f"adapter {lora.lora_name} was changed in {path} after it was "
            "loaded, so it is not known what vLLM computes with; unload it "
            "and load it again")
    if not found.digest or stamp != found.stamp:
        weights = model.directory_digest(where) if where else ""
        digest = hashlib.sha256((weights or path).encode())
        for file in files:
            if file.suffix == ".json":
                digest.update(file.read_bytes())
        found.stamp, found.digest = stamp, digest.digest()
    found.checked = now
    return found.digest
