"""Peers that mean harm, or cannot do better. Whatever they send, the daemon
lives, serves the others right, and has everything back when they are gone
(which the fixture looks at after every test)."""
import os
import random
import resource
import select
import socket
import struct
import time

import pytest

import wireclient as w
from daemon import Child, in_child, until
from wireclient import (Ended, batch_body, crc32c, ends_body, extent_body,
                        frame, hello_body, key_of, match_body, name_row,
                        save_row, space_body)

BOTH = ("unix", "tcp")
SEED = int(os.environ.get("LARDER_SEED", "4"))
both = pytest.mark.parametrize("transport", BOTH)
TOKEN = "0123456789abcdef0123456789abcdef"


def value_of(key, size=5000):
    return random.Random(key).randbytes(size)


def with_token(serve, tmp_path, **options):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    daemon = serve(config=f"[tenant default]\ntoken_file = {path}\n",
                   start=False, **options)
    daemon.token = TOKEN
    return daemon.start()


def plausible(space=0):
    """A well-formed body for every opcode."""
    key = key_of("k")
    names = batch_body(space, [name_row(key)])
    save = batch_body(space, [save_row(key, 3, crc32c(b"abc"))])
    return {
        w.HELLO: hello_body(), w.AUTH: bytes(32), w.PING: b"",
        w.ATTACH: w.attach_body(), w.EXTENT: extent_body(0, 1),
        w.REVOKE: extent_body(0, 1), w.REVOKED: extent_body(0, 1),
        w.SPACE: space_body("space"), w.RESET: struct.pack("<I", space),
        w.MATCH: match_body(space, [key]), w.EXISTS: names, w.REMOVE: names,
        w.FLUSH: struct.pack("<I", 0), w.STATS: b"", w.METRICS: b"",
        w.REPORT: names, w.GET: names, w.PUT: save, w.LEASE: names,
        w.RELEASE: ends_body([(0, 0, 0)]), w.RESERVE: save,
        w.COMMIT: ends_body([(0, 0, 0)]), w.ADMIN: b"frobnicate",
    }


# ---- before authentication -------------------------------------------------

@pytest.mark.parametrize("greeted", [False, True])
@both
def test_nothing_but_hello_before_authentication(serve, tmp_path, transport,
                                                 greeted):
    daemon = with_token(serve, tmp_path)
    key, value = key_of("k"), value_of("k")
    owner = daemon.enter(transport, token=TOKEN)
    space = owner.space("space")
    assert owner.put_one(space, key, value) == w.OK
    tried = 0
    for opcode, body in plausible().items():
        if opcode in (w.HELLO, w.AUTH):
            continue
        if opcode == w.ADMIN and transport == "unix":
            continue  # root may say it as it comes in
        peer = daemon.connect(transport)
        if greeted:
            reply = peer.ask(w.HELLO, hello_body())
            assert reply.status == w.OK
            peer.epoch = reply.epoch
        payload = b"abc" if opcode == w.PUT else b""
        try:
            peer.start(opcode, body, payload)
        except Ended:
            pass
        with pytest.raises(Ended):
            reply = peer.read_frame()
            pytest.fail(f"opcode {opcode} was answered {reply.status}")
        tried += 1
    assert owner.get(space, [key]) == [value], "somebody did something"
    m = daemon.metrics()
    # A PUT is already too large for somebody unknown.
    assert m.sum("larder_auth_failures_total", reason="before") >= tried - 1
    assert m.sum("larder_refused_connections_total",
                 reason="malformed") >= tried
    daemon.alive()


@both
def test_unknown_opcodes(daemon, transport):
    for opcode in (0, 4, 7, 12, 15, 25, 31, 34, 52, 63, 65, 255, 65535):
        for enter in (False, True):
            peer = daemon.connect(transport)
            if enter:
                peer.enter()
            peer.start(opcode, b"")
            assert peer.ended(), f"opcode {opcode}"
    daemon.alive()


@both
def test_auth_without_hello(daemon, transport):
    peer = daemon.connect(transport)
    peer.start(w.AUTH, bytes(32))
    assert peer.ended()
    daemon.alive()


@both
def test_hello_twice(daemon, transport):
    peer = daemon.enter(transport)
    peer.start(w.HELLO, hello_body())
    assert peer.ended()
    peer = daemon.enter(transport)
    peer.start(w.AUTH, bytes(32))
    assert peer.ended()
    daemon.alive()


