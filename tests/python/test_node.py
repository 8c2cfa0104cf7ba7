"""This host's node, as an engine finds or starts it: processes of their own
that ask for it, with runtime and cache directories of the test's."""
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import wireclient
from conftest import BUILD, ROOT
from daemon import Daemon, free_port, until
from larder_kv import _lib, _node
from larder_kv._options import Options

NOBODY = 65534

# What an engine does at its start, then what it is told on its input.
CALLER = """
import json, os, sys
from larder_kv import _lib, _node
from larder_kv._options import Options
said = []
answer = {"said": said}
for name, value in json.loads(sys.argv[2]).items():
    setattr(_node, name, value)
sys.stdin.readline()
try:
    url = _node.node_url(Options(json.loads(sys.argv[1])), said.append)
    answer["url"] = url
    node = _node.open_node(url, lambda *_: None, said.append)
    if not any("serving without" in text for text in said):
        answer["dram"] = node.stats().dram_bytes
except _lib.LarderError as error:
    answer["error"] = str(error)
    answer["status"] = error.status
print(json.dumps(answer), flush=True)
sys.stdin.readline()
"""

# Ends whatever uses the socket when its input ends: when the test does, or is
# killed.
WATCHDOG = """
import os, signal, sys, time
sys.stdin.read()
path = sys.argv[1].encode()
def users():
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\\0")
            if b"--socket" in words and path in words:
                yield int(name)
        except (OSError, ValueError):
            pass
for number, tries in ((signal.SIGCONT, 1), (signal.SIGTERM, 200),
                      (signal.SIGKILL, 200)):
    for pid in list(users()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    while tries > 0 and any(users()):
        time.sleep(0.05)
        tries -= 1
"""


