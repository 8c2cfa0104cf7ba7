"""Addresses of callers' memory: nothing is copied, whatever has the bytes."""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

# bytes, bytearray, memoryview, array, mmap, a numpy array: whatever has the
# buffer protocol; or a tensor of torch on the CPU. Always contiguous.
Buffer = Any

_WRITABLE = 1  # PyBUF_WRITABLE; PyBUF_SIMPLE, contiguous bytes, is 0


class _View(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object),
                ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_View), ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_View)]
_release.restype = None


def _tensor(one: Any) -> tuple[int, int]:
    if one.device.type != "cpu":
        raise TypeError(f"a tensor on {one.device}: only one on the CPU can be "
                        "given; use .cpu()")
    if not one.is_contiguous():
        raise BufferError("the tensor is not contiguous")
    return one.data_ptr(), one.numel() * one.element_size()


class Pinned:
    """Buffers that stay where they are until close(): an exporter such as
    bytearray refuses to be resized meanwhile."""

    def __init__(self, writable: bool):
        self._flags = _WRITABLE if writable else 0
        self._views: list[_View] = []
        self._kept: list[Any] = []

    def vector(self, given: Buffer | Sequence[Buffer]) -> tuple[int, int]:
        """An item's iov and iov_count: given is one buffer, or a list or tuple
        of them, one behind the other."""
        pieces = given if isinstance(given, (list, tuple)) else [given]
        pairs = (ctypes.c_uint64 * (2 * len(pieces)))()
        for i, piece in enumerate(pieces):
            pairs[2 * i], pairs[2 * i + 1] = (
                _tensor(piece) if hasattr(piece, "data_ptr")
                else self._pin(piece))
        self._kept += [pairs, pieces]
        return ctypes.addressof(pairs), len(pieces)

    def _pin(self, piece: Any) -> tuple[int, int]:
        view = _View()
        try:
            _get(piece, ctypes.byref(view), self._flags)
        except ValueError as error:  # numpy's word for it
            raise BufferError(str(error)) from None
        self._views.append(view)
        return view.buf or 0, view.len

    def close(self) -> None:
        for view in self._views:
            _release(ctypes.byref(view))
        self._views.clear()
        self._kept.clear()
