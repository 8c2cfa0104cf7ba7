"""Hand-offs between two real engines on one node (docs/guide/handoff.md): what
the decode engine answers is what its own hit of the same KV gives, bit by bit,
and it computes the last token only."""
import os
import signal
import time

import pytest

import rig

BLOCK, CHUNK = 128, 256
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False,
           "remote_engine_id": None, "remote_block_ids": None,
           "remote_host": None, "remote_port": None}
# Of a block and one token more the engine's own cache has all but the last
# token too: then both compute the same, and the answers must be equal.
LENGTHS = (BLOCK + 1, 3 * BLOCK + 1, 2 * CHUNK, 16 * BLOCK + 1)
NOTHING = {"larder": {"skip_load": True, "skip_save": True}}


class Pair:
    """A prefill and a decode engine."""

    less = 0  # tokens that are not claimed: 1 where not all groups see all

    def __init__(self, prefill, decode, node):
        self.prefill, self.decode, self.node = prefill, decode, node

    def hand_over(self, ids):
        """The prefill side's answer, for the decode side, as a proxy copies
        it."""
        answer = self.prefill.ask_one(ids, max_tokens=1,
                                      kv_transfer_params=dict(PREFILL))
        params = answer["kv_transfer_params"]
        assert params["do_remote_prefill"] and len(str(params)) < 700
        return params

    def own(self, ids):
        """The decode engine's own hit; and what it is without any cache."""
        rig.fresh(self.decode)
        cold = self.decode.ask_one(ids, kv_transfer_params=NOTHING)
        assert cold["cached"] == 0
        own = self.decode.ask_one(ids, kv_transfer_params=NOTHING)
        assert own["cached"] == rig.whole(len(ids) - 1, BLOCK)
        return own

    def take(self, ids, params):
        """From nothing but the hand-off: all of it is loaded."""
        rig.fresh(self.decode)
        with rig.Counted(self.decode) as counted:
            answer = self.decode.ask_one(ids, kv_transfer_params=params)
        lines = self.decode.larder_lines()
        wanted = 0, len(ids) - self.less
        assert (counted.local, counted.external) == wanted, lines
        return answer


@pytest.fixture(scope="module")
def pair(version, tmp_path_factory):
    with (rig.node(tmp_path_factory.mktemp("node")) as node,
          rig.engine(version, "dense", node.url()) as prefill,
          rig.engine(version, "dense", node.url()) as decode):
        yield Pair(prefill, decode, node)


@pytest.mark.core
def test_decode_computes_the_last_token_only(pair):
    for length in LENGTHS:
        ids = rig.prompt(f"handed {length}", length)
        own = pair.own(ids)
        taken = pair.take(ids, pair.hand_over(ids))
        rig.check_same(taken, own)


@pytest.mark.parametrize("length", (40, 300, 2000))
def test_any_length(pair, length):
    """Here the own hit leaves more to compute, in other pieces: the tokens are
    the same."""
    ids = rig.prompt(f"any {length}", length)
    own = pair.own(ids)
    taken = pair.take(ids, pair.hand_over(ids))
    assert taken["tokens"] == own["tokens"]


def test_a_changed_tail_is_seen(pair):
    """The test of the test: one byte of the tail."""
    ids = rig.prompt("changed", BLOCK + 1)
    own = pair.own(ids)
    params = pair.hand_over(ids)
    about = pair.prefill.ask("inside", "space")
    about = dict(about, descriptor=about["descriptor"] + "\0tail",
                 chunk_tokens=BLOCK, chunk_bytes=0)
    with rig.Store(pair.node.url(), about) as store:
        data = bytearray(store.get(ids, 0))
        data[1] ^= 0x40
        store.put(ids, 0, bytes(data))
    assert not rig.same(pair.take(ids, params), own)


def test_again_and_twice(pair):
    """The token can be used again; what the decode engine has by now does not
    travel."""
    ids = rig.prompt("twice", 5 * BLOCK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    first = pair.take(ids, params)
    rig.check_same(first, own)
    rig.check_same(pair.take(ids, params), own)
    with rig.Counted(pair.decode) as counted:
        again = pair.decode.ask_one(ids, kv_transfer_params=params)
    assert counted.local == 5 * BLOCK and counted.external <= BLOCK
    rig.check_same(again, own)


def test_altered(pair):
    """It is a plain request then: the store has its chunks."""
    ids = rig.prompt("altered", 3 * CHUNK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    params["larder"]["handoff"]["tokens"] -= 1
    rig.fresh(pair.decode)
    with rig.Counted(pair.decode) as counted:
        answer = pair.decode.ask_one(ids, kv_transfer_params=params)
    assert counted.external == 3 * CHUNK
    rig.check_same(answer, own)


def test_late(pair):
    """The lease has run out, and the prefill engine was told to drop all: it is
    computed again, with the same tokens."""
    ids = rig.prompt("late", 3 * BLOCK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    time.sleep(31)
    for engine in (pair.prefill, pair.decode):
        rig.fresh(engine)
    assert pair.prefill.reset_prefix_cache(reset_connector=True)
    with rig.Counted(pair.decode) as counted:
        answer = pair.decode.ask_one(ids, kv_transfer_params=params)
    assert counted.external == 0
    rig.check_same(answer, own)


def test_prefill_is_killed_after_its_answer(pair):
    """The node has its KV: the decode engine computes nothing. (Last: the
    engine is gone.)"""
    ids = rig.prompt("killed", 9 * BLOCK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    os.kill(pair.prefill.pid, signal.SIGKILL)
    rig.check_same(pair.take(ids, params), own)
