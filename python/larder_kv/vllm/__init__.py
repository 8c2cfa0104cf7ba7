"""vLLM on Larder: kv_connector LarderConnector, kv_connector_module_path
larder_kv.vllm."""
from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

__all__ = ["LarderConnector"]

# What larder_kv.engine logs goes where vLLM's own lines go.
logging.getLogger("larder").parent = logging.getLogger("vllm.larder")


if "vllm" in sys.modules:
    # By its name, also where no plug-in was installed: a MultiConnector finds
    # its children so. Too old a vLLM is told of when the connector is used.
    from larder_kv.vllm import plugin

    with contextlib.suppress(ImportError):
        plugin.register()


def __getattr__(name: str) -> Any:
    """The connector, when it is asked for: before that, whether this vLLM has
    what the connector imports."""
    if name != "LarderConnector":
        raise AttributeError(name)
    from larder_kv.vllm import versions

    versions.check()
    from larder_kv.vllm.connector import LarderConnector
    return LarderConnector
