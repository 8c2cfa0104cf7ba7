"""The shared tier on a file system in a process (FUSE, bindfs), which is
killed, stopped and mounted again under whole nodes that engines use all the
while; and what doctor says of such a mount."""
import contextlib
import ctypes
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest

from capi import E_STALE, MISS, OK, PRESENT, Node, found, make_tier, value_of
from daemon import until
from mounts import own_mounts, unmount

SHARED = 2  # LARDER_TIER_SHARED
SIZE = 60000
KEPT = 60  # chunks that must be hit again
LOAD_MS, SAVE_MS = 2000, 20000  # deadlines of calls under load
HUNG_S = 30  # a call that takes so long hangs: a guard, no measure

_libc = ctypes.CDLL(None)


def die_with_parent():
    _libc.prctl(1, signal.SIGKILL)


@pytest.fixture
def scratch():
    """A folder with a short path: a reason names it, and has room for 160
    bytes."""
    with tempfile.TemporaryDirectory(prefix="larder-") as folder:
        yield folder


@pytest.fixture
def fuse_here(scratch):
    """As root in a name space of our own; others have fusermount3."""
    for what, there in (
            ("/dev/fuse", os.path.exists("/dev/fuse")),
            ("bindfs: scripts/install-deps test", shutil.which("bindfs")),
            ("root or fusermount3",
             os.geteuid() == 0 or shutil.which("fusermount3"))):
        if not there:
            pytest.skip(f"no FUSE here: it needs {what}")
    with (own_mounts(scratch) if os.geteuid() == 0
          else contextlib.nullcontext()):
        yield


class Fuse:
    """A directory behind a process. `path` must not be touched from here while
    that is stopped."""

    def __init__(self, folder):
        self.source, self.path = folder / "source", folder / "mounted"
        self.source.mkdir()
        self.path.mkdir()
        # Opened before anything is mounted: it shows what lies beneath.
        self.beneath_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self.process = None

    def is_mounted(self):
        with open("/proc/self/mounts", encoding="utf-8") as file:
            return any(line.split()[1] == str(self.path) for line in file)

    def mount(self, refused=pytest.fail):
        self.process = subprocess.Popen(
            ["bindfs", "-f", "--no-allow-other", self.source,
             self.path],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, preexec_fn=die_with_parent)
        until(lambda: self.is_mounted() or self.process.poll() is not None)
        if self.process.poll() is not None:
            refused("no FUSE here: "
                    + self.process.stderr.read().decode().strip())

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process.stderr.close()
            self.process = None

    def unmount(self):
        """Also while it is in use: nodes keep it open."""
        if os.geteuid() == 0:
            unmount(self.path)
        else:
            subprocess.run(["fusermount3", "-u", "-z", self.path], check=True)
        assert not self.is_mounted()

    def beneath(self):
        return os.listdir(self.beneath_fd)

    def end(self):
        self.kill()
        while self.is_mounted():
            self.unmount()
        os.close(self.beneath_fd)


@pytest.fixture
def fuse(fuse_here, scratch):
    one = Fuse(pathlib.Path(scratch))
    try:
        one.mount(refused=pytest.skip)
        make_tier(one.path)
        assert (one.source / "larder.tier").exists()
        yield one
    finally:
        one.end()


@pytest.fixture
def node(fuse, serve):
    """Nodes with so little memory that loads come from the tier."""
    def make(name, **options):
        given = {"shared": f"dir:{fuse.path}", "shared_poll_ms": 100,
                 "retry_ms": 200, "shared_timeout_ms": 1000, "dirs": 0,
                 "dram": "8M", **options}
        return serve(name=name, **given)
    return make


