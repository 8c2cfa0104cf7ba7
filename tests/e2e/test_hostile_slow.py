"""Peers that are slow, do not listen, or are many: they cost what was set aside
for them, and nobody else notices."""
import random
import resource
import socket
import struct
import time

import pytest

import wireclient as w
from daemon import PATIENCE_S, until
from hostile import BOTH, K, SEED, TOKEN, both, value_of, with_token
from wireclient import (batch_body, crc32c, frame, hello_body, key_of,
                        name_row, save_row)


# ---- slow ------------------------------------------------------------------

@both
def test_slow_loris(serve, tmp_path, transport):
    """Who does not come to the point is dropped; others come in meanwhile."""
    daemon = with_token(serve, tmp_path, hello_ms=3000)
    hello = frame(w.HELLO, hello_body())
    slow = []
    for i in range(105):
        peer = daemon.connect(transport)
        peer.send(hello[:(0, 1, 39, 40, 41, len(hello) - 1,
                          len(hello))[i % 7]])
        slow.append(peer)
    good = daemon.enter(transport, token=TOKEN)
    space = good.space()
    assert good.put_one(space, K, b"abc") == w.OK
    for peer in slow:
        assert peer.ended()
    assert good.get(space, [K]) == [b"abc"], "it was let in and stays"
    m = daemon.metrics()
    assert m.sum("larder_auth_failures_total", reason="timeout") == len(slow)
    assert m.sum("larder_connecting") == 0


@both
def test_save_that_stalls(daemon, transport):
    """Its room is given back at its deadline; what still comes is read over,
    and the session goes on."""
    owner = daemon.enter("tcp")
    space = owner.space()
    peer = daemon.enter(transport)
    mine = peer.space()
    size = 600000
    value = value_of("stall", size)
    crc = crc32c(value)

    def stall(cut, deadline_ms):
        """Whether its room was seen while it was held."""
        key = key_of(f"stall {cut}")
        head = frame(w.PUT, batch_body(mine, [
            save_row(key, size, crc), save_row(key_of("after"), 3,
                                               crc32c(b"abc"))]),
            payload=size + 3, ident=50 + cut, epoch=peer.epoch,
            arg=deadline_ms)
        peer.send(head + value[:cut])
        seen, end = False, time.monotonic() + deadline_ms / 1000
        while not seen and time.monotonic() < end:
            seen = daemon.value("larder_held_chunks") == 1
        until(lambda: daemon.value("larder_held_chunks") == 0,
              text="its room is not given back")
        peer.send(value[cut:] + b"abc")
        rows = peer.wait(50 + cut).results
        assert [r.status for r in rows] == [w.E_DEADLINE, w.E_DEADLINE]
        assert owner.get(space, [key]) == [None]
        return seen

    for cut in (1, size - 1):
        # A busy machine may look too late once.
        assert stall(cut, 1500) or stall(cut, 20000), "nothing was reserved"
    assert peer.put_one(mine, key_of("stall 1"), value) == w.OK
    assert owner.get(space, [key_of("stall 1")]) == [value]


@both
def test_save_that_stalls_and_dies(daemon, transport):
    peer = daemon.enter(transport)
    space = peer.space()
    peer.send(frame(w.PUT, batch_body(space, [save_row(K, 500000)]),
                    payload=500000, epoch=peer.epoch) + bytes(70000))
    until(lambda: daemon.value("larder_held_chunks") == 1)
    peer.drop()
    until(lambda: daemon.value("larder_held_chunks") == 0)
    other = daemon.enter(transport)
    assert other.get(other.space(), [K]) == [None]


@both
def test_replies_that_are_not_read(serve, transport):
    """It is not read from any more, and the daemon's memory is bounded by its
    window. Others are served. What it asked for comes when it reads."""
    daemon = serve(window="1M")
    owner = daemon.enter("tcp")
    space = owner.space()
    values = {f"v{i}": value_of(f"v{i}", 100000) for i in range(10)}
    for name, value in values.items():
        assert owner.put_one(space, key_of(name), value) == w.OK
    peer = daemon.enter(transport)
    mine = peer.space()
    before = daemon.status("RssAnon")
    body = batch_body(mine, [name_row(key_of(n)) for n in values])
    sent = []
    peer.sock.settimeout(1.0)
    try:
        while len(sent) < 20000:
            sent.append(peer.start(w.GET, body))
    except socket.timeout:
        pass
    sock_full = len(sent) < 20000
    assert sock_full, "the daemon takes every request"
    assert daemon.status("RssAnon") - before < 24 << 10
    for name, value in values.items():
        assert owner.get(space, [key_of(name)]) == [value]
    # The one that was cut in the middle cannot be finished; all before it can.
    peer.sock.settimeout(PATIENCE_S)
    for ident in sent[:-1][:200]:
        assert len(peer.wait(ident).payload) == 1000000
    peer.drop()
    until(lambda: daemon.value("larder_held_chunks") == 0)
    assert daemon.value("larder_reply_queue_bytes") == 0


