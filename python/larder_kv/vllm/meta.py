"""What the scheduler's side tells the workers in a step."""
from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata)


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
    job: int = 0  # save: its number, if events want to know what became of it


@dataclass
class Step(KVConnectorMetadata):
    loads: list[Move] = field(default_factory=list)
    saves: list[Move] = field(default_factory=list)
