"""This host's node: found, or started.

A node that is started here outlives the engine: it is no child of any process
that asked for it, and ends by SIGTERM (`larder serve` says how in its log), or
with the machine. Two engines that start at once end with one node: who starts
one holds a lock, and looks again when it has it.
"""
from __future__ import annotations

import fcntl
import os
import pathlib
import shlex
import socket
import subprocess
import time
from collections.abc import Callable

from larder_kv import _lib
from larder_kv._find import program_path
from larder_kv._options import Options

START_SECONDS = 60.0
ADMIN_PORT = 9464


def node_url(options: Options, say: Callable[[str], None]) -> str:
    """Where the node is. Without option url it runs when this returns."""
    if options.url:
        return options.url
    url = "unix:" + _lib.default_socket()
    if not _answers(url):
        _start(url, options, say)
    else:
        say(f"larder: attached to the node of this host, {url}")
    return url


def open_node(url: str, log: Callable[[int, str], None],
              say: Callable[[str], None]) -> _lib.Node:
    """Opens it. One that is down may come back: it is no reason to fail."""
    try:
        return _lib.Node(url, log)
    except _lib.LarderError as error:
        if error.status not in (_lib.E_OFFLINE, _lib.E_DEADLINE):
            raise
        say(f"larder: {error}; serving without it until it answers")
        return _lib.Node(_with(url, "connect=lazy"), log)


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


def _answers(url: str) -> bool:
    try:
        _lib.Node(_with(url, "timeout_ms=2000"), lambda *_: None).close()
        return True
    except _lib.LarderError as error:
        if error.status in (_lib.E_OFFLINE, _lib.E_DEADLINE):
            return False
        raise


def _start(url: str, options: Options, say: Callable[[str], None]) -> None:
    path = pathlib.Path(url.removeprefix("unix:"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(path.parent / "larder.start", "w")
    except OSError as error:
        raise _lib.LarderError(
            _lib.E_DENIED, f"larder: cannot start a node in {path.parent}: "
            f"{error.strerror}; set url to one that runs, or XDG_RUNTIME_DIR "
            "to a directory of this user's") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _answers(url):
            say(f"larder: attached to the node of this host, {url}")
            return
        log = path.parent / "larder.log"
        command = _command(path, options)
        say(f"larder: no node on this host; starting one: "
            f"{shlex.join(command)} (its log: {log})")
        _detach(command, log)
        _wait(url, log)


def _command(path: pathlib.Path, options: Options) -> list[str]:
    command = [program_path(), "serve", "--socket", str(path), "--dram",
               str(options.node_dram or _quarter())]
    if options.node_ssd:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(
            "~/.cache")
        directory = options.node_dir or os.path.join(cache, "larder")
        command += ["--dir", directory, "--ssd", str(options.node_ssd)]
    if not _free(ADMIN_PORT):
        command += ["--admin", "none"]
    return command


def _quarter() -> int:
    """A quarter of the machine's memory, in whole megabytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = int(file.readline().split()[1])
    return kib * 1024 // 4 >> 20 << 20


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def _detach(command: list[str], log: pathlib.Path) -> None:
    """Runs it as nobody's child: the shell between ends at once."""
    with open(log, "ab") as out:
        subprocess.run(
            ["/bin/sh", "-c", shlex.join(command) + " &"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, check=True)


def _wait(url: str, log: pathlib.Path) -> None:
    end = time.monotonic() + START_SECONDS
    pause = 0.01
    while not _answers(url):
        if time.monotonic() > end or _refused(log):
            raise _lib.LarderError(
                _lib.E_OFFLINE, "larder: the node that was started does not "
                f"answer: {_last_line(log)} (log: {log}); correct that, or "
                "set url to a node that runs")
        time.sleep(pause)
        pause = min(pause * 2, 0.2)


def _last_line(log: pathlib.Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"


def _refused(log: pathlib.Path) -> bool:
    return _last_line(log).startswith("larder: ")
