"""Hand-offs between two real daemons that are members of one cluster: a prefill
engine at the first, a decode engine at the second."""
import contextlib
import os
import random
import signal
import threading
import time
from array import array

import pytest

from daemon import Daemon, free_port, secret_file, until
from larder_kv import _lib
from larder_kv.engine import handoff
from test_handoff import CHUNKS, DENSE, SOON, Stage
from test_stage import BLOCK, CHUNK, LAYERS, MS, PAGE, Rank


@pytest.fixture
def members(tmp_path):
    ports = [free_port(), free_port()]
    made = [Daemon(os.environ["LARDER_PROGRAM"], tmp_path / name,
                   member_name=name, cluster_ramp_s=0, peer_save="never",
                   cluster="static:" + ",".join(
                       f"{n}=127.0.0.1:{p}" for n, p in zip("ab", ports)),
                   cluster_secret=secret_file(tmp_path / "secret"))
            for name in "ab"]
    with contextlib.ExitStack() as stack:
        for one in made:
            stack.callback(one.end)
            one.start()
        for one in made:
            until(lambda one=one: one.value("larder_peer_well") == 1)
        yield made


class Side:
    """An engine's handles at one daemon."""

    def __init__(self, daemon, chunks=CHUNKS):
        self.rank = Rank(daemon.url(), DENSE, chunks, 1, 0)
        self.node = _lib.Node(daemon.url())
        self.space = self.node.space(b"a model", 1, CHUNK)
        self.rules = _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, BLOCK, 0)])
        self.keys = _lib.Keys()
        self.space.chain(array("I", random.Random(1).choices(
            range(2048), k=chunks * CHUNK)), self.keys)

    def close(self):
        for one in (self.rank, self.space, self.rules, self.node):
            one.close()


@pytest.fixture
def sides(members):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Side(one)))
               for one in members]


class Take(Stage):
    """A stage at the decode side's node, that waits."""

    def __init__(self, side, ms=MS, member=b"a", chunks=CHUNKS):
        self.worth = _lib.StageParams(promised=True, member=member)
        self.side, self.chunks, self.ms = side, chunks, ms
        super().__init__(side.space, side.rules, side.keys, chunks, ms)

    def run(self):
        began = time.monotonic()
        self.lease, self.match = self.side.space.stage(
            self.side.rules, self.side.keys.data(0, self.chunks), self.chunks,
            self.ms, self.worth)
        self.took = time.monotonic() - began


def kv_of(side):
    """All but the block of each layer that stands for none."""
    data = side.rank.map[:]
    size = len(data) // LAYERS
    return [data[i * size + PAGE:(i + 1) * size] for i in range(LAYERS)]


def promise(side):
    token = os.urandom(16)
    assert side.space.promise(side.rules, side.keys.data(0, CHUNKS), CHUNKS,
                              token, MS) == "a"
    return token


def test_waits_for_another_member(members, sides):
    """All of it arrives, bit by bit, although the decode side asked first."""
    first, second = sides
    token = promise(first)
    stage = Take(second)
    first.rank.fill(1)
    first.rank.save(first.keys, CHUNKS - 1)
    first.rank.settle(first.keys)
    stage.join(timeout=1.5)  # longer than it takes to ask again
    assert stage.is_alive()
    first.rank.save(first.keys, CHUNKS)
    first.rank.settle(first.keys)
    stage.join(timeout=SOON)
    assert stage.match.chunks == CHUNKS
    second.rank.fill(2)
    status, _ = second.rank.load(second.keys, CHUNKS, stage.lease.token)
    assert status == _lib.OK and kv_of(second) == kv_of(first)
    stage.lease.release()
    # The decode side ends the lease at the other node.
    held = members[0].value("larder_handoff_held_bytes")
    assert held > 0
    assert second.space.handoff(token, _lib.HANDOFF_OVER, MS, "a")
    until(lambda: members[0].value("larder_handoff_held_bytes") == 0)
    assert not first.space.handoff(token, _lib.HANDOFF_RENEW, MS)


def test_who_is_no_member(sides):
    """Nothing is asked of a name that is no member's."""
    first, second = sides
    token = promise(first)
    with pytest.raises(_lib.LarderError) as caught:
        second.space.handoff(token, _lib.HANDOFF_RENEW, MS, "c")
    assert caught.value.status == _lib.E_INVALID
    assert "'c' is no member" in str(caught.value)
    stage = Take(second, member=b"c")
    assert stage.ended() == 0 and stage.took < SOON
    assert second.space.handoff(token, _lib.HANDOFF_RENEW, MS, "a")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_node_is_gone(members, sides, how):
    """kill -9 of the prefill side's node, and one that does not answer: the
    decode side has what is there, long before its deadline."""
    first, second = sides
    promise(first)
    first.rank.fill(1)
    first.rank.save(first.keys, 2)
    first.rank.settle(first.keys)
    stage = Take(second, ms=60000)
    stage.join(timeout=0.5)
    assert stage.is_alive()
    members[0].signal(how)
    stage.join(timeout=2 * SOON)
    assert not stage.is_alive() and stage.match.chunks == 0
    if how == signal.SIGSTOP:
        members[0].signal(signal.SIGCONT)
    else:
        members[0].clean = False


def test_early_in_pieces(members):
    """The decode side is asked at once: chunks travel while others are being
    computed, so that at the end of prefill only the last step's are left."""
    chunks = 5 * handoff.PIECE
    with (contextlib.closing(Side(members[0], chunks)) as first,
          contextlib.closing(Side(members[1], chunks)) as second):
        keys = first.keys
        first.space.promise(first.rules, keys.data(0, chunks), chunks,
                            os.urandom(16), MS)
        hand = handoff.Handoff(keys.data(0, chunks), b"", chunks * CHUNK,
                               member="a")
        hand.early = hand.in_pieces = True
        taken = handoff.Taken(hand)
        found = []
        thread = threading.Thread(target=lambda: found.append(taken.stage(
            second.space, second.rules, None, lambda: MS, lambda: False)))
        thread.start()
        first.rank.fill(1)

        def fetched():
            return members[1].value("larder_peer_shards_total",
                                    event="fetched")
        for end in range(handoff.PIECE, chunks, handoff.PIECE):
            first.rank.save(keys, end)
            first.rank.settle(keys)
            until(lambda end=end: fetched() == end)
            assert thread.is_alive()
        before = fetched()
        first.rank.save(keys, chunks)
        first.rank.settle(keys)
        thread.join(timeout=SOON)
        [(lease, match)] = found
        assert taken.whole and match.chunks == chunks
        assert fetched() - before == handoff.PIECE  # the last step's
        second.rank.fill(2)
        status, _ = second.rank.load(keys, chunks, lease.token)
        assert status == _lib.OK and kv_of(second) == kv_of(first)
        lease.release()
