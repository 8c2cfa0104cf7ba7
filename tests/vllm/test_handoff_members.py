"""Hand-offs between two real engines on two nodes, which are members of one
cluster (docs/guide/handoff.md). Each engine knows its own node only."""
import contextlib
import os
import signal
import threading
import time

import pytest

import rig
from daemon import free_port, secret_file, until
from larder_kv.engine import handoff
from test_handoff import BLOCK, CHUNK, LENGTHS, PREFILL, Pair


@contextlib.contextmanager
def members(folder, **options):
    ports = {"p": free_port(), "d": free_port()}
    given = dict(cluster="static:" + ",".join(
        f"{name}=127.0.0.1:{port}" for name, port in ports.items()),
        cluster_secret=secret_file(folder / "secret"), cluster_ramp_s=0,
        peer_save="never", peer_match_ms=2000, **options)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(rig.node(
            folder / name, member_name=name, clean=False, **given))
            for name in ports]
        for one in nodes:
            until(lambda one=one: one.value("larder_peer_well") == 1)
        yield nodes


class Apart(Pair):
    """A prefill and a decode engine, each at a node of its own."""

    def __init__(self, prefill, decode, nodes):
        super().__init__(prefill, decode, nodes[1])
        self.nodes = nodes


@pytest.fixture(scope="module")
def pair(version, tmp_path_factory):
    with (members(tmp_path_factory.mktemp("members")) as nodes,
          rig.engine(version, "dense", nodes[0].url()) as prefill,
          rig.engine(version, "dense", nodes[1].url()) as decode):
        yield Apart(prefill, decode, nodes)


def test_another_node(pair):
    """All but the last token comes from the other node, and its lease ends."""
    for length in LENGTHS:
        ids = rig.prompt(f"apart {length}", length)
        own = pair.own(ids)
        params = pair.hand_over(ids)
        assert params["larder"]["handoff"]["member"] == "p"
        before = pair.node.value("larder_peer_bytes_total",
                                 direction="fetch")
        rig.check_same(pair.take(ids, params), own)
        assert pair.node.value("larder_peer_bytes_total",
                               direction="fetch") > before
        until(lambda: pair.nodes[0].value("larder_handoff_held_bytes") == 0)


def test_at_once(pair):
    """The decode side is asked before the prefill side has begun, and told
    only which member that is."""
    ids = rig.prompt("at once", 12 * CHUNK + BLOCK + 1)
    own = pair.own(ids)
    rig.fresh(pair.decode)
    rig.fresh(pair.prefill)
    answers = []
    early = {"do_remote_prefill": True, "do_remote_decode": False,
             "larder": {"member": "p"}}
    with rig.Counted(pair.decode) as counted:
        thread = threading.Thread(target=lambda: answers.append(
            pair.decode.ask_one(ids, kv_transfer_params=early)))
        thread.start()
        pair.prefill.ask_one(ids, max_tokens=1,
                             kv_transfer_params=dict(PREFILL))
        thread.join()
    assert (counted.local, counted.external) == (0, len(ids))
    rig.check_same(answers[0], own)


def test_no_member(pair):
    """A name that is no member's, under a right seal: the request is a plain
    one."""
    ids = rig.prompt("nobody", 3 * BLOCK + 1)
    own = pair.own(ids)
    params = pair.hand_over(ids)
    given = params["larder"]["handoff"]
    about = pair.prefill.ask("inside", "space")
    fields = {k: v for k, v in given.items() if k != "seal"}
    fields["member"] = "x"
    with rig.Store(pair.node.url(), about) as store:
        seal = store.seal(handoff._sealed(fields)).hex()
    params["larder"]["handoff"] = dict(fields, seal=seal)
    rig.fresh(pair.decode)
    rig.check_same(pair.decode.ask_one(ids, kv_transfer_params=params), own)
    assert any("without its hand-off: member" in line
               for line in pair.decode.larder_lines())


def test_the_nodes_are_apart(pair):
    """The prefill side's node does not answer: the decode side computes, long
    before its deadline, and goes on as before afterwards."""
    ids = rig.prompt("partition", 5 * BLOCK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    rig.fresh(pair.decode)
    pair.nodes[0].signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with rig.Counted(pair.decode) as counted:
            answer = pair.decode.ask_one(ids, kv_transfer_params=params)
        assert counted.external == 0
        assert time.monotonic() - began < 30
        rig.check_same(answer, own)
    finally:
        pair.nodes[0].signal(signal.SIGCONT)


def test_the_prefill_engine_is_killed(pair):
    """After its answer: its node has the KV. (Last: the engine is gone.)"""
    until(lambda: pair.node.value("larder_peer_well") == 1)
    ids = rig.prompt("killed apart", 9 * BLOCK + 1)
    own, params = pair.own(ids), pair.hand_over(ids)
    os.kill(pair.prefill.pid, signal.SIGKILL)
    rig.check_same(pair.take(ids, params), own)
