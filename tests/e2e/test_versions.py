"""The real client and the real daemon with somebody between them who makes each
take the other for one of another version: with fewer feature bits, with bits
that nobody knows yet, with protocol versions beside ours. What can work works,
every byte of it; what cannot is refused by name and counted on both sides."""
import ctypes
import pathlib
import re
import sys

import pytest

import capi
import wireclient as w
from capi import (DECLINED, E_MISMATCH, E_UNSUPPORTED, E_VERSION, MISS, OK,
                  PRESENT, VERIFY_PUT, Error, Node, key_of, value_of)
from daemon import FAILED, Metrics, until
from middle import Middle

sys.path.append(str(pathlib.Path(__file__).parents[2] / "python"))
from larder_kv._lib import Stats  # noqa: E402

TCP_LEASE, SHARED, ANNOUNCE, ASKED = 1, 2, 4, 8
ALL = TCP_LEASE | SHARED | ANNOUNCE | ASKED
UNKNOWN = 2**64 - 1 - ALL
SSD_TIER, SHARED_TIER = 1, 2
WARNING = 1
OP_ANNOUNCE = 25
COUNT = 12

both = pytest.mark.parametrize("transport", ["unix", "tcp"])


def chain(count, name="k"):
    return [f"{name} {i}" for i in range(count)]


def bytes_of(name):
    return value_of(name, 1, 100000)


def stats_of(node):
    """(status, figures)"""
    stats = Stats(struct_bytes=ctypes.sizeof(Stats))
    return node.lib.larder_stats(node.node, ctypes.byref(stats)), stats


def announce(node, names):
    keys = (capi.Key * len(names))(*map(key_of, names))
    return node.lib.larder_announce(node.space, keys,
                                    ctypes.c_size_t(len(names)), None, 5000)


@pytest.fixture
def tier(tmp_path):
    """A shared tier, as an option of daemons."""
    path = tmp_path / "tier"
    path.mkdir()
    assert capi.library().larder_shared_create(f"dir:{path}".encode(), None,
                                               10000) == OK
    return {"shared": f"dir:{path}", "shared_poll_ms": 50, "dirs": 1}


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


def stage(node, names, leases):
    """leases: whether there are any."""
    for _ in range(2):
        status, staged, lease = node.stage(names)
        if leases:
            assert status == OK
            assert staged == [bytes_of(name) for name in names]
            node.release(lease)
        else:
            assert status == E_UNSUPPORTED
            assert "no leases by TCP: update it" in node.error()


def drop(node, names):
    assert node.remove(names[0]) == OK and node.remove(names[0]) == MISS
    assert node.match(names) == (OK, 0)
    assert node.get(names[0])[:2] == (MISS, "absent")
    assert node.reset() == OK
    assert [node.exists(name) for name in names] == [MISS] * len(names)


def everything(node, features, transport):
    """All that a client does; gives its figures."""
    names = chain(COUNT)
    leases = transport == "unix" or features & TCP_LEASE
    save_and_find(node, names)
    save_in_place(node, "in place")
    stage(node, names, leases)
    # What cannot be compared is taken for the same.
    assert node.put_many([(names[0], b"other")], flags=VERIFY_PUT) == [
        E_MISMATCH if leases else PRESENT]
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


def masked(features, side):
    """Changes for a Middle: of the hello, so that both sides lack the other
    bits, or of the welcome only."""
    if side == "hello":
        return {"hello": lambda low, high, has: (low, high, has & features)}
    return {"welcome": lambda version, has: (version, has & features)}


# ---- fewer features --------------------------------------------------------

@both
@pytest.mark.parametrize("side", ["hello", "welcome"])
@pytest.mark.parametrize("features", sorted(
    {0, ALL} | {1 << i for i in range(ALL.bit_length())}
    | {ALL ^ 1 << i for i in range(ALL.bit_length())}))
def test_fewer_features(serve, tier, tmp_path, transport, side, features):
    daemon = serve(**tier)
    said = []
    with Middle(daemon, transport, tmp_path,
                **masked(features, side)) as middle:
        with Node(middle.url, log=lambda *line: said.append(line)) as node:
            stats = everything(node, features, transport)
        assert set(middle.hellos) == {(1, 1, ALL)}
        agreed = features if side == "hello" else ALL
        assert set(middle.welcomes) == {(1, agreed)}
        # What the other side may not know is not said to it.
        asked = daemon.value("larder_requests_total", op="announce")
        assert (asked > 0) == bool(features & ANNOUNCE)
        # Without its key nothing of the space goes to the shared tier.
        assert (stats.offers_written > 0) == bool(features & SHARED)
        lacks = transport == "tcp" and not features & TCP_LEASE
        if transport == "tcp":
            assert bool(middle.sent(w.LEASE)) != lacks
            assert set(middle.sent(w.SPACE)) == {68 if features & SHARED
                                                 else 36}
    # Whoever stages gets no hit there, and the log says so, once.
    assert [level for level, line in said if "no leases by TCP" in line] == (
        [WARNING] if lacks else [])


