"""Proof 1: copies between GPU memory and the arena, by the program itself."""
import json
import subprocess

import host
from proof import table


def run(proof):
    found = proof.stage("copy")
    command = [host.program(), "bench", "gpu-copy", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=proof.clock.limit(180))
    except subprocess.TimeoutExpired as error:
        raise host.Failed(f"larder bench gpu-copy: {error}") from None
    found["figures"] = figures = []
    for line in done.stdout.splitlines():
        try:
            figures.append(json.loads(line))
        except ValueError:
            print(line, flush=True)
    found["rc"], found["stderr"] = done.returncode, done.stderr[-4000:]
    proof.save()
    table(["gpu-copy", "bytes", "value", "unit", "limit", "ratio", "goal",
           "holds"],
          [[f.get("variant"), f.get("bytes"), f.get("value"), f.get("unit"),
            f.get("limit"), f.get("ratio"), f.get("goal"), f.get("holds")]
           for f in figures])
    if not figures:
        raise host.Failed(f"larder bench gpu-copy measured nothing, rc "
                          f"{done.returncode}:\n{done.stderr[-3000:]}")
