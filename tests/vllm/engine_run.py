"""One real vLLM engine in a process of its own, driven by JSON lines.

As a module (any Python, nothing but the standard library):

    with Engine(python, model, max_num_seqs=1) as engine:
        [answer] = engine.generate([prompt], max_tokens=4)

As a program it is run by Engine with the Python of a vLLM environment
(scripts/vllm-env). One start serves many tests: starting is the slow part.
"""
import contextlib
import importlib
import inspect
import json
import math
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

SETTINGS = {
    # The engine runs in this process: its scheduler and KV memory are at hand.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
LLM_ARGS = dict(
    dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True,
    disable_log_stats=False, seed=0)
# With these, and only with these, a prompt's logprobs are bit-equal whatever
# part of it came from a cache: one request at a time, and every chunk that is
# computed is one block. Attention rounds by the size of the chunk (in vLLM
# itself: an own hit differs from the cold run from about 1,000 tokens on).
# Else compare a hit with an own hit of the same length.
EXACT = dict(max_num_seqs=1, max_num_batched_tokens=128)
# The same for kind "next". Its blocks are as large as its states, which by
# themselves vary with the CPU (384 or 640 tokens).
EXACT_NEXT = dict(max_num_seqs=1, max_num_batched_tokens=1024, block_size=640)
# As bf16 and as fp32 0.75: finite, and seen in every logprob that reads it.
PATTERN = 0x3F
# All time limits are so many times as long: for a machine that is busy.
PATIENCE = float(os.environ.get("LARDER_PATIENCE", "1"))


class EngineError(Exception):
    pass


class EngineDied(EngineError):
    pass


class Engine:
    """A child process with one LLM. `life` bounds it whatever happens; it
    also ends when this process does. Keyword arguments that Engine does not
    know go to vllm.LLM."""

    def __init__(self, python, model, *, env=None, path=(), log=None,
                 start_timeout=300, life=1800, kv_transfer_config=None,
                 **llm_args):
        life *= PATIENCE
        words = dict(os.environ, **SETTINGS)
        words.update(env or {})
        if path:
            old = [words["PYTHONPATH"]] if words.get("PYTHONPATH") else []
            words["PYTHONPATH"] = os.pathsep.join([*map(str, path), *old])
        if log is None:
            self._log = tempfile.NamedTemporaryFile(
                prefix="vllm-engine-", suffix=".log")
        else:
            self._log = open(log, "ab")
        self.log = self._log.name
        self._replies, to_parent = os.pipe()
        self._buffer = b""
        self._number = 0
        # A session of its own: with tensor parallel the workers go with it.
        self.process = subprocess.Popen(
            [str(python), "-B", os.path.abspath(__file__), str(to_parent)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log,
            env=words, pass_fds=(to_parent,), start_new_session=True)
        os.close(to_parent)
        self.pid = self.process.pid
        llm = dict(LLM_ARGS, model=str(model), **llm_args)
        if kv_transfer_config is not None:
            llm["kv_transfer_config"] = kv_transfer_config
        try:
            # "start" answers the version, the seconds, the blocks.
            self.started = self.call("start", timeout=start_timeout, llm=llm,
                                     life=life)
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def words(self, limit=4000):
        """The end of what the engine printed."""
        with open(self.log, "rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - limit))
            return f.read().decode(errors="replace")

    def call(self, op, timeout=120, **args):
        """One command and its answer. Raises EngineError with the engine's own
        words if it fails, EngineDied if there is no engine any more."""
        self.send(op, **args)
        return self.receive(timeout)

    def send(self, op, **args):
        """The first half of call, for who wants to do something meanwhile."""
        self._number += 1
        line = json.dumps(dict(args, op=op, number=self._number)) + "\n"
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        except OSError:
            raise EngineDied(self._story("the engine has ended")) from None

    def receive(self, timeout=120):
        timeout *= PATIENCE
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self._replies], [], [], left)
            if not ready or not ready[0]:
                # What comes later would be taken for the next answer.
                story = self._story(f"no answer in {timeout} s")
                self.kill()
                raise EngineError(story)
            piece = os.read(self._replies, 1 << 20)
            if not piece:
                self.process.wait()
                raise EngineDied(self._story(
                    f"the engine ended with {self.process.returncode}"))
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = json.loads(line)
        if answer["number"] != self._number:
            raise EngineError("an answer to another command")
        if "error" in answer:
            raise EngineError(f"{answer['error']}\n{answer['trace']}")
        return answer["result"]

    def _story(self, text):
        return f"{text}; it said:\n{self.words()}"

    def generate(self, prompts, timeout=120, **args):
        """prompts: lists of token ids, or dicts with "ids" and any of the
        arguments that shall hold for this prompt only. Arguments: max_tokens
        (4), logprobs (3), sampling (a dict for SamplingParams),
        kv_transfer_params, cache_salt, lora ({"name", "id", "path"}), id.
        Answers one dict per prompt: tokens, logprobs (per token, [[id,
        float.hex], ...]), cached (tokens not computed), ttft, seconds, finish,
        error. Who is not done in time is aborted and has error "timeout"."""
        return self.call("generate", timeout=timeout + 15, prompts=prompts,
                         deadline=timeout * PATIENCE, **args)

    # For aborts, and whatever else happens while requests run.
    def add(self, prompts, **args):
        """Adds requests, runs nothing. Answers their ids."""
        return self.call("add", prompts=prompts, **args)

    def run(self, until="done", steps=None, timeout=120):
        """Steps the engine: until all are "done", until one more request has
        its "first" token, or a number of steps. Answers {id: answer} for the
        requests that ended."""
        return self.call("run", timeout=timeout + 15, until=until, steps=steps,
                         deadline=timeout * PATIENCE)

    def abort(self, *ids):
        return self.call("abort", ids=ids)

    def reset_prefix_cache(self, **args):
        return self.call("reset_prefix_cache", **args)

    def scribble(self, pattern=PATTERN):
        """Overwrites all KV memory of every worker. Answers the bytes."""
        return self.call("scribble", pattern=pattern)

    def counters(self):
        """vLLM's own counters, {name: value}; since the engine's start."""
        return self.call("counters")

    def blocks(self, clear=False):
        """{"total", "free", "peak"}; the peak since the last clear."""
        return self.call("blocks", clear=clear)

    def ask(self, module, function, timeout=120, **args):
        """module.function(llm, **args) inside the engine's process."""
        return self.call("ask", timeout=timeout, module=module,
                         function=function, args=args)

    def close(self, timeout=60):
        """A clean end, as vLLM's own shutdown does it; else a kill."""
        if self.process.poll() is None:
            with contextlib.suppress(EngineError):
                self.call("exit", timeout=timeout)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        self.kill()

    def kill(self):
        """SIGKILL, to the engine and to its workers."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1
            self._log.close()


# From here on: the child process.


def _tensors(worker):
    """The KV tensors of a worker, whatever lists they lie in."""
    found = []

    def gather(thing):
        if isinstance(thing, (list, tuple)):
            for part in thing:
                gather(part)
        elif hasattr(thing, "untyped_storage"):
            found.append(thing)

    gather(worker.model_runner.kv_caches)
    return found


def _scribble(worker, pattern, tensors_of):
    import torch

    memory = {}
    for tensor in tensors_of(worker):
        storage = tensor.untyped_storage()
        memory[storage.data_ptr()] = storage
    for storage in memory.values():
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
        flat.set_(storage).fill_(pattern)
    return sum(storage.nbytes() for storage in memory.values())


class _Session:
    def __init__(self, llm_args):
        begin = time.monotonic()
        import vllm

        self.llm = vllm.LLM(**llm_args)
        self.engine = self.llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.peak = 0
        self._watch_blocks()
        self._pause_when_idle(core)
        if "len(outputs.outputs) > 0" in inspect.getsource(
                type(self.engine).step):
            self._count_all_steps()
        self.live, self.count = {}, 0
        self.about = {"version": vllm.__version__,
                      "seconds": time.monotonic() - begin,
                      "blocks": self.pool.num_gpu_blocks}

    def _watch_blocks(self):
        """The most blocks in use is right after a step is scheduled."""
        schedule = self.scheduler.schedule

        def watched(*args, **kwargs):
            try:
                return schedule(*args, **kwargs)
            finally:
                used = self.pool.num_gpu_blocks
                used -= self.pool.get_num_free_blocks()
                self.peak = max(self.peak, used)

        self.scheduler.schedule = watched

    def _pause_when_idle(self, core):
        """As vLLM's engine process does: a step that computed nothing is
        followed by a pause, in which others get the core."""
        step = core.step_fn

        def paused():
            outputs, computed = step()
            if not computed and self.scheduler.has_requests():
                time.sleep(0.001)
            return outputs, computed

        core.step_fn = paused

    def _count_all_steps(self):
        """The offline LLM of old releases (0.24, 0.27) forgets the numbers of
        a step that has no output, such as one that orders a load; their
        servers do not."""
        client = self.engine.engine_core
        get_output = client.get_output

        def counted():
            outputs = get_output()
            if outputs.scheduler_stats is not None and not outputs.outputs:
                self.engine.logger_manager.record(
                    scheduler_stats=outputs.scheduler_stats,
                    iteration_stats=None)
            return outputs

        client.get_output = counted

    def _request(self, prompt, args):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        if isinstance(prompt, dict):
            args = dict(args, **prompt)
            prompt = args.pop("ids")
        self.count += 1
        name = args.pop("id", None) or f"r{self.count}"
        lora = args.pop("lora", None)
        salt = args.pop("cache_salt", None)
        transfer = args.pop("kv_transfer_params", None)
        sampling = dict(temperature=0.0, max_tokens=args.pop("max_tokens", 4),
                        logprobs=args.pop("logprobs", 3), detokenize=False,
                        ignore_eos=True)
        sampling.update(args.pop("sampling", None) or {})
        if args:
            raise TypeError(f"unknown arguments {sorted(args)}")
        if transfer is not None:
            extra = dict(sampling.get("extra_args") or {})
            sampling["extra_args"] = dict(extra, kv_transfer_params=transfer)
        words = {"prompt_token_ids": prompt}
        if salt is not None:
            words["cache_salt"] = salt
        if lora is not None:
            lora = LoRARequest(lora["name"], lora["id"], lora["path"])
        begin = time.perf_counter()
        self.engine.add_request(name, words, SamplingParams(**sampling),
                                lora_request=lora)
        self.live[name] = {"begin": begin, "first": None}
        return name

    def add(self, prompts, **args):
        names = []
        try:
            for prompt in prompts:
                names.append(self._request(prompt, dict(args)))
        except BaseException:
            self.abort(names)
            raise
        return names

    def _answer(self, output):
        mine = self.live.pop(output.request_id)
        done = output.outputs[0]
        stats = output.metrics
        return {
            "id": output.request_id, "tokens": list(done.token_ids),
            "logprobs": _exact(done.logprobs),
            "prompt_logprobs": _exact(output.prompt_logprobs),
            "cached": output.num_cached_tokens,
            "ttft": mine["first"] and mine["first"] - mine["begin"],
            "seconds": time.perf_counter() - mine["begin"],
            "preemptions": getattr(stats, "num_preemptions", None),
            "finish": done.finish_reason,
            "kv_transfer_params": output.kv_transfer_params,
            "error": "error" if done.finish_reason == "error" else None,
        }

    def step(self):
        """One step; the answers of the requests that it ended."""
        ended = {}
        for output in self.engine.step():
            mine = self.live.get(output.request_id)
            if mine is None:
                continue
            if mine["first"] is None and output.outputs[0].token_ids:
                mine["first"] = time.perf_counter()
            if output.finished:
                ended[output.request_id] = self._answer(output)
        return ended

    def run(self, until="done", steps=None, deadline=120):
        end = time.monotonic() + deadline
        ended = {}
        firsts = self._firsts()
        while self.live if steps is None else steps > 0:
            if steps is not None:
                steps -= 1
            ended.update(self.step())
            if until == "first" and (ended or self._firsts() > firsts):
                break
            if time.monotonic() > end:
                late = list(self.live)
                self.abort(late)
                ended.update({name: {"id": name, "error": "timeout"}
                              for name in late})
        return ended

    def _firsts(self):
        return sum(mine["first"] is not None for mine in self.live.values())

    def abort(self, ids):
        self.engine.abort_request(list(ids))
        for name in ids:
            self.live.pop(name, None)
        return len(ids)

    def generate(self, prompts, deadline=120, **args):
        names = self.add(prompts, **args)
        ended = self.run(deadline=deadline)
        return [ended[name] for name in names]

    def reset_prefix_cache(self, **args):
        return self.llm.reset_prefix_cache(**args)

    def scribble(self, pattern):
        return sum(self.llm.collective_rpc(_scribble, args=(pattern, _tensors)))

    def counters(self):
        values = {}
        for metric in self.llm.get_metrics():
            rest = {k: v for k, v in sorted(metric.labels.items())
                    if k not in ("engine", "model_name")}
            name = metric.name + (json.dumps(rest) if rest else "")
            for field in ("value", "sum", "count"):
                if hasattr(metric, field):
                    key = name if field == "value" else f"{name}:{field}"
                    values[key] = values.get(key, 0) + getattr(metric, field)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v
                for k, v in values.items()}

    def blocks(self, clear=False):
        answer = {"total": self.pool.num_gpu_blocks,
                  "free": self.pool.get_num_free_blocks(), "peak": self.peak}
        if clear:
            self.peak = 0
        return answer

    def ask(self, module, function, args):
        return getattr(importlib.import_module(module), function)(
            self.llm, **args)


def _exact(logprobs):
    """Floats as they are, bit by bit."""
    if logprobs is None:
        return None
    return [step and [[token, float(entry.logprob).hex()]
                      for token, entry in step.items()] for step in logprobs]


def _die():
    """The whole session, workers too: it is ours, we lead it."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(70)


def _listen(lines):
    for line in sys.stdin:
        lines.put(line)
    # Whoever started us is gone. What runs now may never end.
    lines.put(None)
    time.sleep(10)
    _die()


def _serve(reply):
    lines = queue.Queue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    session = None
    while (line := lines.get()) is not None:
        command = json.loads(line)
        op, number = command.pop("op"), command.pop("number")
        try:
            if op == "start":
                timer = threading.Timer(command["life"], _die)
                timer.daemon = True
                timer.start()
                session = _Session(command["llm"])
                result = session.about
            elif op == "exit":
                session.llm.llm_engine.engine_core.shutdown()
                result = True
            else:
                result = getattr(session, op)(**command)
            answer = {"result": result}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}",
                      "trace": traceback.format_exc()[-6000:]}
        reply.write(json.dumps(dict(answer, number=number)) + "\n")
        reply.flush()
        if op == "exit":
            return


if __name__ == "__main__":
    _serve(os.fdopen(int(sys.argv[1]), "w"))
    # Threads that vLLM leaves behind shall not hold this process up.
    sys.stdout.flush()
    os._exit(0)
