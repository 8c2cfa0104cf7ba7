"""Which vLLM this is, and what that version can do."""
from __future__ import annotations

import re

import vllm

SUPPORTED = ("0.24", "0.29", "0.32")


class Unsupported(RuntimeError):
    """Something that cannot work; the text says what to do instead."""


def minor() -> str:
    """The version's first two numbers: "0.32"."""
    found = re.match(r"\d+\.\d+", vllm.__version__)
    return found.group() if found else vllm.__version__


def check() -> None:
    if minor() not in SUPPORTED:
        raise Unsupported(
            f"larder: vLLM {vllm.__version__} is not supported; use one of "
            + ", ".join(f"{v}.x" for v in SUPPORTED))


def reports_failed_requests() -> bool:
    """Whether a failed load can be reported by request, for any model. Before,
    it is reported by blocks, which ends the engine with more than one group."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base
    return hasattr(base, "KVConnectorTransferResults")
