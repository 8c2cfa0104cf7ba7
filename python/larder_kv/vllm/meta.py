"""What the scheduler's side tells the workers in a step, as vLLM carries it."""
from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata)

from larder_kv.engine import moves


class Step(moves.Step, KVConnectorMetadata):
    pass
