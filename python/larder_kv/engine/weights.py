"""Weights, named by what is in their files."""
from __future__ import annotations

import hashlib
import json
import os
import pathlib
from typing import Any, BinaryIO

SAMPLES, SAMPLE_BYTES, HEAD_BYTES = 64, 4096, 65536
TENSORS_MAX = 4096  # of a file, sampled one by one


def _weights(path: pathlib.Path) -> list[pathlib.Path]:
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.gguf"):
        found = sorted(path.glob(pattern))
        if found:
            return found
    return []


def _tensors(file: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Where a safetensors file has its tensors; [] if it is none."""
    try:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length < size:
            return []
        head = json.loads(file.read(length))
        return sorted((8 + length + t["data_offsets"][0],
                       8 + length + t["data_offsets"][1])
                      for name, t in head.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _sample(path: pathlib.Path, digest: Any) -> None:
    """A file's name and size, its head (which has the names and shapes of its
    tensors), and samples: of each tensor, or of a file that is not known
    better. In a hub's cache the file it links to is named by its content."""
    size = path.stat().st_size
    digest.update(f"{path.name}\0{size}\0".encode())
    if path.is_symlink():
        digest.update(path.resolve().name.encode())
    with open(path, "rb") as file:
        digest.update(file.read(HEAD_BYTES))
        file.seek(0)
        parts = _tensors(file, size)
        if not parts or len(parts) > TENSORS_MAX:
            count = max(SAMPLES, min(len(parts), TENSORS_MAX))
            parts = [(size * i // count, size * (i + 1) // count)
                     for i in range(count)]
        for begin, end in parts:
            for at in (begin, (begin + end) // 2):
                file.seek(at)
                digest.update(file.read(min(SAMPLE_BYTES, end - at)))


def weights_digest(path: str) -> str:
    """Of weights in a directory, or of a file of them; "" if there are
    none."""
    files = (_weights(pathlib.Path(path)) if os.path.isdir(path)
             else [pathlib.Path(path)] if os.path.isfile(path) else [])
    digest = hashlib.sha256()
    for file in files:
        _sample(file, digest)
    return digest.hexdigest() if files else ""


def snapshot(model: str, revision: str | None) -> str:
    """Where what has that name was downloaded to, or ""."""
    try:
        from huggingface_hub import snapshot_download
        return snapshot_download(model, revision=revision,
                                 local_files_only=True)
    except Exception:  # not there, or another kind of name
        return ""
