"""Quotas of tenants: what each may use, and that it is told so."""
import os
import signal
import time

import pytest

import wireclient as w
from daemon import PATIENCE_S, Child, hear, in_child, until
from tenants import A, B, BOTH, K, both, config, fill, value_of
from wireclient import (batch_body, crc32c, ends_body, key_of, name_row,
                        save_row, stage_body)


@pytest.mark.parametrize("dirs", [0, 1])
@both
def test_bytes_quota(serve, tmp_path, transport, dirs):
    """a saves ten times its quota: all of b's are still hits."""
    mb = 1 << 20
    daemon = serve(
        config=config(tmp_path, "dram = 8M\nssd = 16M", "dram = 8M\nssd = 16M"),
        dirs=dirs, dram="24M", ssd="48M")
    b = daemon.enter("tcp", "b", B)
    yours = b.space("s")
    size = 250000
    names = fill(b, yours, "b", 20, size)
    assert len(names) == 20
    if dirs:
        assert b.ask(w.FLUSH, w.struct.pack("<I", 1)).status == w.OK

    def work():
        a = w.Peer(daemon.address(transport)).enter("a", A)
        if transport == "unix":
            a.attach()
        fill(a, a.space("s"), "a", 10 * (16 if dirs else 8) * mb // size, size)
        return True

    assert in_child(work)
    m = daemon.metrics()
    assert m.sum("larder_tenant_dram_bytes", tenant="a") <= 8 * mb
    assert m.sum("larder_tenant_dram_bytes", tenant="a") > 4 * mb
    assert m.sum("larder_evicted_chunks_total", tenant="b") == 0
    assert m.sum("larder_evicted_chunks_total", tenant="a") > 0
    for i, name in enumerate(names):
        assert b.get(yours, [key_of(name)]) == [value_of(f"b {i % 4}", size)]
    m = daemon.metrics()
    assert m.sum("larder_loads_total", tenant="b", tier="dram") == 20
    assert m.sum("larder_misses_total", tenant="b") == 0
    if dirs:
        daemon.peers.clear()
        b.close()
        daemon.stop()
        daemon.start()
        b = daemon.enter("tcp", "b", B)
        got = b.get(b.space("s"), [key_of(name) for name in names])
        assert sum(value is not None for value in got) == 20


def test_connection_quota(serve, tmp_path):
    daemon = serve(config=config(tmp_path, "connections = 3"))
    peers = [daemon.enter(BOTH[i % 2], "a", A) for i in range(3)]
    for transport in BOTH:
        peer = daemon.connect(transport)
        reply = peer.hello("a", A)
        assert reply.status == w.E_LIMIT
        assert "'a'" in reply.text and "3" in reply.text
        assert peer.ended()
    for _ in range(5):
        daemon.enter("tcp", "b", B)
    assert all(peer.ask(w.PING).status == w.OK for peer in peers)
    assert daemon.value("larder_refused_connections_total",
                        reason="quota") == 2
    peers[0].close()

    def again():
        with w.Peer(daemon.socket) as peer:
            return peer.hello("a", A).status == w.OK

    until(again)
    # Those that were refused took nothing.
    assert daemon.value("larder_tenant_sessions", tenant="a") >= 2


@both
def test_rate_quota(serve, tmp_path, transport):
    """Over its rate a tenant is told so, at once; others are not slowed, and
    it may go on when time has passed."""
    daemon = serve(config=config(tmp_path, "rate = 1M"))
    b = daemon.enter("tcp", "b", B)
    yours = b.space("s")

    def work():
        a = w.Peer(daemon.address(transport)).enter("a", A)
        space = a.space("s")
        busy = stored = 0
        value = value_of("a", 400000)
        if transport == "unix":
            a.attach()
        for i in range(20):
            key = key_of(f"a{i}")
            if transport == "unix":
                reply = a.ring_ask(w.RESERVE, batch_body(
                    space, [save_row(key, len(value))]))
            else:
                reply = a.put(space, [(key, value)])
            if reply.status == w.OK:
                r = reply.result
                if transport == "unix":
                    a.write_segs(r.segs, value)
                    r = a.commit(r.lease, crc32c(value))
                assert r.status == w.OK
                stored += 1
            else:
                assert reply.status == w.E_BUSY
                assert "tenant 'a' is over its rate of 1048576" in reply.text
                busy += 1
        assert stored > 0 and busy > 0
        # Loads as well, and then it is let go on.
        body = batch_body(space, [name_row(key_of("a0"))])
        opcode = w.LEASE if transport == "unix" else w.GET
        ask = a.ring_ask if transport == "unix" else a.ask
        end = time.monotonic() + PATIENCE_S
        while True:
            reply = ask(opcode, body)
            if reply.status == w.OK:
                assert reply.result.status == w.OK
                return stored, busy
            assert reply.status == w.E_BUSY and "rate" in reply.text
            assert time.monotonic() < end, "never again"
            time.sleep(0.02)

    stored, busy = in_child(work)
    saves = daemon.metrics()
    for outcome, count in (("stored", stored), ("failed", busy)):
        assert saves.sum("larder_saves_total", tenant="a",
                         outcome=outcome) == count
    for i in range(20):
        assert b.put_one(yours, key_of(f"b{i}"),
                         value_of(f"b{i}", 100000)) == w.OK
    m = daemon.metrics()
    assert m.sum("larder_throttled_requests_total", tenant="a") > 0
    assert m.sum("larder_throttled_requests_total", tenant="b") == 0


@pytest.mark.parametrize("transport, isolation", (
    ("unix", "shared"), ("unix", "strict"), ("tcp", "shared")))
def test_staged_bytes_are_charged_once(serve, tmp_path, transport, isolation):
    """Staged and then loaded is one load, for the rate and for the metrics: it
    is charged when it is handed over."""
    daemon = serve(config=config(tmp_path), isolation=isolation)
    value = value_of("a", 200000)

    def out():
        return daemon.value("larder_tenant_bytes_total", tenant="a",
                            direction="out")

    def work():
        a = w.Peer(daemon.address(transport)).enter("a", A)
        space = a.space("s")
        if transport == "unix":
            a.attach()
            assert a.shm_put(space, K, value) == w.OK
        else:
            assert a.put_one(space, K, value) == w.OK
        # A burst is a quarter of a second's: enough for one, not for two.
        daemon.write_config(config(tmp_path, "rate = 1M"))
        daemon.signal(signal.SIGHUP)
        until(lambda: "reloaded" in daemon.log())
        ask = a.ring_ask if transport == "unix" else a.ask
        reply = ask(w.STAGE, stage_body(space, [K]))
        assert reply.status == w.OK
        lease, _, _, _, chunks = w.staged(reply)
        assert chunks == 1
        counts = [out()]
        for _ in range(2):
            if transport == "unix":
                r = a.lease(space, K)
                assert a.read_segs(r.segs) == value
                assert a.release(r.lease) == w.OK
            else:
                assert a.get(space, [K]) == [value]
            counts.append(out())
        ask(w.RELEASE, ends_body([(lease, 0, w.PLAIN)]))
        return counts

    n = len(value)
    assert in_child(work) == [0, n, 2 * n]
    m = daemon.metrics()
    assert m.sum("larder_transport_bytes_total", direction="out") == 2 * n
    assert m.sum("larder_transport_bytes_total", direction="in") == n
    assert m.sum("larder_throttled_requests_total") == 0


def test_windows_quota(serve, tmp_path):
    """Private windows are memory beside dram: a tenant that wants ever more of
    them is refused, leaves some to the others, and has its own back when its
    sessions end."""
    daemon = serve(config=config(tmp_path), isolation="strict",
                   strict_window="1M", dram="64M")  # 16 in all

    def attach_all(tenant, token):
        got = []
        while True:
            peer = daemon.enter("unix", tenant, token)
            reply = peer.ask(w.ATTACH, w.attach_body())
            if reply.status != w.OK:
                assert reply.status == w.E_LIMIT, reply.text
                assert f"'{tenant}'" in reply.text
                assert "strict_window" in reply.text
                return got
            reply.close_fds()
            got.append(peer)

    def refused():
        return daemon.value("larder_refused_connections_total",
                            reason="windows")

    mine = attach_all("a", A)
    assert len(mine) == 8 and refused() == 1
    assert len(attach_all("b", B)) == 4 and refused() == 2
    for peer in mine:
        daemon.peers.remove(peer)
        peer.drop()
    mine = []
    until(lambda: mine.extend(attach_all("a", A)) or len(mine) == 6)
    for peer in mine:
        daemon.peers.remove(peer)
        peer.drop()
    # A window that somebody has mapped is not gone when it hangs up.
    holding, held = os.pipe()
    leave, left = os.pipe()

    def hold():
        os.close(left)
        peers = [w.Peer(daemon.socket).enter("a", A) for _ in range(5)]
        for peer in peers:
            until(lambda p=peer: p.ask(w.ATTACH, w.attach_body()).status
                  == w.OK)
            peer.extent(0x80000000, 1)[:4096] = bytes(4096)
            peer.sock.close()
        os.write(held, b"x")
        os.read(leave, 1)
        return True

    child = Child(hold)
    hear(holding, child)
    assert len(attach_all("a", A)) == 1, "those of who has hung up count"
    os.close(left)  # it may end
    assert child.result()
    until(lambda: daemon.connect().enter("a", A).ask(
        w.ATTACH, w.attach_body()).status == w.OK)
