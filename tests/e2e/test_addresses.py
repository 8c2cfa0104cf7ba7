"""`tcp://a,b`: several addresses of one daemon. Whichever answers is used; the
others are there for when it does not."""
import signal

import pytest

import capi
from capi import MISS, OK, Node
from daemon import free_port, until

TOKEN = "a-token-of-a-0123456789abcdef0123456"


def url(*ports, **options):
    more = "&".join(f"{k}={v}" for k, v in options.items())
    return ("tcp://" + ",".join(f"127.0.0.1:{port}" for port in ports)
            + ("?" + more if more else ""))


@pytest.fixture
def pair(serve):
    """Two daemons, so that it can be told who answered; an engine would have
    one with two addresses."""
    ports = free_port(), free_port()
    daemons = [serve(listen=f"127.0.0.1:{port}") for port in ports]
    for name, daemon in zip("ab", daemons):
        with Node(daemon.url("unix")) as node:
            assert node.put(f"of {name}", b"1") == OK
    return ports, daemons


def answers(node):
    """Who does: a or b; None: nobody."""
    there = [name for name in "ab" if node.get(f"of {name}")[0] == OK]
    assert len(there) <= 1
    return there[0] if there else None


def test_first_is_dead(pair):
    ports, _ = pair
    with Node(url(free_port(), ports[1])) as node:
        assert answers(node) == "b"


def test_first_in_the_list_is_first(pair):
    ports, _ = pair
    with Node(url(*ports)) as node:
        assert answers(node) == "a"
    with Node(url(*reversed(ports))) as node:
        assert answers(node) == "b"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_first_dies_later(pair, how):
    ports, (a, b) = pair
    with Node(url(*ports, breaker_ms=20)) as node:
        assert answers(node) == "a"
        if how == signal.SIGKILL:
            a.kill()
        else:
            a.stop()
        until(lambda: answers(node) == "b", text="b was never asked")
        for i in range(20):  # and stays
            assert node.put(f"new {i}", b"x" * 1000) == OK
        assert answers(node) == "b"
        # When b goes, and a is back, it is a's turn.
        a.start()
        b.stop()
        until(lambda: node.put("late", b"2") == OK, text="a was never asked")
        assert b.process is None and node.get("late")[0] == OK


def test_first_hangs_later(pair):
    """It takes connections, as a stopped process does, and says nothing."""
    ports, (a, _) = pair
    with Node(url(*ports, breaker_ms=20, timeout_ms=300)) as node:
        assert answers(node) == "a"
        a.signal(signal.SIGSTOP)
        until(lambda: answers(node) == "b", text="b was never asked")
        a.signal(signal.SIGCONT)


def test_all_dead(pair):
    ports, (a, b) = pair
    with Node(url(*ports, breaker_ms=20)) as node:
        assert answers(node) == "a"
        a.stop()
        b.stop()
        until(lambda: node.get("of a")[:2] == (MISS, "offline"))
        a.start()
        until(lambda: node.put("late", b"2") == OK)


def test_refused_by_one_away_the_other(serve, tmp_path):
    """That somebody refuses us says more than that the other is away."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    daemon = serve(config=f"[tenant a]\ntoken_file = {token}\n")
    for ports in ((daemon.tcp[1], free_port()), (free_port(), daemon.tcp[1])):
        with pytest.raises(capi.Error, match="token_file=") as error:
            Node(url(*ports, tenant="a"))
        assert error.value.status == capi.E_DENIED
    with Node(url(free_port(), daemon.tcp[1], tenant="a",
                  token_file=token)) as node:
        assert node.put("k", b"v") == OK
