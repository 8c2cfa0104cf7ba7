"""Hand-offs of other kinds of models, and between engines of other shapes
(docs/guide/handoff.md): what test_handoff.py shows of a dense model. Here
either engine is both sides."""
import contextlib

import pytest

import rig
from larder_kv.engine.handoff import PAD
from test_handoff import BLOCK, NOTHING, Pair
from test_proof_mla import values
from test_proof_shapes import heads
from test_proof_tp import ARGS

pytestmark = pytest.mark.versions("0.32.0")


def pair_of(stack, version, kind, folder, options=None, less=0, **second):
    node = stack.enter_context(rig.node(folder))
    made = Pair(*(stack.enter_context(rig.engine(
        version, kind, node.url(), options=options, **more))
        for more in ({}, second)), node)
    made.less = less
    made.other = Pair(made.decode, made.prefill, node)
    made.other.less = less
    return made


@contextlib.contextmanager
def tails(pair, unit):
    """A hand in the store, where tails are."""
    about = pair.prefill.ask("inside", "space")
    about = dict(about, descriptor=about["descriptor"] + "\0tail",
                 chunk_tokens=unit, chunk_bytes=0)
    with rig.Store(pair.node.url(), about) as store:
        yield store


def check_sees_one_bit(pair, ids, unit, end):
    """The test of the test, in every group, in the first block of a tail that
    is all of the prompt. end: of what is handed off."""
    params = pair.hand_over(ids)
    right = pair.take(ids, params)
    padded = ids[:end] + [PAD] * (-end % unit)
    with tails(pair, unit) as store:
        for group in range(store.groups):
            with store.flipped(padded, 0, group):
                assert not rig.same(pair.take(ids, params), right), group
    rig.check_same(pair.take(ids, params), right)


def off(one, other):
    """The largest difference of the logprobs of tokens that both have."""
    return max(abs(a[token] - b[token])
               for a, b in zip(values(one), values(other))
               for token in a if token in b)


# ---- sliding windows: of 512, chunks of 1,024 ----


@pytest.fixture(scope="module")
def windows(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield pair_of(stack, version, "gemma3",
                      tmp_path_factory.mktemp("gemma3"), {"chunk": 1024},
                      less=1)


# The window ends in a chunk, in the tail, at their border.
@pytest.mark.parametrize("blocks", [1, 3, 8, 11, 12, 15, 16])
def test_windows(windows, blocks):
    ids = rig.prompt(f"windows {blocks}", blocks * BLOCK + 1)
    own = windows.own(ids)
    rig.check_same(windows.take(ids, windows.hand_over(ids)), own)


@pytest.mark.parametrize("length", [639, 1000, 1024])
def test_windows_any_length(windows, length):
    """At 639 the last token sees the last one of a block that vLLM gives away
    when all of the prompt is claimed."""
    ids = rig.prompt(f"windows {length}", length)
    own = windows.own(ids)
    taken = windows.take(ids, windows.hand_over(ids))
    assert taken["tokens"] == own["tokens"]


def test_windows_see_one_bit(windows):
    check_sees_one_bit(windows, rig.prompt("bit", BLOCK + 1), BLOCK, BLOCK + 1)


# ---- recurrent states: blocks of 640 ----


@pytest.fixture(scope="module")
def states(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield pair_of(stack, version, "next", tmp_path_factory.mktemp("next"),
                      less=1)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_states_at_a_border(states, blocks):
    """The prefill side's last state is that of the own hit."""
    ids = rig.prompt(f"states {blocks}", blocks * 640 + 1)
    rig.fresh(states.decode)
    cold = states.decode.ask_one(ids, kv_transfer_params=NOTHING)
    own = states.decode.ask_one(ids, kv_transfer_params=NOTHING)
    assert (cold["cached"], own["cached"]) == (0, blocks * 640)
    rig.check_same(states.take(ids, states.hand_over(ids)), own)


@pytest.mark.parametrize("length", [300, 1400, 3000])
def test_states(states, figure, length):
    """A state between borders is in no cache: what one engine takes from
    another is what it takes from itself, and close to the cold run."""
    ids = rig.prompt(f"states {length}", length)
    rig.fresh(states.decode)
    cold = states.decode.ask_one(ids, kv_transfer_params=NOTHING)
    params = states.hand_over(ids)
    taken = states.take(ids, params)
    own = states.decode.ask_one(ids, kv_transfer_params=NOTHING)
    figure(f"states, {length} tokens: a hand-off is {off(cold, taken):.1e} "
           f"off the cold run, and a hit of {own['cached']} tokens "
           f"{off(cold, own):.1e}")
    assert off(cold, taken) < 0.1 and taken["tokens"][0] == cold["tokens"][0]
    rig.check_same(states.other.take(ids, params), taken)


def test_states_see_one_bit(states):
    check_sees_one_bit(states, rig.prompt("bit", 400), 640, 399)


# ---- MLA: blocks of 16, no prefix cache of vLLM's own on the CPU ----


@pytest.fixture(scope="module")
def mla(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield pair_of(stack, version, "mla", tmp_path_factory.mktemp("mla"))


@pytest.mark.parametrize("length", [17, 300, 2049])
def test_mla(mla, length):
    """As test_proof_mla.py: what one engine takes from another is what it
    takes from itself; it is not the cold run's, by vLLM's own kernel."""
    ids = rig.prompt(f"mla {length}", length)
    params = mla.hand_over(ids)
    rig.check_same(mla.take(ids, params), mla.other.take(ids, params))


def test_mla_sees_one_bit(mla):
    check_sees_one_bit(mla, rig.prompt("bit", 100), 16, 100)


# ---- tensor parallel 1 and 2 ----


@pytest.fixture(scope="module")
def shapes(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield pair_of(stack, version, "dense", tmp_path_factory.mktemp("tp"),
                      **ARGS)


@pytest.mark.parametrize("way", ["1 to 2", "2 to 1"])
@pytest.mark.parametrize("blocks", [1, 3, 16])
def test_shapes(shapes, way, blocks):
    """What comes is, head by head, what the other engine had, in chunks and
    tail; the answer is the own hit's on these bytes."""
    pair = shapes if way == "1 to 2" else shapes.other
    ids = rig.prompt(f"shapes {way} {blocks}", blocks * BLOCK + 1)
    for engine in (pair.prefill, pair.decode):
        rig.fresh(engine)
        heads(engine)
    params = pair.hand_over(ids)
    saved, _ = heads(pair.prefill)
    taken = pair.take(ids, params)
    _, got = heads(pair.decode)
    assert got and all(saved.get(name) == digest
                       for name, digest in got.items())
    own = pair.decode.ask_one(ids, kv_transfer_params=NOTHING)
    assert own["cached"] == blocks * BLOCK
    rig.check_same(taken, own)
