"""The connector on vLLM's own objects, without an engine: the cases are in
surface_*.py, and run inside vLLM's environment."""
import os
import pathlib
import subprocess
import xml.etree.ElementTree as xml

import pytest

import rig

HERE = pathlib.Path(__file__).resolve().parent
CASES = ("surface_client.py", "surface_cores.py", "surface_cuda.py",
         "surface_events.py",
         "surface_fetched.py", "surface_handoff.py",
         "surface_keys.py", "surface_loads.py", "surface_names.py",
         "surface_pages.py", "surface_refused.py",
         "surface_requests.py", "surface_resets.py",
         "surface_shared.py",
         "surface_sleep.py")
# Pages are described, and failed loads of several groups can be reported.
SINCE_032 = ("surface_handoff_groups.py", "surface_lifecycle.py",
             "surface_orders.py", "surface_slices.py")
pytestmark = pytest.mark.core


def test_surface(version, tmp_path):
    result = tmp_path / "result.xml"
    known = tuple(map(int, version.split(".")[:2])) >= (0, 32)
    cases = CASES + (SINCE_032 if known else ())
    env = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
               VLLM_LOGGING_LEVEL="ERROR")
    done = subprocess.run(
        [str(rig.python_of(version)), "-B", "-m", "pytest", "-q", "-p",
         "no:cacheprovider", "--tb=short", "--junitxml", str(result),
         *(str(HERE / name) for name in cases)], env=env, text=True,
        timeout=400, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-20000:]
    [suite] = xml.parse(result).getroot().iter("testsuite")
    assert int(suite.get("tests")) > 70 and int(suite.get("skipped")) == 0
