"""Hand-offs through a daemon: promises, and stages that wait for them."""
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from array import array

import pytest

from daemon import Daemon, until
from larder_kv import _lib
from larder_kv.engine import handoff, kv
from test_stage import CHUNK, GROUPS, MS, engine  # noqa: F401, a fixture

CHUNKS = 6
ENV = dict(os.environ, PYTHONPATH=str(
    pathlib.Path(__file__).resolve().parents[2] / "python"))
DENSE = GROUPS["dense"]
WAIT = _lib.StageParams(promised=True)
SOON = 10  # seconds: a wait that ends at once ends sooner, however slow it is

PROMISER = """
import sys, time
from array import array
from larder_kv import _lib
_lib.library()
url, keys, count, token = sys.argv[1:]
node = _lib.Node(url)
space = node.space(b"a model", 1, %d)
rules = _lib.Layout(%d, [_lib.Group(_lib.RULE_ALL, 4, 0)])
space.promise(rules, bytes.fromhex(keys), int(count), bytes.fromhex(token),
              20000)
print("promised", flush=True)
time.sleep(600)
""" % (CHUNK, CHUNK)

STAGER = PROMISER.replace("space.promise(", '''print("stages", flush=True)
space.stage(''').replace("bytes.fromhex(token),\n              20000",
                        "600000, _lib.StageParams(promised=True)")


class Stage(threading.Thread):
    """A stage that waits, in a thread."""

    def __init__(self, space, rules, keys, chunks, ms=MS):
        super().__init__(daemon=True)
        self.call = lambda: space.stage(rules, keys.data(0, chunks), chunks,
                                        ms, WAIT)
        self.took = 0.0
        self.start()

    def run(self):
        began = time.monotonic()
        self.lease, self.match = self.call()
        self.took = time.monotonic() - began

    def ended(self):
        self.join(timeout=MS / 1000)
        assert not self.is_alive()
        if self.lease is not None:
            self.lease.release()
        return self.match.chunks


@contextlib.contextmanager
def prefill_engine(daemon, keys, token):
    """A process that has promised the chain."""
    made = subprocess.Popen(
        [sys.executable, "-c", PROMISER, daemon.url("unix"),
         keys.data(0, CHUNKS).hex(), str(CHUNKS), token.hex()],
        stdout=subprocess.PIPE, text=True, env=ENV)
    try:
        assert made.stdout.readline() == "promised\n"
        yield made
    finally:
        made.kill()
        made.wait()
        made.stdout.close()


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_waits(engine, transport):
    """A stage that comes before the saves has all of it."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1, transport)
    token = os.urandom(16)
    space.promise(rules, keys.data(0, CHUNKS), CHUNKS, token, MS)
    stage = Stage(space, rules, keys, CHUNKS)
    rank.fill(1)
    rank.save(keys, CHUNKS - 1)
    rank.settle(keys)
    stage.join(timeout=0.3)
    assert stage.is_alive()
    rank.save(keys, CHUNKS)
    rank.settle(keys)
    assert stage.ended() == CHUNKS
    assert space.handoff(token, _lib.HANDOFF_OVER, MS)
    assert not space.handoff(token, _lib.HANDOFF_RENEW, MS)


def test_nothing_promised(engine):
    """It does not wait for what nobody has promised, nor for what is there."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1)
    assert Stage(space, rules, keys, CHUNKS).ended() == 0
    rank.fill(1)
    rank.save(keys, 2)
    rank.settle(keys)
    space.promise(rules, keys.data(0, 2), 2, os.urandom(16), MS)
    stage = Stage(space, rules, keys, CHUNKS)
    assert stage.ended() == 2 and stage.took < SOON


