"""Larder for Python: a client of a node, and connectors for engines.

    with larder_kv.open("unix:/run/larder/larder.sock") as node:
        with node.space("my model, bf16") as space:
            chain = space.chain(tokens)
            print(space.match(chain).chunks, "chunks are in the store")

The connector of vLLM is larder_kv.vllm.LarderConnector, that of SGLang
larder_kv.sglang.LarderStorage. The manual is docs/reference/python.md.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from larder_kv.client import (Buffer, Chain, Got, HandleError, LarderError,
                                  Lease, Match, Node, NodeError, RequestError,
                                  Space, Status, open)

__all__ = ["Buffer", "Chain", "Got", "HandleError", "LarderError", "Lease",
           "Match", "Node", "NodeError", "RequestError", "Space", "Status",
           "open"]


def __getattr__(name: str) -> Any:
    """When it is asked for: the command `larder` needs nothing of it."""
    if name not in __all__:
        raise AttributeError(f"module 'larder_kv' has no attribute {name!r}")
    from larder_kv import client

    return getattr(client, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
