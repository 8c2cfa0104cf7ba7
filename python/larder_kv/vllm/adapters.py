"""LoRA adapters, named by their content and not by their name.

An adapter is what it was when its number was first seen: vLLM keeps what it
loaded under a number. Its files are hashed then, and looked at again (names,
sizes, dates) at most once in SECONDS. That is done by a thread: files may be
large, or on a disk that does not answer.

vLLM loads an adapter when its first request is scheduled. So that request waits
until the files were looked at. Where it cannot wait any longer, nobody will
know what was loaded: the number has no name then, ever (missed).

Not seen: files that are replaced between that look and vLLM's load, between
`/v1/load_lora_adapter` and the first request, or before vLLM loads an adapter
again that it had dropped. A new version needs a new directory.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
import threading
import time
from typing import TYPE_CHECKING

from larder_kv.engine import weights

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

SECONDS = 1.0


class _Adapter:
    __slots__ = ("looking", "lock", "checked", "stamp", "digest", "missed")

    def __init__(self) -> None:
        self.looking = threading.Lock()  # held while its files are looked at
        self.lock = threading.Lock()  # of digest and missed: the first counts
        self.checked = float("-inf")
        self.stamp: list[tuple] = []
        self.digest = b""
        self.missed = False


_adapters: dict[tuple[str, int], _Adapter] = {}  # by path and number


def _entry(lora: LoRARequest) -> _Adapter:
    return _adapters.setdefault((lora.lora_path, lora.lora_int_id), _Adapter())


def _reloads(lora: LoRARequest) -> bool:
    return getattr(lora, "load_inplace", False)


def known(lora: LoRARequest) -> bytes | None:
    """Its name, if no file need be looked at for that."""
    found = _adapters.get((lora.lora_path, lora.lora_int_id))
    if (found is None or not found.digest or _reloads(lora)
            or time.monotonic() - found.checked >= SECONDS):
        return None
    return found.digest


def missed(lora: LoRARequest) -> None:
    """vLLM may load it from now on."""
    found = _entry(lora)
    with found.lock:
        if not found.digest and not _reloads(lora):
            found.missed = True


def lost(lora: LoRARequest) -> str:
    """Why it can have no name; empty: it can."""
    return "" if _reloads(lora) or not _entry(lora).missed else (
        f"adapter {lora.lora_name} was loaded before its files in "
        f"{lora.lora_path} could be looked at, so it is not known what vLLM "
        "computes with; unload it and load it again")


def look(lora: LoRARequest) -> bytes:
    """Its name. One that cannot be looked at now is loaded unseen."""
    found = _entry(lora)
    with found.looking:
        digest = known(lora)
        try:
            return digest if digest is not None else _look(found, lora)
        except Exception:
            missed(lora)
            raise


def _where(path: str) -> str:
    """The directory that vLLM loads, or "". With a hub's name it takes what
    the hub has by then, unless it is told to ask none."""
    here = os.path.expanduser(path)
    if os.path.isdir(here):
        return here
    from huggingface_hub import constants

    return weights.snapshot(path, None) if constants.HF_HUB_OFFLINE else ""


def _look(found: _Adapter, lora: LoRARequest) -> bytes:
    now, path = time.monotonic(), lora.lora_path
    where = _where(path)
    files = sorted(pathlib.Path(where).glob("adapter*")) if where else []
    stamp = [(f.name, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
             for f in files for s in (f.stat(),)]
    if found.digest and stamp != found.stamp and not _reloads(lora):
        raise ValueError(
            f"adapter {lora.lora_name} was changed in {path} after it was "
            "loaded, so it is not known what vLLM computes with; unload it "
            "and load it again")
    digest = found.digest
    if not digest or stamp != found.stamp:
        if not (names := weights.weights_digest(where) if where else ""):
            raise ValueError(
                f"adapter {lora.lora_name}: there is no directory {path} with "
                "weights, so it is not known what vLLM computes with; download "
                "it, and load it from its directory")
        content = hashlib.sha256(names.encode())
        for file in files:
            if file.suffix == ".json":
                content.update(file.read_bytes())
        digest = content.digest()
    with found.lock:
        if why := lost(lora):
            raise ValueError(why)
        found.missed = False
        found.stamp, found.digest, found.checked = stamp, digest, now
    return digest
