#!/usr/bin/env python3
"""The proof on a machine with a GPU, in one prepared run.

    bench/gpu/run.py STAGE... --out DIR [--budget SECONDS]

Stages: copy, equality, ttft-8b, ttft-32b, nohit, load, faults, pressure, shapes;
ttft is both of its own, all is all. Each prints one table; figures go to
DIR/gpu.json as soon as they are there, and are added to what is in it. A stage
that fails prints the end of its log, and the next one runs. See README.md
beside this file.
"""
import argparse
import pathlib
import signal
import subprocess
import sys
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import copies
import equality
import faults
import host
import load
import nohit
import pressure
import shapes
import ttft
from proof import Proof

STAGES = {"copy": copies.run, "equality": equality.run,
          "ttft-8b": lambda proof: ttft.run(proof, "8b"),
          "ttft-32b": lambda proof: ttft.run(proof, "32b"),
          "nohit": nohit.run, "load": load.run, "faults": faults.run,
          "pressure": pressure.run, "shapes": shapes.run}
SETS = {"ttft": ["ttft-8b", "ttft-32b"], "all": list(STAGES)}


def commit():
    """Of the tree this is in; of a packed one, what pack.sh wrote."""
    packed = HERE.parents[1] / "COMMIT"
    if packed.exists():
        return packed.read_text().strip()
    done = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"],
                          capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stages", nargs="+", metavar="STAGE",
                        choices=[*STAGES, *SETS])
    parser.add_argument("--out", default="gpu-out", help="for gpu.json, logs")
    parser.add_argument("--budget", type=float, default=540,
                        help="seconds that all of it may take (540)")
    parser.add_argument("--work", default=None,
                        help="where nodes keep their files (TMPDIR)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true",
                        help="small sizes: the script is tried out")
    parser.add_argument("--scale", type=float, default=1.0,
                        help="of the stage load: 1 is 24 groups, 3 queries")
    parser.add_argument("--only", nargs="*", metavar="CASE",
                        help="of equality, faults, pressure, shapes: these")
    parser.add_argument("--default", action="store_true",
                        help="compiled and with graphs, as vllm serve has it")
    parser.add_argument("--compiled", action="store_true",
                        help="equality with torch.compile too")
    parser.add_argument("--times", type=int, default=5,
                        help="hits of a kind that ttft measures (5)")
    parser.add_argument("--lengths", type=int, nargs="*", metavar="TOKENS",
                        help="of the prompts of ttft")
    parser.add_argument("--no-ssd", action="store_true",
                        help="ttft without hits from SSD")
    parser.add_argument("--tail", type=int, default=0,
                        help="tokens more in prompts of ttft")
    parser.add_argument("--dram", default="48G", help="of the nodes (48G)")
    parser.add_argument("--pages", choices=["auto", "rank"], default="auto",
                        help="the connector's option pages")
    parser.add_argument("--python", default=sys.executable,
                        help="the Python that has vLLM")
    parser.add_argument("--no-fork", action="store_true",
                        help="a process that imports vLLM for each engine")
    parser.add_argument("--commit", default=commit())
    return parser.parse_args()


def main():
    args = arguments()
    # Told to end, it still shows what it has, and ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [n for given in args.stages for n in SETS.get(given, [given])]
    proof = Proof(args)
    bad = []
    try:
        for name in names:
            proof.say(f"==== {name}")
            try:
                proof.clock.need(20, name)
                STAGES[name](proof)
            except (host.OutOfTime, host.Failed) as error:
                bad.append(name)
                proof.say(f"{name}: {error}")
                proof.results.setdefault(name, {})["stopped"] = (
                    str(error)[-4000:])
            except Exception:
                bad.append(name)
                text = traceback.format_exc()
                proof.say(f"{name}: {text}")
                proof.results.setdefault(name, {})["stopped"] = text[-4000:]
            proof.save()
    finally:
        proof.save()
        proof.close()
    proof.say(f"figures are in {proof.json}" +
              (f"; not done: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
