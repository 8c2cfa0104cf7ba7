"""The recorded interface, from which tests/python makes its stand-ins, is that
of the SGLang that is installed."""
import json
import os
import subprocess

import rig


def test_recorded():
    settings = dict(os.environ) | {
        "PYTHONPATH": str(rig.HERE / "shim"), "SG_CPU_SHIM": "1",
        "SGLANG_USE_CPU_ENGINE": "1"}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([rig.PYTHON, rig.HERE / "interface.py"],
                          env=settings, stdout=subprocess.PIPE, check=True)
    recorded = rig.HERE / f"interface-{rig.VERSION}.json"
    assert json.loads(done.stdout) == json.loads(recorded.read_text())
