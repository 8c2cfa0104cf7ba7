"""Weights that SGLang replaces in its memory (/update_weights_from_*).

SGLang does not tell a storage backend of that, and KV of other weights has the
same page hashes. So the functions that load weights into a model are wrapped,
here and nowhere else: every update goes through one of them, whether a request
or the engine itself begins it. Read for this: SGLang 0.5.17 to 0.5.23.
"""
from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from larder_kv import _lib

logger = logging.getLogger("larder")

MODULE = "sglang.srt.model_executor.model_runner_components.weight_updater"
# Of its class WeightUpdater. Those that a version lacks are left out: 0.5.23
# loads what it received in load_weights_from_distributed(), older ones in
# update_weights_from_distributed(). What others write into the model between
# its begin and its end (RDMA) has no function of its own.
WRAPPED = ("update_weights_from_disk", "update_weights_from_tensor",
           "update_weights_from_distributed", "load_weights_from_distributed",
           "update_weights_from_ipc", "begin_weight_update")

_lock = threading.Lock()
_count = 0  # updates of this process's weights
_names: dict[str, int] = {}  # option weights: the update that it was given at


def count() -> int:
    return _count


def _updated() -> None:
    global _count
    with _lock:
        _count += 1
        first = _count - 1 in _names.values()
    if first:
        logger.error(
            "larder: SGLang replaces its weights: nothing is loaded from the "
            "store, or saved to it, from here on. Detach the storage backend, "
            'and attach it with a new name of the weights, "weights": "NAME"')


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def update(*args: Any, **kwargs: Any) -> Any:
        _updated()
        return function(*args, **kwargs)

    update.larder = True  # type: ignore[attr-defined]
    return update


def watch(name: str) -> int:
    """The weights of this process are called name from here on; gives what
    count() is as long as they are these."""
    try:
        kind = importlib.import_module(MODULE).WeightUpdater
    except (ImportError, AttributeError):
        logger.warning(
            "larder: updates of the weights in memory are not seen in this "
            "version of SGLang: detach the storage backend before each, and "
            'attach it after that with another "weights"')
        return _count
    with _lock:
        for one in WRAPPED:
            function = getattr(kind, one, None)
            if function is not None and not hasattr(function, "larder"):
                setattr(kind, one, _wrapped(function))
        if _names.setdefault(name, _count) != _count or (
                _count and not name):
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED, "larder: SGLang has replaced its weights "
                "in memory, so that its files do not say what they are: name "
                'them, "weights": "NAME", with a name that this server has '
                "not had yet")
        return _count
