"""Connections: who opens all it can, or opens many and says nothing, keeps
nobody else out."""
import contextlib
import os
import resource
import socket

import pytest

import wireclient as w
from daemon import PATIENCE_S, Child, hear, until
from hostile import TOKEN, both, with_token
from tenants import A, B, BOTH, config
from wireclient import Ended, frame, hello_body

HELLO = frame(w.HELLO, hello_body())


@pytest.fixture
def many_files():
    """Descriptors for some thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8192:
        pytest.skip(f"8192 descriptors are needed, ulimit -Hn is {hard}: many "
                    "connections are NOT tested here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def silent(stack, address, count, say=b""):
    """So many connections that say this much, and no more. Those that were
    closed meanwhile count as well."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    for _ in range(count):
        one = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        one.settimeout(PATIENCE_S)
        one.connect(address)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            one.sendall(say)


# ---- before it is known who they are ---------------------------------------

@pytest.mark.parametrize("say", (0, 20, len(HELLO)),
                         ids=("silent", "half a hello", "a hello"))
def test_silent_peers_of_one_address(serve, tmp_path, many_files, say):
    """1,100 of them do not keep out a client of the same address: the oldest
    give way."""
    daemon = with_token(serve, tmp_path, hello_ms=60000)
    with contextlib.ExitStack() as stack:
        silent(stack, daemon.tcp, 1100, HELLO[:say])
        for _ in range(3):
            with w.Peer(daemon.tcp).enter(token=TOKEN) as good:
                assert good.put_one(good.space(), w.key_of("k"), b"v") in (
                    w.OK, w.PRESENT)
        m = daemon.metrics()
        assert m.sum("larder_connecting") <= 4096 / 8
        assert m.sum("larder_refused_connections_total",
                     reason="unauthenticated") >= 1100 - 4096 / 8
        assert "not authenticated" in daemon.log()
    until(lambda: daemon.value("larder_connecting") == 0)


@both
def test_a_small_lobby(serve, tmp_path, transport):
    """The same where there is little room, by either way; and what is let in
    never gives way."""
    daemon = with_token(serve, tmp_path, sessions=8, hello_ms=60000)
    good = daemon.enter(transport, token=TOKEN)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            silent(stack, daemon.address(transport), 30)
            with w.Peer(daemon.address(transport)) as peer:
                assert peer.enter(token=TOKEN).ask(w.PING).status == w.OK
        assert daemon.value("larder_connecting") <= 16
        assert good.ask(w.PING).status == w.OK


def test_silent_peers_of_other_addresses(serve, tmp_path):
    """127.0.0.2 has as many as it may, and so have ten others: 127.0.0.1 comes
    in, and of each address some stay."""
    daemon = with_token(serve, tmp_path, sessions=64, hello_ms=60000,
                        listen="0.0.0.0:0")
    port = int(daemon.log().split("listening: tcp://0.0.0.0:")[1].split()[0])
    with contextlib.ExitStack() as stack:
        for i in range(2, 12):
            silent(stack, (f"127.0.0.{i}", port), 30)
            with w.Peer(("127.0.0.1", port)) as peer:
                assert peer.enter(token=TOKEN).ask(w.PING).status == w.OK
        assert daemon.value("larder_connecting") <= 16


def test_who_trickles_has_no_more_time(serve, tmp_path):
    """Its time begins when it is accepted, whatever it says meanwhile."""
    daemon = with_token(serve, tmp_path, hello_ms=500)
    peer = daemon.connect("tcp")

    def cut():
        try:
            for byte in HELLO[:-1]:
                peer.send(bytes([byte]))
                if peer.ended(0.05):
                    return True
        except Ended:
            return True
        return False

    assert cut()
    assert daemon.value("larder_auth_failures_total", reason="timeout") == 1


def test_takeover_from_a_crowded_socket(serve, tmp_path):
    """Who takes over is not authenticated, either: it gives way to nobody."""
    daemon = serve(sessions=8, hello_ms=60000)
    with contextlib.ExitStack() as stack:
        silent(stack, daemon.socket, 40)
        old = daemon.process
        daemon.start("--takeover")
        assert old.wait(PATIENCE_S) == 0
        daemon.alive()


# ---- once it is known who they are -----------------------------------------

def enter_all(daemon, tenant, token, transports=BOTH):
    """As many sessions as it is given."""
    got = []
    while True:
        peer = daemon.connect(transports[len(got) % len(transports)])
        reply = peer.hello(tenant, token)
        if reply.status != w.OK:
            assert reply.status == w.E_LIMIT, reply.text
            assert f"'{tenant}'" in reply.text
            assert "option sessions" in reply.text
            assert peer.ended()
            return got
        got.append(peer)


def close_all(daemon, peers):
    for peer in peers:
        daemon.peers.remove(peer)
        peer.close()


def test_sessions_are_shared(serve, tmp_path):
    """A tenant has as many as are still free: so others find some, and it has
    its own back when they end. The operator has some more."""
    daemon = serve(config=config(tmp_path), sessions=64)
    mine = enter_all(daemon, "a", A, ("tcp",))
    assert len(mine) == 32
    assert len(enter_all(daemon, "b", B, ("tcp",))) == 16
    assert daemon.value("larder_refused_connections_total",
                        reason="sessions") == 2
    assert "option sessions" in daemon.log()
    assert all(peer.ask(w.PING).status == w.OK for peer in mine)
    for _ in range(4):
        daemon.enter("unix")
    close_all(daemon, mine)
    until(lambda: daemon.value("larder_tenant_sessions", tenant="a") == 0)
    assert len(enter_all(daemon, "a", A, ("tcp",))) == 22


def test_sessions_that_hung_up_count(serve, tmp_path):
    """A session that hung up while its process keeps what it mapped is still
    its tenant's."""
    daemon = serve(config=config(tmp_path), sessions=20)
    holding, held = os.pipe()
    leave, left = os.pipe()

    def hold():
        os.close(left)
        for i in range(6):
            peer = w.Peer(daemon.socket).enter("a", A)
            space = peer.space()
            peer.attach()
            assert peer.shm_put(space, w.key_of(f"k{i}"), b"abc") == w.OK
            peer.sock.close()
        os.write(held, b"x")
        os.read(leave, 1)
        return True

    child = Child(hold)
    hear(holding, child)
    until(lambda: daemon.value("larder_tenant_sessions", tenant="a") == 0)
    assert len(enter_all(daemon, "a", A, ("tcp",))) == 4
    assert len(enter_all(daemon, "b", B, ("tcp",))) == 5
    os.close(left)
    assert child.result()
    until(lambda: w.Peer(daemon.tcp).hello("a", A).status == w.OK)


def test_few_files(serve, tmp_path):
    """Where there are fewer descriptors than sessions would need, one tenant
    does not take the last."""
    daemon = serve(config=config(tmp_path), files=512)

    def work():
        peers = []
        while True:
            peer = w.Peer(daemon.socket)
            if peer.hello("a", A).status != w.OK:
                return len(peers)
            peers.append(peer.attach())

    # For whoever runs as the daemon's user there are 16 more.
    assert Child(work).result() == (64 + 16) // 2
    for transport in BOTH:
        peer = daemon.enter(transport, "b", B)
        assert peer.put_one(peer.space(), w.key_of(transport), b"v") == w.OK
    assert "sessions: 64 and not 4096" in daemon.log()
    assert "cannot be accepted" not in daemon.log()