class Caller:
    """A process that asks for the node, and stays until it is ended."""

    def __init__(self, host, options, settings, env, begin=True, before=None,
                 command=None, **more):
        words = command or [sys.executable, "-B", "-c", CALLER]
        self.process = subprocess.Popen(
            [*words, json.dumps(options), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=env, cwd=host.folder, preexec_fn=before, **more)
        self.pid = self.process.pid
        host.callers.append(self)
        if begin:
            self.begin()

    def begin(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self, seconds=60):
        """What came of it. It is bounded by a kill."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"no answer in {seconds} s, or the caller died"
        return json.loads(line)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Host:
    """A host without a node: directories of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.run = self.folder / "run"
        self.cache = self.folder / "cache"
        self.run.mkdir()
        self.callers = []
        self._dogs = []
        self.watch(self.run)

    def watch(self, run):
        # A session of its own: it must see the test killed.
        self._dogs.append(subprocess.Popen(
            [sys.executable, "-B", "-c", WATCHDOG, str(run / "larder.sock")],
            stdin=subprocess.PIPE, start_new_session=True))

    def env(self, **more):
        env = {k: v for k, v in os.environ.items()
               if k not in ("RUNTIME_DIRECTORY", "LD_PRELOAD", "LARDER_URL")}
        env.update(XDG_RUNTIME_DIR=str(self.run), LARDER_ADMIN="none",
                   XDG_CACHE_HOME=str(self.cache), HOME=str(self.folder),
                   PYTHONPATH=str(ROOT / "python"))
        env.update(more)
        return {k: v for k, v in env.items() if v is not None}

    def call(self, options=None, settings=None, env=None, **more):
        given = {"node_dram": "64M", "node_ssd": "64M", **(options or {})}
        return Caller(self, given, settings or {}, self.env(**(env or {})),
                      **more)

    def ask(self, *args, **more):
        """A caller's answer; the caller has ended."""
        one = self.call(*args, **more)
        try:
            return one.answer()
        finally:
            one.end()

    @property
    def socket(self):
        return self.run / "larder.sock"

    def nodes(self):
        """The processes that serve here."""
        wanted = [b"--socket", os.fsencode(self.socket)]
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes()
                if all(w in words.split(b"\0") for w in wanted):
                    found.append(int(name))
        return found

    def end(self):
        for one in self.callers:
            one.end()
        for dog in self._dogs:
            dog.stdin.close()
            dog.wait(60)
        assert self.nodes() == []


@pytest.fixture
def host():
    """Below /tmp itself: other users must be able to come here."""
    folder = tempfile.mkdtemp(prefix="larder-host-")
    os.chmod(folder, 0o755)
    one = Host(folder)
    try:
        yield one
    finally:
        one.end()
        shutil.rmtree(folder)


def stat_of(pid):
    """State, parent, group, session."""
    text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    words = text.rpartition(")")[2].split()
    return words[0], *map(int, words[1:4])


def descendants(pid):
    """As psutil's children(recursive=True) finds them."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(name)] = stat_of(int(name))[1]
    found = [pid]
    for one in found:
        found += [p for p, parent in parents.items() if parent == one]
    return found[1:]


def started_pid(answer):
    found = re.search(r"started one, process (\d+)", answer["said"][0])
    assert found, answer
    return int(found[1])


def one_line(answer, *hints):
    assert "error" in answer, answer
    text = answer["error"]
    assert text.startswith("larder: ") and "\n" not in text
    assert not text.startswith("larder: larder: ")
    for hint in hints:
        assert hint in text, text
    return text


# ---- found ----


def test_attaches_to_the_running_node(host):
    daemon = Daemon(os.environ["LARDER_PROGRAM"], host.folder / "d",
                    socket=host.socket)
    try:
        daemon.start()
        answer = host.ask()
        assert answer["url"] == f"unix:{host.socket}"
        assert answer["said"] == [
            f"larder: attached to the node of this host, unix:{host.socket}"]
        assert host.nodes() == [daemon.pid]
    finally:
        daemon.end()


def test_directory_with_characters_of_urls(host):
    """The path is a path, whatever a URL would make of it."""
    host.run = host.folder / "a %41?b&c,d"
    host.run.mkdir()
    host.watch(host.run)
    first, second = host.ask(), host.ask()
    assert "started" in first["said"][0]
    assert "attached" in second["said"][0]
    assert first["dram"] == second["dram"] > 0
    assert len(host.nodes()) == 1


def test_url_is_taken_as_it_is(host):
    daemon = Daemon(os.environ["LARDER_PROGRAM"], host.folder / "d")
    try:
        daemon.start()
        other = "unix:/nowhere"
        for given, env in (("unix", None), ("tcp", None),
                           ("unix", {"LARDER_URL": other}),
                           (None, {"LARDER_URL": daemon.url("tcp")})):
            url = daemon.url(given or "tcp")
            answer = host.ask({"url": url} if given else {}, env=env)
            assert answer["url"] == url and answer["said"] == []
            assert "error" not in answer
        assert host.nodes() == []
    finally:
        daemon.end()


# ---- started ----


def test_starts_one_and_says_so(host):
    answer = host.ask()
    pid = started_pid(answer)
    assert host.nodes() == [pid]
    assert answer["dram"] == 64 << 20
    [text] = answer["said"]
    assert text.startswith("larder: no node on this host; started ")
    assert f"by `kill {pid}`" in text and "\n" not in text
    log = host.run / "larder.log"
    assert str(log) in text
    assert re.findall(r"listening: (\w+)", log.read_text()) == ["unix"]
    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    for name, value in (("--dir", host.cache / "larder"),
                        ("--ssd", 64 << 20), ("--dram", 64 << 20)):
        at = command.index(name.encode())
        assert command[at + 1] == str(value).encode()
    assert stat_of(pid)[1] != os.getpid()
    again = host.ask()
    assert "attached" in again["said"][0]
    os.kill(pid, signal.SIGTERM)
    until(lambda: not host.nodes())
    assert "info: ended" in log.read_text()
    assert started_pid(host.ask()) != pid


def test_has_the_secret_of_who_started_it(host):
    """Spaces can be opened under it, and under no other."""
    file = host.folder / "the secret"
    file.write_text("the same on all hosts\n")
    file.chmod(0o600)
    pid = started_pid(host.ask({"secret_file": file.name}))
    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    at = command.index(b"--secret_file")
    assert command[at + 1] == os.fsencode(file)
    node = _node.open_node(f"unix:{host.socket}", lambda *_: None, print,
                           secret_file=str(file))
    node.space(b"space", 1, 256).close()
    node.close()
    node = _node.open_node(f"unix:{host.socket}", lambda *_: None, print)
    with pytest.raises(_lib.LarderError) as caught:
        node.space(b"space", 1, 256)
    assert "secret_file" in str(caught.value)
    node.close()


def shared_memory(pid):
    """MiB of it that are resident."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssShmem:\s+(\d+) kB", text)[1]) >> 10


