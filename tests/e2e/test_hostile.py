"""Peers that mean harm, or cannot do better: what they say. Whatever they send,
the daemon lives, serves the others right, and has everything back when they are
gone (which the fixture looks at after every test)."""
import os
import random
import socket
import struct

import pytest

import wireclient as w
from daemon import in_child, until
from hostile import (K, SEED, TOKEN, both, plausible, value_of, with_token)
from wireclient import (Ended, batch_body, crc32c, ends_body, extent_body,
                        frame, hello_body, key_of, match_body, name_row,
                        places_body, stage_body,
                        save_row, space_body)


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
    hello_body(program=b"\x1b[2J"), hello_body(low=3, high=2),
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
@pytest.mark.parametrize("low, high", [(1, 1), (3, 9), (3, 3), (65535, 65535)])
def test_version_refused(daemon, transport, low, high):
    peer = daemon.connect(transport)
    reply = peer.ask(w.HELLO, hello_body(low=low, high=high, program="pro 9"))
    assert reply.status == w.E_VERSION
    assert f"{low} to {high}" in reply.text and "2 to 2" in reply.text
    assert "pro 9" in reply.text, "who must be updated?"
    assert peer.ended()
    assert "protocol versions" in daemon.log()
    assert daemon.value("larder_version_refusals_total") == 1


@both
def test_version_ranges_that_meet(daemon, transport):
    for low, high in ((2, 2), (1, 2), (2, 3), (1, 65535)):
        peer = daemon.connect(transport)
        reply = peer.hello(low=low, high=high, features=2**64 - 1)
        assert reply.status == w.OK and peer.version == 2
        assert peer.features == w.FEATURE_HANDOFF | w.FEATURE_RANGES, \
            "features nobody knows"
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
    until(lambda: "does not speak Larder's protocol" in daemon.log())


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
        for more in (1, 2**32 - 1):
            yield Case(f"{name} {more} more than rows have", opcode,
                       batch_body(0, [row], more=more), ENDS)
            yield Case(f"{name} {more} more than the batch has", opcode,
                       batch_body(0, [name_row(K, more=more)]), ENDS)
        yield Case(f"{name} more that is not there", opcode,
                   batch_body(0, [name_row(K, more=1)], more=1), ENDS)
        yield Case(f"{name} half a row", opcode,
                   batch_body(0, [row])[:-1], ENDS)
        yield Case(f"{name} no head", opcode, bytes(15), ENDS)
        yield Case(f"{name} bad rows spare the others", opcode, batch_body(0, [
            name_row(K, group=64), name_row(K, group=65535),
            name_row(K, shard=2), name_row(K, shard=65535),
            name_row(K)]), [w.E_INVALID] * 4 + [w.MISS])
        yield Case(f"{name} a range beyond the last shard", opcode, batch_body(
            0, [name_row(K, shard=1, more=3), name_row(K, shard=65535, more=1),
                name_row(K)], more=4) + bytes(32),
            [w.MISS] + [w.E_INVALID] * 5 + [w.MISS])
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
    yield put("more than rows have", [good], ENDS, b"abc", more=7)
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
    for shards in (0, 129, 2**32 - 1):
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
        yield Case(f"list with {len(body)} bytes", w.LIST, body, ENDS)
        yield Case(f"stage with {len(body)} bytes", w.STAGE, body, ENDS)
    for cursor in BIG:
        yield Case(f"list from {cursor}", w.LIST, number(cursor), w.OK)
    for tier in (n for n in BIG if n > 2):
        yield Case(f"flush tier {tier}", w.FLUSH, number(tier),
                   w.E_UNSUPPORTED)
    for group in (64, 65535):
        yield Case(f"match group {group}", w.MATCH,
                   match_body(0, [K], group), ENDS)
        yield Case(f"stage group {group}", w.STAGE,
                   stage_body(0, [K], group), ENDS)
    for opcode, body in ((w.MATCH, match_body), (w.STAGE, stage_body)):
        name = {w.MATCH: "match", w.STAGE: "stage"}[opcode]
        yield Case(f"{name} reserved", opcode, body(0, [K], reserved=2), ENDS)
        yield Case(f"{name} flags", opcode, body(0, [K], flags=2), ENDS)
        for count in (0, 2, 2**27 + 1, 2**32 - 1):
            yield Case(f"{name} count {count}", opcode,
                       body(0, [K], count=count), ENDS)
        for groups in (0, 2, 65, 2**32 - 1):
            yield Case(f"{name} of {groups} groups", opcode,
                       body(0, [K], groups=groups), ENDS)
        yield Case(f"{name} head", opcode, body(0, [])[:11], ENDS)
        yield Case(f"{name} of nothing", opcode, body(0, []), w.OK)
        yield Case(f"{name} needs nothing", opcode, body(0, [K], needs=0), w.OK)
    yield Case("stage in no space", w.STAGE, stage_body(9, [K]), w.E_SPACE)
    for name, want in ((b"n1".ljust(64, b"\0"), w.OK), (b"", ENDS),
                       (b"n" * 63, ENDS), (b"n" * 64, ENDS)):
        yield Case(f"stage names a member with {len(name)} bytes", w.STAGE,
                   stage_body(0, [K], mask=w.STAGE_MEMBER, member=name), want)
    for mask in (128, 2**63):
        yield Case(f"stage mask {mask}", w.STAGE,
                   stage_body(0, [K], mask=mask), w.E_UNSUPPORTED)
    token = bytes(range(16))
    for places in ([(0, 0, 0)], [(255, 65535, 2**32 - 1)] * 4096):
        yield Case(f"{len(places)} places of no token", w.LEASE,
                   places_body(0, token, places),
                   [w.E_INVALID if p[0] > 63 else w.MISS for p in places])
    yield Case("places in no space", w.LEASE,
               places_body(9, token, [(0, 0, 0)]), w.E_SPACE)
    for count in (0, 2, 2**32 - 1):
        yield Case(f"{count} places", w.LEASE,
                   places_body(0, token, [(0, 0, 0)], count=count), ENDS)
    yield Case("half a token", w.LEASE,
               places_body(0, token, [])[:24], ENDS)
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
            # The last means "as it is now": then it says that none is there.
            beyond = extent >= 1000 and generation == 2**32 - 1
            yield Case(f"extent {extent}.{generation} of nobody", w.EXTENT,
                       extent_body(extent, generation),
                       w.E_INVALID if beyond else w.E_STALE, only="unix")
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
    yield Case("admin too much", w.ADMIN, b"a" * 96, ENDS)


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
