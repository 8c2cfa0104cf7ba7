"""One run of the proof: its settings, its time, its folder and its figures."""
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

import host
import models

GIB = 1 << 30
# Without torch.compile, which would take a minute at each start: decode runs
# from captured graphs, prefill does not.
GRAPHS = dict(enforce_eager=False, compilation_config={
    "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
    "cudagraph_capture_sizes": [1, 2, 4, 8, 16]})
# A request that leaves the store alone.
APART = {"larder": {"skip_save": True, "skip_load": True}}


class Proof:
    def __init__(self, args):
        self.args = args
        self.cpu, self.tiny = args.device == "cpu", args.tiny
        self.clock = host.Clock(args.budget)
        self.out = pathlib.Path(args.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.json = self.out / "gpu.json"
        self.results = (json.loads(self.json.read_text())
                        if self.json.exists() else {})
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="lg-",
                                                  dir=args.work))
        self.engines = 0
        self._starter = None
        self._models = {}

    def say(self, text):
        took = time.monotonic() - self.clock.begin
        print(f"[{took:5.0f} s] {text}", flush=True)

    # ---- figures ----

    def save(self):
        part = self.json.with_suffix(".part")
        part.write_text(json.dumps(self.results, indent=1))
        os.replace(part, self.json)

    def stage(self, name):
        """Where a stage puts its figures; save() after each."""
        self.results[name] = {"date": datetime.date.today().isoformat(),
                              "commit": self.args.commit, "tiny": self.tiny,
                              "device": self.about()}
        return self.results[name]

    def about(self):
        if self.cpu:
            return f"cpu, {os.cpu_count()} cores, {platform.machine()}"
        words = "name,memory.total,driver_version"
        try:
            return subprocess.run(
                ["nvidia-smi", f"--query-gpu={words}",
                 "--format=csv,noheader"], capture_output=True, text=True,
                timeout=20).stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)

    def only(self, names):
        """Of these, those that are wanted."""
        wanted = self.args.only
        return [n for n in names if not wanted or n in wanted]

    # ---- engines and nodes ----

    def environment(self):
        given = dict(os.environ, VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
                     TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                     VLLM_USE_FLASHINFER_SAMPLER="0",
                     PYTORCH_NVML_BASED_CUDA_CHECK="1",
                     VLLM_ENGINE_READY_TIMEOUT_S="300")
        if self.cpu:
            given["VLLM_CPU_KVCACHE_SPACE"] = "1"
        return given

    def starter(self):
        """The process that engines are forked from."""
        if self._starter is not None and self.args.no_fork:
            self._starter.close()
            self._starter = None
        if self._starter is None:
            self._starter = host.Starter(self.args.python, self.work,
                                         self.environment())
        return self._starter

    def model(self, name):
        if name not in self._models:
            done = subprocess.run(
                [self.args.python, "-B", models.__file__,
                 str(self.work / "models"), name], capture_output=True,
                text=True, timeout=120)
            if done.returncode != 0:
                raise host.Failed(f"models.py:\n{done.stderr[-3000:]}")
            self._models[name] = done.stdout.splitlines()[-1]
        return self._models[name]

    def engine_args(self, name):
        given = dict(
            model=self.model(name), dtype="bfloat16",
            enforce_eager=self.cpu or not self.args.default,
            skip_tokenizer_init=True, seed=0, enable_prefix_caching=True,
            worker_extension_cls="inside.Asked", max_num_batched_tokens=8192,
            max_model_len=16384 if self.cpu else 51200)
        if name in models.SHAPES:
            given.update(load_format="dummy", max_num_seqs=16)
            if not self.cpu:
                given.update(gpu_memory_utilization=0.92)
        else:
            given.update(max_num_seqs=1, max_model_len=16384)
            if not self.cpu:
                given.update(gpu_memory_utilization=0.3,
                             kv_cache_memory_bytes=4 * GIB)
        return given

    def room(self, gib):
        """Of vLLM's own cache; the rest of the GPU stays free."""
        return {} if self.cpu else dict(
            kv_cache_memory_bytes=int(gib * GIB), gpu_memory_utilization=0.3)

    def graphs(self):
        return {} if self.cpu or self.args.default else GRAPHS

    def node(self, name, dram, ssd=None):
        """A node of its own; its folder is deleted with folder()."""
        if self.tiny:
            dram, ssd = "512M", ssd and "1G"
        return host.Node(self.work / f"n-{name}", dram, ssd)

    def forget(self, node):
        shutil.rmtree(node.folder / "ssd", ignore_errors=True)

    def close(self):
        if self._starter is not None:
            self._starter.close()
        # One file: few may come back from where this runs.
        with tarfile.open(self.out / f"logs-{os.getpid()}.tgz", "w:gz") as tar:
            for path in sorted(self.work.glob("**/*.log")):
                tar.add(path, path.relative_to(self.work))
        shutil.rmtree(self.work, ignore_errors=True)


# ---- tables ----


def table(head, rows):
    rows = [[str(cell) for cell in row] for row in rows]
    wide = [max(len(row[i]) for row in [head, *rows])
            for i in range(len(head))]
    for row in [head, ["-" * n for n in wide], *rows]:
        print("  ".join(cell.ljust(n) if i == 0 else cell.rjust(n)
                        for i, (cell, n) in enumerate(zip(row, wide))))
    sys.stdout.flush()


def middle(values):
    return statistics.median(values) if values else float("nan")


def ms(values):
    """Of seconds, as a cell."""
    return f"{middle(values) * 1000:.1f}" if values else "-"


def part(values, share):
    """A percentile, of few values too."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def check(found, name, value, limit, text):
    """Notes whether a figure holds what it must."""
    good = value <= limit
    found.setdefault("checks", {})[name] = {
        "value": value, "limit": limit, "good": good, "text": text}
    print(f"{'ok ' if good else 'BAD'} {name}: {value:.4g} <= {limit:.4g} "
          f"({text})", flush=True)


def checked(found, name, good, text=""):
    found.setdefault("checks", {})[name] = {"good": bool(good), "text": text}
    print(f"{'ok ' if good else 'BAD'} {name} {text}", flush=True)