def test_begins_small_and_says_how_much(host):
    answer = host.ask({"node_dram": "1G", "node_dram_start": "64M",
                       "node_ssd": "2G", "node_idle_s": 600})
    pid = started_pid(answer)
    text = answer["said"][0]
    assert ("takes 64 MiB of memory now, up to 1 GiB as it is used "
            "(node_dram), and up to 2 GiB of disk in "
            f"{host.cache / 'larder'} (node_ssd, node_dir); it stays when "
            "engines end, and ends 10 min after the last (node_idle_s) or "
            f"by `kill {pid}`;") in text
    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert command[command.index(b"--idle-exit-s") + 1] == b"600"
    until(lambda: shared_memory(pid) >= 64)
    time.sleep(1)
    assert shared_memory(pid) < 100
    files = sum(f.stat().st_blocks * 512
                for f in (host.cache / "larder").iterdir())
    assert files < 64 << 20  # one segment of 64


def test_what_it_takes_by_default():
    """As the README says."""
    options = Options()
    assert options.node_dram_start == 1 << 30
    assert options.node_ssd == 4 << 30
    assert options.node_idle_s == 1800


def test_node_that_ends_while_it_is_asked(monkeypatch):
    """It listened, then did not answer, and is gone: another is started."""
    listens = iter([True, False])
    started = []
    monkeypatch.delenv("LARDER_URL", raising=False)
    monkeypatch.setattr(_node, "_listens", lambda path: next(listens))
    monkeypatch.setattr(_node, "_answers", lambda url: False)
    monkeypatch.setattr(_node, "_start", lambda *a: started.append(a))
    url = _node.node_url(Options(), lambda text: None)
    assert len(started) == 1 and started[0][1] == url
    assert url not in _node._silent


def test_outlives_the_tree_of_its_caller(host):
    """What vLLM does at its end: SIGKILL to every descendant."""
    shell = ["/bin/sh", "-c", '"$0" "$@"; true', sys.executable, "-B", "-c",
             CALLER]
    caller = host.call(command=shell, start_new_session=True)
    pid = started_pid(caller.answer())
    tree = descendants(caller.pid)
    assert len(tree) == 1, "the shell and the caller below it"
    assert pid not in tree
    session = stat_of(pid)[2:]
    assert caller.pid not in session and os.getpid() not in session
    for one in [caller.pid, *tree]:
        os.kill(one, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(caller.pid, signal.SIGKILL)
    caller.process.wait(20)
    until(lambda: not any(os.path.exists(f"/proc/{p}") for p in tree))
    assert host.nodes() == [pid]
    answer = host.ask()
    assert "attached" in answer["said"][0] and answer["dram"] > 0


def test_six_at_once_end_with_one(host):
    callers = [host.call(begin=False) for _ in range(6)]
    for one in callers:
        one.begin()
    answers = [one.answer() for one in callers]
    assert all(a.get("dram") == 64 << 20 for a in answers), answers
    assert len({a["url"] for a in answers}) == 1
    texts = [a["said"][0] for a in answers]
    assert sum("started" in t for t in texts) == 1
    assert sum("attached" in t for t in texts) == 5
    assert len(host.nodes()) == 1


def test_inherits_nothing_of_the_engine(host):
    """Neither its cores nor its memory nor what it preloads."""
    everything = os.sched_getaffinity(0)
    core = {min(everything)}
    answer = host.ask(before=lambda: os.sched_setaffinity(0, core),
                      env={"NOTIFY_SOCKET": "/nonexistent",
                           "LD_PRELOAD": "libm.so.6"})
    pid = started_pid(answer)
    assert os.sched_getaffinity(pid) >= everything
    env = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    assert b"XDG_RUNTIME_DIR=" in env
    assert b"NOTIFY_SOCKET" not in env and b"LD_PRELOAD" not in env
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    fds = {os.readlink(f"/proc/{pid}/fd/{n}") for n in range(3)}
    assert fds == {"/dev/null", str(host.run / "larder.log")}


def test_memory_is_not_bound(host):
    """Nor to the NUMA node that a worker's memory is bound to."""
    call = _node.SET_MEMPOLICY.get(platform.machine())
    if call is None or not os.path.exists("/proc/self/numa_maps"):
        pytest.skip("no NUMA here")

    def bind():
        node_0 = ctypes.byref(ctypes.c_ulong(1))
        ctypes.CDLL(None).syscall(ctypes.c_long(call), ctypes.c_long(2),
                                  node_0, ctypes.c_long(64))

    def bound(pid):
        maps = pathlib.Path(f"/proc/{pid}/numa_maps").read_text()
        return sum(line.split()[1] != "default" for line in maps.splitlines())

    caller = host.call(before=bind)
    pid = started_pid(caller.answer())
    if bound(caller.pid) == 0:
        pytest.skip("memory may not be bound here")
    assert bound(pid) == 0


def test_caller_stays_bound():
    """Only what is started is set free."""
    everything = os.sched_getaffinity(0)
    core = {min(everything)}
    os.sched_setaffinity(0, core)
    try:
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            pid = _node._detach(["/bin/sh", "-c", "grep Cpus_allowed_list "
                                 "/proc/self/status"], log)
            until(lambda: _node._ended(pid))
            said = log.read_text()
        assert os.sched_getaffinity(0) == core
    finally:
        os.sched_setaffinity(0, everything)
    if len(everything) > 1:
        assert not re.search(rf"\s{min(everything)}$", said.strip())


def test_without_ssd(host):
    pid = started_pid(host.ask({"node_ssd": 0}))
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert b"--dir" not in words and b"--ssd" not in words
    assert not host.cache.exists()


def test_admin_port_in_use(host):
    """The dashboard is not worth a failed start."""
    assert f"127.0.0.1:{_node.ADMIN_PORT}" in subprocess.run(
        [os.environ["LARDER_PROGRAM"], "options", "--serve"], check=True,
        text=True, stdout=subprocess.PIPE).stdout
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = host.ask(settings={"ADMIN_PORT": port},
                          env={"LARDER_ADMIN": f"127.0.0.1:{port}"})
    assert "--admin none" in answer["said"][0]
    assert answer["dram"] > 0


def test_default_dram_is_a_quarter():
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) * 1024
    found = _node._quarter()
    assert 0 < found <= total // 4 and found % (1 << 20) == 0


