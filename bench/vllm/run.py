#!/usr/bin/env python3
"""`vllm serve` with and without Larder, before and after a restart.

    bench/vllm/run.py [--json FILE] [--docs] [--from FILE]

For each of the two: a server; `vllm bench serve` (prefix_repetition) twice and
the first turns of some conversations (multi_turn.py); the server is restarted;
the same load again, and the conversations go on. Needs bench/vllm/setup.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests/vllm")]

import models
import multi_turn
import plot
import server
from server import ENVIRONMENT, ROOT

PREFIX = {"prefix-len": 4096, "suffix-len": 128, "num-prefixes": 10,
          "output-len": 16}
PROMPTS = 20
TURNS = 3
PASSES = (("first", "first time"), ("again", "again"),
          ("restarted", "after a restart"))
SERVE = ("--max-model-len", "16384")


def say(text):
    print(f"bench-vllm: {text}", file=sys.stderr, flush=True)


class Run:
    """One of the two: its servers one after the other, on one host."""

    def __init__(self, model, folder, larder):
        self.model, self.larder = model, larder
        self.folder = pathlib.Path(folder)
        self.host = server.Host(folder)
        self.state = self.folder / "conversations.json"
        self.found = {"bench": {}, "turns": []}

    def start(self, number):
        say(f"starting vllm serve, {'with' if self.larder else 'without'} "
            f"Larder, {'first start' if number == 1 else 'restarted'}")
        one = server.Server(self.host, self.model, self.folder /
                            f"serve-{number}.log", self.larder, SERVE)
        # What a first request brings about is not to be measured.
        warm = types.SimpleNamespace(url=one.url, model="small", answer=4)
        multi_turn.ask(warm, multi_turn.words(f"warm up {number}", 300))
        return one

    def _counted(self, one, run):
        before = one.counters()
        answer = run()
        after = one.counters()
        return answer, {k: int(after[k] - before[k]) for k in after}

    def bench(self, one, name):
        result = self.folder / f"{name}.json"
        command = ["vllm", "bench", "serve", "--base-url", one.url, "--model",
                   "small", "--tokenizer", str(self.model), "--dataset-name",
                   "prefix_repetition", "--num-prompts", str(PROMPTS),
                   "--max-concurrency", "2", "--ignore-eos", "--temperature",
                   "0", "--ready-check-timeout-sec", "0", "--save-result",
                   "--result-filename", str(result)]
        for key, value in PREFIX.items():
            command += [f"--prefix-repetition-{key}", str(value)]
        done, counted = self._counted(one, lambda: subprocess.run(
            command, env=self.host.env, cwd=self.folder, timeout=600,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False))
        if done.returncode != 0 or not result.exists():
            raise RuntimeError(f"vllm bench serve:\n{done.stdout[-3000:]}")
        figures = json.loads(result.read_text())
        if figures["completed"] != PROMPTS:
            raise RuntimeError(f"only {figures['completed']} of {PROMPTS} "
                               "requests were answered")
        self.found["bench"][name] = dict(
            counted, load=os.getloadavg()[0], **{k: figures[k] for k in (
                "mean_ttft_ms", "median_ttft_ms", "total_token_throughput",
                "request_throughput", "duration")})
        say(f"  {name}: {figures['mean_ttft_ms']:.0f} ms mean TTFT, "
            f"{counted['external']} tokens from Larder")

    def turns(self, one):
        for _ in range(TURNS):
            done, counted = self._counted(one, lambda: subprocess.run(
                [sys.executable, str(HERE / "multi_turn.py"), "--url", one.url,
                 "--model", "small", "--state", str(self.state), "--turns",
                 "1"], stdout=subprocess.PIPE, timeout=600, check=True))
            found = dict(json.loads(done.stdout), **counted)
            self.found["turns"].append(found)
            say(f"  turn {found['turn']}: {found['ttft_ms_mean']:.0f} ms mean "
                f"TTFT, {found['external']} tokens from Larder")

    def run(self):
        try:
            with self.start(1) as one:
                self.bench(one, "first")
                self.bench(one, "again")
                self.turns(one)
                self.found["lines"] = one.larder_lines()
            with self.start(2) as one:
                self.bench(one, "restarted")
                self.turns(one)
            return self.found
        finally:
            self.host.end_node()


# ---- what it says ----

def row(*cells):
    return "| " + " | ".join(str(c) for c in cells) + " |"


def bench_table(results):
    lines = [row("`vllm bench serve`", "", "tokens/s", "TTFT mean",
                 "TTFT median", "tokens from Larder", "own cache", "computed"),
             row("---", "---", *["---:"] * 6)]
    for name, text in PASSES:
        for kind in results:
            f = results[kind]["bench"][name]
            computed = f["prompt"] - f["external"] - f["local"]
            lines.append(row(
                text, kind, f"{f['total_token_throughput']:,.0f}",
                f"{f['mean_ttft_ms']:,.0f} ms",
                f"{f['median_ttft_ms']:,.0f} ms", f"{f['external']:,}",
                f"{f['local']:,}", f"{computed:,}"))
    return lines


def turn_table(results):
    lines = [row("turn", "", "prompt tokens", "tokens/s", "TTFT mean",
                 "TTFT median", "tokens from Larder", "own cache"),
             row("---:", "---", *["---:"] * 6)]
    count = len(next(iter(results.values()))["turns"])
    for i in range(count):
        for kind in results:
            f = results[kind]["turns"][i]
            after = ", after a restart" if i == TURNS else ""
            lines.append(row(
                f"{f['turn']}{after}", kind, f"{f['prompt_tokens']:,}",
                f"{f['tokens_per_s']:,.0f}", f"{f['ttft_ms_mean']:,.0f} ms",
                f"{f['ttft_ms_median']:,.0f} ms", f"{f['external']:,}",
                f"{f['local']:,}"))
    return lines


def picture(results):
    kinds = list(results)
    passes = [(text.replace(" a ", " a\n"), [
        results[k]["bench"][name]["mean_ttft_ms"] for k in kinds])
        for name, text in PASSES]
    turns = [(f"turn {i + 1}", [results[k]["turns"][i]["ttft_ms_mean"]
                                for k in kinds])
             for i in range(len(results[kinds[0]]["turns"]))]
    return plot.svg(
        "vllm serve: mean time to the first token, ms", kinds,
        [("vllm bench serve, prefix repetition", passes, [(2, "restart")]),
         ("conversations", turns, [(TURNS, "restart")])])


def put(path, name, lines):
    """Replaces what stands between two marks in a page."""
    text = path.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, rest = text.split(begin)
    path.write_text(head + begin + "\n".join(lines) + "\n" + end +
                    rest.split(end, 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, help="where figures go",
                        default=ROOT / "build/vllm-bench/serve.json")
    parser.add_argument("--docs", action="store_true",
                        help="into bench/results/vllm.md and docs/img/vllm-serve.svg")
    parser.add_argument("--from", dest="saved", type=pathlib.Path,
                        help="measure nothing: take the figures of this file")
    args = parser.parse_args()
    if args.saved:
        results = json.loads(args.saved.read_text())
    else:
        python = ENVIRONMENT / "bin/python"
        [model] = models.make_with(python, ROOT / "build/vllm-models/0.32.0",
                                   "dense")
        results = {}
        for kind, larder in (("without", False), ("with Larder", True)):
            with tempfile.TemporaryDirectory(prefix="larder-bench-") as folder:
                results[kind] = Run(model, folder, larder).run()
        args.json.write_text(json.dumps(results, indent=1))
    tables = bench_table(results) + [""] + turn_table(results)
    print("\n".join(tables))
    if args.docs:
        put(ROOT / "bench/results/vllm.md", "serve", tables)
        (ROOT / "docs/img/vllm-serve.svg").write_text(picture(results))


if __name__ == "__main__":
    main()