@both
def test_hello_twice_before_auth(serve, tmp_path, transport):
    daemon = with_token(serve, tmp_path)
    peer = daemon.connect(transport)
    assert peer.ask(w.HELLO, hello_body()).status == w.OK
    peer.start(w.HELLO, hello_body())
    assert peer.ended()


@both
def test_token_is_not_to_be_guessed_twice(serve, tmp_path, transport):
    """One try for each connection, and the daemon's own proof is no proof of
    the client's."""
    daemon = with_token(serve, tmp_path)
    peer = daemon.connect(transport)
    reply = peer.hello(token="a" * 32)
    assert reply.status == w.E_DENIED
    assert peer.ended()
    peer = daemon.connect(transport)
    nonce = os.urandom(32)
    reply = peer.ask(w.HELLO, hello_body(nonce=nonce))
    server_nonce = reply.body[20:52]
    peer.epoch = reply.epoch
    mac = w.proof(TOKEN, nonce, server_nonce, reply.epoch, "default",
                  server=True)
    assert peer.ask(w.AUTH, mac).status == w.E_DENIED
    # A proof that was heard is worth nothing in the next connection.
    peer = daemon.connect(transport)
    reply = peer.ask(w.HELLO, hello_body(nonce=nonce))
    peer.epoch = reply.epoch
    mac = w.proof(TOKEN, nonce, server_nonce, reply.epoch, "default")
    assert peer.ask(w.AUTH, mac).status == w.E_DENIED
    daemon.alive()


@both
@pytest.mark.parametrize("body", [
    b"", hello_body()[:-1], hello_body() + b"\0", bytes(172),
    hello_body(b"a" * 64), hello_body(b"a\nb"), hello_body(b"a\x7f"),
    hello_body(b"a\0b"), hello_body(program=b"x" * 64),
    hello_body(program=b"\x1b[2J"), hello_body(low=2, high=1),
], ids=["empty", "short", "long", "zeros", "no-end", "newline", "delete",
        "after-end", "program-no-end", "program-escape", "no-range"])
def test_malformed_hello(daemon, transport, body):
    peer = daemon.connect(transport)
    peer.start(w.HELLO, body)
    assert peer.ended()
    assert "\x1b" not in daemon.log()
    daemon.alive()


# ---- versions --------------------------------------------------------------

@both
@pytest.mark.parametrize("low, high", [(2, 9), (2, 2), (65535, 65535)])
def test_version_refused(daemon, transport, low, high):
    peer = daemon.connect(transport)
    reply = peer.ask(w.HELLO, hello_body(low=low, high=high, program="pro 9"))
    assert reply.status == w.E_VERSION
    assert f"{low} to {high}" in reply.text and "1 to 1" in reply.text
    assert "pro 9" in reply.text, "who must be updated?"
    assert peer.ended()
    assert "protocol versions" in daemon.log()
    assert daemon.value("larder_version_refusals_total") == 1


@both
def test_version_ranges_that_meet(daemon, transport):
    for low, high in ((1, 1), (1, 2), (1, 65535)):
        peer = daemon.connect(transport)
        reply = peer.hello(low=low, high=high, features=2**64 - 1)
        assert reply.status == w.OK and peer.version == 1
        assert peer.features < 2**64 - 1, "features nobody knows"
        assert peer.ask(w.PING).status == w.OK


@both
def test_version_zero_is_none(daemon, transport):
    """There never was a version 0: who speaks only that is not let in, with
    a message if its hello can be read."""
    peer = daemon.connect(transport)
    peer.start(w.HELLO, hello_body(low=0, high=0))
    try:
        reply = peer.read_frame()
        assert reply.status == w.E_VERSION and "0 to 0" in reply.text
    except Ended:
        pass
    assert peer.ended()
    daemon.alive()


# ---- frames ----------------------------------------------------------------

@both
@pytest.mark.parametrize("first", [
    b"GET / HTTP/1.1\r\nHost: larder\r\nAccept: */*\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\nmore of it here\r\n",
    bytes(64), b"\xff" * 64, frame(w.PING, magic=0x3252444C),
], ids=["http", "tls", "ssh", "zeros", "ones", "LDR2"])
def test_other_protocols(daemon, transport, first):
    for enter in (False, True):
        peer = daemon.connect(transport)
        if enter:
            peer.enter()
        peer.send(first)
        assert peer.ended()
    assert daemon.value("larder_refused_connections_total",
                        reason="not_larder") == 2
    assert "does not speak Larder's protocol" in daemon.log()