def test_deadline(engine):
    """It waits so long and no longer, and has what is there by then."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1)
    rank.fill(1)
    rank.save(keys, 2)
    rank.settle(keys)
    space.promise(rules, keys.data(0, CHUNKS), CHUNKS, os.urandom(16), MS)
    for ms in (300, 3000, 9000):  # a busy daemon may answer too late
        stage = Stage(space, rules, keys, CHUNKS, ms)
        found = stage.ended()
        assert 1000 * stage.took < ms + 1000 * SOON
        if found == 2:
            break
        time.sleep(1)  # the breaker may be open after a late answer
    assert found == 2 and 1000 * stage.took > 0.8 * ms


def test_failed(engine):
    """The prefill engine says that no more will come."""
    _, space, rules, keys = engine(DENSE, CHUNKS, 1)
    token = os.urandom(16)
    space.promise(rules, keys.data(0, CHUNKS), CHUNKS, token, MS)
    stage = Stage(space, rules, keys, CHUNKS)
    stage.join(timeout=0.2)
    assert stage.is_alive()
    assert space.handoff(token, _lib.HANDOFF_FAILED, MS)
    assert stage.ended() == 0 and stage.took < SOON


@pytest.mark.parametrize("answered", [False, True])
def test_killed(daemon, engine, answered):
    """kill -9 of the prefill engine: nobody waits for what it promised. What
    came stays held if it has answered."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1)
    token = os.urandom(16)
    with prefill_engine(daemon, keys, token) as prefill:
        rank.fill(1)
        rank.save(keys, 2)
        rank.settle(keys)
        stage = Stage(space, rules, keys, CHUNKS)
        stage.join(timeout=0.2)
        assert stage.is_alive()
        if answered:
            assert space.handoff(token, _lib.HANDOFF_ANSWERED, MS)
        prefill.send_signal(signal.SIGKILL)
        assert stage.ended() == 2 and stage.took < SOON
        held = space.handoff(token, _lib.HANDOFF_RENEW, MS)
        assert held == answered
        assert space.handoff(token, _lib.HANDOFF_OVER, MS) == answered


def test_restarted(daemon, engine):
    """The prefill engine was killed, and the one in its place promises the
    same: who comes waits for that one, and nobody for the first."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1)
    old, new = os.urandom(16), os.urandom(16)
    rank.fill(1)
    with prefill_engine(daemon, keys, old) as prefill:
        prefill.send_signal(signal.SIGKILL)
        prefill.wait()
        until(lambda: not space.handoff(old, _lib.HANDOFF_RENEW, MS))
    stage = Stage(space, rules, keys, CHUNKS)
    assert stage.ended() == 0 and stage.took < SOON
    with prefill_engine(daemon, keys, new):
        stage = Stage(space, rules, keys, CHUNKS)
        stage.join(timeout=0.2)
        assert stage.is_alive()
        rank.save(keys, CHUNKS)
        rank.settle(keys)
        assert stage.ended() == CHUNKS
        assert not space.handoff(old, _lib.HANDOFF_OVER, MS)
        assert space.handoff(new, _lib.HANDOFF_OVER, MS)
    until(lambda: daemon.value("larder_handoff_held_bytes") == 0)
    assert daemon.value("larder_handoffs_total", outcome="late") > 0


def test_another_tenant(tmp_path):
    """A token is worth nothing to another tenant, who waits for nothing that
    it has not promised itself, and ends nobody's lease."""
    with contextlib.ExitStack() as stack:
        daemon = Daemon(os.environ["LARDER_PROGRAM"], tmp_path,
                        config="[tenant a]\nuids = any\n")
        stack.callback(daemon.end)
        daemon.start()
        rules = _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, 4, 0)])
        stack.callback(rules.close)
        spaces, token = [], os.urandom(16)
        for name in ("", "a"):
            node = _lib.Node(daemon.url(**({"tenant": name} if name else {})))
            spaces.append(node.space(b"a model", 1, CHUNK, tenant=name,
                                     secret=b"s" * 32 if name else b""))
            stack.callback(node.close)
            stack.callback(spaces[-1].close)
        ours, theirs = spaces
        keys, same = _lib.Keys(), _lib.Keys()
        for space, made in ((ours, keys), (theirs, same)):
            space.chain(array("I", range(CHUNKS * CHUNK)), made)
        ours.promise(rules, keys.data(0, CHUNKS), CHUNKS, token, MS)
        for what in (_lib.HANDOFF_RENEW, _lib.HANDOFF_FAILED,
                     _lib.HANDOFF_OVER):
            assert not theirs.handoff(token, what, MS)
        for chain in (keys, same):
            stage = Stage(theirs, rules, chain, CHUNKS)
            assert stage.ended() == 0 and stage.took < SOON
        stage = Stage(ours, rules, keys, CHUNKS)
        stage.join(timeout=0.2)
        assert stage.is_alive()
        assert ours.handoff(token, _lib.HANDOFF_FAILED, MS)
        assert stage.ended() == 0
        assert ours.handoff(token, _lib.HANDOFF_OVER, MS)


