"""Peers that scribble: into their rings, into what they saved, into what is
their tenant's and not theirs. Others see old bytes or a miss."""
import contextlib
import fcntl
import os
import random
import select
import signal
import time

import pytest

import wireclient as w
from daemon import PATIENCE_S, Child, in_child
from hostile import K, SEED, plausible, value_of
from wireclient import (Ended, batch_body, crc32c, extent_body, frame, key_of,
                        match_body, name_row)


# ---- rings -----------------------------------------------------------------

def scribbles(rng):
    """What to do to a ring; each ends its session, or does no harm."""
    def garbage(ring):
        ring.map[:] = rng.randbytes(len(ring.map))

    def header(ring):
        ring.map[:384] = rng.randbytes(384)

    def data(ring):
        ring.map[w.RING_HEAD:] = rng.randbytes(2 * w.RING_BYTES)
        ring.set_word(0, rng.randrange(0, w.RING_BYTES, 8))

    def tail_far(ring):
        ring.set_word(0, ring.tail + w.RING_BYTES + 8)

    def tail_odd(ring):
        ring.set_word(0, ring.tail + rng.choice((1, 2, 4, 7)))

    def tail_back(ring):
        ring.set_word(0, ring.tail - 8)

    def head_far(ring):
        ring.set_word(192 + 64, rng.choice((8, 2**31, 2**32 - 8, 3)))
        ring.put_raw(frame(w.PING, seal=False))

    def length(ring):
        ring.put_raw(bytes(64), rng.choice((0, 65, 200, w.RING_BYTES - 63,
                                            w.RING_BYTES, 2**31, 2**32 - 1)))

    def short(ring):
        ring.put_raw(bytes(rng.randrange(1, 40)))

    def not_a_frame(ring):
        ring.put_raw(rng.randbytes(rng.randrange(40, 3000)))

    return [garbage, header, data, tail_far, tail_odd, tail_back, head_far,
            length, short, not_a_frame]


def test_ring_scribbling(daemon):
    rng = random.Random(SEED)
    print(f"LARDER_SEED={SEED}")
    good = daemon.enter("unix").attach()
    space = good.space()

    def scribble(kind, seed):
        rng.seed(seed)
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        peer.shm_put(mine, key_of(f"before {seed}"), b"x" * 70000)
        scribbles(rng)[kind](peer.ring)
        peer.ring.ring_bell()
        return peer.ended(0.3 if kind in (1, 2) else None)

    kinds = len(scribbles(rng))
    for number in range(kinds * 4):
        kind = number % kinds
        ended = in_child(lambda: scribble(kind, SEED * 1000 + number))
        assert ended or kind in (1, 2), (
            f"{scribbles(rng)[kind].__name__} did not end its session")
        key, value = key_of(f"good {number}"), value_of(f"good {number}")
        assert good.shm_put(space, key, value) == w.OK
        assert good.shm_get(space, key) == (value, None)
    assert daemon.value("larder_refused_connections_total",
                        reason="ring") >= kinds
    daemon.alive()


def test_ring_that_changes_while_it_is_read(daemon):
    """Two processes of one session: one sends, one scribbles all the time.
    Nothing is looked at twice, so all that can come of it is an end."""
    good = daemon.enter("unix").attach()
    space = good.space()

    def work():
        rng = random.Random(SEED)
        for _ in range(15):
            peer = w.Peer(daemon.socket).enter().attach()
            mine = peer.space()
            end = time.monotonic() + 0.2
            if os.fork() == 0:
                # A child has no mapping: it is the writer of frames by
                # socket, so that both ways are busy.
                try:
                    while time.monotonic() < end:
                        peer.start(w.PING)
                except (Ended, OSError):
                    pass
                os._exit(0)
            body = frame(w.EXISTS, batch_body(mine, [name_row(K)] * 30),
                         epoch=peer.epoch, seal=False)
            try:
                while time.monotonic() < end:
                    if peer.ring.fits(len(body)):
                        peer.ring.put_raw(body)
                    at = rng.randrange(w.RING_HEAD, w.RING_MAP - 256)
                    peer.ring.map[at:at + 256] = rng.randbytes(256)
            except (OSError, ValueError):
                pass
            os.wait()
        return True

    assert in_child(work)
    key, value = key_of("good"), value_of("good")
    assert good.shm_put(space, key, value) == w.OK
    assert good.shm_get(space, key) == (value, None)
    daemon.alive()