@both
def test_checksum_of_frames(daemon, transport):
    """A bit that flips anywhere in a frame is seen: nothing is carried out."""
    owner = daemon.enter(transport)
    space = owner.space("space")
    key, value = key_of("k"), value_of("k", 100)
    assert owner.put_one(space, key, value) == w.OK
    for at in range(0, 40 + 16 + 48, 3):
        peer = daemon.enter(transport)
        peer.space("space")
        good = frame(w.REMOVE, batch_body(0, [name_row(key)]), ident=7,
                     epoch=peer.epoch)
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        peer.send(bytes(bad))
        peer.sock.shutdown(socket.SHUT_WR)
        with pytest.raises(Ended):
            peer.read_frame()
            pytest.fail(f"bit flip in byte {at} was not seen")
        peer.close()
    assert owner.get(space, [key]) == [value]


@both
def test_frames_that_cannot_be(daemon, transport):
    def bad(what, *args, **kwargs):
        peer = daemon.enter(transport)
        peer.space("space")
        kwargs.setdefault("epoch", peer.epoch)
        peer.send(frame(*args, **kwargs))
        assert peer.ended(), what

    names = plausible()[w.GET]
    bad("epoch of nobody", w.PING, epoch=0)
    bad("epoch of another", w.PING, epoch=daemon.enter(transport).epoch)
    bad("a reply", w.PING, flags=w.REPLY, arg=0)
    bad("a reply to GET", w.GET, flags=w.REPLY, arg=0, payload=100)
    bad("a silent reply", w.PING, flags=w.REPLY | w.SILENT, arg=0)
    for bit in range(2, 16):
        bad(f"flag {bit}", w.PING, flags=1 << bit)
    bad("body too large", w.GET, b"", body_bytes=w.BODY_MAX + 1)
    bad("body of 4 GiB", w.GET, b"", body_bytes=2**32 - 1)
    bad("payload too large", w.PUT, plausible()[w.PUT],
        payload=w.PAYLOAD_MAX + 1)
    bad("payload of 4 GiB", w.PUT, plausible()[w.PUT], payload=2**32 - 1)
    for opcode in w.OPCODES:
        if opcode != w.PUT:
            bad(f"payload with {opcode}", opcode, names, payload=3)
    daemon.alive()


@both
def test_too_large_before_authentication(daemon, transport):
    for size in (1025, w.BODY_MAX, 2**32 - 1):
        peer = daemon.connect(transport)
        peer.send(frame(w.HELLO, b"", body_bytes=size))
        assert peer.ended()
    daemon.alive()


@both
@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_truncated_at_every_byte(daemon, transport, how):
    """A save that breaks off anywhere is a save that never was."""
    owner = daemon.enter(transport)
    space = owner.space("space")
    value = value_of("truncated", 97)
    good = None
    for cut in range(40 + 16 + 96 + len(value)):
        key = key_of(f"cut {cut}")
        peer = daemon.enter(transport)
        assert peer.space("space") == 0
        good = frame(w.PUT, batch_body(
            0, [save_row(key, len(value), crc32c(value))]),
            payload=len(value), ident=9, epoch=peer.epoch) + value
        peer.send(good[:cut])
        if how == "shutdown":
            peer.sock.shutdown(socket.SHUT_WR)
            with pytest.raises(Ended):
                peer.read_frame()
                pytest.fail(f"answered after {cut} bytes")
        peer.close()
    keys = [key_of(f"cut {cut}") for cut in range(len(good))]
    assert owner.get(space, keys) == [None] * len(keys)


@both
def test_frames_in_crumbs(daemon, transport):
    """Byte by byte is slow, not wrong."""
    peer = daemon.connect(transport)
    whole = frame(w.HELLO, hello_body(), ident=1)
    for i in range(len(whole)):
        peer.send(whole[i:i + 1])
    reply = peer.wait(1)
    assert reply.status == w.OK
    peer.epoch = reply.epoch
    space, key, value = peer.space(), key_of("crumbs"), value_of("crumbs", 300)
    whole = frame(w.PUT, batch_body(
        space, [save_row(key, len(value), crc32c(value))]),
        payload=len(value), ident=77, epoch=peer.epoch) + value
    for i in range(0, len(whole), 7):
        peer.send(whole[i:i + 7])
    assert peer.wait(77).result.status == w.OK
    assert peer.get(space, [key]) == [value]