class Load:
    """Engines at nodes: each puts chunks of its own and gets those of all. One
    that sees a wrong byte, an error or a call that hangs says so."""

    def __init__(self, daemons):
        self.end, self.lock = threading.Event(), threading.Lock()
        self.wrong, self.saved, self.slowest = [], [], 0.0
        self.puts = [0] * len(daemons)
        self.hits = [0] * len(daemons)
        self.calls = [0] * len(daemons)
        self.threads = [threading.Thread(target=self.engine, args=(i, d.url()))
                        for i, d in enumerate(daemons)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self.threads:
            thread.join()

    def engine(self, number, url):
        rng = random.Random(number)
        try:
            with Node(url) as node:
                while not self.end.wait(0.01) and not self.wrong:
                    self.step(number, node, rng)
        except Exception as e:  # told to the test
            self.wrong.append(repr(e))

    def step(self, number, node, rng):
        if self.calls[number] % 3 == 0:
            self.put(number, node, f"e{number} {self.calls[number]}")
        with self.lock:
            some = rng.sample(self.saved, min(4, len(self.saved)))
        for name in some:
            self.get(number, node, name)
        self.calls[number] += 1

    def put(self, number, node, name):
        status = self.timed(node.put, name, value_of(name, 1, SIZE), SAVE_MS)
        assert status in (OK, PRESENT, E_STALE), f"put: {status}"
        if status == OK:
            self.puts[number] += 1
            with self.lock:
                self.saved.append(name)

    def get(self, number, node, name):
        status, _, value = self.timed(node.get, name, SIZE, LOAD_MS)
        assert status in (OK, MISS), f"get: {status}"
        if status == OK:
            assert value == value_of(name, 1, SIZE), f"{name}: wrong bytes"
            self.hits[number] += 1

    def timed(self, call, *args):
        began = time.monotonic()
        out = call(*args)
        took = time.monotonic() - began
        self.slowest = max(self.slowest, took)
        assert took < HUNG_S, f"{call.__name__} took {took} s"
        return out

    def goes_on(self, count=30):
        """Every engine has done so much more."""
        before = list(self.calls)
        until(lambda: self.wrong or
              all(c >= b + count for c, b in zip(self.calls, before)),
              text="an engine hangs")
        assert not self.wrong, self.wrong


def loads(daemon):
    return daemon.value("larder_loads_total", tier="shared")


def state(larder, daemon):
    """(readable, writable, reason), by `larder stat`; metrics say the same
    unless it has changed in between."""
    seen = {}

    def same():
        tier = larder.json("stat", daemon.url())[0]["shared"]
        m = daemon.metrics()
        seen["stat"] = (tier["on"], tier["writable"], tier["reason"])
        on = [m.sum("larder_shared_on", operation=o) == 1
              for o in ("read", "write")]
        reason = [k for k, value in m.items() if value == 1
                  and k.startswith("larder_shared_reason{")]
        seen["metrics"] = (on, reason)
        return (on == list(seen["stat"][:2])
                and bool(reason) == bool(seen["stat"][2]))
    until(same, text=lambda: f"they disagree: {seen}")
    return seen["stat"]


def wait_off(larder, daemons, text=""):
    for daemon in daemons:
        until(lambda d=daemon: not state(larder, d)[0] and
              text in state(larder, d)[2],
              text=lambda d=daemon: f"{state(larder, d)}\n{d.log()}")
        assert state(larder, daemon)[2], "off, and no reason is given"


def wait_on(larder, daemons, load):
    """It is used again, by itself: loads come from there."""
    for daemon in daemons:
        until(lambda d=daemon: state(larder, d) == (True, True, ""),
              text=lambda d=daemon: f"{state(larder, d)}\n{d.log()}")
    before = [loads(d) for d in daemons]
    until(lambda: load.wrong or
          all(loads(d) > b for d, b in zip(daemons, before)),
          text="nothing comes from the tier")
    assert not load.wrong, load.wrong


def keep(daemon, name):
    """Chunks that are in the tier when this returns. The node's memory is
    small, and full of what waits for the tier since that was off: some of these
    may be evicted before they are written."""
    names = [f"{name} {i}" for i in range(KEPT)]
    with Node(daemon.url()) as writer:
        def are_there():
            for each in names:
                if writer.exists(each) != OK:
                    assert writer.put(each, value_of(each, 1, SIZE)) == OK
            assert writer.flush(SHARED, 60000) == OK, writer.error()
            return all(writer.exists(each) == OK for each in names)
        until(are_there, text=f"{name} is evicted again and again")


def cold_start(node, name, sets):
    """A new node has nothing but the tier, and gives every byte."""
    cold = node(name, dram="32M")
    with Node(cold.url()) as reader:
        for each in sets:
            names = [f"{each} {i}" for i in range(KEPT)]
            until(lambda n=names: all(reader.exists(k) == OK for k in n),
                  text=f"{each} is not found")
            assert reader.tiers(names[:1]) == (0, 0, 1)
            assert found(reader, KEPT, SIZE, each) == KEPT
    assert loads(cold) == KEPT * len(sets)
    cold.stop()


def remount(larder, fuse, daemons, load):
    """Unmounted for a while: nodes say so, engines go on, and nothing is
    written to the bare mount point."""
    fuse.unmount()
    wait_off(larder, daemons, "is it mounted?")
    load.goes_on(100)
    assert os.listdir(fuse.path) == fuse.beneath() == []
    fuse.mount()
    wait_on(larder, daemons, load)


def kill_and_stop(larder, fuse, node, daemons, load):
    wait_on(larder, daemons, load)
    fuse.kill()
    wait_off(larder, daemons, "Transport endpoint is not connected")
    load.goes_on()
    remount(larder, fuse, daemons, load)
    cold_start(node, "third", ["before"])
    keep(daemons[1], "between")

    # It hangs, and goes on.
    fuse.signal(signal.SIGSTOP)
    wait_off(larder, daemons)
    load.goes_on()
    fuse.signal(signal.SIGCONT)
    wait_on(larder, daemons, load)

    # It hangs, and never comes back.
    fuse.signal(signal.SIGSTOP)
    wait_off(larder, daemons)
    load.goes_on()
    fuse.kill()
    remount(larder, fuse, daemons, load)
    keep(daemons[0], "after")
    load.goes_on()


def test_killed_and_stopped(larder, fuse, node):
    daemons = [node("first"), node("second")]
    keep(daemons[0], "before")
    try:
        with Load([*daemons, *daemons]) as load:
            kill_and_stop(larder, fuse, node, daemons, load)
    except BaseException:
        fuse.kill()  # nodes must not hang when they are ended
        raise
    assert not load.wrong, load.wrong
    print(f"puts {load.puts}, hits {load.hits}, the slowest call "
          f"{load.slowest:.1f} s")
    assert all(load.puts) and all(load.hits), (load.puts, load.hits)
    cold_start(node, "fourth", ["before", "between", "after"])
    for daemon in daemons:
        daemon.stop()
    assert fuse.beneath() == []