def test_requests_at_the_wrong_place(daemon):
    """What only a socket can carry does not go by ring, and the other way."""
    def work():
        for opcode in (w.HELLO, w.AUTH, w.ATTACH, w.EXTENT, w.GET, w.PUT,
                       w.REVOKE, 0, 99):
            peer = w.Peer(daemon.socket).enter().attach()
            peer.space()
            peer.ring.put(frame(opcode, plausible().get(opcode, b""),
                                epoch=peer.epoch, seal=False))
            assert peer.ended(), f"opcode {opcode}"
        peer = w.Peer(daemon.socket).enter().attach()
        peer.ring.put(frame(w.PING, epoch=peer.epoch + 1, seal=False))
        assert peer.ended(), "epoch"
        peer = w.Peer(daemon.socket).enter().attach()
        again = peer.ask(w.ATTACH, w.attach_body())
        assert again.status == w.E_UNSUPPORTED
        # Descriptors that nobody asked for do not stay.
        before = daemon.descriptors()
        for _ in range(50):
            w.send_with_fd(peer.sock, frame(w.PING, ident=1,
                                            epoch=peer.epoch), 0)
            assert peer.wait(1).status == w.OK
        assert daemon.descriptors() <= before + 2
        return True

    assert in_child(work)
    daemon.alive()


def test_ring_whose_replies_are_not_taken(daemon):
    """It gets no more work done; nobody else notices, and memory is bounded."""
    def work():
        good = w.Peer(daemon.socket).enter().attach()
        space = good.space()
        peer = w.Peer(daemon.socket).enter().attach()
        before = daemon.status("RssAnon")
        mine = peer.space()
        body = frame(w.EXISTS, batch_body(mine, [name_row(K)] * 100),
                     epoch=peer.epoch, seal=False)
        sent, end = 0, time.monotonic() + PATIENCE_S
        quiet = 0
        while quiet < 100 and time.monotonic() < end:
            if peer.ring.fits(len(body)):
                peer.ring.put(body)
                sent += 1
                quiet = 0
            else:
                quiet += 1
                time.sleep(0.001)
        assert quiet == 100, "it takes everything"
        assert sent > 200, "both rings hold more than that"
        assert daemon.status("RssAnon") - before < 32 << 10
        key, value = key_of("good"), value_of("good")
        assert good.shm_put(space, key, value) == w.OK
        assert good.shm_get(space, key) == (value, None)
        # Taking them lets it go on.
        taken = 0
        while taken < sent:
            peer.ring.take(time.monotonic() + PATIENCE_S, peer.sock)
            taken += 1
        assert peer.ring_ask(w.PING).status == w.OK
        return True

    assert in_child(work)


def test_descriptors_that_are_not_taken(daemon):
    """Those under way count against the daemon, for all its clients: few wait
    for one who does not read. When it does it gets them all."""
    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        r = peer.reserve(peer.space(), K, 1000)
        asked = [peer.start(w.EXTENT, extent_body(*r.segs[0][:2]))
                 for _ in range(60)]
        good = w.Peer(daemon.socket).enter().attach()
        assert good.shm_put(good.space(), key_of("good"), b"good") == w.OK
        daemon.freeze()
        try:
            peer.sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                while True:
                    peer._more()
        finally:
            daemon.signal(signal.SIGCONT)
        under_way = len(peer.fds)
        peer.sock.settimeout(PATIENCE_S)
        for ident in asked:
            reply = peer.wait(ident)
            assert reply.status == w.OK and len(reply.fds) == 1
            reply.close_fds()
        # What is larger than may wait comes in pieces.
        assert len(peer.ask(w.METRICS).text) > 20000
        return under_way

    under_way = in_child(work)
    assert 1 <= under_way <= 16, under_way


def test_ring_that_is_never_empty(daemon):
    """One that asks for more than can be done does not keep the others from
    their turn."""
    def flood(stop_fd, ready_fd):
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        body = frame(w.MATCH, match_body(mine, [key_of("good")] * 15000),
                     epoch=peer.epoch, seal=False)
        sent = 0
        while not select.select([stop_fd], [], [], 0)[0]:
            if peer.ring.fits(len(body)):
                peer.ring.put(body)
                sent += 1
                if sent == 3:
                    os.write(ready_fd, b"x")
            # Takes its replies: it is greedy, not stuck.
            peer.ring.head = peer.ring.word(peer.ring.TO_CLIENT)
            peer.ring.set_word(peer.ring.TO_CLIENT + 64, peer.ring.head)
        return sent

    stop, ready = os.pipe(), os.pipe()
    good = daemon.enter("unix").attach()
    space = good.space()
    tcp = daemon.enter("tcp")
    by_tcp = tcp.space()
    key, value = key_of("good"), value_of("good")
    assert good.shm_put(space, key, value) == w.OK
    floods = []
    for _ in range(2):
        floods.append(Child(lambda: flood(stop[0], ready[1])))
        os.read(ready[0], 1)
    try:
        for _ in range(30):
            assert good.shm_get(space, key) == (value, None)
            assert tcp.get(by_tcp, [key]) == [value]
    finally:
        os.write(stop[1], b"x")
        sent = [one.result() for one in floods]
        print(f"{sent} messages meanwhile")
        for fd in stop + ready:
            os.close(fd)


