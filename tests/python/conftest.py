"""Tests of python/larder_kv without an engine. $LARDER_BUILD is the build
whose library and program are used (build/release)."""
import contextlib
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
# Before larder_kv is imported: it opens the library that this names.
os.environ["LARDER_LIBRARY"] = str(BUILD / "lib/liblarder.so")
os.environ["LARDER_PROGRAM"] = str(BUILD / "bin/larder")
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/e2e")]

from daemon import Daemon

if BUILD.name in ("asan", "tsan"):
    # Python cannot load a library that wants its sanitizer first.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def daemon(tmp_path):
    """A `larder serve` that ends with the test, and has nothing held then."""
    one = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "daemon")
    with contextlib.ExitStack() as stack:
        stack.callback(one.end)
        yield one.start()