def test_limits_of_control_groups(tmp_path):
    """The smallest of the groups that this process is in."""
    root = tmp_path / "cgroup"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/memory.max").write_text("max\n")
    (root / "a/memory.max").write_text(f"{8 << 30}\n")
    (tmp_path / "memory.max").write_text("5\n")  # not one of them
    (tmp_path / "self").write_text("3:cpu:/x\n0::/a/b\n")
    assert _node._limits(root, tmp_path / "self") == [8 << 30]
    (root / "memory").mkdir()
    (root / "memory/memory.limit_in_bytes").write_text("4096\n")
    assert min(_node._limits(root, tmp_path / "none")) == 4096


# ---- not to be had ----


def test_stopped_node_is_no_reason_to_fail(host):
    """Nor to start another: it goes on without until it answers."""
    pid = started_pid(host.ask())
    os.kill(pid, signal.SIGSTOP)
    answer = host.ask()
    [text] = answer["said"]
    assert "did not answer in time" in text
    assert "serving without it until it answers" in text
    assert answer["url"] == f"unix:{host.socket}" and "error" not in answer
    assert host.nodes() == [pid]
    os.kill(pid, signal.SIGCONT)
    assert "attached" in host.ask()["said"][0]


def test_program_that_is_missing(host):
    answer = host.ask(env={"LARDER_PROGRAM": "/nonexistent/larder"})
    one_line(answer, "none can be started", "LARDER_PROGRAM=/nonexistent",
             "set url to a node that runs")
    alone = host.folder / "alone"
    shutil.copytree(ROOT / "python/larder_kv", alone / "larder_kv",
                    ignore=shutil.ignore_patterns("_bin"))
    answer = host.ask(env={"LARDER_PROGRAM": None, "PATH": "",
                           "PYTHONPATH": str(alone)})
    one_line(answer, "the program larder was not found",
             "reinstall larder-kv, or set LARDER_PROGRAM")
    assert host.nodes() == []


