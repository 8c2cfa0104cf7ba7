"""Batches whose rows name a chunk and a range of its shards: what the daemon
makes of them, and that the library sends them to who knows them."""
import ctypes

import pytest

import capi
import wireclient as w
from capi import GET, PUT, Iovec, Item, Node
from middle import Middle
from wireclient import (batch_body, crc32c, ends_body, key_of, name_row,
                        places_body, save_row, stage_body)

SHARDS = 5
HEAD, SAVE, NAME, MORE = 16, 96, 48, 8


def values(name):
    """Of different lengths, as ranges of layers have."""
    return [f"{name} {i} ".encode() * (500 + 70 * i) for i in range(SHARDS)]


def save_body(space, key, data, first=0):
    sizes = [(len(one), crc32c(one)) for one in data]
    row = save_row(key, *sizes[0], shard=first, more=len(data) - 1)
    return batch_body(space, [row], more=len(data) - 1, sizes=sizes[1:])


def range_body(space, key, first, count, rooms=None):
    rooms = rooms or [w.VALUE_MAX] * count
    row = name_row(key, shard=first, room=rooms[0], more=count - 1)
    return batch_body(space, [row], more=count - 1,
                      sizes=[(room, 0) for room in rooms[1:]])


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_by_socket(serve, transport):
    data, key = values("a"), key_of("a")
    with serve().enter(transport) as peer:
        space = peer.space(shards=SHARDS)
        # The middle first: of the whole range only the others are kept.
        for first, count, want in ((1, 2, [w.OK] * 2),
                                   (0, SHARDS, [w.OK, w.PRESENT, w.PRESENT,
                                                w.OK, w.OK])):
            part = data[first:first + count]
            reply = peer.ask(w.PUT, save_body(space, key, part, first),
                             b"".join(part))
            assert [one.status for one in reply.results] == want
        reply = peer.ask(w.EXISTS, range_body(space, key, 0, SHARDS))
        assert [one.status for one in reply.results] == [w.OK] * SHARDS
        # One of them has too little room.
        rooms = [len(one) for one in data]
        rooms[3] -= 1
        reply = peer.ask(w.GET, range_body(space, key, 0, SHARDS, rooms))
        assert [one.status for one in reply.results] == [
            w.OK, w.OK, w.OK, w.E_SIZE, w.OK]
        assert reply.payload == b"".join(data[:3] + data[4:])
        # A wrong checksum spoils its own shard only.
        sizes = [(len(one), crc32c(one)) for one in data]
        sizes[2] = (sizes[2][0], sizes[2][1] ^ 1)
        row = save_row(key_of("b"), *sizes[0], more=SHARDS - 1)
        reply = peer.ask(w.PUT, batch_body(space, [row], more=SHARDS - 1,
                                           sizes=sizes[1:]), b"".join(data))
        assert [one.status for one in reply.results] == [
            w.OK, w.OK, w.E_CORRUPT, w.OK, w.OK]


@pytest.mark.parametrize("isolation", ["shared", "strict"])
def test_by_ring(serve, isolation):
    data, key = values("a"), key_of("a")
    daemon = serve(isolation=isolation)
    with daemon.enter("unix") as peer:
        peer.attach()
        space = peer.space(shards=SHARDS)
        results = peer.ring_ask(w.RESERVE, save_body(space, key, data)).results
        assert [one.status for one in results] == [w.OK] * SHARDS
        for one, value in zip(results, data):
            peer.write_segs(one.segs, value)
        # All but one, and one twice.
        ends = [(one.lease, crc32c(value), w.ABORT if i == 3 else w.PLAIN)
                for i, (one, value) in enumerate(zip(results, data))]
        reply = peer.ring_ask(w.COMMIT, ends_body(ends + ends[:1]))
        assert [one.status for one in reply.results] == [
            w.OK] * SHARDS + [w.E_INVALID]
        leased = peer.ring_ask(w.LEASE,
                               range_body(space, key, 0, SHARDS)).results
        assert [one.status for one in leased] == [
            w.OK, w.OK, w.OK, w.MISS, w.OK]
        for one, value in zip(leased, data):
            if one.status == w.OK:
                assert peer.read_segs(one.segs) == value
        reply = peer.ring_ask(w.RELEASE, ends_body(
            [(one.lease, 0, w.CHECKED) for one in leased
             if one.status == w.OK]))
        assert reply.status == w.OK
        assert peer.shm_put(space, key, data[3], shard=3) == w.OK
        # Staged, and leased by places: the same.
        lease, token, *_, chunks = w.staged(
            peer.ring_ask(w.STAGE, stage_body(space, [key])))
        assert chunks == 1
        body = places_body(space, token, [(0x100 * (SHARDS - 2), 1, 0)],
                           more=SHARDS - 2)
        leased = peer.ring_ask(w.LEASE, body).results
        assert [peer.read_segs(one.segs) for one in leased] == data[1:]
        ends = [(one.lease, 0, w.PLAIN) for one in leased] + [(lease, 0, 0)]
        assert peer.ring_ask(w.RELEASE, ends_body(ends)).status == w.OK
    assert daemon.value("larder_leases") == 0
    assert daemon.value("larder_reservations") == 0