def test_the_node_is_killed(daemon, engine):
    """While the decode side waits: that ends at once, and a node in its place
    knows of no promise."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1)
    token = os.urandom(16)
    rank.fill(1)
    rank.save(keys, 2)
    rank.settle(keys)
    space.promise(rules, keys.data(0, CHUNKS), CHUNKS, token, MS)
    ended = []

    def stage():
        try:
            ended.append(space.stage(rules, keys.data(0, CHUNKS), CHUNKS,
                                     60000, WAIT)[1].chunks)
        except _lib.LarderError as error:
            ended.append(error.status)

    waits = threading.Thread(target=stage, daemon=True)
    waits.start()
    waits.join(timeout=0.3)
    assert waits.is_alive()
    daemon.kill()
    waits.join(timeout=SOON)
    assert ended and ended[0] in (0, _lib.E_OFFLINE)
    daemon.start()

    def knows():
        with contextlib.suppress(_lib.LarderError):
            return space.handoff(token, _lib.HANDOFF_RENEW, MS) is False
    until(knows)
    again = Stage(space, rules, keys, CHUNKS)
    assert again.ended() == 0 and again.took < SOON


def test_gives_up(daemon, engine):
    """The decode engine is killed while it waits: nothing is left of it."""
    [rank], space, rules, keys = engine(DENSE, CHUNKS, 1)
    token = os.urandom(16)
    rank.fill(1)
    rank.save(keys, 1)
    rank.settle(keys)
    space.promise(rules, keys.data(0, CHUNKS), CHUNKS, token, MS)
    decode = subprocess.Popen(
        [sys.executable, "-c", STAGER, daemon.url("unix"),
         keys.data(0, CHUNKS).hex(), str(CHUNKS), token.hex()],
        stdout=subprocess.PIPE, text=True, env=ENV)
    try:
        assert decode.stdout.readline() == "stages\n"
        time.sleep(0.3)
        decode.send_signal(signal.SIGKILL)
        decode.wait()
        assert space.handoff(token, _lib.HANDOFF_OVER, MS)
        until(lambda: rank.node.stats().dram_leased_chunks == 0)
        assert rank.node.stats().dram_leased_chunks == 0
    finally:
        decode.kill()
        decode.wait()
        decode.stdout.close()


@pytest.mark.parametrize("last, window", [(1, 66), (16, 50)])
def test_windows_of_tails(last, window):
    """As many blocks as what is computed next sees, in the engine's groups and
    in those that are stored."""
    sees = kv.GroupInfo(0, "SlidingWindowSpec", _lib.RULE_TRAILING, 16, 64)
    every = kv.GroupInfo(2, "FullAttentionSpec", _lib.RULE_ALL, 16, 0)
    model = kv.Model(
        (sees, dataclasses.replace(sees, index=1), every), 256, b"a model", 3,
        1, slices=kv.Slices(1, 3, (sees, every), ((0, 1), (2,)), (0, 0, 1)))
    tail = handoff.tail_model(model, last)
    assert tail.chunk_tokens == 16
    for found in (tail.groups, kv.stored(tail)):
        assert {g.window_tokens for g in found} == {window, 0}
    kv.rules(tail).close()


def test_seal(daemon):
    """Who has the secret and the space makes the same of the same."""
    nodes = [_lib.Node(daemon.url("unix")) for _ in range(2)]
    spaces = [nodes[0].space(b"a model", 1, CHUNK),
              nodes[1].space(b"a model", 1, CHUNK),
              nodes[1].space(b"another", 1, CHUNK)]
    first, second, other = (space.seal(b"data") for space in spaces)
    assert first == second != other and len(first) == 32
    assert first != spaces[0].seal(b"datb")
    for one in (*spaces, *nodes):
        one.close()


def test_embedded():
    """A node inside this process waits no longer than a daemon does for what
    has not come: 5 s after the answer."""
    with contextlib.ExitStack() as stack:
        node = _lib.Node("embed:?dram=64M")
        stack.callback(node.close)
        space = node.space(b"a model", 1, CHUNK)
        stack.callback(space.close)
        rules = _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, 4, 0)])
        stack.callback(rules.close)
        keys, token = _lib.Keys(), os.urandom(16)
        space.chain(array("I", range(CHUNKS * CHUNK)), keys)
        space.promise(rules, keys.data(0, CHUNKS), CHUNKS, token, MS)
        assert space.handoff(token, _lib.HANDOFF_ANSWERED, MS)
        stage = Stage(space, rules, keys, CHUNKS, 60000)
        assert stage.ended() == 0 and 4 < stage.took < 5 + SOON


def test_arguments(engine):
    _, space, rules, keys = engine(DENSE, CHUNKS, 1)
    for call in (lambda: space.promise(rules, b"", 0, os.urandom(16), MS),
                 lambda: space.promise(rules, keys.data(0, 1), 1, bytes(16),
                                       MS),
                 lambda: space.handoff(os.urandom(16), 99, MS),
                 lambda: space.handoff(bytes(16), _lib.HANDOFF_OVER, MS)):
        with pytest.raises(_lib.LarderError) as caught:
            call()
        assert caught.value.status == _lib.E_INVALID
