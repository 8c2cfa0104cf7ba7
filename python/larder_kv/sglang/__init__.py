"""SGLang's connector: a storage backend of its HiCache.

docs/guide/sglang.md is its manual.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "larder", "module_path": "larder_kv.sglang",
      "class_name": "LarderStorage", "interface_v1": 1}'
"""
from __future__ import annotations

from typing import Any

__all__ = ["LarderStorage"]


def __getattr__(name: str) -> Any:
    """When it is asked for: it needs SGLang."""
    if name != "LarderStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from larder_kv.sglang.storage import LarderStorage

    return LarderStorage
