"""This host's node: found, or started.

A node that is started here outlives the engine. It is no child of any process
that asked for it, so that neither the engine's end nor a kill of its process
tree ends it; it lives until nobody has used it for node_idle_s, until SIGTERM
(`kill PID`, which the start message names), or as long as the container or
service that the engine runs in. Two engines that start at once end with one
node: who starts one holds a lock, and looks again when it has it.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import platform
import shlex
import socket
import stat
import struct
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable

from larder_kv import _lib
from larder_kv._find import program_path
from larder_kv._options import Options

START_SECONDS = 60.0
PROBE_SECONDS = 2.0
SHORT = f"timeout_ms={int(PROBE_SECONDS * 1000)}"
ADMIN_PORT = 9464
# The engine's own business: what it preloads, whom it tells that it is up.
NOT_INHERITED = ("LD_PRELOAD", "NOTIFY_SOCKET")
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}

Say = Callable[[str], None]
_silent: set[str] = set()  # did not answer when node_url() looked


def node_url(options: Options, say: Say) -> str:
    """Where the node is: option url, or the variable LARDER_URL. Without both
    it is there when this returns, though it may not answer now."""
    if given := options.url or os.environ.get("LARDER_URL", ""):
        if given.startswith("embed:"):
            raise _lib.LarderError(
                _lib.E_UNSUPPORTED, f"larder: url={given}: the "
                "processes of an engine cannot share an embedded node; start "
                "`larder serve` and use unix:PATH or tcp://HOST:PORT, or "
                "leave url out")
        return given
    path = pathlib.Path(_lib.default_socket())
    url = "unix:" + urllib.parse.quote(str(path))
    if not _listens(path):
        _start(path, url, options, say)
    elif _answers(url):
        say(f"larder: attached to the node of this host, {url}")
    elif _listens(path):
        _silent.add(url)
    else:  # it was about to end
        _start(path, url, options, say)
    return url


def open_node(url: str, log: Callable[[int, str], None], say: Say,
              verify: str = "", secret_file: str = "") -> _lib.Node:
    """Opens it. One that is down may come back: it is no reason to fail.
    verify: what is checked, if the URL does not say. secret_file: of all its
    spaces; the library reads it now, and one that it cannot use is an error."""
    full = url if "connect=" in url else _with(url, "connect=lazy")
    if verify and "verify=" not in url:
        full = _with(full, f"verify={verify}")
    if secret_file:
        path = urllib.parse.quote(secret_file, safe="/")
        full = _with(full, f"secret_file={path}")
    if url in _silent:
        _silent.discard(url)
        full = _with(full, SHORT)
    try:
        node = _lib.Node(full, log)
    except _lib.LarderError as error:
        raise _lib.LarderError(error.status,
                               f"larder: url={url}: {error}") from None
    node.url = url
    try:
        node.stats()
    except _lib.LarderError as error:
        say(f"larder: {error}; start that node, or correct url={url}; serving "
            "without it until it answers")
    return node


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# ---- is there one? ----


def _listens(path: pathlib.Path) -> bool:
    """Whether a process of this user's, or root's, has the socket. It may
    be stopped: then it does not answer, but another could not start either."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (BlockingIOError, TimeoutError):
            return True  # it has more to accept than it can
        except OSError as error:
            raise _no_place(path.parent, error) from None
        _, uid, _ = struct.unpack("3i", probe.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (0, os.geteuid()):
        raise _lib.LarderError(
            _lib.E_DENIED, f"larder: the node at {path} is run by uid {uid}, "
            f"not by this user; set url=unix:{path} if it is the one to use")
    return True


def _answers(url: str) -> bool:
    try:
        _lib.Node(_with(url, SHORT), lambda *_: None).close()
        return True
    except _lib.LarderError as error:
        if error.status in (_lib.E_OFFLINE, _lib.E_DEADLINE):
            return False
        raise _lib.LarderError(error.status, f"larder: {error}") from None


# ---- starting one ----


def _no_place(folder: pathlib.Path, error: OSError) -> _lib.LarderError:
    return _lib.LarderError(
        _lib.E_DENIED, f"larder: cannot start a node in {folder}: "
        f"{error.strerror}; set XDG_RUNTIME_DIR to a directory of this "
        "user's, or url to a node that runs")


def check_own(folder: pathlib.Path, others: int) -> None:
    """Raises OSError unless it is a directory of this user's in which nobody
    else has these permissions: /tmp/larder-UID anybody could have made."""
    about = os.lstat(folder)
    if (not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid()
            or about.st_mode & others):
        raise OSError(errno.EPERM, "it is not a directory of this user's "
                      f"alone (no {others:03o} in its mode)")


def _open(path: pathlib.Path, flags: int) -> int:
    """Never another's file, by a link."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                   0o600)


def _start(path: pathlib.Path, url: str, options: Options, say: Say) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(path.parent, 0o022)
        lock = open(_open(path.parent / "larder.start", os.O_RDWR), "w")
    except OSError as error:
        raise _no_place(path.parent, error) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _listens(path):
            say(f"larder: attached to the node of this host, {url}")
            return
        log = path.parent / "larder.log"
        command, takes = _command(path, options, say)
        before = log.stat().st_size if log.exists() else 0
        try:
            pid = _detach(command, log)
        except OSError as error:
            raise _no_place(path.parent, error) from None
        say(f"larder: no node on this host; started one, process {pid}, which "
            f"takes {takes}; it stays when engines end, and ends "
            + (f"{_time(options.node_idle_s)} after the last (node_idle_s) or "
               if options.node_idle_s else "")
            + f"by `kill {pid}`; its log is {log}; started as: "
            + shlex.join(command))
        _wait(url, pid, log, before)


def _size(count: int) -> str:
    return (f"{count / 2**30:.3g} GiB" if count >= 1 << 30
            else f"{count / 2**20:.3g} MiB")


def _time(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"


def _command(path: pathlib.Path, options: Options,
             say: Say) -> tuple[list[str], str]:
    """And what it takes of this host."""
    try:
        program = program_path()
    except FileNotFoundError as error:
        raise _lib.LarderError(
            _lib.E_UNSUPPORTED, f"larder: no node runs on this host, and none "
            f"can be started: {error}; or set url to a node that runs"
        ) from None
    dram = options.node_dram or _quarter()
    start = options.node_dram_start
    command = [program, "serve", "--socket", str(path), "--dram", str(dram),
               "--dram-start", str(start),
               "--idle-exit-s", str(options.node_idle_s)]
    takes = _size(dram)
    if 0 < start < dram:
        takes = f"{_size(start)} of memory now, up to {takes} as it is used"
    else:
        takes += " of memory"
    takes += " (node_dram)"
    directory = _directory(options, say)
    if directory:
        command += ["--dir", directory, "--ssd", str(options.node_ssd)]
        takes += (f", and up to {_size(options.node_ssd)} of disk in "
                  f"{directory} (node_ssd, node_dir)")
    if options.secret_file:  # no other is accepted then
        command += ["--secret_file", os.path.abspath(options.secret_file)]
    if not _free(ADMIN_PORT):
        command += ["--admin", "none"]
    return command, takes


def _directory(options: Options, say: Say) -> str | None:
    """Where the node keeps its ssd tier. One that was asked for must be
    writable; without the one that nobody asked for it goes on."""
    if not options.node_ssd:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = options.node_dir or os.path.join(cache, "larder")
    try:
        if not options.node_dir and not os.path.isabs(cache):
            raise OSError(errno.ENOENT, "this user has no home")
        directory = os.path.abspath(directory)
        os.makedirs(directory, exist_ok=True)
        for name in ("", "larder.lock", "larder.super"):  # what it opens
            file = os.path.join(directory, name)
            if os.path.exists(file) and not os.access(
                    file, os.W_OK | (0 if name else os.X_OK)):
                raise PermissionError(0, f"Permission denied: {file}")
    except OSError as error:
        text = (f"larder: {directory} cannot be written ({error.strerror}); "
                "set node_dir to a directory that can, or node_ssd to 0")
        if options.node_dir:
            raise _lib.LarderError(_lib.E_DENIED, text) from None
        say(f"{text}; the node is started without an ssd tier")
        return None
    return directory


def _quarter() -> int:
    """A quarter of the memory that may be used, in whole megabytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) * 1024
    return min([total, *_limits()]) // 4 >> 20 << 20


