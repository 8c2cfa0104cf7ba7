"""The vLLM that is installed is the one whose list was recorded, and the list
says what that vLLM says when it is asked."""
import json
import os
import subprocess
import sys

import pytest
import rig

sys.path.insert(0, str(rig.ROOT / "python"))
from larder_kv.vllm import selfcheck

pytestmark = pytest.mark.core

ASK = """
import importlib, inspect, json, sys
from larder_kv.vllm import LarderConnector, selfcheck, versions
def there(symbol):
    module, _, name = symbol.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return False
print("\\n" + json.dumps({
    "symbols": [s for s in selfcheck.SYMBOLS if there(s)],
    "abstract": sorted(LarderConnector.__abstractmethods__),
    "base": sorted(n for n in dir(LarderConnector.__mro__[1])
                   if not n.startswith("_")),
    "missing": versions.missing()}))
"""


def recorded(version):
    return (rig.ROOT / f"tests/vllm/members-{version}.txt"
            ).read_text().splitlines()


def test_list(version):
    [found] = (rig.python_of(version).parents[1] / "lib").glob(
        "python3*/site-packages")
    assert selfcheck.surroundings(found) == recorded(version)


def test_list_is_true(version):
    """What is read from the source is what is there when it runs."""
    done = subprocess.run(
        [str(rig.python_of(version)), "-B", "-c", ASK], text=True,
        stdout=subprocess.PIPE, timeout=300, check=True,
        env=dict(os.environ, PYTHONPATH=str(rig.ROOT / "python"),
                 VLLM_LOGGING_LEVEL="ERROR"))
    said = json.loads(done.stdout.splitlines()[-1])
    lines = recorded(version)
    names = [line.partition(":")[0] for line in lines]
    assert said["missing"] == said["abstract"] == []
    assert said["symbols"] == [s for s in selfcheck.SYMBOLS if s in names]
    assert said["base"] == [
        name for name in sorted(n.partition(".")[2] for n in names
                                if n.startswith("KVConnectorBase_V1."))
        if not name.startswith("_")]
