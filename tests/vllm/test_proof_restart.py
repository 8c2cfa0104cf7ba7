"""Proofs 1 and 2: what one engine computed is not computed again: not after a
restart of the engine and of the node, not in another engine process on the
host, not in one that reaches the node by TCP.

All prompts are such that the engine's own prefix cache and Larder hold the
same part of them (own blocks have 128 tokens, chunks 256): so both hits leave
the same tokens to compute, and the answers must be equal bit by bit."""
import contextlib

import pytest

import rig
from daemon import until

CHUNK = 256
LONG = {"2k": rig.prompt("2k", 2100), "8k": rig.prompt("8k", 8300)}
QUESTION = rig.prompt("question", 500)
MORE = rig.prompt("more", 200)
ANSWER = 300  # tokens of turn one: they fill a chunk with the question's


class Told:
    """What the first engine answered, and what runs since."""

    def __init__(self):
        self.cold, self.own = {}, {}


def first_engine(told, engine):
    engine.ask_one(rig.prompt("warm up", 300))
    for name, ids in LONG.items():
        with rig.Counted(engine) as counted:
            told.cold[name] = engine.ask_one(ids)
        assert (counted.external, counted.local) == (0, 0)
        told.own[name] = engine.ask_one(ids)
        assert told.own[name]["cached"] == rig.whole(len(ids) - 1, CHUNK)
    told.turn_one = engine.ask_one(QUESTION, max_tokens=ANSWER)
    told.turn_two = QUESTION + told.turn_one["tokens"] + MORE
    told.own["turn two"] = engine.ask_one(told.turn_two)
    assert told.own["turn two"]["cached"] == 768
    told.about = engine.ask("inside", "space")


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    """One engine computes and ends, the node is restarted, and a second
    engine is started: told.engine."""
    told = Told()
    with contextlib.ExitStack() as stack:
        told.node = stack.enter_context(rig.node(
            tmp_path_factory.mktemp("node"), dirs=1))
        with rig.engine(version, "dense", told.node.url()) as engine:
            first_engine(told, engine)
        told.node.stop()
        told.node.start()
        told.engine = stack.enter_context(rig.engine(
            version, "dense", told.node.url()))
        told.engine.ask_one(rig.prompt("warm up", 200))
        told.store = stack.enter_context(rig.Store(told.node.url(),
                                                   told.about))
        yield told


def hit(engine, ids, source=None):
    """A hit of all that can be had of a prompt."""
    return rig.hit(engine, ids, rig.whole(len(ids) - 1, CHUNK), source)


@pytest.mark.core
@pytest.mark.parametrize("name", LONG)
def test_restart(told, name, version, figure):
    """Cold, restart, warm: the same answer, and the prefill is skipped. vLLM
    is told which tier each hit came from."""
    ids = LONG[name]
    loads = told.store.stats().loads_ssd
    ssd = hit(told.engine, ids, "disk")
    rig.check_same(ssd, told.own[name])
    assert told.store.stats().loads_ssd - loads >= (len(ids) - 1) // CHUNK
    dram = hit(told.engine, ids, "host")
    rig.check_same(dram, told.own[name])
    figure(f"vLLM {version}, {len(ids)} tokens, first token after: "
           f"cold {told.cold[name]['ttft'] * 1e3:.0f} ms, own hit "
           f"{told.own[name]['ttft'] * 1e3:.0f} ms, after the restart "
           f"{ssd['ttft'] * 1e3:.0f} ms (ssd), {dram['ttft'] * 1e3:.0f} ms "
           "(dram)")