@both
def test_random_frames(daemon, transport):
    """Well sealed nonsense: every field of every request at random."""
    rng = random.Random(SEED)
    print(f"LARDER_SEED={SEED}")
    owner = daemon.enter(transport)
    space = owner.space("mine")
    key, value = key_of("k"), value_of("k")
    assert owner.put_one(space, key, value) == w.OK
    bodies = plausible()
    opcodes = [op for op in w.OPCODES if op != w.ADMIN]

    def nonsense():
        for _ in range(120):
            peer = w.Peer(daemon.address(transport)).enter()
            peer.space("other")
            try:
                for _ in range(4):
                    opcode = rng.choice(opcodes)
                    body = bytearray(bodies[opcode])
                    for _ in range(rng.choice((0, 1, 1, 2, 8))):
                        if body:
                            at = rng.randrange(len(body))
                            body[at] = rng.choice((0, 1, 127, 128, 255,
                                                   rng.randrange(256)))
                    if rng.random() < 0.1:
                        body = rng.randbytes(rng.randrange(300))
                    peer.start(opcode, bytes(body),
                               b"abc" if opcode == w.PUT else b"",
                               arg=rng.choice((0, 1, 1000, w.FOREVER)))
                    peer.wait(peer.next_id - 1)
            except Ended:
                pass
            peer.drop()
        return True

    in_child(nonsense)
    assert owner.get(space, [key]) == [value]
    daemon.alive()


# ---- fields ----------------------------------------------------------------

class Case:
    """A request of an open session whose space 0 has 2 shards, and what comes
    of it: a status, a status of each row, or the end of the session."""

    def __init__(self, name, opcode, body, want, payload=b"", only=None):
        self.name, self.opcode, self.body = name, opcode, body
        self.want, self.payload, self.only = want, payload, only


ENDS = "ends"
K = key_of("fields")
BIG = (1, 2, 1023, 1024, 65535, 2**31, 2**32 - 1)


def names_cases():
    for opcode, name in ((w.EXISTS, "exists"), (w.REMOVE, "remove"),
                         (w.REPORT, "report"), (w.GET, "get"),
                         (w.LEASE, "lease")):
        row = name_row(K)
        for space in BIG:
            yield Case(f"{name} space {space}", opcode,
                       batch_body(space, [row]), w.E_SPACE)
        for count in (0, 2, w.BATCH_MAX + 1, 2**32 - 1):
            yield Case(f"{name} count {count} of 1", opcode,
                       batch_body(0, [row], count=count), ENDS)
        yield Case(f"{name} without rows", opcode, batch_body(0, []), ENDS)
        yield Case(f"{name} too many rows", opcode,
                   batch_body(0, [row] * (w.BATCH_MAX + 1)), ENDS)
        yield Case(f"{name} reserved", opcode,
                   batch_body(0, [row], reserved=1), ENDS)
        yield Case(f"{name} half a row", opcode,
                   batch_body(0, [row])[:-1], ENDS)
        yield Case(f"{name} no head", opcode, bytes(15), ENDS)
        yield Case(f"{name} bad rows spare the others", opcode, batch_body(0, [
            name_row(K, group=64), name_row(K, group=65535),
            name_row(K, shard=2), name_row(K, shard=65535),
            name_row(K, reserved=1), name_row(K)]),
            [w.E_INVALID] * 5 + [w.MISS])
        yield Case(f"{name} no room at all", opcode,
                   batch_body(0, [name_row(K, room=0)]), [w.MISS])


def put_cases():
    abc = crc32c(b"abc")

    def put(name, rows, want, payload, **head):
        return Case("put " + name, w.PUT, batch_body(head.pop("space", 0), rows,
                                                     **head), want, payload)

    good = save_row(key_of("good"), 3, abc)
    for space in BIG:
        yield put(f"space {space}", [good], ENDS, b"abc", space=space)
    yield put("count", [good], ENDS, b"abc", count=2)
    yield put("reserved", [good], ENDS, b"abc", reserved=7)
    yield put("less payload than rows", [good], ENDS, b"ab")
    yield put("more payload than rows", [good], ENDS, b"abcd")
    yield put("no payload", [good], ENDS, b"")
    yield put("lengths that add up by wrapping", [
        save_row(K, 2**64 - 3), save_row(key_of("wrap"), 6)], ENDS, b"abc")
    yield put("a length of 2^63 twice", [
        save_row(K, 2**63), save_row(K, 2**63)], ENDS, b"")
    yield put("bad rows spare the others", [
        save_row(K, 3, abc, group=64), save_row(K, 3, abc, shard=2),
        save_row(K, 3, abc, depth=2**32 - 1), save_row(K, 0),
        save_row(key_of("fields good"), 3, abc)],
        [w.E_INVALID] * 3 + [w.E_SIZE, w.OK], b"abc" * 4)
    yield put("wrong checksum", [save_row(K, 3, abc ^ 1)], [w.E_CORRUPT],
              b"abc")
    yield put("a parent that has none", [
        save_row(K, 3, abc, parent=key_of("p"))], ENDS, b"abc")
    yield put("has_parent 2", [save_row(K, 3, abc, has_parent=2)], ENDS,
              b"abc")


