"""vLLM on Larder: kv_connector LarderConnector, kv_connector_module_path
larder_kv.vllm."""
from __future__ import annotations

from typing import Any

__all__ = ["LarderConnector"]


def __getattr__(name: str) -> Any:
    """The connector, when it is asked for: before that, whether this vLLM has
    what the connector imports."""
    if name != "LarderConnector":
        raise AttributeError(name)
    from larder_kv.vllm import versions

    versions.check()
    from larder_kv.vllm.connector import LarderConnector
    return LarderConnector