def test_node_that_ends_at_once(host):
    """Noticed at once (not after START_SECONDS), with its own last words;
    those of an earlier one count for nothing."""
    other = Daemon(os.environ["LARDER_PROGRAM"], host.folder / "d", dirs=1)
    log = host.run / "larder.log"
    log.write_text("larder serve: some old trouble\n")
    try:
        other.start()
        for _ in range(2):
            answer = host.ask({"node_dir": str(other.dirs[0])},
                              settings={"START_SECONDS": 1000})
            one_line(answer, "has ended", "in use by another node", str(log),
                     "set url to a node that runs")
        assert host.nodes() == []
        good = host.ask()
        assert good["dram"] > 0, good
    finally:
        other.end()


def test_ended_before_anybody_took_note():
    """Where process 1 does not reap, what ended stays as a zombie."""
    child = subprocess.Popen(["/bin/sleep", "60"])
    assert not _node._ended(child.pid)
    child.kill()
    until(lambda: stat_of(child.pid)[0] == "Z")
    assert _node._ended(child.pid)
    child.wait()
    assert _node._ended(child.pid)


def test_node_that_never_answers(host):
    """A program that is none: bounded."""
    fake = host.folder / "fake"
    fake.write_text("#!/bin/sh\necho nothing to serve\nexec sleep 30\n")
    fake.chmod(0o755)
    answer = host.ask(env={"LARDER_PROGRAM": str(fake)},
                      settings={"START_SECONDS": 1})
    one_line(answer, "does not answer: nothing to serve")
    os.kill(started_pid(answer), signal.SIGKILL)


def as_nobody():
    if os.getuid() == 0:
        if subprocess.run(["/bin/sh", "-c", f"test -r {BUILD}/bin/larder"],
                          user=NOBODY, group=NOBODY).returncode != 0:
            pytest.skip("the tree cannot be read by other users")
        return dict(user=NOBODY, group=NOBODY, extra_groups=[])
    return {}


def given_to_nobody(folder, mode):
    """To who is as_nobody()."""
    folder.chmod(mode)
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def test_runtime_directory_not_writable(host):
    given_to_nobody(host.run, 0o555)
    answer = host.ask(**as_nobody())
    one_line(answer, f"cannot start a node in {host.run}",
             "Permission denied", "XDG_RUNTIME_DIR", "or url to a node")
    assert answer["status"] == _lib.E_DENIED
    assert host.nodes() == []


def test_node_dir_not_writable(host):
    """Asked for: refused. Not asked for: without."""
    given_to_nobody(host.run, 0o700)
    closed = host.folder / "closed"
    closed.mkdir(0o555)
    answer = host.ask({"node_dir": str(closed)}, **as_nobody())
    one_line(answer, f"{closed} cannot be written", "node_dir", "node_ssd")
    answer = host.ask({"node_dir": str(closed / "below")}, **as_nobody())
    one_line(answer, "Permission denied", "node_dir")
    answer = host.ask(env={"XDG_CACHE_HOME": str(closed)}, **as_nobody())
    assert "without an ssd tier" in answer["said"][0]
    assert "--dir" not in answer["said"][1] and answer["dram"] > 0


@pytest.mark.parametrize("name", ["larder.lock", "larder.super"])
def test_default_directory_with_files_of_others(host, name):
    """The node would refuse it, and the engine would not start for that."""
    given_to_nobody(host.run, 0o700)
    place = host.cache / "larder"
    place.mkdir(parents=True)
    (place / name).write_bytes(b"")
    (place / name).chmod(0o444)
    given_to_nobody(place, 0o700)
    answer = host.ask(**as_nobody())
    assert "without an ssd tier" in answer["said"][0]
    assert name in answer["said"][0]
    assert "--dir" not in answer["said"][1] and answer["dram"] > 0


@pytest.mark.parametrize("of", ["another", "all"])
def test_runtime_directory_of_others(host, of):
    """Who made it could have put links there, to files of this user's."""
    if of == "another" and os.getuid() != 0:
        pytest.skip("needs root")
    mine = host.folder / "mine"
    mine.write_text("kept")
    (host.run / "larder.start").symlink_to(mine)
    (host.run / "larder.log").symlink_to(mine)
    if of == "another":
        given_to_nobody(host.run, 0o700)
    else:
        host.run.chmod(0o777)
    answer = host.ask()
    one_line(answer, f"cannot start a node in {host.run}", "of this user's",
             "XDG_RUNTIME_DIR")
    assert mine.read_text() == "kept" and host.nodes() == []