def ends_cases():
    for opcode, name in ((w.RELEASE, "release"), (w.COMMIT, "commit")):
        for lease in (0, 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1):
            want = (w.E_INVALID if opcode == w.RELEASE else [w.E_INVALID])
            for how in (0, 1, 2):
                yield Case(f"{name} lease {lease:#x} how {how}", opcode,
                           ends_body([(lease, 0, how)]), want)
        yield Case(f"{name} how 3", opcode, ends_body([(0, 0, 3)]),
                   w.E_INVALID if opcode == w.RELEASE else [w.E_INVALID])
        yield Case(f"{name} reserved", opcode,
                   ends_body([(0, 0, 0)], reserved=1), ENDS)
        for count in (0, 2, 2**32 - 1):
            yield Case(f"{name} count {count}", opcode,
                       ends_body([(0, 0, 0)], count=count), ENDS)
        yield Case(f"{name} without rows", opcode, ends_body([]), ENDS)
        yield Case(f"{name} too many", opcode,
                   ends_body([(0, 0, 0)] * (w.BATCH_MAX + 1)), ENDS)


def other_cases():
    number = struct.Struct("<I").pack
    for shards in (0, 65, 2**32 - 1):
        yield Case(f"space of {shards} shards", w.SPACE,
                   space_body("s", shards=shards), ENDS)
    yield Case("space short", w.SPACE, space_body("s")[:-1], ENDS)
    yield Case("space long", w.SPACE, space_body("s") + b"\0", ENDS)
    for space in BIG:
        yield Case(f"reset {space}", w.RESET, number(space), w.E_SPACE)
        yield Case(f"match in {space}", w.MATCH, match_body(space, [K]),
                   w.E_SPACE)
    for body in (b"", bytes(3), bytes(5), bytes(8)):
        yield Case(f"reset with {len(body)} bytes", w.RESET, body, ENDS)
        yield Case(f"flush with {len(body)} bytes", w.FLUSH, body, ENDS)
    for tier in BIG[1:]:
        yield Case(f"flush tier {tier}", w.FLUSH, number(tier), w.E_INVALID)
    for group in (64, 65535):
        yield Case(f"match group {group}", w.MATCH,
                   match_body(0, [K], group), w.E_INVALID)
    yield Case("match reserved", w.MATCH, match_body(0, [K], reserved=1), ENDS)
    for count in (0, 2, 2**27 + 1, 2**32 - 1):
        yield Case(f"match count {count}", w.MATCH,
                   match_body(0, [K], count=count), ENDS)
    yield Case("match head", w.MATCH, bytes(11), ENDS)
    yield Case("match of nothing", w.MATCH, match_body(0, []), w.OK)
    for opcode, name in ((w.PING, "ping"), (w.STATS, "stats"),
                         (w.METRICS, "metrics")):
        yield Case(f"{name} with a body", opcode, b"x", ENDS)
    for body, name in ((b"", "empty"), (bytes(15), "short"),
                       (bytes(17), "long"), (w.attach_body(strict=2), "strict"),
                       (w.attach_body(reserved=1), "reserved")):
        yield Case(f"attach {name}", w.ATTACH, body, ENDS)
    for opcode, name in ((w.EXTENT, "extent"), (w.REVOKED, "revoked")):
        yield Case(f"{name} short", opcode, bytes(23), ENDS)
        yield Case(f"{name} long", opcode, bytes(25), ENDS)
        yield Case(f"{name} more ready than there", opcode,
                   extent_body(0, 1, 1, 2), ENDS)
    for extent in (0, 1, 1000, 2**31, 2**32 - 2, 2**32 - 1):
        for generation in (0, 1, 2, 2**32 - 1):
            yield Case(f"extent {extent}.{generation} of nobody", w.EXTENT,
                       extent_body(extent, generation), w.E_STALE,
                       only="unix")
            yield Case(f"revoked {extent}.{generation} that it never had",
                       w.REVOKED, extent_body(extent, generation), w.OK)
    yield Case("extent by tcp", w.EXTENT, extent_body(0, 1), w.E_UNSUPPORTED,
               only="tcp")
    yield Case("attach by tcp", w.ATTACH, w.attach_body(), w.E_UNSUPPORTED,
               only="tcp")
    yield Case("revoke is for the daemon to say", w.REVOKE, extent_body(0, 1),
               ENDS)
    yield Case("reserve without rings", w.RESERVE, plausible()[w.RESERVE],
               ENDS)
    yield Case("admin by tcp", w.ADMIN, b"pause", w.E_DENIED, only="tcp")
    yield Case("admin verb", w.ADMIN, b"frobnicate", w.E_INVALID, only="unix")
    yield Case("admin verb with a zero in it", w.ADMIN, b"pause\0x", ENDS)
    yield Case("admin nothing", w.ADMIN, b"", ENDS)
    yield Case("admin too much", w.ADMIN, b"a" * 32, ENDS)


