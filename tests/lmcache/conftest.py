"""Tests with LMCache itself: scripts/run-lmcache-tests runs them, with what
scripts/lmcache-env installs. $LARDER_BUILD: the build (build/release)."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "vllm"))

import rig  # noqa: E402, F401, says where everything is
