"""Statuses of the library, and the exceptions that carry them."""
from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """What became of a call or an item. Below zero: it failed, by the largest
    thing that is damaged: the request, the handle (-40), the node (-60)."""

    OK = 0
    PRESENT = 1
    MISS = 2
    PENDING = 3
    DECLINED = 4
    PARTIAL = 5
    E_INVALID = -1
    E_SIZE = -2
    E_OVERLAP = -3
    E_SPACE = -4
    E_FULL = -5
    E_DEADLINE = -6
    E_CANCELED = -7
    E_BUSY = -8
    E_MISMATCH = -9
    E_STALE = -10
    E_LIMIT = -11
    E_UNSUPPORTED = -12
    E_CLOSED = -40
    E_FORKED = -41
    E_POISONED = -42
    E_NO_MEMORY = -60
    E_TIER_OFF = -61
    E_IO = -62
    E_LOCKED = -63
    E_VERSION = -64
    E_CORRUPT = -65
    E_DROPPED = -66
    E_SECRET = -67
    E_OFFLINE = -68
    E_DENIED = -69
    E_OTHER = -70

    @classmethod
    def _missing_(cls, value: object) -> Status:
        """One that only a newer library knows. Above zero it is no failure:
        nothing was given, or kept."""
        return (cls.MISS if isinstance(value, int) and value > 0 else
                cls.E_OTHER)


class LarderError(Exception):
    """A call that failed. status: why; the text says it in words."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = Status(status)


class RequestError(LarderError):
    """The call failed; the handle and the node are as they were."""


class HandleError(LarderError):
    """The handle cannot be used any more: it is closed, was opened by the
    parent process, or found an error in itself."""


class NodeError(LarderError):
    """The node, or one of its tiers, could not do it."""


def error_of(status: int, text: str) -> LarderError:
    """Of the class that the status belongs to."""
    kind = (RequestError if status > -40 else
            HandleError if status > -60 else NodeError)
    return kind(status, text)