@pytest.mark.parametrize("cases", [names_cases, put_cases, ends_cases,
                                   other_cases],
                         ids=lambda cases: cases.__name__)
@both
def test_fields_out_of_range(daemon, transport, cases):
    count = 0
    peer = None
    for case in cases():
        if case.only not in (None, transport):
            continue
        count += 1
        if peer is None:
            peer = daemon.enter(transport)
            assert peer.space("fields", shards=2) == 0
        if case.want == ENDS:
            try:
                peer.start(case.opcode, case.body, case.payload)
            except Ended:
                pass
            assert peer.ended(), case.name
            peer.close()
            peer = None
            continue
        reply = peer.ask(case.opcode, case.body, case.payload)
        if isinstance(case.want, int):
            assert reply.status == case.want, case.name
            assert reply.status >= 0 or case.opcode == w.RELEASE or \
                reply.text, f"{case.name}: no text"
        else:
            assert reply.status == w.OK, case.name
            got = [row.status for row in reply.results]
            assert got == case.want, case.name
    assert count > 15
    other = daemon.enter(transport)
    space = other.space("fields", shards=2)
    assert other.get(space, [K]) == [None], "a refused save is visible"
    daemon.alive()


def test_a_value_that_is_too_large(daemon):
    """Larger than any shard, within what a frame may carry: it is read over,
    and its neighbour is kept."""
    peer = daemon.enter("tcp")
    space = peer.space()
    size = w.VALUE_MAX + 1
    rows = [save_row(key_of("huge"), size),
            save_row(key_of("small"), 3, crc32c(b"abc"))]
    reply = peer.ask(w.PUT, batch_body(space, rows), bytes(size) + b"abc")
    assert [r.status for r in reply.results] == [w.E_SIZE, w.OK]
    assert peer.get(space, [key_of("huge"), key_of("small")]) == [None, b"abc"]


@both
def test_odd_but_allowed(daemon, transport):
    peer = daemon.enter(transport)
    space = peer.space()
    key, value = key_of("k"), value_of("k", 70000)
    assert peer.put_one(space, key, value, ttl_ms=2**32 - 1) == w.OK
    assert peer.put_one(space, key, value) == w.PRESENT
    # No time at all: done or late, but answered.
    reply = peer.put(space, [(key_of("late"), value)], arg=0)
    assert reply.result.status in (w.OK, w.E_DEADLINE)
    # A buffer that is too small gets the length, and nothing else.
    reply = peer.ask(w.GET, batch_body(space, [name_row(key, room=69999)]))
    assert reply.result.status == w.E_SIZE and reply.result.length == 70000
    assert reply.payload == b""
    # The same id twice is the client's own affair.
    for _ in range(2):
        assert peer.ask(w.PING, ident=5).status == w.OK
    # Nobody wants to hear of these.
    peer.start(w.PING, flags=w.SILENT)
    peer.start(w.RELEASE, ends_body([(3, 0, 0)]), flags=w.SILENT)
    last = peer.start(w.PING)
    assert peer.read_frame().id == last


