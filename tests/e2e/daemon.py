"""Daemons that tests start: each is ended by its pid, must end cleanly and
must not hold anything once its clients are gone."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import resource
import select
import signal
import socket
import subprocess
import time
import traceback
import urllib.request

import wireclient

_libc = ctypes.CDLL(None)
LOOPS = 3  # that a daemon has
FILES = 16384  # descriptors that a daemon, and who tests it, may need


def _before_exec(files=None):
    """A daemon never outlives the tests, whatever becomes of them. files: all
    the descriptors that it may have."""
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE,
                       (files, files) if files else (limit, hard))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def secret_file(path, text="0123456789abcdef0123456789abcdef\n"):
    """A file with a cluster's secret."""
    path.write_text(text)
    path.chmod(0o600)
    return path


USAGE, FAILED = 2, 3  # exit codes
# How long a test waits for what must come. It costs nothing where it comes, so
# it is far more than a slow, busy machine needs.
PATIENCE_S = 120.0
# `make check` gives tests that get better with time more of it.
LONG = os.environ.get("LARDER_LONG", "") not in ("", "0")


def until(what, seconds=PATIENCE_S, text="it did not happen"):
    """Asks until the answer is true; gives it."""
    end = time.monotonic() + seconds
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < end, text() if callable(text) else text
        time.sleep(0.01)


def refused(daemon, *flags, code=None):
    """Starts it, expects it to end by itself; gives what it said."""
    daemon.spawn(*map(str, flags))
    got = daemon.wait()
    assert got in ((USAGE, FAILED) if code is None else (code,)), daemon.log()
    text = daemon.log()
    assert "larder serve: " in text
    return text


def hear(fd, child):
    """Waits until the child has written; if it failed before, says why."""
    if not select.select([fd], [], [], PATIENCE_S)[0]:
        child.result()
    os.read(fd, 1)


class Metrics(dict):
    """{'name{label="x"}': value}, and sums over labels."""

    def __init__(self, text):
        super().__init__()
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                self[name] = float(value)

    def sum(self, name, **labels):
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        return sum(value for key, value in self.items()
                   if key.split("{")[0] == name
                   and all(part in key for part in wanted))


