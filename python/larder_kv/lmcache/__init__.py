"""LMCache on Larder: an L2 adapter of type native_plugin with module_path
larder_kv.lmcache and class_name Connector (docs/guide/lmcache.md)."""
from __future__ import annotations

import logging
import sys

from larder_kv.lmcache.connector import Connector

__all__ = ["Connector"]

if "lmcache" in sys.modules:
    # What Larder logs goes where LMCache's own lines go.
    from lmcache.logging import init_logger

    logging.getLogger("larder").parent = init_logger("lmcache.larder")
