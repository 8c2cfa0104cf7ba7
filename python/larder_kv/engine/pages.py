"""Huge pages for KV memory of the CPU.

A copy between the store and scattered KV pages loses up to a third of its speed
where the memory is in pages of 4 KiB: every page needs a walk through the page
tables. Engines take what the system gives by default, so the worker asks for
huge ones: of memory that is in use already they are put together by a thread,
while the engine runs. The thread rests nine times as long as it works: the
kernel locks the engine's memory meanwhile, and an engine's first requests would
wait for that. Nothing is asked for where the system says `never`.
"""
from __future__ import annotations

import ctypes
import errno
import logging
import os
import pathlib
import threading
import time
from collections.abc import Iterable

logger = logging.getLogger("larder")

SETTING = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE = 1 << 21
STEP = 1 << 23  # bytes put together in one call: close() waits for one
REST = 9  # times as long as a call took
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25


def _whole(base: int, size: int) -> tuple[int, int]:
    """The huge pages that lie inside: first byte, and the one behind."""
    return -(-base // HUGE) * HUGE, (base + size) // HUGE * HUGE


def _allowed() -> bool:
    try:
        return "[never]" not in SETTING.read_text()
    except OSError:
        return False


class Huge:
    """Of regions (base, bytes), which stay as they are until close()."""

    def __init__(self, regions: Iterable[tuple[int, int]]):
        self._ranges = [found for found in (_whole(*r) for r in regions)
                        if found[0] < found[1]]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self._ranges and _allowed():
            self._thread = threading.Thread(target=self._work, daemon=True,
                                            name="larder-pages")
            self._thread.start()

    def _work(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t,
                                 ctypes.c_int]
        for first, end in self._ranges:
            if libc.madvise(first, end - first, MADV_HUGEPAGE) != 0:
                return  # the kernel has none
            for at in range(first, end, STEP):
                began = time.monotonic()
                # Parts that cannot be now stay as they are. Before Linux 6.1
                # the kernel does it by itself, some time.
                if (libc.madvise(at, min(STEP, end - at), MADV_COLLAPSE) != 0
                        and ctypes.get_errno() == errno.ENOMEM):
                    logger.debug("larder: no huge pages for KV memory: %s",
                                 os.strerror(errno.ENOMEM))
                    return
                if self._stop.wait(REST * (time.monotonic() - began)):
                    return

    def wait(self, seconds: float) -> bool:
        """Whether all that can be done is done."""
        if self._thread is not None:
            self._thread.join(timeout=seconds)
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