@pytest.mark.core
@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("at", [0.1, 0.9])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_restart_sees_one_bit(told, name, place, at):
    """The test of the test: one sign bit in a page that the hit loads. That of
    a value near 0 may be lost in rounding, which varies with the CPU: then
    another is tried."""
    ids = LONG[name]
    last = (len(ids) - 1) // CHUNK - 1
    chunk = {"first": 0, "middle": last // 2, "last": last}[place]
    for more in (0.0, 0.013, 0.027, 0.041):
        with told.store.flipped(ids, chunk, at=at + more):
            if not rig.same(hit(told.engine, ids), told.own[name]):
                return
    pytest.fail("none of four bits was seen")


@pytest.mark.core
def test_nothing_else_is_loaded(told):
    """What was flipped is as it was: the hits above failed for that bit. And
    a bit in a chunk that the hit does not load changes nothing."""
    short = LONG["8k"][:2100]
    before = hit(told.engine, short)
    with told.store.flipped(LONG["8k"], 8):
        rig.check_same(hit(told.engine, short), before)
    for name, ids in LONG.items():
        rig.check_same(hit(told.engine, ids), told.own[name])


@pytest.mark.core
def test_another_token_is_another_prompt(told):
    """One early token changed: nothing is loaded, and the answer is another."""
    ids = list(LONG["2k"])
    ids[3] = 3 + (ids[3] + 1) % 2000
    rig.fresh(told.engine)
    with rig.Counted(told.engine) as counted:
        answer = told.engine.ask_one(ids)
    assert counted.external == 0
    assert not rig.same(answer, told.own["2k"])


@pytest.mark.core
def test_turn_two_hits_the_answer_of_turn_one(told):
    """Generated tokens are saved too: the hit is longer than the question."""
    assert len(QUESTION) < 768 < len(QUESTION) + ANSWER
    rig.check_same(hit(told.engine, told.turn_two), told.own["turn two"])
    with told.store.flipped(told.turn_two, 2):
        assert not rig.same(hit(told.engine, told.turn_two),
                            told.own["turn two"])


@pytest.mark.core
@pytest.mark.parametrize("tokens", [100, 256, 257, 512, 600, 1024, 1025])
def test_lengths(told, tokens):
    """The external tokens are the largest chunk multiple below the prompt's
    length, whatever the length; one prompt is a prefix of another."""
    ids = LONG["8k"][:tokens]
    answer = hit(told.engine, ids)
    rig.check_same(told.engine.ask_one(ids), answer)  # now in its own cache


@pytest.mark.core
def test_prompt_logprobs_are_computed(told):
    """Of a prompt that the store has: they need every token's forward, so
    nothing is loaded, and they are those of the run that found nothing."""
    ids = rig.prompt("its own logprobs", 2100)
    found = []
    for _ in range(2):
        rig.fresh(told.engine)
        with rig.Counted(told.engine) as counted:
            found.append(told.engine.ask_one(
                ids, sampling={"prompt_logprobs": 1}))
        assert counted.external == counted.local == 0
        assert counted.computed == len(ids)
        assert told.store.has(ids, 7)  # saved they are
    rig.check_same(*found)
    cold, again = (one["prompt_logprobs"] for one in found)
    assert cold == again and len(cold) == len(ids)
    assert all(float.fromhex(one) < 0 for token in cold[1:]
               for _, one in token)
    rig.check_same(hit(told.engine, ids), told.engine.ask_one(ids))


@pytest.mark.core
def test_own_hits_are_not_saved_again(told):
    """vLLM's own cache has the prompt: nothing of it is ordered to be saved.
    Unless the store has lost it: then it is, beside the answer."""
    def saved():
        counters = told.engine.counters()
        return [counters.get(f"vllm:larder_{name}", 0)
                for name in ("saved_shards", "saves_present")]

    ids = rig.prompt("its own", 2100)
    told.engine.ask_one(ids)
    before = saved()
    for _ in range(5):
        assert told.engine.ask_one(ids)["cached"] == rig.whole(2099, 128)
    assert saved() == before
    told.store.remove(ids, 3)
    told.engine.ask_one(ids, max_tokens=100)
    assert told.store.has(ids, 3)


@pytest.mark.core
@pytest.mark.versions("0.32.0")  # see test_held_dense.py, which has more
def test_sleep(told):
    """An engine is put to sleep while it loads: the load ends, then the memory
    is taken away. When it is back the same prompt hits, bit by bit."""
    told.engine.ask("watch", "hold_loads")
    rig.fresh(told.engine)
    names = told.engine.add([LONG["2k"]])
    until(lambda: told.engine.run(steps=1) is not None
          and told.engine.ask("watch", "held"), seconds=60)
    told.engine.abort(*names)
    found = told.engine.ask("asleep", "sleep", clear=False,
                            soon=[["watch", "let_go"]])
    assert found["busy"] == 1 and found["loading"] == 0
    told.engine.run(steps=3)
    told.engine.ask("asleep", "wake")
    told.engine.run(steps=3)  # vLLM hears that the load has ended
    rig.check_same(hit(told.engine, LONG["2k"], "host"), told.own["2k"])


# ---- proof 2 ----


@pytest.mark.parametrize("transport", [
    pytest.param("unix", marks=pytest.mark.core), "tcp"])
def test_second_engine(told, version, transport):
    """Another process, while the first one runs, gets what was computed
    before it was there, and what the first computes meanwhile. The first gets
    what the other computes."""
    fresh = rig.prompt(f"first {transport}", 2100)
    theirs = rig.prompt(f"second {transport}", 2100)
    url = told.node.url(transport)
    with rig.engine(version, "dense", url) as second:
        for name, ids in LONG.items():
            rig.check_same(hit(second, ids), told.own[name])
        rig.check_same(hit(second, told.turn_two), told.own["turn two"])
        told.engine.ask_one(fresh)
        own = told.engine.ask_one(fresh)
        rig.check_same(hit(second, fresh), own)
        with told.store.flipped(fresh, 5):
            assert not rig.same(hit(second, fresh), own)
        second.ask_one(theirs)
        own = second.ask_one(theirs)
        rig.check_same(hit(told.engine, theirs), own)
        with told.store.flipped(theirs, 5):
            assert not rig.same(hit(told.engine, theirs), own)