def test_without_a_home(host):
    """Nothing is made in the engine's directory."""
    answer = host.ask(env={"XDG_CACHE_HOME": "", "HOME": "not-absolute"})
    assert "no home" in answer["said"][0]
    assert "--dir" not in answer["said"][1] and answer["dram"] > 0
    assert not (host.folder / "not-absolute").exists()


def test_node_of_another_user(host):
    """Somebody else's socket in this user's place is not trusted."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    host.run.chmod(0o777)
    script = ("import socket, sys; s = socket.socket(socket.AF_UNIX); "
              "s.bind(sys.argv[1]); s.listen(); print(1, flush=True); "
              "sys.stdin.read()")
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(host.socket)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **as_nobody())
    try:
        other.stdout.readline()
        one_line(host.ask(), f"is run by uid {NOBODY}", "set url=unix:")
    finally:
        other.communicate("")


# ---- of another version, or nowhere ----


class OtherVersion:
    """Answers each HELLO as a daemon of another protocol version would."""

    def __init__(self, path, reply):
        self.reply = reply
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            with one:
                one.settimeout(10)
                head = one.recv(wireclient.FRAME_BYTES, socket.MSG_WAITALL)
                if len(head) < wireclient.FRAME_BYTES:
                    continue  # a look, no more
                ident = wireclient.FRAME.unpack(head)[3]
                one.sendall(self.reply(ident))

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def newer(ident):
    body = struct.pack("<HHQQ32s64s", 9, 0, 0, 1, bytes(32), b"9.9 (future)")
    return wireclient.frame(wireclient.HELLO, body, ident=ident, epoch=1,
                            arg=wireclient.OK, flags=wireclient.REPLY)


def refusing(ident):
    return wireclient.frame(
        wireclient.HELLO, b"protocol versions 1 to 1 are spoken by the client, "
        b"2 to 3 by the daemon", ident=ident, epoch=1,
        arg=wireclient.E_VERSION, flags=wireclient.REPLY)


@pytest.mark.parametrize("reply, hints", [
    (newer, ("9.9 (future)", "version 9", "update the older one")),
    (refusing, ("protocol versions 1 to 1", "2 to 3 by the daemon")),
])
def test_node_of_another_version(host, reply, hints):
    """Refused at the start, whether it was found or named."""
    fake = OtherVersion(host.socket, reply)
    try:
        for options in ({}, {"url": f"unix:{host.socket}"}):
            answer = host.ask(options)
            one_line(answer, *hints)
            assert answer["status"] == _lib.E_VERSION
        assert host.nodes() == []
    finally:
        fake.close()


@pytest.mark.parametrize("url, hints", [
    ("larder.sock", ("write embed:DIR", "unix:PATH or tcp://HOST:PORT")),
    ("http://127.0.0.1:9464", ("unix:PATH or tcp://HOST:PORT",)),
    ("tcp://127.0.0.1", ("write HOST:PORT",)),
    ("unix:", ("write unix:PATH",)),
    ("unix:/x?nonsense=1", ("unknown option 'nonsense'",)),
    ("embed:/tmp/kv", ("cannot share an embedded node", "unix:PATH")),
])
def test_wrong_urls(host, url, hints):
    text = one_line(host.ask({"url": url}), *hints)
    assert f"url={url}" in text
    assert host.nodes() == []


def test_refused_tcp_recovers(host):
    """A node that is down at the start is used when it is up."""
    port = free_port()
    url = f"tcp://127.0.0.1:{port}?breaker_ms=10"
    said = []
    assert _node.node_url(Options({"url": url}), said.append) == url
    node = _node.open_node(url, lambda *_: None, said.append)
    [text] = said
    assert "Connection refused" in text and url in text
    assert "serving without it until it answers" in text
    with pytest.raises(_lib.LarderError):
        node.stats()
    daemon = Daemon(os.environ["LARDER_PROGRAM"], host.folder / "d",
                    listen=f"127.0.0.1:{port}")
    try:
        daemon.start()

        def up():
            with contextlib.suppress(_lib.LarderError):
                return node.stats().client_connects
            return 0

        assert until(up) == 1
    finally:
        node.close()
        daemon.end()