def test_more_than_the_session_may_hold(serve):
    """Of a range that is cut off nothing stays reserved."""
    data, key = values("a"), key_of("a")
    daemon = serve(session_leases=3)
    with daemon.enter("unix") as peer:
        peer.attach()
        space = peer.space(shards=SHARDS)
        results = peer.ring_ask(w.RESERVE, save_body(space, key, data)).results
        assert [one.status for one in results] == [
            w.OK] * 3 + [w.PENDING] * 2
        ends = []
        for one, value in zip(results[:3], data):
            peer.write_segs(one.segs, value)
            ends.append((one.lease, crc32c(value), w.PLAIN))
        assert peer.ring_ask(w.COMMIT, ends_body(ends)).status == w.OK
        for i in (3, 4):
            assert peer.shm_put(space, key, data[i], shard=i) == w.OK


def test_staged_chunks_are_counted(serve):
    """What a session may hold of what is staged does not depend on how a chunk
    is cut: here each has 1,024 shards, as many as a model's can have."""
    slices, groups, chunks, most = 16, 64, 2, 1
    keys = [key_of(f"chunk {i}") for i in range(chunks)]
    daemon = serve(session_leases=most, dram="192M")
    with daemon.enter("unix") as peer:
        space = peer.space(shards=slices)
        for key in keys:
            for group in range(groups):
                row = save_row(key, 1, crc32c(b"x"), group=group,
                               more=slices - 1)
                reply = peer.ask(w.PUT, batch_body(
                    space, [row], more=slices - 1,
                    sizes=[(1, crc32c(b"x"))] * (slices - 1)), b"x" * slices)
                assert {one.status for one in reply.results} == {w.OK}

        def stage(count, groups):
            return peer.ask(w.STAGE, stage_body(space, keys[:count], None,
                                                groups=groups))

        assert stage(chunks, groups).status == w.E_LIMIT
        lease, *_, found = w.staged(stage(most, groups))
        assert found == most
        assert stage(1, groups).status == w.E_LIMIT
        ends = [(lease, 0, w.PLAIN)]
        assert peer.ask(w.RELEASE, ends_body(ends)).status == w.OK
        # A prefix of one group is of use as far as it goes.
        *_, found = w.staged(stage(chunks, 1))
        assert found == most


def shards_of(node, op, data):
    """Puts or gets all shards of a chunk in one call; gives what came."""
    key = capi.key_of("chunk")
    items = (Item * len(data))()
    buffers = [ctypes.create_string_buffer(one, len(one)) for one in data]
    iov = [Iovec(ctypes.addressof(one), len(one)) for one in buffers]
    for i, item in enumerate(items):
        item.key, item.shard = ctypes.pointer(key), i
        item.iov, item.iov_count = ctypes.pointer(iov[i]), 1
    assert node._run(op, items, 0) == w.OK
    assert [item.status for item in items] == [w.OK] * len(data)
    return [one.raw for one in buffers]


@pytest.mark.parametrize("knows", [True, False])
def test_library(serve, tmp_path, knows):
    """One row for a chunk, where the daemon knows that; else one for each."""
    data = values("a")
    with Middle(serve(), "tcp", tmp_path,
                welcome=lambda version, has:
                (version, has if knows else has & ~w.FEATURE_RANGES)
                ) as middle:
        with Node(middle.url, shards=SHARDS) as node:
            shards_of(node, PUT, data)
            assert shards_of(node, GET,
                             [bytes(len(one)) for one in data]) == data
        more = (SHARDS - 1) * MORE
        assert middle.sent(w.PUT) == [HEAD + SAVE + more if knows
                                      else HEAD + SHARDS * SAVE]
        assert middle.sent(w.GET) == [HEAD + NAME + more if knows
                                      else HEAD + SHARDS * NAME]