class Daemon:
    """One `larder serve`. Keyword arguments are its options; None leaves one
    out. It listens on a unix socket and on a loopback port of its own."""

    def __init__(self, binary, folder, *, config=None, env=None, flags=(),
                 dirs=0, files=None, **options):
        self.binary = binary
        self.files = files
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.log_path = self.folder / "log"
        self.given = {"socket": self.folder / "sock",
                      "listen": "127.0.0.1:0", "admin": "none",
                      "dram": "64M", "ssd": "64M",
                      "hello_ms": 60000}  # a busy machine is no stranger
        self.given.update(options)
        self.flags = list(map(str, flags))
        self.config = None
        self.dirs = [self.folder / f"dir{i}" for i in range(dirs)]
        self.env = env
        self.process = None
        self.peers = []
        self.clean = True  # it shall end with code 0 and nothing held
        if config is not None:
            self.config = self.folder / "larder.conf"
            self.write_config(config)

    def write_config(self, text):
        self.config.write_text(text)

    # life

    def command(self):
        out = [self.binary, "serve"]
        if self.config is not None:
            out += ["--config", str(self.config)]
        for name, value in self.given.items():
            if value is not None:
                out += [f"--{name}", str(value)]
        for folder in self.dirs:
            out += ["--dir", str(folder)]
        return out + self.flags

    def spawn(self, *more):
        self.log_from = (self.log_path.stat().st_size
                         if self.log_path.exists() else 0)
        # As where there are more cores than here, unless a test has a file.
        env = {} if self.config else {"LARDER_LOOPS": str(LOOPS)}
        env.update(os.environ, **(self.env or {}))
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command() + list(more), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env=env, cwd=self.folder,
                preexec_fn=lambda: _before_exec(self.files))
        return self

    def start(self, *more):
        self.spawn(*more)
        until(lambda: self.process.poll() is not None
              or re.search(r"\bready: larder ", self.log()),
              text=lambda: f"the daemon is not ready:\n{self.log()[-4000:]}")
        assert self.process.poll() is None, (
            f"exit code {self.process.poll()}:\n{self.log()[-4000:]}")
        return self

    def log(self):
        """What it said since it was started."""
        if not self.log_path.exists():
            return ""
        with open(self.log_path, "rb") as file:
            file.seek(self.log_from)
            return file.read().decode(errors="replace")

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number):
        os.kill(self.process.pid, number)

    def freeze(self):
        """SIGSTOP, and back when no thread of it runs any more."""
        def states():
            return {(task / "stat").read_text().rpartition(")")[2].split()[0]
                    for task in
                    pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()}

        self.signal(signal.SIGSTOP)
        until(lambda: states() == {"T"})

    def wait(self, seconds=PATIENCE_S):
        """It ends by itself; gives its exit code."""
        code = self.process.wait(seconds)
        self.process = None
        return code

    def stop(self, code=0, seconds=PATIENCE_S):
        """SIGTERM, and it ends as it should."""
        self.signal(signal.SIGTERM)
        try:
            got = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)
            self.process.wait(PATIENCE_S)
            raise AssertionError(
                f"SIGTERM did not end it:\n{self.log()[-4000:]}") from None
        assert got == code, f"exit code {got}:\n{self.log()[-6000:]}"
        self.process = None

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process = None

    # where it is

    @property
    def socket(self):
        return str(self.given["socket"])

    @property
    def tcp(self):
        found = re.search(r"listening: tcp://127\.0\.0\.1:(\d+)", self.log())
        return ("127.0.0.1", int(found.group(1)))

    def address(self, transport):
        return self.socket if transport == "unix" else self.tcp

    def url(self, transport="unix", **options):
        where = (f"unix:{self.socket}" if transport == "unix"
                 else f"tcp://127.0.0.1:{self.tcp[1]}")
        more = "&".join(f"{k}={v}" for k, v in options.items())
        return where + ("?" + more if more else "")

    @property
    def admin(self):
        found = re.search(r"admin: (http://\S+)", self.log())
        return found.group(1).rstrip("/")

    def http(self, path, timeout=PATIENCE_S):
        with urllib.request.urlopen(self.admin + path, timeout=timeout) as page:
            return page.read().decode()

    # who speaks to it

    def connect(self, transport="unix", **more):
        peer = wireclient.Peer(self.address(transport), **more)
        self.peers.append(peer)
        return peer

    def enter(self, transport="unix", tenant="default", token=None, **more):
        return self.connect(transport, **more).enter(tenant, token)

    def admin_peer(self):
        """Somebody who may see everything."""
        peer = wireclient.Peer(self.socket)
        default = "[tenant default]" in (
            self.config.read_text() if self.config else "")
        return peer.enter("default", self.token if default else None)

    token = None  # of the default tenant, where it has one

    def metrics(self):
        with self.admin_peer() as peer:
            reply = peer.ask(wireclient.METRICS)
            assert reply.status == wireclient.OK
            return Metrics(reply.text)

    def value(self, name, **labels):
        return self.metrics().sum(name, **labels)

    def status(self, field):
        """A number of /proc/PID/status: VmRSS (in KiB), Threads..."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
        raise KeyError(field)

    def threads(self):
        return self.status("Threads")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def alive(self):
        """It serves: somebody new can come in, save and load."""
        assert self.process.poll() is None, (
            f"exit code {self.process.poll()}:\n{self.log()[-6000:]}")
        with self.admin_peer() as peer:
            assert peer.ask(wireclient.PING).status == wireclient.OK

    HELD = ("larder_leases", "larder_reservations",
            "larder_quarantined_leases", "larder_connecting",
            "larder_jobs_queued", "larder_held_chunks",
            "larder_revokes_pending")

    def nothing_held(self, sessions=0):
        """Only so many sessions are there, besides the one who asks, and
        nobody holds anything."""
        last = {}

        def free():
            m = self.metrics()
            last.clear()
            last.update({name: m.sum(name) for name in self.HELD})
            for name in ("larder_sessions", "larder_tenant_sessions"):
                last[name] = m.sum(name) - 1 - sessions
            return not any(last.values())

        until(free, text=lambda: f"still held: {last}")

    def end(self):
        """Closes what tests opened, and looks whether all came back."""
        for peer in self.peers:
            peer.close()
        self.peers = []
        if self.process is None:
            return
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
        try:
            if self.clean:
                self.nothing_held()
                self.stop()
                assert "ended" in self.log()
        finally:
            if self.process is not None:
                if self.process.poll() is None:
                    self.process.kill()
                self.process.wait(PATIENCE_S)
                print(self.log()[-4000:])


def fork(work):
    """A process that runs work() and ends. Gives its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.prctl(1, signal.SIGKILL)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def gone(pid):
    """Ends it for good, whatever state it is in."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


class Child:
    """Runs work() in a process of its own. When result() has returned it is
    gone, and whatever it held of a daemon is nobody's. Gives what work() gave,
    as JSON can say it. (Daemons are started by the main thread only: they end
    with the thread that started them.)"""

    def __init__(self, work):
        self.read_fd, write_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.read_fd)
                _libc.prctl(1, signal.SIGKILL)
                try:
                    answer = {"ok": work()}
                    code = 0
                except BaseException as e:  # told to the parent, what it is
                    answer = {"error": f"{type(e).__name__}: {e}"}
                os.write(write_fd, json.dumps(answer).encode())
            finally:
                os._exit(code)
        os.close(write_fd)

    def result(self, seconds=PATIENCE_S):
        data = b""
        end = time.monotonic() + seconds
        watch = select.poll()
        watch.register(self.read_fd, select.POLLIN)
        while True:
            if not watch.poll(max(0, end - time.monotonic()) * 1000):
                os.kill(self.pid, signal.SIGKILL)
                break
            chunk = os.read(self.read_fd, 65536)
            if not chunk:
                break
            data += chunk
        os.close(self.read_fd)
        status = os.waitpid(self.pid, 0)[1]
        answer = json.loads(data) if data else {"error": f"status {status}"}
        assert "ok" in answer, answer["error"]
        return answer["ok"]


def in_child(work, seconds=PATIENCE_S):
    return Child(work).result(seconds)