@both
def test_small_replies_that_are_not_read(serve, transport):
    """The same with requests that cost little and whose replies are large."""
    daemon = serve(window="1M")
    peer = daemon.enter(transport)
    before = daemon.status("RssAnon")
    sent = []
    peer.sock.settimeout(1.0)
    try:
        while len(sent) < 100000:
            sent.append(peer.start(w.METRICS))
    except socket.timeout:
        pass
    assert len(sent) < 100000, "the daemon takes every request"
    # As many as may be under way may be finished, one reply each.
    assert daemon.status("RssAnon") - before < 64 << 10
    daemon.alive()
    peer.sock.settimeout(PATIENCE_S)
    for ident in sent[:-1][:500]:
        assert peer.wait(ident).status in (w.OK, w.E_BUSY)


# ---- many ------------------------------------------------------------------

@both
def test_reconnect_storm(daemon, transport):
    """2,000 connections that come and go, in every way to go."""
    daemon.alive()
    before, memory = daemon.descriptors(), daemon.status("RssAnon")
    address = daemon.address(transport)
    family = socket.AF_UNIX if transport == "unix" else socket.AF_INET
    hello = frame(w.HELLO, hello_body())
    for i in range(2000):
        s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(PATIENCE_S)
        s.connect(address)
        if i % 4 == 1:
            s.sendall(hello)
        elif i % 4 == 2:
            s.sendall(hello)
            assert s.recv(40)
        elif i % 4 == 3:
            s.sendall(hello[:20])
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                         struct.pack("ii", 1, 0))
        s.close()
    daemon.nothing_held()
    assert daemon.descriptors() <= before + 2
    assert daemon.status("RssAnon") - memory < 32 << 10
    daemon.alive()


def test_idle_connections_cost_no_threads(serve):
    """3,000 of them, let in and silent: memory, not threads."""
    want = 3000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = want + 300
    if soft < need:
        if hard != resource.RLIM_INFINITY and hard < need:
            pytest.skip(f"{need} descriptors are needed, ulimit -Hn is {hard}: "
                        "3,000 idle connections are NOT tested here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    daemon = serve()
    try:
        daemon.alive()
        threads, memory = daemon.threads(), daemon.status("RssAnon")
        idle = [daemon.enter(BOTH[i % 2]) for i in range(want)]
        assert daemon.threads() == threads
        grown = daemon.status("RssAnon") - memory
        print(f"{grown / want:.1f} KiB for each idle connection")
        assert grown < want * 64
        assert daemon.value("larder_sessions") == want + 1
        peer = daemon.enter("unix").attach()
        space = peer.space()
        assert peer.shm_put(space, K, b"abc") == w.OK
        for one in random.Random(SEED).sample(idle, 50):
            assert one.get(one.space(), [K]) == [b"abc"]
        assert daemon.threads() == threads
        for one in daemon.peers:
            one.close()
        daemon.peers.clear()
        daemon.nothing_held()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ADMIN_MORE = 16  # sessions of the operator's, beyond `sessions`


def test_connections_are_limited(serve):
    daemon = serve(sessions=20)
    peers = [daemon.enter(BOTH[i % 2]) for i in range(20)]
    refused = daemon.connect("tcp")
    assert refused.hello().status == w.E_LIMIT
    assert refused.ended()
    peers += [daemon.enter("unix") for _ in range(ADMIN_MORE)]
    for transport in BOTH:
        extra = daemon.connect(transport)
        reply = extra.hello()
        assert reply.status == w.E_LIMIT and "option sessions" in reply.text
        assert extra.ended()
    assert "option sessions" in daemon.log()
    assert all(p.ask(w.PING).status == w.OK for p in peers)
    for peer in peers[:2]:
        peer.close()

    def again():
        with w.Peer(daemon.socket) as peer:
            return peer.hello().status == w.OK

    until(again)


def test_strangers_keep_nobody_out(serve, larder):
    """Peers by TCP that never say who they are: neither those who come by the
    socket, nor those by TCP."""
    daemon = serve(sessions=64)
    strangers = [w.Peer(daemon.tcp) for _ in range(64)]
    until(lambda: "not authenticated" in daemon.log())
    daemon.enter("unix")
    assert "paused" in larder("pause", daemon.socket).out
    for _ in range(20):  # those that are in do not count
        daemon.enter("tcp")
    for peer in strangers:
        peer.close()
    until(lambda: daemon.value("larder_connecting") == 0)
