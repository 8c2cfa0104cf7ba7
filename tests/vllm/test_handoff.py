"""Hand-offs between two real engines on one node (docs/guide/handoff.md): what
the decode engine answers is what its own hit of the same KV gives, bit by bit,
and it computes the last token only."""
import os
import signal
import time

import pytest

import rig
from daemon import until

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


def test_memory_comes_back(pair, figure):
    """Nobody takes it: the node holds it for 30 s. Who comes later has what is
    still there, and so has a plain request after that."""
    ids = rig.prompt("comes back", 3 * CHUNK + 1)
    own = pair.own(ids)
    until(lambda: pair.node.value("larder_handoff_held_bytes") == 0, 60)
    params = pair.hand_over(ids)
    began, held = time.monotonic(), pair.node.value("larder_handoff_held_bytes")
    assert held > 0
    until(lambda: pair.node.value("larder_handoff_held_bytes") == 0, 60)
    figure(f"hand-off that nobody takes: {held / 2**20:.1f} MiB are free "
           f"{time.monotonic() - began:.1f} s after its answer")
    rig.check_same(pair.take(ids, params), own)
    rig.fresh(pair.decode)
    with rig.Counted(pair.decode) as counted:
        answer = pair.decode.ask_one(ids)
    assert counted.external == 3 * CHUNK
    assert answer["tokens"] == own["tokens"]


def test_several_answers(pair):
    """n > 1: vLLM makes as many requests of it, on either side, each with the
    parameters of all."""
    ids = rig.prompt("several", 5 * BLOCK + 1)
    several = {"n": 2, "temperature": 1.0, "top_k": 1}  # greedy has no n
    own = pair.own(ids)
    answer = pair.prefill.ask_one(ids, max_tokens=1, sampling=several,
                                  kv_transfer_params=dict(PREFILL))
    params = answer["kv_transfer_params"]
    assert params["do_remote_prefill"]
    rig.fresh(pair.decode)
    with rig.Counted(pair.decode) as counted:
        taken = pair.decode.ask_one(ids, sampling=several,
                                    kv_transfer_params=params)
    assert counted.external >= len(ids)
    assert counted.external + counted.local >= 2 * 5 * BLOCK
    assert taken["tokens"] == own["tokens"]


def test_preempted_prefill(version, pair):
    """The prefill side has eleven blocks. Another request takes its fourth
    while the prompt, which needs eight, is being computed: all of it is handed
    off in the end."""
    first, ids = (rig.prompt(f"preempted {n}", n)
                  for n in (3 * BLOCK - 4, 7 * BLOCK + 1))
    own = pair.own(ids)
    with rig.engine(version, "dense", pair.node.url(), max_num_seqs=2,
                    max_num_batched_tokens=BLOCK, num_gpu_blocks_override=12,
                    max_model_len=10 * BLOCK) as prefill:
        [other] = prefill.add([first], max_tokens=60)
        prefill.run(until="first")
        [name] = prefill.add([ids], max_tokens=1,
                             kv_transfer_params=dict(PREFILL))
        ended = prefill.run()
        counters = prefill.counters()
        assert ended[other]["error"] is None and ended[name]["error"] is None
    assert counters["vllm:num_preemptions"] > 0
    params = ended[name]["kv_transfer_params"]
    assert params["do_remote_prefill"]
    taken = pair.take(ids, params)
    assert taken["tokens"] == own["tokens"]


def test_adapters(version, pair):
    """Requests of one adapter, so rarely that its files are looked at for
    each."""
    lora = {"name": "a", "id": 1, "path": f"{rig.model(version, 'dense')}/"
            "lora-a"}
    settings = dict(enable_lora=True, max_loras=1, max_lora_rank=8)
    with (rig.engine(version, "dense", pair.node.url(), **settings) as prefill,
          rig.engine(version, "dense", pair.node.url(), **settings) as decode):
        for i in range(3):
            ids = rig.prompt(f"adapters {i}", 3 * BLOCK + 1)
            params = prefill.ask_one(
                ids, max_tokens=1, lora=lora,
                kv_transfer_params=dict(PREFILL))["kv_transfer_params"]
            assert params["do_remote_prefill"]
            time.sleep(1.1)
            rig.fresh(decode)
            with rig.Counted(decode) as counted:
                decode.ask_one(ids, lora=lora, kv_transfer_params=params)
            assert counted.external == len(ids)
            time.sleep(1.1)


def test_prefill_is_killed_after_its_answer(pair):
    """The node has its KV: the decode engine computes nothing. (Last: the
    engine is gone.)"""
    ids = rig.prompt("killed", 9 * BLOCK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    os.kill(pair.prefill.pid, signal.SIGKILL)
    rig.check_same(pair.take(ids, params), own)