@both
@pytest.mark.parametrize("side", ["hello", "welcome"])
def test_shared_tier_of_others(serve, tier, tmp_path, transport, side):
    """Who does not know the third tier hits there, too: it looks like ssd."""
    if side == "welcome":
        tiers = (0, 0, COUNT)  # it reads what it is told
    else:
        tiers = (0, COUNT, 0)
    names = chain(COUNT)
    first = serve(**tier)
    with Node(first.url()) as node:
        save_and_find(node, names)
        assert node.flush(SHARED_TIER) == OK
    first.stop()
    second = serve(**tier)
    with Node(second.url()) as node:  # brings the tenant's key
        until(lambda: node.tiers(names) == (0, 0, COUNT))
        with Middle(second, transport, tmp_path,
                    **masked(ALL & ~SHARED, side)) as middle, \
                Node(middle.url) as older:
            assert older.tiers(names) == tiers
            assert older.get_many(names, 100000) == [
                (OK, "none", bytes_of(name)) for name in names]


@both
@pytest.mark.parametrize("features", [ALL, ALL & ~ANNOUNCE])
def test_declined(serve, tmp_path, transport, features):
    """A request longer than the arena: the rest of it is not kept, and who
    does not know that answer has nothing to send either."""
    daemon = serve(dram="4M", ssd=None, policy="learned")
    names = chain(40)
    value = bytes(300000)
    with Node(daemon.url()) as other, \
            Middle(daemon, transport, tmp_path,
                   **masked(features, "hello")) as middle, \
            Node(middle.url) as node:
        assert announce(other, names) == OK
        got = [node.put_many([(name, value)], parents=[(
            names[i - 1] if i else None, i)])[0]
               for i, name in enumerate(names)]
        assert set(got) == {OK, DECLINED if features & ANNOUNCE else PRESENT}
        kept = got.count(OK)
        assert got[:kept] == [OK] * kept and 0 < kept < len(names)
        assert node.match(names) == (OK, kept)
        assert node.get(names[0])[0] == OK
        assert node.get(names[-1])[0] == MISS
        assert daemon.value("larder_saves_total", outcome="declined") == \
            len(names) - kept


# ---- newer peers -----------------------------------------------------------

@both
def test_newer_client(serve, tier, tmp_path, transport):
    """That also speaks ours, and knows features that we do not."""
    daemon = serve(**tier)
    with Middle(daemon, transport, tmp_path,
                hello=lambda low, high, has: (low, high + 1, has | UNKNOWN)
                ) as middle:
        with Node(middle.url) as node:
            everything(node, ALL, transport)
        assert set(middle.welcomes) == {(1, ALL)}
    assert daemon.value("larder_version_refusals_total") == 0


@both
def test_newer_daemon(serve, tier, tmp_path, transport):
    """That answers in ours, with features that we do not know."""
    daemon = serve(**tier)
    with Middle(daemon, transport, tmp_path,
                welcome=lambda version, has: (version, has | UNKNOWN)
                ) as middle:
        with Node(middle.url) as node:
            everything(node, ALL, transport)


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
@pytest.mark.parametrize("version", [2, 65535])
def test_other_client(serve, tmp_path, larder, transport, connect, version):
    """Refused with both sides' names, in the client and in the daemon's log."""
    daemon = serve(admin="127.0.0.1:0")
    text = (rf"protocol versions {version} to {version} are spoken by the "
            r"client \(0\..*\), 1 to 1 by the daemon \(0\..*\): "
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


NEWER = ("protocol versions 1 to 1 are spoken by the client (0.1), 2 to 3 by "
         "the daemon (9.0): update the older one")


@both
@pytest.mark.parametrize("change, text", [
    ({"refuse": (E_VERSION, NEWER)}, re.escape(NEWER)),
    ({"welcome": lambda version, has: (version + 1, has)},
     r"the daemon \(0\..*\) wants protocol version 2, this client \(0\..*\) "
     r"speaks 1 to 1: update the older one")], ids=["refuses", "insists"])
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
    {"hello": only(2)}, {"refuse": (E_VERSION, NEWER)}],
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
