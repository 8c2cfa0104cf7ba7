"""What the stages share on this side: the node, engines, and time."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "python"))

import models
from larder_kv import _find

START, STOP = 240, 30  # seconds


class OutOfTime(Exception):
    pass


class Failed(Exception):
    """Something did not work; the text has the end of its log."""


class Clock:
    """The time that a whole run has."""

    def __init__(self, seconds):
        self.begin = time.monotonic()
        self.end = self.begin + seconds

    def left(self):
        return self.end - time.monotonic()

    def need(self, seconds, what):
        if self.left() < seconds:
            raise OutOfTime(f"{what} needs about {seconds:.0f} s, "
                            f"{max(0, self.left()):.0f} s are left")

    def limit(self, seconds):
        """So long at most; at least a little, to end cleanly."""
        return max(5.0, min(seconds, self.left()))


def tail(path, lines=40):
    try:
        text = pathlib.Path(path).read_text(errors="replace")
    except OSError as error:
        return str(error)
    return "\n".join(text.splitlines()[-lines:])


def until(what, seconds, text):
    end = time.monotonic() + seconds
    while not (answer := what()):
        if time.monotonic() > end:
            raise Failed(text() if callable(text) else text)
        time.sleep(0.02)
    return answer


def _with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# ---- the node ----


class Node:
    """One `larder serve` with a directory for its SSD tier (ssd=None: without
    one). It ends with this process."""

    def __init__(self, folder, dram, ssd=None, **options):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_path = self.folder / "node.log"
        self.socket = self.folder / "sock"
        self.url = f"unix:{self.socket}"
        self.command = [program(), "serve", "--socket", str(self.socket),
                        "--dram", str(dram), "--admin", "127.0.0.1:0"]
        if ssd is not None:
            (self.folder / "ssd").mkdir(exist_ok=True)
            self.command += ["--dir", str(self.folder / "ssd"), "--ssd",
                             str(ssd)]
        for name, value in options.items():
            self.command += [f"--{name}", str(value)]
        self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.end()

    def start(self):
        self._from = (self.log_path.stat().st_size
                      if self.log_path.exists() else 0)
        begin = time.monotonic()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, preexec_fn=_with_parent, cwd=self.folder)
        until(lambda: self.process.poll() is not None
              or re.search(r"\bready: larder ", self.log()), 90,
              lambda: f"the node is not ready:\n{tail(self.log_path)}")
        if self.process.poll() is not None:
            raise Failed(f"the node ended:\n{tail(self.log_path)}")
        self.start_s = time.monotonic() - begin
        self.resident(60)
        return self

    def resident(self, seconds):
        """Waits until its memory is there: a node that has just begun is
        slower than one that runs."""
        end = time.monotonic() + seconds
        while (self.sum("larder_dram_resident_bytes")
               < self.sum("larder_dram_bytes") and time.monotonic() < end):
            time.sleep(0.1)

    def log(self):
        with open(self.log_path, "rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def metrics(self):
        """{name with labels: value}."""
        where = re.search(r"admin: (http://\S+)", self.log()).group(1)
        with urllib.request.urlopen(f"{where.rstrip('/')}/metrics",
                                    timeout=10) as page:
            lines = page.read().decode().splitlines()
        found = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def sum(self, name):
        return sum(value for key, value in self.metrics().items()
                   if key.split("{")[0] == name)

    def written(self, seconds):
        """Waits until all that was saved is on its disk. Gives whether it is,
        and how long that took."""
        begin = time.monotonic()
        while True:
            found = self.metrics()
            busy = sum(v for k, v in found.items() if k.split("{")[0] in (
                "larder_dirty_shards", "larder_writes_in_flight"))
            took = time.monotonic() - begin
            if busy == 0 or took > seconds:
                return busy == 0, took
            time.sleep(0.1)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self, seconds=60):
        """A clean end."""
        if self.process is not None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(20)
        self.process = None

    def end(self):
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.signal(signal.SIGCONT)
            self.stop(20)


def program():
    """LARDER_BIN, else where the connector would find it."""
    named = os.environ.get("LARDER_BIN")
    if named:
        path = pathlib.Path(named)
        return str(path / "larder" if path.is_dir() else path)
    return _find.program_path()


# ---- engines ----


class Starter:
    """The process that has vLLM imported and forks engines."""

    def __init__(self, python, work, env):
        self.work = pathlib.Path(work)
        self.log = self.work / "starter.log"
        path = [str(ROOT / "python"), str(HERE)]
        if env.get("PYTHONPATH"):
            path.append(env["PYTHONPATH"])
        env = dict(env, PYTHONPATH=os.pathsep.join(path))
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [python, "-B", str(HERE / "engine.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=env, preexec_fn=_with_parent, text=True, cwd=self.work)
        self.ready = None

    def _answer(self, seconds):
        """Its next line; there is never more than one."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise Failed(f"no answer in {seconds} s:\n{tail(self.log)}")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"vLLM cannot be imported:\n{tail(self.log)}")
        return json.loads(line)

    def fork(self, **order):
        if self.ready is None:
            self.ready = self._answer(180)["import_s"]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer(60)["pid"]

    def close(self):
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()


