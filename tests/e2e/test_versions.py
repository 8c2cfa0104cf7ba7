"""The real client and the real daemon with somebody between them who makes each
take the other for one of another version: with feature bits that nobody knows
yet, with protocol versions beside ours. What can work works, every byte of it;
what cannot is refused by name and counted on both sides. Builds that really
differ are in test_next.py."""
import ctypes
import pathlib
import re
import sys

import pytest

import capi
from capi import (E_MISMATCH, E_VERSION, MISS, OK, PRESENT, VERIFY_PUT, Error,
                  Node, key_of, value_of)
from daemon import FAILED, Metrics, until
from middle import Middle

sys.path.append(str(pathlib.Path(__file__).parents[2] / "python"))
from larder_kv import _lib  # noqa: E402

UNKNOWN = 2**64 - 1  # features: ours, and many that we do not have
SSD_TIER, SHARED_TIER = 1, 2
WARNING = 1
COUNT = 12

both = pytest.mark.parametrize("transport", ["unix", "tcp"])


def chain(count, name="k"):
    return [f"{name} {i}" for i in range(count)]


def bytes_of(name):
    return value_of(name, 1, 100000)


def stats_of(node):
    """(status, figures)"""
    stats = _lib.stats_type(node.lib)()
    return node.lib.larder_stats(node.node, ctypes.byref(stats)), stats


def announce(node, names):
    keys = (capi.Key * len(names))(*map(key_of, names))
    return node.lib.larder_announce(node.space, keys,
                                    ctypes.c_size_t(len(names)), None, 5000)


@pytest.fixture
def tier(tier):
    """As an option of daemons."""
    return {"shared": f"dir:{tier}", "shared_poll_ms": 50, "dirs": 1}


def save_and_find(node, names):
    saved = [(name, bytes_of(name)) for name in names]
    assert node.put_many(saved) == [OK] * len(names)
    assert node.put_many(saved) == [PRESENT] * len(names)
    assert [node.exists(name) for name in names] == [OK] * len(names)
    assert node.exists("nothing") == MISS
    assert node.match(names + ["nothing"]) == (OK, len(names))
    assert node.get_many(names, 100000) == [(OK, "none", value)
                                            for _, value in saved]


def save_in_place(node, name):
    status, room = node.reserve(name, len(bytes_of(name)))
    assert status == OK, node.error()
    assert node.fill(room, bytes_of(name)) == OK
    assert node.commit(room) == OK
    assert node.get(name, 100000) == (OK, "none", bytes_of(name))


def stage(node, names):
    for _ in range(2):
        status, staged, lease = node.stage(names)
        assert status == OK
        assert staged == [bytes_of(name) for name in names]
        node.release(lease)


def drop(node, names):
    assert node.remove(names[0]) == OK and node.remove(names[0]) == MISS
    assert node.match(names) == (OK, 0)
    assert node.get(names[0])[:2] == (MISS, "absent")
    assert node.reset() == OK
    assert [node.exists(name) for name in names] == [MISS] * len(names)


def everything(node):
    """All that a client does; gives its figures."""
    names = chain(COUNT)
    save_and_find(node, names)
    save_in_place(node, "in place")
    stage(node, names)
    assert node.put_many([(names[0], b"other")], flags=VERIFY_PUT) == [
        E_MISMATCH]
    assert node.put_many([(names[0], bytes_of(names[0]))],
                         flags=VERIFY_PUT) == [PRESENT]
    assert announce(node, names) == OK
    assert node.flush(SSD_TIER) == OK and node.flush(SHARED_TIER) == OK
    status, stats = stats_of(node)
    assert status == OK and stats.saves_stored == COUNT + 1
    drop(node, names)
    save_and_find(node, names)
    assert stats.client_version == stats.client_denied == 0
    return stats


# ---- newer peers -----------------------------------------------------------

@both
def test_newer_client(serve, tier, tmp_path, transport):
    """That also speaks ours, and knows features that we do not."""
    daemon = serve(**tier)
    with Middle(daemon, transport, tmp_path,
                hello=lambda low, high, has: (low, high + 1, has | UNKNOWN)
                ) as middle:
        with Node(middle.url) as node:
            everything(node)
        assert set(middle.hellos) == {(2, 2, 7)}
        assert set(middle.welcomes) == {(2, 5)}
    assert daemon.value("larder_version_refusals_total") == 0