@both
def test_silent_requests_whose_reply_matters(daemon, transport):
    """A lease that nobody was told of would be held for nothing: it is not
    given, or it ends with its session; and no reply is sent."""
    owner = daemon.enter(transport)
    space = owner.space()
    assert owner.put_one(space, K, b"abc") == w.OK

    def ask():
        for opcode in (w.GET, w.LEASE, w.SPACE, w.STATS, w.METRICS, w.FLUSH):
            peer = w.Peer(daemon.address(transport)).enter()
            peer.space()
            peer.start(opcode, plausible()[opcode], flags=w.SILENT)
            try:
                last = peer.start(w.PING)
                assert peer.read_frame().id == last, f"opcode {opcode}"
            except Ended:
                pass
            peer.drop()
        return True

    in_child(ask)
    daemon.nothing_held(sessions=1)


@both
def test_many_in_flight(daemon, transport):
    """Far more requests than a session may have under way: backpressure, and
    every one is answered."""
    peer = daemon.enter(transport)
    space = peer.space()
    body = batch_body(space, [name_row(key_of("none"))])
    wanted = set()
    for i in range(700):
        wanted.add(peer.start(w.REMOVE if i % 2 else w.PING,
                              body if i % 2 else b""))
    for ident in sorted(wanted):
        reply = peer.wait(ident)
        assert reply.status in (w.OK, w.E_BUSY)
    assert peer.ask(w.PING).status == w.OK


# ---- what belongs to others ------------------------------------------------

def test_holds_of_other_sessions(daemon):
    """A number says nothing to a session that it was not given to."""
    def work():
        a = w.Peer(daemon.socket).enter().attach()
        b = w.Peer(daemon.socket).enter().attach()
        space = a.space()
        assert b.space() == space
        value = value_of("mine", 3 * w.PAGE)
        assert a.shm_put(space, K, value) == w.OK
        lease = a.lease(space, K)
        held = a.reserve(space, key_of("reserved"), len(value))
        for peer in (b, w.Peer(daemon.tcp).enter()):
            ask = peer.ring_ask if peer is b else peer.ask
            for row in ((lease.lease, lease.crc, w.PLAIN),
                        (lease.lease, lease.crc, w.CHECKED),
                        (held.lease, 0, w.PLAIN)):
                assert ask(w.RELEASE, ends_body([row])).status == w.E_INVALID
            for how in (w.PLAIN, w.ABORT):
                for number in (held.lease, lease.lease):
                    reply = ask(w.COMMIT, ends_body([(number, 0, how)]))
                    assert reply.result.status == w.E_INVALID
        assert b.shm_get(space, key_of("reserved")) == (None, "absent")
        assert a.read_segs(lease.segs) == value
        a.write_segs(held.segs, value)
        # Kinds are not to be mixed either, and an end is an end.
        assert a.release(held.lease) == w.E_INVALID
        assert a.commit(lease.lease, lease.crc).status == w.E_INVALID
        assert a.commit(held.lease, crc32c(value)).status == w.OK
        assert a.commit(held.lease, crc32c(value)).status == w.E_INVALID
        assert a.release(lease.lease) == w.OK
        assert a.release(lease.lease) == w.E_INVALID
        assert b.shm_get(space, key_of("reserved"))[0] == value
        # An old number does not come to stand for a new lease.
        old = {lease.lease, held.lease}
        fresh = [a.lease(space, K).lease for _ in range(5)]
        assert not old & set(fresh) and len(set(fresh)) == 5
        for number in old:
            assert a.release(number) == w.E_INVALID
        assert [a.release(number) for number in fresh] == [w.OK] * 5
        return True

    assert in_child(work)


