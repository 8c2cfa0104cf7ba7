"""Processes that die, stop and come back at any moment, clients and daemons.
The oracle: a get is a miss, or exactly the bytes that were put under that key,
and never after their removal. Every call ends by its deadline. In the end
everything works and nothing is held.

LARDER_CHAOS_S=600 makes it longer, LARDER_SEED=... another one. However short
it is, each deed is done once.
"""
import json
import mmap
import os
import random
import signal
import socket
import threading
import time

import pytest

import capi
import wireclient as w
from daemon import LONG, PATIENCE_S, fork, free_port, gone, in_child, until
from wireclient import crc32c

SEED = int(os.environ.get("LARDER_SEED", "4"))
CHAOS_S = float(os.environ.get("LARDER_CHAOS_S", 30 if LONG else 15))
BOTH = ("unix", "tcp")
both = pytest.mark.parametrize("transport", BOTH)


def right_or_missing(node, names, low=1):
    """How many are there; each as it was put."""
    found = 0
    for name in names:
        status, _, value = node.get(name)
        if status == capi.OK:
            assert value == capi.value_of(name, low), f"wrong bytes: {name}"
            found += 1
    return found


# ---- one client that dies --------------------------------------------------

@both
def test_killed_at_random(serve, transport):
    """A client that saves and loads, killed at any instruction: nothing of it
    stays, and what it had half written is never seen."""
    daemon = serve(dram="64M")
    rng = random.Random(SEED)
    print(f"LARDER_SEED={SEED}")
    names = []
    total = 0
    for number in range(40):
        mine = [f"{transport} {number} {i}" for i in range(12)]

        def work():
            node = capi.Node(daemon.url(transport))
            while True:
                for name in mine:
                    node.put(name, capi.value_of(name, 200000))
                for name in mine:
                    node.get(name)
                    node.remove(name)

        pid = fork(work)
        time.sleep(rng.random() * 0.06)
        gone(pid)
        names += mine
        if number % 8 == 7:
            daemon.nothing_held()
            with capi.Node(daemon.url(BOTH[number // 8 % 2])) as node:
                total += right_or_missing(node, names[-96:], 200000)
    daemon.nothing_held()
    assert total > 0, "none of them came so far as to save anything"


def test_killed_with_reservations_and_leases(daemon):
    """Killed with all that it could hold: it all comes back, and what was
    only reserved, filled or not, was never there."""
    owner = daemon.enter("tcp")
    space = owner.space()
    value = random.Random(1).randbytes(100000)
    assert owner.put_one(space, w.key_of("leased"), value) == w.OK
    read_fd, write_fd = os.pipe()

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        for i in range(20):
            assert peer.lease(mine, w.key_of("leased")).status == w.OK
            r = peer.reserve(mine, w.key_of(f"r{i}"), len(value))
            assert r.status == w.OK
            peer.write_segs(r.segs, value[:len(value) * i // 19])
        os.write(write_fd, b"x")
        signal.pause()

    pid = fork(work)
    os.read(read_fd, 1)
    m = daemon.metrics()
    assert m.sum("larder_leases") == 20
    assert m.sum("larder_reservations") == 20
    gone(pid)
    daemon.nothing_held(sessions=1)
    m = daemon.metrics()
    assert m.sum("larder_abandoned_leases_total") == 40
    assert m.sum("larder_sessions_died_total") >= 1
    keys = [w.key_of(f"r{i}") for i in range(20)]
    assert owner.get(space, keys) == [None] * 20
    # Their room is free again, and others may have the keys.
    for key in keys:
        assert owner.put_one(space, key, value) == w.OK
    os.close(read_fd)
    os.close(write_fd)


def test_commit_and_die(daemon):
    """Dead right after its commit: either it is there whole, or not."""
    def work(number):
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        value = capi.value_of(f"c{number}", 90000)
        r = peer.reserve(mine, w.key_of(f"c{number}"), len(value))
        peer.write_segs(r.segs, value)
        peer.ring.put(w.frame(w.COMMIT, w.ends_body(
            [(r.lease, crc32c(value), w.PLAIN)]), epoch=peer.epoch,
            flags=w.SILENT, seal=False))
        os.kill(os.getpid(), signal.SIGKILL)

    for number in range(20):
        os.waitpid(fork(lambda: work(number)), 0)
    daemon.nothing_held()
    peer = daemon.enter("tcp")
    space = peer.space()
    there = 0
    for number in range(20):
        (got,) = peer.get(space, [w.key_of(f"c{number}")])
        assert got in (None, capi.value_of(f"c{number}", 90000))
        there += got is not None
    print(f"{there} of 20 had arrived")


def test_stopped_client_keeps_what_it_holds(serve):
    """SIGSTOP takes nothing from it, however much others want the room; it
    goes on after SIGCONT as if nothing had been."""
    daemon = serve(dram="8M")
    value = random.Random(2).randbytes(300000)
    owner = daemon.enter("tcp")
    space = owner.space()
    assert owner.put_one(space, w.key_of("held"), value) == w.OK
    to_child, to_parent = os.pipe(), os.pipe()

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        lease = peer.lease(mine, w.key_of("held"))
        assert peer.read_segs(lease.segs) == value
        r = peer.reserve(mine, w.key_of("half"), len(value))
        peer.write_segs(r.segs, value[:1000])
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        assert peer.read_segs(lease.segs) == value, "taken from under it"
        peer.write_segs(r.segs, value)
        assert peer.commit(r.lease, crc32c(value)).status == w.OK
        assert peer.release(lease.lease) == w.OK
        os.write(to_parent[1], b"2")

    pid = fork(work)
    try:
        assert os.read(to_parent[0], 1) == b"1"
        os.kill(pid, signal.SIGSTOP)
        for i in range(60):  # twice what the arena holds
            owner.put_one(space, w.key_of(f"others {i}"), value)
        m = daemon.metrics()
        assert m.sum("larder_leases") == 1
        assert m.sum("larder_reservations") == 1
        assert m.sum("larder_evicted_chunks_total") > 0
        assert owner.get(space, [w.key_of("half")]) == [None]
        os.kill(pid, signal.SIGCONT)
        os.write(to_child[1], b"x")
        assert os.read(to_parent[0], 1) == b"2"
        assert os.waitpid(pid, 0)[1] == 0
        pid = None
        assert owner.get(space, [w.key_of("half")]) == [value]
    finally:
        if pid is not None:
            gone(pid)
        for fd in to_child + to_parent:
            os.close(fd)


def test_hung_up_while_it_lives(daemon):
    """The socket is closed, the process lives and may still look: quarantine
    until it is gone."""
    to_child, to_parent = os.pipe(), os.pipe()
    owner = daemon.enter("tcp")
    space = owner.space()
    value = random.Random(3).randbytes(100000)
    assert owner.put_one(space, w.key_of("held"), value) == w.OK

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        lease = peer.lease(peer.space(), w.key_of("held"))
        memory = peer.read_segs(lease.segs)
        peer.sock.close()
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        assert memory == value
        assert peer.read_segs(lease.segs) == value

    pid = fork(work)
    try:
        assert os.read(to_parent[0], 1) == b"1"
        until(lambda: daemon.value("larder_quarantined_leases") == 1)
        assert daemon.value("larder_leases") == 1
        assert "hung up while its process lives" in daemon.log()
        os.write(to_child[1], b"x")
        assert os.waitpid(pid, 0)[1] == 0
        pid = None
        daemon.nothing_held(sessions=1)
    finally:
        if pid is not None:
            gone(pid)
        for fd in to_child + to_parent:
            os.close(fd)


def test_hung_up_without_a_mapping(daemon):
    """It never mapped what it holds, or has said that it does not any more:
    there is nothing to wait for, though it lives."""
    owner = daemon.enter("tcp")
    space = owner.space()
    assert owner.put_one(space, w.key_of("held"), bytes(100000)) == w.OK
    for mapped in (False, True):
        peer = daemon.enter("unix").attach()
        mine = peer.space()
        lease = peer.lease(mine, w.key_of("held"))
        assert peer.reserve(mine, w.key_of("r"), 1000).status == w.OK
        if mapped:
            peer.read_segs(lease.segs)
            peer.forget()
        peer.drop()
        daemon.nothing_held(sessions=1)


@pytest.mark.parametrize("how", ["closes", "shuts down"])
def test_last_words_behind_replies_that_nobody_takes(daemon, how):
    """It says that it has unmapped all, and leaves, while the daemon cannot
    send: that is read before the end. (Who shuts down only keeps the replies,
    so that there is no room for more: a moment of every close.)"""
    owner = daemon.enter("tcp")
    space = owner.space()
    assert owner.put_one(space, w.key_of("held"), bytes(100000)) == w.OK
    peer = daemon.enter("unix").attach()
    lease = peer.lease(peer.space(), w.key_of("held"))
    extent = lease.segs[0][:2]
    for _ in range(60):  # more than it can send, and fewer than we can
        peer.start(w.EXTENT, w.extent_body(*extent))
    if how == "shuts down":
        until(lambda: daemon.metrics().sum("larder_reply_queue_bytes") > 0)
    peer.start(w.REVOKED, w.extent_body(w.FOREVER, 0))
    if how == "closes":
        peer.drop()
    else:
        peer.sock.shutdown(socket.SHUT_RDWR)
    daemon.nothing_held(sessions=1)


def test_child_that_inherits_the_socket(daemon):
    """The process is gone, a child of its has the socket: it holds nothing,
    since it has no mapping."""
    owner = daemon.enter("tcp")
    space = owner.space()
    assert owner.put_one(space, w.key_of("held"), bytes(100000)) == w.OK
    read_fd, write_fd = os.pipe()

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        assert peer.lease(mine, w.key_of("held")).status == w.OK
        assert peer.reserve(mine, w.key_of("r"), 1000).status == w.OK
        heir = fork(signal.pause)
        os.write(write_fd, str(heir).encode())
        os._exit(0)

    pid = fork(work)
    heir = int(os.read(read_fd, 20))
    try:
        os.waitpid(pid, 0)
        os.kill(heir, 0)  # it lives
        daemon.nothing_held(sessions=1)
    finally:
        os.kill(heir, signal.SIGKILL)
        os.close(read_fd)
        os.close(write_fd)


@both
def test_handle_after_fork(daemon, transport):
    """The child's copy answers a status; the parent's goes on."""
    value = capi.value_of("f", 50000)

    def work():
        node = capi.Node(daemon.url(transport))
        assert node.put("f", value) == capi.OK
        status, out, lease = node.stage(["f"])
        assert status == capi.OK and out == [value]

        def child():
            assert node.get("f")[0] == capi.E_FORKED
            assert node.put("g", value) == capi.E_FORKED
            assert node.match(["f"])[0] == capi.E_FORKED
            return True

        in_child(child)
        assert node.get("f")[2] == value
        node.release(lease)
        assert node.put("g", value) == capi.OK
        assert node.close() == capi.OK
        return True

    assert in_child(work)
    daemon.nothing_held()


# ---- everything at once ----------------------------------------------------

TIMEOUT_MS = 700
SLACK_S = 20.0  # far more than a call may take, far less than for ever
# Keys that all use; their bytes are given by their names, and are more than
# either tier holds.
SHARED = 3000
# What must have happened to engines, or it was no chaos, or all of it.
WORK = ("hits", "stored", "staged", "in_place", "removed", "offline")


class Stops(threading.Thread):
    """Notices how long this process was not running."""

    def __init__(self):
        super().__init__(daemon=True)
        self.lost = 0.0
        self.start()

    def run(self):
        last = time.monotonic()
        while True:
            time.sleep(0.02)
            now = time.monotonic()
            if now - last > 0.12:
                self.lost += now - last
            last = now


class Engine:
    """One client under chaos."""

    def __init__(self, url, seed, report_fd, over):
        self.rng = random.Random(seed)
        self.name = f"engine {seed}"
        self.report_fd = report_fd
        self.over = over
        self.count = {"calls": 0, "hits": 0, "misses": 0, "stored": 0,
                      "offline": 0, "late": 0, "staged": 0, "in_place": 0,
                      "removed": 0, "worst": 0.0}
        self.own = {}  # name -> (generations that may be there, next)
        self.stops = Stops()
        self.node = self.timed(lambda: capi.Node(url))
        self.said = time.monotonic()

    def say(self, **more):
        os.write(self.report_fd, (json.dumps(dict(
            self.count, name=self.name, **more)) + "\n").encode())

    def wrong(self, what):
        self.say(wrong=what)
        os._exit(9)

    def timed(self, call):
        lost, begin = self.stops.lost, time.monotonic()
        result = call()
        took = time.monotonic() - begin - (self.stops.lost - lost)
        self.count["calls"] += 1
        self.count["worst"] = max(self.count["worst"], took)
        if took > TIMEOUT_MS / 1000 + SLACK_S:
            self.wrong(f"a call took {took:.1f} s")
        return result

    def note(self, status, cause=None):
        if status == capi.E_OFFLINE or cause == "offline":
            self.count["offline"] += 1
            time.sleep(0.002)
        elif status == capi.E_DEADLINE or cause == "deadline":
            self.count["late"] += 1

    def check(self, name, status, cause, value):
        self.note(status, cause)
        if status == capi.OK:
            self.count["hits"] += 1
            if value != capi.value_of(name):
                self.wrong(f"wrong bytes under {name}")
        elif status == capi.MISS:
            self.count["misses"] += 1

    def shared(self):
        """Some are asked for more often than others."""
        return int(SHARED * self.rng.random() ** 3)

    # what it does

    def put(self):
        names = {f"shared {self.shared()}"
                 for _ in range(self.rng.choice((1, 1, 4)))}
        for status in self.timed(lambda: self.node.put_many(
                [(n, capi.value_of(n)) for n in names], TIMEOUT_MS)):
            self.note(status)
            self.count["stored"] += status == capi.OK

    def get(self):
        names = list({f"shared {self.shared()}"
                      for _ in range(self.rng.choice((1, 2, 8)))})
        for name, got in zip(names, self.timed(lambda: self.node.get_many(
                names, 300000, TIMEOUT_MS))):
            self.check(name, *got)

    def stage(self):
        first = self.shared()
        names = [f"shared {i}" for i in range(first, first + 4)]
        status, out, lease = self.timed(
            lambda: self.node.stage(names, TIMEOUT_MS))
        self.note(status)
        for name, value in zip(names, out):
            if value is not None and value != capi.value_of(name):
                # The daemon may have died while it was read: then the memory
                # is nobody's, and asking again says so.
                again = self.node.stage([name], TIMEOUT_MS)
                if again[0] == capi.OK:
                    self.node.release(again[2])
                if not self.may_be_stale(lease):
                    self.wrong(f"wrong bytes staged for {name}")
            elif value is not None:
                self.count["staged"] += 1
        if lease is not None:
            if self.rng.random() < 0.3:
                time.sleep(self.rng.random() * 0.05)
            self.timed(lambda: self.node.release(lease))

    def may_be_stale(self, lease):
        """Whether the daemon that held it is gone."""
        segs, count = (capi.Iovec * capi.SEGS)(), capi.c_uint32()
        return self.node.lib.larder_lease_segments(
            lease, 0, 0, segs, capi.SEGS, capi.byref(count)) != capi.OK

    def in_place(self):
        name = f"shared {self.shared()}"
        value = capi.value_of(name)
        status, lease = self.timed(
            lambda: self.node.reserve(name, len(value), TIMEOUT_MS))
        self.note(status)
        if lease is None:
            return
        if self.node.fill(lease, value) != capi.OK or self.rng.random() < 0.2:
            self.timed(lambda: self.node.release(lease))
            return
        status = self.timed(lambda: self.node.commit(lease, TIMEOUT_MS))
        self.note(status)
        self.count["in_place"] += status == capi.OK

    def own_key(self):
        """A key of this engine alone: removed is removed, whoever dies."""
        key = f"{self.name} own {self.rng.randrange(10)}"
        maybe, certain, following = self.own.get(key, (set(), set(), 0))
        value = capi.value_of(f"{key} {following}", 1000, 90000)
        what = self.rng.random()
        if what < 0.4:
            status = self.timed(lambda: self.node.put(key, value, TIMEOUT_MS))
            self.note(status)
            if status == capi.OK:
                certain = certain | {following}
            elif status != capi.PRESENT:
                # It may still be on its way, and arrive at any time.
                maybe = maybe | {following}
            self.own[key] = (maybe, certain, following + 1)
        elif what < 0.6:
            status = self.timed(lambda: self.node.remove(key, TIMEOUT_MS))
            self.note(status)
            if status in (capi.OK, capi.MISS):
                self.own[key] = (maybe, set(), following)
                self.count["removed"] += 1
        else:
            status, cause, got = self.timed(
                lambda: self.node.get(key, 90000, TIMEOUT_MS))
            self.note(status, cause)
            if status == capi.OK:
                self.count["hits"] += 1
                if not any(got == capi.value_of(f"{key} {g}", 1000, 90000)
                           for g in maybe | certain):
                    removed = any(got == capi.value_of(f"{key} {g}", 1000,
                                                       90000)
                                  for g in range(following))
                    self.wrong(f"{key}: " + ("removed bytes" if removed
                                             else "wrong bytes"))

    def run(self):
        deeds = ([self.put] * 5 + [self.get] * 8 + [self.stage] * 2
                 + [self.in_place] * 2 + [self.own_key] * 4)
        while not self.over[0]:
            self.rng.choice(deeds)()
            if time.monotonic() > self.said + 0.25:
                self.said = time.monotonic()
                self.say()
        self.timed(self.node.close)
        self.say(ended=True)


class Chaos:
    """Who is there, and what happens to them."""

    def __init__(self, daemon, seconds):
        self.daemon = daemon
        self.rng = random.Random(SEED)
        self.end = time.monotonic() + seconds
        self.over = mmap.mmap(-1, 1)  # engines look at it, too
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.engines = {}
        self.number = 0
        self.done = {}
        self.count = {}
        self.text = b""

    def engine(self, transport):
        self.number += 1
        seed = SEED * 100000 + self.number
        url = self.daemon.url(transport, connect="lazy",
                              timeout_ms=TIMEOUT_MS, breaker_ms=100)
        pid = fork(lambda: Engine(url, seed, self.write_fd, self.over).run())
        self.engines[pid] = transport

    def listen(self):
        """What engines report; the last word of each counts."""
        try:
            while data := os.read(self.read_fd, 65536):
                self.text += data
        except BlockingIOError:
            pass
        *lines, self.text = self.text.split(b"\n")
        for line in lines:
            one = json.loads(line)
            assert "wrong" not in one, one
            self.count[one["name"]] = one

    def note(self, deed):
        self.done[deed] = self.done.get(deed, 0) + 1

    # what happens

    def kill_engine(self):
        pid = self.rng.choice(list(self.engines))
        transport = self.engines.pop(pid)
        gone(pid)
        self.engine(transport)

    def stop_engine(self):
        pid = self.rng.choice(list(self.engines))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.rng.random() * 0.6)
        os.kill(pid, signal.SIGCONT)

    def kill_daemon(self):
        self.daemon.kill()
        time.sleep(self.rng.choice((0, 0, 0.3, 1.0)) * self.rng.random())
        self.next_daemon()

    def end_daemon(self):
        self.daemon.stop()
        self.next_daemon()

    def take_over(self):
        old = self.daemon.process
        self.next_daemon("--takeover")
        assert old.wait(PATIENCE_S) == 0

    def next_daemon(self, *flags):
        """Clients take what they find: memory to share, or a window."""
        self.daemon.given["isolation"] = self.rng.choice(
            ("shared", "shared", "strict"))
        self.daemon.start(*flags)

    def stop_daemon(self):
        self.daemon.signal(signal.SIGSTOP)
        time.sleep(self.rng.random() * 1.5)
        self.daemon.signal(signal.SIGCONT)

    def run(self):
        deeds = ([self.kill_engine] * 5 + [self.stop_engine] * 3
                 + [self.kill_daemon] * 2 + [self.end_daemon]
                 + [self.take_over] * 2 + [self.stop_daemon] * 2)
        # Each of them once, also where the time is short or the machine slow.
        first = self.rng.sample(sorted(set(deeds), key=deeds.index), 6)
        for transport in BOTH * 2:
            self.engine(transport)
        late = self.end + PATIENCE_S
        while first or time.monotonic() < self.end or not self.has_worked():
            assert time.monotonic() < late, f"little works: {self.count}"
            time.sleep(self.rng.random() * 0.7)
            deed = first.pop() if first else self.rng.choice(deeds)
            deed()
            self.note(deed.__name__)
            self.listen()
            for pid in list(self.engines):
                if os.waitpid(pid, os.WNOHANG)[0] != 0:
                    del self.engines[pid]
                    pytest.fail("an engine ended")

    def finish(self):
        """Engines end by themselves now."""
        self.over[0] = 1
        late = time.monotonic() + PATIENCE_S
        statuses = []
        while self.engines and time.monotonic() < late:
            for pid in list(self.engines):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del self.engines[pid]
                    statuses.append(status)
            self.listen()
            time.sleep(0.01)
        self.listen()
        assert not self.engines, "engines hang"
        assert statuses == [0] * 4

    def has_worked(self):
        return all(self.sum(what) > 0 for what in WORK)

    def clean(self):
        for pid in self.engines:
            gone(pid)
        os.close(self.read_fd)
        os.close(self.write_fd)

    def sum(self, what):
        return sum(one[what] for one in self.count.values())


def test_chaos(serve):
    """Writers and readers by shared memory and TCP, while they and the daemon
    are killed, stopped, ended and started again."""
    # A port that stays, so that clients find the next daemon there.
    daemon = serve(dirs=1, dram="24M", ssd="256M", sync_ms=50, drain_ms=5000,
                   strict_window="8M",  # it has to be made in TIMEOUT_MS
                   listen=f"127.0.0.1:{free_port()}")
    print(f"LARDER_SEED={SEED}")
    chaos = Chaos(daemon, CHAOS_S)
    try:
        chaos.run()
        chaos.finish()
    finally:
        print(chaos.done)
        chaos.clean()
    names = ("calls", "hits", "misses", "stored", "staged", "in_place",
             "removed", "offline", "late")
    total = {name: chaos.sum(name) for name in names}
    print(total, "worst call",
          max(one["worst"] for one in chaos.count.values()))
    # All is well afterwards.
    assert daemon.process.poll() is None
    daemon.nothing_held()
    everything = [f"shared {i}" for i in range(SHARED)]
    found = []
    for transport in BOTH:
        with capi.Node(daemon.url(transport)) as node:
            assert node.put(f"after {transport}", b"x" * 1000) == capi.OK
            assert node.get(f"after {transport}")[2] == b"x" * 1000
            found.append(right_or_missing(node, everything))
    assert min(found) > 50, "nearly nothing was kept"
    with capi.Node(daemon.url()) as node:
        assert node.flush() in (capi.OK, -66)  # dropped by evictions before
    # And once more from the disk.
    daemon.stop()
    daemon.start()
    with capi.Node(daemon.url()) as node:
        assert right_or_missing(node, everything) > 50
    assert daemon.value("larder_poisoned") == 0
