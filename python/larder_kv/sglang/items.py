"""Pages of host memory as the items of one call, by SGLang's page hashes.

One call has up to 128 pages of SGLang's, or a whole prompt's for a lookup. The
array of items is packed as bytes: to set it field by field would take longer
than to copy small pages.
"""
from __future__ import annotations

import contextlib
import ctypes
import hashlib
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from larder_kv import _lib

# larder_item_t: key, parent, depth, group, shard, iov, iov_count, flags,
# ttl_ms, status, cause, length.
_ITEM = struct.Struct("@PPIHHPIIIiiN")
assert _ITEM.size == ctypes.sizeof(_lib.Item)
_STATUS, _CAUSE, _LENGTH = 9, 10, 11


def digests(keys: Sequence[str]) -> bytes:
    """The keys as Larder has them. SGLang's are SHA-256 in hex, of the page's
    tokens and all before it; whatever else it may use is hashed."""
    if set(map(len, keys)) <= {2 * _lib.KEY_BYTES}:
        with contextlib.suppress(ValueError):
            return bytes.fromhex("".join(keys))
    return b"".join(hashlib.sha256(key.encode()).digest() for key in keys)


class Result:
    """What became of one page."""

    __slots__ = ("status", "cause", "length")

    def __init__(self, status: int, cause: int, length: int = 0):
        self.status, self.cause, self.length = status, cause, length


class Batch:
    """Items for pages in a row. before: how many pages come before the first
    one in its prompt, and the keys of the last of them, b"" if they are not
    known."""

    def __init__(self, keys: Sequence[str], shard: int,
                 before: tuple[int, bytes] = (0, b"")):
        self.count = len(keys)
        depth, parent = before[0], before[1][-_lib.KEY_BYTES:]
        data = (parent or bytes(_lib.KEY_BYTES)) + digests(keys)
        self._keys = ctypes.create_string_buffer(data, len(data))
        self._first = ctypes.addressof(self._keys) + _lib.KEY_BYTES
        self._depth, self._has_parent = depth, bool(parent)
        self._shard = shard
        self._pieces = array("Q")

    def pieces(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Where the pages lie: as many pieces for each page."""
        if len(addresses) % self.count or len(sizes) != len(addresses):
            raise ValueError(f"{len(addresses)} pieces with {len(sizes)} "
                             f"sizes, for {self.count} pages")
        both = array("Q", bytes(16 * len(addresses)))
        both[0::2] = array("Q", addresses)
        both[1::2] = array("Q", sizes)
        self._pieces = both

    def run(self, space: _lib.Space, op: int,
            timeout_ms: int) -> list[Result]:
        """One result for each page, in at most BATCH_MAX of them a call."""
        each = len(self._pieces) // 2 // self.count
        at = self._pieces.buffer_info()[0] if each else 0
        found: list[Result] = []
        for begin in range(0, self.count, _lib.BATCH_MAX):
            end = min(self.count, begin + _lib.BATCH_MAX)
            items = (_lib.Item * (end - begin))()
            for i in range(begin, end):
                key = self._first + i * _lib.KEY_BYTES
                _ITEM.pack_into(
                    items, (i - begin) * _ITEM.size, key,
                    key - _lib.KEY_BYTES if i or self._has_parent else 0,
                    self._depth + i, 0, self._shard,
                    at + 16 * each * i if each else 0, each, 0, 0, 0, 0, 0)
            space.run(op, items, timeout_ms)
            found += [Result(item[_STATUS], item[_CAUSE], item[_LENGTH])
                      for item in _ITEM.iter_unpack(items)]
        return found


def tensor_piece(tensor: Any) -> tuple[int, int]:
    """A flat page of SGLang's, which is on the CPU and contiguous."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a page on {tensor.device}, or not contiguous")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
