"""Tests with real SGLang on the CPU: scripts/run-sglang-tests runs them."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