def test_bell_that_would_make_a_reader_wait(daemon):
    """The client has the same open file as the daemon: made to wait, and taken
    from under it again and again, it holds up nobody."""
    def work(stop_fd, ready_fd):
        peer = w.Peer(daemon.socket).enter().attach()
        bell = peer.ring.bell
        fcntl.fcntl(bell, fcntl.F_SETFL, 0)
        rings = 0
        while not select.select([stop_fd], [], [], 0)[0]:
            peer.ring.ring_bell()
            os.read(bell, 8)
            rings += 1
            if rings == 1:
                os.write(ready_fd, b"x")
        return rings

    stop, ready = os.pipe(), os.pipe()
    good = daemon.enter("unix").attach()
    space = good.space()
    key, value = key_of("good"), value_of("good")
    assert good.shm_put(space, key, value) == w.OK
    child = Child(lambda: work(stop[0], ready[1]))
    os.read(ready[0], 1)
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert good.shm_get(space, key) == (value, None)
            time.sleep(0.002)  # so that the daemon sleeps in between
    finally:
        os.write(stop[1], b"x")
        print(f"{child.result()} rings")
        for fd in stop + ready:
            os.close(fd)


# ---- scribbling into the arena ---------------------------------------------

@pytest.mark.parametrize("dirs", [0, 1])
@pytest.mark.parametrize("where", ["after commit", "outside"])
def test_scribbling_into_the_arena(serve, where, dirs):
    """Engines of one tenant trust each other, and who errs is found by the
    checksum: old bytes or a miss, in memory, by TCP and from the disk."""
    daemon = serve(dirs=dirs, dram="32M")
    values = {f"v{i}": value_of(f"v{i}", 70000 + i) for i in range(20)}
    owner = daemon.enter("unix").attach()
    space = owner.space()
    if where == "outside":
        for name, value in values.items():
            assert owner.shm_put(space, key_of(name), value) == w.OK

    def scribble():
        rng = random.Random(SEED)
        bad = w.Peer(daemon.socket).enter().attach()
        mine = bad.space()
        if where == "after commit":
            for name, value in values.items():
                r = bad.reserve(mine, key_of(name), len(value))
                bad.write_segs(r.segs, value)
                assert bad.commit(r.lease, crc32c(value)).status == w.OK
                if rng.random() < 0.7:
                    at = rng.randrange(len(value))
                    wrong = bytearray(value)
                    wrong[at] ^= 1 << rng.randrange(8)
                    bad.write_segs(r.segs, bytes(wrong))
        else:
            r = bad.reserve(mine, key_of("mine"), 100)
            memory = bad.extent(*r.segs[0][:2])
            for _ in range(3000):
                at = rng.randrange(len(memory))
                memory[at] = rng.randrange(256)
        return True

    assert in_child(scribble)

    def look(peer, shm):
        """How many were there; never anything else than what was saved."""
        found = 0
        mine = peer.space()
        for name, value in values.items():
            if shm:
                got = peer.shm_get(mine, key_of(name))[0]
            else:
                reply = peer.ask(w.GET, batch_body(mine,
                                                   [name_row(key_of(name))]))
                row = reply.result
                got = (reply.payload if row.status == w.OK
                       and crc32c(reply.payload) == row.crc else None)
            assert got is None or got == value, "wrong bytes"
            found += got is not None
        return found

    by_tcp = look(daemon.enter("tcp"), False)
    by_shm = look(owner, True)
    if where == "after commit":
        assert 0 < by_tcp < len(values), "nothing was scribbled on"
        assert by_shm >= by_tcp
        assert daemon.value("larder_reports_total") >= len(values) - by_shm > 0
    if dirs == 0:
        # What was reported is gone: the next one need not find it again.
        assert by_shm == by_tcp
        rows = [name_row(key_of(name)) for name in values]
        there = owner.ask(w.EXISTS, batch_body(space, rows)).results
        assert sum(r.status == w.OK for r in there) == by_shm
        return
    # The disk may have the old bytes, or the wrong ones, which it notices.
    assert look(owner, True) >= by_shm
    owner.close()
    daemon.peers.clear()
    daemon.stop()
    daemon.start()
    look(daemon.enter("tcp"), False)
    look(daemon.enter("unix").attach(), True)


