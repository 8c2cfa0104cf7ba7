"""Registers the connector by name, in every process of vLLM's."""
from __future__ import annotations

import contextlib


def register() -> None:
    from larder_kv.engine import cores
    from vllm.distributed.kv_transfer.kv_connector.factory import (
        KVConnectorFactory)

    cores.remember()
    with contextlib.suppress(ValueError):  # it is already
        KVConnectorFactory.register_connector(
            "LarderConnector", "larder_kv.vllm", "LarderConnector")
