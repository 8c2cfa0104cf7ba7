"""Tests that need a GPU: PyTorch with CUDA, and Larder's library and program
in $LARDER_BUILD (build/release). Elsewhere all of them are skipped, and say
why."""
import contextlib
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
# Before larder_kv is imported: it opens the library that this names.
os.environ.setdefault("LARDER_LIBRARY", str(BUILD / "lib/liblarder.so"))
os.environ.setdefault("LARDER_PROGRAM", str(BUILD / "bin/larder"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/e2e")]

from daemon import Daemon


def _missing() -> str:
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "there is no CUDA device"


def pytest_collection_modifyitems(items):
    why = _missing()
    if why:
        for item in items:
            item.add_marker(pytest.mark.skip(
                reason=f"GPU tests: {why}; run `make test-gpu` where there is "
                "one"))


@pytest.fixture
def daemon(tmp_path):
    """A `larder serve` that ends with the test, and has nothing held then."""
    one = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "daemon",
                 dram="3G", listen="127.0.0.1:0")
    with contextlib.ExitStack() as stack:
        stack.callback(one.end)
        yield one.start()
