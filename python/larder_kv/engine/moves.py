"""What a scheduler's side tells the workers in a step."""
from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Move:
    """Chunks to save or load, by a request's block tables. keys[0] is that of
    chunk first_key; tables has (first place, ids) for each group."""

    request_id: str
    keys: bytes
    first_key: int
    begin: int
    end: int
    tables: list[tuple[int, array]]
    ttl_ms: int = 0
    memory: str = ""  # load: from here, where it was fetched to
    token: bytes = b""  # load: of the lease that holds it
    # Its chunks are a tail's, with so many tokens in the last (see handoff).
    in_tail: int = 0
    tail: Move | None = None  # load: after it
    job: int = 0  # save: its number, if one wants to know what became of it
    held: bool = False  # save: its blocks are, so that a thread may make it
    after: Any = None  # in a worker, on a GPU: the event that its copy awaits
    ready: Any = None  # there: a lock, released when its thread may begin
    request: Any = None  # there: what it asks the store for, if that is made
    entered: Any = None  # there: a lock, released when its thread is at it


@dataclass
class Step:
    loads: list[Move] = field(default_factory=list)
    saves: list[Move] = field(default_factory=list)
    board: str = ""  # see hold; with saves that are held
    empty: bool = False  # nothing is computed, in this step or beside it
    until: float = 0.0  # then a load is expected to end (time.monotonic())