def test_wrong_reports(daemon):
    """A report is looked into, not believed."""
    peer = daemon.enter("tcp")
    space = peer.space()
    assert peer.put_one(space, K, b"abc") == w.OK
    reply = peer.ask(w.REPORT, batch_body(space, [name_row(K)] * 5))
    assert [r.status for r in reply.results] == [w.OK] * 5
    assert peer.get(space, [K]) == [b"abc"]


def test_long_reports(daemon):
    """Nor does it take longer than whoever reports wants to wait."""
    peer = daemon.enter("tcp")
    space = peer.space()
    large = key_of("large")
    assert peer.put_one(space, large, bytes(16 << 20)) == w.OK
    reply = peer.ask(w.REPORT, batch_body(space, [name_row(large)] * 1000),
                     arg=50)
    assert reply.results[-1].status == w.E_DEADLINE


def test_commit_with_a_wrong_checksum(daemon):
    """The daemon does not read payload in shared memory: who loads it sees
    that it is wrong, and it is dropped then."""
    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        space = peer.space()
        r = peer.reserve(space, K, 1000)
        peer.write_segs(r.segs, b"a" * 1000)
        peer.commit(r.lease, 12345)
        assert peer.shm_get(space, K)[0] is None
        assert peer.shm_get(space, K)[0] is None
        assert peer.shm_put(space, K, b"b" * 1000) == w.OK
        assert peer.shm_get(space, K)[0] == b"b" * 1000
        return True

    assert in_child(work)


# ---- isolation=strict ------------------------------------------------------

def test_strict_window(serve):
    """A bounce buffer: what is scribbled there is checked by the daemon as
    it comes in, and nobody else's memory can be had."""
    daemon = serve(isolation="strict", strict_window="4M")

    def work():
        other = w.Peer(daemon.tcp).enter()
        space = other.space()
        peer = w.Peer(daemon.socket).enter().attach()
        mine = peer.space()
        assert peer.strict == 1
        value = value_of("strict", 200000)
        assert peer.shm_put(mine, K, value) == w.OK
        assert daemon.value("larder_misses_total") == 0  # nobody has loaded
        assert peer.reserve(mine, K, len(value)).status == w.PRESENT
        assert other.get(space, [K]) == [value]
        (window,) = peer.extents.values()
        window[:] = bytes(len(window))
        assert peer.shm_get(mine, K) == (value, None)
        r = peer.reserve(mine, key_of("wrong"), 1000)
        peer.write_segs(r.segs, b"a" * 1000)
        assert peer.commit(r.lease, 1).status == w.E_CORRUPT
        assert peer.shm_get(mine, key_of("wrong")) == (None, "absent")
        # Only the window is handed out, and it is full when it is full.
        for extent in list(range(20)) + [2**32 - 1]:
            for generation in (0, 1, 2):
                reply = peer.ask(w.EXTENT, extent_body(extent, generation))
                assert (reply.status == w.E_STALE
                        or (extent, generation) in peer.extents)
                reply.close_fds()
        held = []
        while (r := peer.reserve(mine, key_of(f"r{len(held)}"),
                                 500000)).status == w.OK:
            held.append(r.lease)
        assert r.status == w.PENDING and 4 <= len(held) <= 8
        assert peer.lease(mine, K).status in (w.OK, w.PENDING)
        for lease in held:
            assert peer.commit(lease, 0, w.ABORT).status == w.OK
        assert peer.shm_put(mine, key_of("again"), value) == w.OK
        return True

    assert in_child(work)


def test_strict_reservations_are_the_arenas(serve):
    """Who has been given a window's pages has been given the arena's: nobody
    copies for a save that is refused then, and what is given back is free."""
    daemon = serve(isolation="strict", strict_window="64M", dram="32M")
    each = 1 << 20

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        space = peer.space()
        held = []
        while (r := peer.reserve(space, key_of(f"r{len(held)}"),
                                 each)).status == w.OK:
            held.append(r)
        assert r.status == w.E_FULL and 0 < len(held) <= 32
        # Who saves it already has it: nobody else need.
        assert peer.reserve(space, key_of("r0"), each).status == w.PRESENT
        value = value_of("strict", each)
        for i, r in enumerate(held[1::2]):
            peer.write_segs(r.segs, value)
            assert peer.commit(r.lease, crc32c(value)).status == w.OK, i
        for r in held[::2]:
            assert peer.commit(r.lease, 0, w.ABORT).status == w.OK
        for i in range(len(held)):
            got = peer.shm_get(space, key_of(f"r{i}"))
            assert got == ((value, None) if i % 2 else (None, "absent"))
        return len(held)

    count = in_child(work)
    m = daemon.metrics()
    for outcome, want in (("stored", count // 2), ("full", 1), ("present", 1),
                          ("canceled", count - count // 2), ("failed", 0)):
        assert m.sum("larder_saves_total", outcome=outcome) == want, outcome
