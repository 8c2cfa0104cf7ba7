"""Leases and reservations that are ended twice, as a client does that does not
know whether its commit was heard: the second time ends nothing, above all not
what has its place in the session's table by now."""
import pytest

import wireclient as w
from wireclient import crc32c, key_of

SIZE = 100000


@pytest.fixture(params=("shared", "strict"))
def peer(serve, request):
    daemon = serve(isolation=request.param)
    with daemon.enter("unix") as one:
        one.attach()
        one.daemon = daemon
        yield one


def value_of(name):
    return (name.encode() * SIZE)[:SIZE]


def test_reservation(peer):
    space = peer.space()
    one = peer.reserve(space, key_of("one"), SIZE)
    assert one.status == w.OK
    peer.write_segs(one.segs, value_of("one"))
    assert peer.commit(one.lease, crc32c(value_of("one"))).status == w.OK
    two = peer.reserve(space, key_of("two"), SIZE)
    assert two.status == w.OK and two.lease != one.lease
    for how in (w.PLAIN, w.ABORT):
        assert peer.commit(one.lease, 0, how).status == w.E_INVALID
        assert peer.release(one.lease) == w.E_INVALID
    # Nobody has seen it, and it is still the one who reserved it who has it.
    assert peer.shm_get(space, key_of("two")) == (None, "absent")
    peer.write_segs(two.segs, value_of("two"))
    assert peer.commit(two.lease, crc32c(value_of("two"))).status == w.OK
    for name in ("one", "two"):
        assert peer.shm_get(space, key_of(name)) == (value_of(name), None)


def test_reservation_given_back(peer):
    space = peer.space()
    one = peer.reserve(space, key_of("one"), SIZE)
    assert peer.commit(one.lease, 0, w.ABORT).status == w.OK
    two = peer.reserve(space, key_of("two"), SIZE)
    assert two.lease != one.lease
    assert peer.commit(one.lease, 0, w.ABORT).status == w.E_INVALID
    peer.write_segs(two.segs, value_of("two"))
    assert peer.commit(two.lease, crc32c(value_of("two"))).status == w.OK
    assert peer.shm_get(space, key_of("one")) == (None, "absent")
    assert peer.shm_get(space, key_of("two")) == (value_of("two"), None)


def test_lease(peer):
    space = peer.space()
    for name in ("one", "two"):
        assert peer.shm_put(space, key_of(name), value_of(name)) == w.OK
    one = peer.lease(space, key_of("one"))
    assert peer.release(one.lease) == w.OK
    two = peer.lease(space, key_of("two"))
    assert two.lease != one.lease
    assert peer.release(one.lease) == w.E_INVALID
    assert peer.commit(one.lease, 0).status == w.E_INVALID
    assert peer.daemon.value("larder_leases") == 1
    assert peer.read_segs(two.segs) == value_of("two")
    assert peer.release(two.lease) == w.OK
    assert peer.daemon.value("larder_leases") == 0


def test_one_for_the_other(peer):
    """A lease is no reservation, and the other way round."""
    space = peer.space()
    assert peer.shm_put(space, key_of("one"), value_of("one")) == w.OK
    lease = peer.lease(space, key_of("one"))
    room = peer.reserve(space, key_of("two"), SIZE)
    assert peer.commit(lease.lease, 0).status == w.E_INVALID
    assert peer.release(room.lease) == w.E_INVALID
    assert peer.release(lease.lease) == w.OK
    assert peer.commit(room.lease, 0, w.ABORT).status == w.OK