def _limits(root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"),
            groups: pathlib.Path = pathlib.Path("/proc/self/cgroup")
            ) -> list[int]:
    """The memory limits of this process's control groups."""
    files = [root / "memory/memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                own = root / path.lstrip("/")
                files += [folder / "memory.max"
                          for folder in (own, *own.parents)
                          if root in (folder, *folder.parents)]
    found = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(file.read_text()))
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def _detach(command: list[str], log: pathlib.Path) -> int:
    """Runs it as nobody's child: the shell between ends at once. Gives its
    process id."""
    with open(_open(log, os.O_WRONLY | os.O_APPEND), "ab") as out:
        said: list[bytes] = []

        def run() -> None:
            # A thread of its own: engines bind theirs to cores and memory,
            # which a child would inherit.
            _unbind()
            with contextlib.suppress(OSError):
                said.append(subprocess.run(
                    ["/bin/sh", "-c", f"{shlex.join(command)} >&2 & echo $!"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=out, cwd="/", start_new_session=True,
                    env={k: v for k, v in os.environ.items()
                         if k not in NOT_INHERITED}).stdout)

        thread = threading.Thread(target=run, name="larder-start")
        thread.start()
        thread.join()
    if not said or not said[0].strip().isdigit():
        raise OSError(0, "/bin/sh cannot be run")
    return int(said[0])


def _unbind() -> None:
    """Takes back what binds this thread to cores and to memory."""
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    call = SET_MEMPOLICY.get(platform.machine())
    if call is not None:
        none = ctypes.c_void_p()
        ctypes.CDLL(None).syscall(ctypes.c_long(call), ctypes.c_long(0), none,
                                  none)


def _wait(url: str, pid: int, log: pathlib.Path, before: int) -> None:
    end = time.monotonic() + START_SECONDS
    pause = 0.01
    while True:
        ended = _ended(pid)
        if _answers(url):  # or that of somebody who was quicker
            return
        if ended or time.monotonic() > end:
            what = "has ended" if ended else "does not answer"
            raise _lib.LarderError(
                _lib.E_OFFLINE, f"larder: the node that was started {what}: "
                f"{_last_line(log, before)} (log: {log}); correct that, or "
                "set url to a node that runs")
        time.sleep(pause)
        pause = min(pause * 2, 0.2)


def _ended(pid: int) -> bool:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def _last_line(log: pathlib.Path, before: int) -> str:
    """Of what was written there since."""
    try:
        with open(log, "rb") as file:
            file.seek(before)
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"
