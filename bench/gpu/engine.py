"""Engines of the proof, each a process of its own: vLLM's AsyncLLM, as `vllm
serve` uses it, driven by JSON lines over a socket.

As a program, run by host.Starter with the Python that has vLLM: it imports
vLLM once, which is the slow part of a start, and forks one process for each
engine (a line {"socket", "log", "env"} on its input; the answer is the pid).
CUDA is first touched after that, in the engine's own process.
"""
import asyncio
import json
import math
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback

PATTERN = 0x3F  # as bf16 and fp32 0.75, as fp8 1.9: seen wherever it is read


class Session:
    def __init__(self):
        self.engine = None
        self.count = 0
        self.prompts = {}

    # ---- prompts ----

    def prompt(self, parts):
        """parts: [seed, tokens] pairs, ids depend on them only; or a list of
        ids in place of a seed."""
        ids = []
        for seed, tokens in parts:
            if isinstance(seed, list):
                ids += seed
                continue
            key = (seed, tokens)
            if key not in self.prompts:
                if len(self.prompts) > 64:
                    self.prompts.clear()
                draw = random.Random(f"prompt {seed}")
                self.prompts[key] = draw.choices(range(3, self.words),
                                                 k=tokens)
            ids += self.prompts[key]
        return ids

    # ---- commands ----

    async def start(self, args, words):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        import vllm

        begin = time.monotonic()
        self.words = words
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
        config = self.engine.vllm_config
        about = {"vllm": vllm.__version__,
                 "start_s": time.monotonic() - begin,
                 "blocks": config.cache_config.num_gpu_blocks,
                 "block_tokens": config.cache_config.block_size,
                 "graphs": str(config.compilation_config.cudagraph_mode)}
        about.update((await self.engine.collective_rpc("larder_runner"))[0])
        return about

    async def ask(self, prompt, max_tokens=2, logprobs=None, transfer=None,
                  deadline=120):
        """One request. Times are from before it is handed to vLLM."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.count += 1
        name = f"r{self.count}"
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, logprobs=logprobs,
            detokenize=False, ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
            extra_args={"kv_transfer_params": transfer} if transfer else None)
        ids = self.prompt(prompt)
        found = {"id": name, "tokens": [], "logprobs": [], "cached": None,
                 "ttft": None, "error": None}

        async def run():
            begin = time.perf_counter()
            async for out in self.engine.generate(
                    {"prompt_token_ids": ids}, params, name):
                now = time.perf_counter() - begin
                part = out.outputs[0]
                if part.token_ids and found["ttft"] is None:
                    found["ttft"] = now
                    found["core"] = inside(out.metrics, now)
                found["tokens"] += part.token_ids
                found["logprobs"] += exact(part.logprobs)
                if out.num_cached_tokens is not None:
                    found["cached"] = out.num_cached_tokens
                if part.finish_reason == "error":
                    found["error"] = "finished with an error"
                found["seconds"] = now

        try:
            await asyncio.wait_for(run(), deadline)
        except asyncio.TimeoutError:
            found["error"] = f"no answer in {deadline} s"
        if logprobs is None:
            del found["logprobs"]
        return found

    async def many(self, prompts, at_once, every=0.0, deadline=300,
                   deadlines=None, answers=True, **args):
        """Many requests, so many at once, in order; every: one comes each so
        many seconds. deadlines: of each its own. Gives the seconds that all
        took, and the answers."""
        gate = asyncio.Semaphore(at_once)
        for prompt in prompts:  # drawn before the clock runs
            self.prompt(prompt)

        async def one(number, prompt):
            await asyncio.sleep(number * every)
            async with gate:
                return await self.ask(
                    prompt, deadline=deadlines[number] if deadlines
                    else deadline, **args)

        begin = time.perf_counter()
        found = await asyncio.gather(*map(one, range(len(prompts)), prompts))
        seconds = time.perf_counter() - begin
        if not answers:
            for answer in found:
                answer["tokens"] = len(answer["tokens"])
        return {"seconds": seconds, "answers": found}

    async def reset(self, seconds=20, scribble=False):
        """Empties the engine's own cache. Blocks that a save holds are waited
        for; gives how long."""
        begin = time.monotonic()
        while not await self.engine.reset_prefix_cache():
            if time.monotonic() - begin > seconds:
                raise RuntimeError(f"blocks are held for {seconds} s")
            await asyncio.sleep(0.02)
        if scribble:
            await self.engine.collective_rpc("larder_scribble",
                                             args=(PATTERN,))
        return time.monotonic() - begin

    async def counters(self):
        """vLLM's own counters, once the last step's are in."""
        from vllm.v1.metrics.reader import get_metrics_snapshot

        await asyncio.sleep(0.02)
        values = {}
        for metric in get_metrics_snapshot():
            reason = metric.labels.get("reason")
            name = metric.name + (f":{reason}" if reason else "")
            for field in ("value", "sum", "count"):
                number = getattr(metric, field, None)
                if isinstance(number, (int, float)) and math.isfinite(number):
                    key = name if field == "value" else f"{name}:{field}"
                    values[key] = values.get(key, 0) + number
        return values

    async def rpc(self, method, args=()):
        return (await self.engine.collective_rpc(method, args=tuple(args)))[0]

    async def stop(self):
        if self.engine is not None:
            await asyncio.to_thread(self.engine.shutdown, 10)
        return True


def inside(stats, otherwise):
    """The first token's time by the engine's own clock, from its queue on:
    without what hands a long prompt over to it."""
    began = getattr(stats, "queued_ts", 0.0)
    first = getattr(stats, "first_token_ts", 0.0)
    return first - began if first > began > 0 else otherwise


def exact(logprobs):
    """Floats as they are, bit by bit."""
    return [[[token, float(entry.logprob).hex()]
             for token, entry in step.items()] for step in logprobs or ()]


# ---- the process ----


async def serve(where):
    reader, writer = await asyncio.open_unix_connection(where,
                                                        limit=1 << 26)
    session = Session()
    while line := await reader.readline():
        command = json.loads(line)
        op = command.pop("op")
        try:
            answer = {"result": await getattr(session, op)(**command)}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}",
                      "trace": traceback.format_exc()[-6000:]}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        if op == "stop":
            return


def live(order):
    """The life of one engine's process, after the fork."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    os.environ.update(order["env"])

    def die():
        os.killpg(0, signal.SIGKILL)

    timer = threading.Timer(order["life"], die)
    timer.daemon = True
    timer.start()
    try:
        asyncio.run(serve(order["socket"]))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    die()  # threads and children that vLLM leaves behind go too


def warm():
    """Imports what every engine needs. None of it touches CUDA."""
    import vllm  # noqa: F401
    import vllm.engine.arg_utils  # noqa: F401
    import vllm.v1.engine.async_llm  # noqa: F401
    import vllm.v1.engine.core  # noqa: F401
    import vllm.v1.executor.uniproc_executor  # noqa: F401
    import larder_kv._lib  # noqa: F401


def main():
    # Answers alone go there: what vLLM prints goes to the log.
    out = os.dup(1)
    os.dup2(2, 1)

    def answer(**fields):
        os.write(out, json.dumps(fields).encode() + b"\n")

    begin = time.monotonic()
    warm()
    answer(import_s=time.monotonic() - begin)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(out)
            live(order)
            os._exit(0)
        answer(pid=pid)
        while True:  # those that have ended before
            try:
                done, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if done == 0:
                break


if __name__ == "__main__":
    main()