def test_session_leases_are_capped(serve):
    daemon = serve(session_leases=50)

    def work():
        peer = w.Peer(daemon.socket).enter().attach()
        space = peer.space()
        assert peer.put_one(space, K, b"abc") == w.OK
        rows = [name_row(K)] * 60
        got = peer.ring_ask(w.LEASE, batch_body(space, rows)).results
        held = [r.lease for r in got if r.status == w.OK]
        assert len(held) == 50
        assert {r.status for r in got[50:]} == {w.PENDING}
        assert peer.lease(space, K).status == w.E_LIMIT
        got = peer.ring_ask(w.RESERVE, batch_body(
            space, [save_row(key_of("x"), 10)])).result
        assert got.status == w.E_LIMIT
        assert daemon.value("larder_leases") == 50
        # Another session has its own.
        other = w.Peer(daemon.socket).enter().attach()
        assert other.shm_get(other.space(), K) == (b"abc", None)
        for lease in held:
            assert peer.release(lease) == w.OK
        assert peer.lease(space, K).status == w.OK
        return True

    assert in_child(work)


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
        return peer.ended(10 if kind not in (1, 2) else 0.3)

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
            assert peer.ended(5), f"opcode {opcode}"
        peer = w.Peer(daemon.socket).enter().attach()
        peer.ring.put(frame(w.PING, epoch=peer.epoch + 1, seal=False))
        assert peer.ended(5), "epoch"
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
        sent, end = 0, time.monotonic() + 20
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
            peer.ring.take(time.monotonic() + 10, peer.sock)
            taken += 1
        assert peer.ring_ask(w.PING).status == w.OK
        return True

    assert in_child(work)


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
    """A private window: what is scribbled there is checked by the daemon as
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


# ---- slow ------------------------------------------------------------------

@both
def test_slow_loris(serve, tmp_path, transport):
    """Who does not come to the point is dropped; others come in meanwhile."""
    daemon = with_token(serve, tmp_path, hello_ms=700)
    hello = frame(w.HELLO, hello_body())
    slow = []
    for i in range(150):
        peer = daemon.connect(transport)
        peer.send(hello[:(0, 1, 39, 40, 41, len(hello) - 1,
                          len(hello))[i % 7]])
        slow.append(peer)
    good = daemon.enter(transport, token=TOKEN)
    space = good.space()
    assert good.put_one(space, K, b"abc") == w.OK
    for peer in slow:
        assert peer.ended(20)
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
    for cut in (0, 1, 65536, size - 1):
        key = key_of(f"stall {cut}")
        head = frame(w.PUT, batch_body(mine, [
            save_row(key, size, crc), save_row(key_of("after"), 3,
                                               crc32c(b"abc"))]),
            payload=size + 3, ident=50 + cut, epoch=peer.epoch, arg=400)
        peer.send(head + value[:cut])
        if cut > 0:
            until(lambda: daemon.value("larder_held_chunks") == 1, 3,
                  "nothing was reserved")
        until(lambda: daemon.value("larder_held_chunks") == 0, 20,
              "its room is not given back")
        peer.send(value[cut:] + b"abc")
        rows = peer.wait(50 + cut).results
        assert [r.status for r in rows] == [w.E_DEADLINE, w.E_DEADLINE]
        assert owner.get(space, [key]) == [None]
    assert peer.put_one(mine, key_of("stall 0"), value) == w.OK
    assert owner.get(space, [key_of("stall 0")]) == [value]


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
    peer = daemon.enter(transport, timeout=1.0)
    mine = peer.space()
    before = daemon.status("RssAnon")
    body = batch_body(mine, [name_row(key_of(n)) for n in values])
    sent = []
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
    peer.sock.settimeout(20)
    for ident in sent[:-1][:200]:
        assert len(peer.wait(ident).payload) == 1000000
    peer.drop()
    until(lambda: daemon.value("larder_held_chunks") == 0)
    assert daemon.value("larder_reply_queue_bytes") == 0


@both
def test_small_replies_that_are_not_read(serve, transport):
    """The same with requests that cost little and whose replies are large."""
    daemon = serve(window="1M")
    peer = daemon.enter(transport, timeout=1.0)
    before = daemon.status("RssAnon")
    sent = []
    try:
        while len(sent) < 100000:
            sent.append(peer.start(w.METRICS))
    except socket.timeout:
        pass
    assert len(sent) < 100000, "the daemon takes every request"
    # As many as may be under way may be finished, one reply each.
    assert daemon.status("RssAnon") - before < 64 << 10
    daemon.alive()
    peer.sock.settimeout(20)
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
        s.settimeout(20)
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


def test_connections_are_limited(serve):
    daemon = serve(sessions=20)
    peers = [daemon.enter(BOTH[i % 2]) for i in range(20)]
    for transport in BOTH:
        extra = daemon.connect(transport)
        try:
            extra.start(w.HELLO, hello_body())
        except Ended:
            pass
        assert extra.ended()
    assert "option sessions" in daemon.log()
    assert all(p.ask(w.PING).status == w.OK for p in peers)
    for peer in peers[:2]:
        peer.close()

    def again():
        try:
            with w.Peer(daemon.socket) as peer:
                return peer.hello().status == w.OK
        except Ended:
            return False

    until(again)
