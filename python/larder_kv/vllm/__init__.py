"""vLLM on Larder: kv_connector LarderConnector, kv_connector_module_path
larder_kv.vllm."""
from __future__ import annotations

import logging
from typing import Any

__all__ = ["LarderConnector"]

# What larder_kv.engine logs goes where vLLM's own lines go.
logging.getLogger("larder").parent = logging.getLogger("vllm.larder")


def __getattr__(name: str) -> Any:
    """The connector, when it is asked for: before that, whether this vLLM has
    what the connector imports. It is registered by its name then, also where
    no plug-in was installed: a MultiConnector finds its children so."""
    if name != "LarderConnector":
        raise AttributeError(name)
    from larder_kv.vllm import plugin, versions

    versions.check()
    from larder_kv.vllm.connector import LarderConnector
    plugin.register()
    return LarderConnector
