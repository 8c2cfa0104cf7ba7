"""Proof 5, other kinds: loads fail after the hit was claimed, for an MLA model
(DeepSeek V2's shape) and for a hybrid with linear-attention states
(Qwen3-Next). Every answer is the one that was computed before, bit by bit; no
request hangs, the engine goes on, and prompts hit again.

vLLM before 0.30 cannot be told of a failed load of several groups: what is
claimed there is at hand already, and the same faults fail nothing.

The same tests are run with two ranks: see test_faults_ranks."""
import contextlib
import random

import pytest

pytest.register_assert_rewrite("faults", "kinds")

import faults
import kinds
import rig

NEWER = pytest.mark.versions("0.29.0", "0.32.0")
NAME = "stored 1"


@pytest.fixture(scope="module", params=[
    pytest.param(kind, marks=NEWER) for kind in ("mla", "next")])
def told(request, version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield kinds.Kind(version, request.param, 1,
                         tmp_path_factory.mktemp("node"), stack)


@pytest.fixture(autouse=True)
def well(told):
    with told.well():
        yield


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_load_fails(told, fault):
    """In all ranks."""
    told.fails(fault, NAME, told.ranks)


def test_damaged_in_memory(told):
    """One bit of one rank's part, in a page of each kind: attention, a window,
    a state."""
    rules = [rule for _, rule, _, _ in told.about["groups"]]
    for group in {rules.index(rule) for rule in rules}:
        for rank in told.ranks:
            with told.failing([one == rank for one in told.ranks], NAME):
                with told.claimed(NAME):
                    told.damage(NAME, [rank], group=group)
                told.answer()
            told.hits(NAME)


def test_damaged_on_disk(told):
    """The same, found before it is claimed: it is a miss."""
    group = [rule for _, rule, _, _ in told.about["groups"]].index(0)
    for rank in told.ranks:
        told.damage_on_disk(NAME, [rank], chunk=0, group=group)
        told.hits("stored 0")  # the engine has found the node again
        before = told.failures()
        rig.fresh(told.engine)
        assert told.ask(NAME)["cached"] == 0
        assert told.node.value("larder_misses_total", cause="corrupt") > 0
        told.hits(NAME)
        assert told.failures() == before


def test_killed_at_any_moment(told):
    """While it is looked up, staged, claimed or loaded."""
    draw = random.Random(1)
    for _ in range(4):
        told.hits(NAME)
        rig.fresh(told.engine)
        [told.id] = told.engine.add([told.prompts[NAME]], **faults.ANSWER)
        assert told.engine.run(steps=draw.randrange(8)) == {}
        told.node.kill()
        told.check(NAME, told.answer())
        told.node.start()


@pytest.mark.versions("0.29.0", "0.24.0")
def test_no_descriptor_in_one_rank(told):
    """It cannot map what was fetched for a while, and waits."""
    for rank in told.ranks:
        told.every("few_descriptors", rank, of="inside", times=3)
        before = told.failures()
        told.hits(NAME)
        short = told.every("few_descriptors", rank, of="inside", times=0)
        assert short[rank] == (3 if told.fetches else 0)
        assert told.failures() == before


def test_a_lie_is_seen(told):
    """The test of the test: a rank's load fails, and it says that it did not.
    And one bit in the store is another than was saved, with its checksum."""
    ids, right = told.prompts[NAME], told.right[NAME]
    last = told.whole(NAME) // told.chunk - 1
    for rank in told.ranks:
        if not told.fetches:
            told.every("lie", rank, on=True)
            with told.claimed(NAME):
                told.damage(NAME, [rank])
            answer = told.answer()
            told.every("lie", rank, on=False)
            assert told.ends("failed")[rank] == 1
            assert not any(rig.same(answer, one) for one in right.values())
            told.hits(NAME)
        with rig.Store(told.node.url(), told.about) as store:
            with store.flipped(ids, last, shard=rank):
                answer = rig.hit(told.engine, ids, told.whole(NAME),
                                 **faults.ANSWER)
        assert not any(rig.same(answer, one) for one in right.values())
    told.every("pages")