class Engine:
    """One engine; see engine.Session for what it does. It ends with `with`,
    or when its life is over, whatever becomes of this process."""

    def __init__(self, bench, model, name, url=None, options=None,
                 transfer=None, env=None, **args):
        self.bench, self.name = bench, name
        self.env = env or {}
        bench.engines += 1
        self.folder = bench.work / f"e{bench.engines}"
        self.folder.mkdir(mode=0o700)
        self.log = self.folder / "engine.log"
        if url is not None:
            transfer = {
                "kv_connector": "LarderConnector",
                "kv_connector_module_path": "larder_kv.vllm",
                "kv_role": "kv_both",
                "kv_connector_extra_config": dict(
                    options or {}, url=url, pages=bench.args.pages)}
        given = dict(bench.engine_args(model), **args)
        if transfer is not None:
            given["kv_transfer_config"] = transfer
        self.pid = self._socket = None
        self._buffer = b""
        begin = time.monotonic()
        try:
            self._connect()
            self.about = self.call(
                "start", bench.clock.limit(START), args=given,
                words=models.KINDS[model]["vocab_size"])
        except BaseException:
            self.kill()
            raise
        self.about["ready_s"] = time.monotonic() - begin
        bench.say(f"engine {name} is ready after {self.about['ready_s']:.0f}"
                  " s")

    def _connect(self):
        where = str(self.folder / "s")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(where)
            listener.listen(1)
            listener.settimeout(60)
            self.pid = self.bench.starter().fork(
                socket=where, log=str(self.log),
                life=self.bench.clock.left() + 60,
                env=dict(self.env, XDG_RUNTIME_DIR=str(self.folder)))
            try:
                self._socket, _ = listener.accept()
            except TimeoutError:
                raise Failed(f"engine {self.name} is not there:\n"
                             f"{tail(self.log)}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, op, **args):
        self._socket.sendall(json.dumps(dict(args, op=op)).encode() + b"\n")

    def receive(self, seconds):
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                raise Failed(f"engine {self.name}: no answer in {seconds:.0f}"
                             f" s:\n{tail(self.log)}")
            self._socket.settimeout(left)
            with contextlib.suppress(TimeoutError):
                part = self._socket.recv(1 << 20)
                if not part:
                    raise Failed(f"engine {self.name} ended:\n"
                                 f"{tail(self.log)}")
                self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"engine {self.name}: {answer['error']}\n"
                         f"{answer['trace']}\n{tail(self.log)}")
        return answer["result"]

    def call(self, op, seconds=60, **args):
        self.send(op, **args)
        return self.receive(seconds)

    def ask(self, prompt, seconds=60, **args):
        """One request, which must be answered."""
        limit = self.bench.clock.limit(seconds)
        found = self.call("ask", limit + 10, prompt=prompt, deadline=limit,
                          **args)
        if found["error"]:
            raise Failed(f"engine {self.name}: {found['error']}\n"
                         f"{tail(self.log)}")
        return found

    def many(self, prompts, at_once, seconds=300, **args):
        limit = self.bench.clock.limit(seconds)
        return self.call("many", limit + 20, prompts=prompts, at_once=at_once,
                         deadline=limit, **args)

    def reset(self, scribble=False):
        return self.call("reset", 40, scribble=scribble)

    def explain(self, name, seconds=2.0):
        """What the connector wrote of a request; {}: nothing."""
        end = time.monotonic() + seconds
        while True:
            for path in self.folder.glob("**/explain/vllm-*.log"):
                for line in reversed(path.read_text().splitlines()):
                    fields = dict(pair.split("=", 1)
                                  for pair in line.split("\t"))
                    if fields.get("id", "").rsplit("-", 1)[0] == name:
                        return fields
            if time.monotonic() > end:
                return {}
            time.sleep(0.05)

    def larder_lines(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return [line.rstrip() for line in file if "larder: " in line]

    def close(self):
        with contextlib.suppress(Failed, OSError):
            self.call("stop", STOP)
        self.kill()

    def kill(self):
        """And waits until all of its processes are gone, with their GPU
        memory."""
        if self.pid is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        until(lambda: not alive(self.pid), 30,
              f"engine {self.name} does not end")
        self.pid = None
        if self._socket is not None:
            self._socket.close()


def alive(group):
    """Whether a process of this group runs; zombies do not."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return False


class Counted:
    """vLLM's own counters of what happened inside `with`. Its counter of own
    hits is not among them: it counts again each time a request is looked at,
    and one that waits for the store is looked at often. Take what an answer
    has cached, less what is external."""

    NAMES = {"external": "vllm:external_prefix_cache_hits",
             "prompt": "vllm:prompt_tokens"}

    def __init__(self, engine):
        self._engine = engine

    def _read(self):
        values = self._engine.call("counters")
        return {k: values.get(v, 0) for k, v in self.NAMES.items()}

    def __enter__(self):
        self._before = self._read()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            for name, value in self._read().items():
                setattr(self, name, int(value - self._before[name]))
