"""Tests with Dynamo's own indexer: scripts/run-dynamo-tests runs them, with
what it installs in build/dynamo. $LARDER_BUILD: the build (build/release)."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
os.environ.setdefault("LARDER_LIBRARY", str(BUILD / "lib/liblarder.so"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
