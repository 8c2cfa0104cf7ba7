"""What the two sides tell each other, as vLLM carries it."""
from __future__ import annotations

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata)

from larder_kv.engine import moves


class Step(moves.Step, KVConnectorMetadata):
    pass


@dataclasses.dataclass
class Unknown:
    """Of a worker whose pages it cannot describe, before the first step."""

    why: str