@both
def test_newer_daemon(serve, tier, tmp_path, transport):
    """That answers in ours, with features that we do not know."""
    daemon = serve(**tier)
    with Middle(daemon, transport, tmp_path,
                welcome=lambda version, has: (version, has | UNKNOWN)
                ) as middle:
        with Node(middle.url) as node:
            everything(node)


# ---- nothing in common -----------------------------------------------------

def only(version):
    return lambda low, high, has: (version, version, has)


def refusals(daemon):
    m = Metrics(daemon.http("/metrics"))
    total = m.sum("larder_version_refusals_total")
    assert total == m.sum("larder_refused_connections_total", reason="version")
    return total


@both
@pytest.mark.parametrize("connect", ["now", "lazy"])
@pytest.mark.parametrize("version", [1, 3, 65535])
def test_other_client(serve, tmp_path, larder, transport, connect, version):
    """Refused with both sides' names, in the client and in the daemon's log."""
    daemon = serve(admin="127.0.0.1:0")
    text = (rf"protocol versions {version} to {version} are spoken by the "
            r"client \(0\..*\), 2 to 2 by the daemon \(0\..*\): "
            r"update the older one")
    with Middle(daemon, transport, tmp_path, hello=only(version)) as middle:
        with pytest.raises(Error, match=text) as error:
            Node(f"{middle.url}?connect={connect}")
        assert error.value.status == E_VERSION
        assert refusals(daemon) == 1
        assert re.search(f"warn.*refused: {text}", daemon.log())
        done = larder("stat", middle.url, code=FAILED)
        assert re.search(text, done.err)
        assert refusals(daemon) == 2
        assert not middle.welcomes


NEWER = ("protocol versions 2 to 2 are spoken by the client (0.1), 3 to 4 by "
         "the daemon (9.0): update the older one")


@both
@pytest.mark.parametrize("change, text", [
    ({"refuse": (E_VERSION, NEWER)}, re.escape(NEWER)),
    ({"welcome": lambda version, has: (version + 1, has)},
     r"the daemon \(0\..*\) wants protocol version 3, this client \(0\..*\) "
     r"speaks 2 to 2: update the older one")], ids=["refuses", "insists"])
def test_other_daemon(serve, tmp_path, larder, transport, change, text):
    """For which this client is too old; or that wants what was not offered."""
    daemon = serve()
    with Middle(daemon, transport, tmp_path, **change) as middle:
        with pytest.raises(Error, match=text) as error:
            Node(f"{middle.url}?connect=lazy")
        assert error.value.status == E_VERSION
        done = larder("stat", middle.url, code=FAILED)
        assert re.search(text, done.err)


@both
@pytest.mark.parametrize("change", [
    {"hello": only(3)}, {"refuse": (E_VERSION, NEWER)}],
    ids=["client", "daemon"])
def test_update_of_one_side(serve, tmp_path, transport, change):
    """In the middle of things, and taken back: no call is a quiet miss, the
    handle counts it, and what was saved is there again."""
    daemon = serve(admin="127.0.0.1:0")
    said = []
    names = chain(COUNT)
    with Middle(daemon, transport, tmp_path) as middle, \
            Node(f"{middle.url}?breaker_ms=20",
                 log=lambda *line: said.append(line)) as node:
        save_and_find(node, names)
        for name, work in change.items():
            setattr(middle, name, work)
        middle.drop()
        until(lambda: node.get(names[0])[0] == E_VERSION)
        for _ in range(20):
            assert node.get(names[0])[0] == E_VERSION
            assert node.put("new", b"new") == E_VERSION
            assert node.exists(names[0]) == E_VERSION
            assert node.match(names)[0] == E_VERSION
            assert node.stage(names)[0] == E_VERSION
            assert node.reset() == E_VERSION
            assert "update the older one" in node.error()
        status, stats = stats_of(node)
        assert status == E_VERSION and stats.client_version >= 1
        assert stats.client_offline >= 1 and stats.client_denied == 0
        assert sum(level == WARNING and "update the older one" in line
                   for level, line in said) == 1
        assert (refusals(daemon) >= 1) == ("hello" in change)
        middle.hello = middle.refuse = None
        until(lambda: node.get(names[0], 100000)[0] == OK)
        assert node.get_many(names, 100000) == [
            (OK, "none", bytes_of(name)) for name in names]
        status, after = stats_of(node)
        assert status == OK and after.client_version >= stats.client_version
        assert node.put("new", b"new") == OK
