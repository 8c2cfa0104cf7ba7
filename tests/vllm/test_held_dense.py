"""Saves beside the steps (save_threads): the blocks that they read are held,
stay as they are, and are given back once, whatever becomes of the request; the
engine goes on when the store is slow; what was saved is what was computed.

Two engines on one node, with one and with two threads that save. `held` looks
at every save: what it reads is what was there when it was ordered."""
import contextlib
import signal

import pytest

pytest.register_assert_rewrite("faults")

import faults
import rig
import watch
from daemon import until

BLOCKS = 128  # of 128 tokens
SETTINGS = dict(max_num_seqs=8, max_num_batched_tokens=128,
                num_gpu_blocks_override=BLOCKS, max_model_len=4096)
MOST = BLOCKS // 2
PROMPTS = {f"held {i}": rig.prompt(f"held {i}", 1100 + 300 * i)
           for i in range(4)}


class Told:
    pass


def start(told, threads):
    engine = told.stack.enter_context(rig.engine(
        told.version, "dense", told.node.url(),
        options=dict(faults.OPTIONS, save_threads=threads), **SETTINGS))
    engine.ask("watch", "pages")
    engine.ask("held", "look")
    return engine


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    """The first engine computes; the second is started when it has ended, and
    a third beside it."""
    told = Told()
    told.version = version
    with contextlib.ExitStack() as told.stack:
        told.node = told.stack.enter_context(rig.node(
            tmp_path_factory.mktemp("node"), dirs=1))
        first = start(told, 1)
        told.cold = {name: faults.ask(first, ids)
                     for name, ids in PROMPTS.items()}
        first.close()
        told.engines = {1: start(told, 1), 2: start(told, 2)}
        yield told


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def engine(told, request):
    """After each, nothing is held, and no page was wrong."""
    engine = told.engines[request.param]
    rig.fresh(engine)
    engine.ask("watch", "pages")
    engine.ask("held", "clear")
    engine.ask("held", "seen")
    yield engine
    engine.ask("held", "open")
    back(engine)
    faults.settled(told.node, engine)
    assert engine.ask("watch", "found")["wrong"] == []
    assert engine.ask("held", "seen")["changed"] == 0


def held(engine):
    return engine.ask("held", "now")


def back(engine, seconds=30):
    """Everything is given back, by steps that vLLM makes for it."""
    def free():
        now = held(engine)
        if now["pending"]:
            engine.run(steps=1)
        return not now["saves"] and not now["used"]

    until(free, seconds, lambda: f"still held: {held(engine)}")
    now = held(engine)
    assert (now["blocks"], now["references"], now["pending"]) == (0, 0, False)


def dropped(engine, reason):
    name = 'vllm:larder_saves_dropped{"reason": "%s"}' % reason
    return engine.counters().get(name, 0)


def test_references_come_back(told, engine):
    """The engine idles, and is idle only when nothing is held."""
    ids = rig.prompt(f"back {id(engine)}", 2000)
    faults.ask(engine, ids)
    back(engine)
    now = held(engine)
    assert 0 < now["peak"] <= MOST
    assert now["seen"]["compared"] == 7  # chunks of 256, two steps each
    rig.fresh(engine)
    assert faults.ask(engine, ids)["cached"] == rig.whole(1999, faults.CHUNK)
    faults.right_pages(engine)


@pytest.mark.parametrize("name", PROMPTS)
def test_restart(told, engine, name):
    """What the first engine saved, until its very end, hits: bit by bit."""
    answer = faults.ask(engine, PROMPTS[name])
    assert answer["cached"] == rig.whole(len(PROMPTS[name]) - 1, faults.CHUNK)
    rig.check_same(answer, told.cold[name])


def test_reset_waits(engine):
    """A reset gets its references, without a step."""
    faults.ask(engine, rig.prompt(f"reset {id(engine)}", 1500))
    done, _ = engine.ask("held", "reset")
    assert done and held(engine)["references"] == 0


def test_reset_that_cannot_wait(engine):
    """It gives up after a while, and nothing is lost."""
    engine.ask("held", "shut")
    faults.ask(engine, rig.prompt(f"no reset {id(engine)}", 1500))
    assert held(engine)["saves"] > 0
    done, seconds = engine.ask("held", "reset")
    assert not done and seconds < 30
    engine.ask("held", "open")
    done, _ = engine.ask("held", "reset")
    assert done


def test_limit(engine):
    """Saves that stand still: what is held stays below the limit, the engine
    goes on, and what it could not save is counted."""
    before = dropped(engine, "busy")
    engine.ask("held", "shut")
    prompts = [rig.prompt(f"limit {id(engine)} {i}", 1800) for i in range(8)]
    with faults.asking(engine, prompts) as found:
        pass
    assert all(len(a["tokens"]) == 8 for a in found)
    now = held(engine)
    assert 0 < now["blocks"] <= MOST and now["peak"] <= MOST
    assert now["used"] == now["blocks"]
    faults.ask(engine, rig.prompt("goes on", 300))
    assert dropped(engine, "busy") > before


def test_behind(engine):
    """What could not be saved at once is saved by a later step: the third of
    four prompts finds fewer blocks free than are held."""
    engine.ask("held", "shut")
    prompts = [rig.prompt(f"behind {id(engine)} {i}", 3000) for i in range(4)]
    engine.add(prompts, max_tokens=60)
    until(lambda: engine.run(steps=1) is not None
          and held(engine)["behind"] > 0, seconds=faults.HANG)
    now = held(engine)
    assert BLOCKS // 8 < now["blocks"] <= MOST
    engine.ask("held", "open")
    engine.run(timeout=faults.HANG)
    back(engine)
    for ids in prompts:
        rig.fresh(engine)
        assert (faults.ask(engine, ids)["cached"]
                == rig.whole(2999, faults.CHUNK))


def preemptions(engine):
    return engine.counters()["vllm:num_preemptions"]


def test_preemption(engine):
    """Eight that fit when they begin, and do not when they have answered:
    computed and saved, and then loaded."""
    prompts = [rig.prompt(f"preempted {id(engine)} {i}", 1750 + i)
               for i in range(8)]
    for wanted in (0, 1):
        before = preemptions(engine)
        with faults.asking(engine, prompts, max_tokens=300) as found:
            pass
        assert all(len(a["tokens"]) == 300 for a in found)
        assert preemptions(engine) > before
        faults.right_pages(engine, wanted)
        back(engine)
        rig.fresh(engine)
    assert held(engine)["seen"]["compared"] > 8


def test_abort(engine):
    """Its blocks are nobody else's while they are read, and free then."""
    engine.ask("held", "shut")
    [name] = engine.add([rig.prompt(f"abort {id(engine)}", 2000)],
                        max_tokens=100)
    engine.run("first")
    saves = held(engine)["saves"]
    assert saves > 0
    engine.abort(name)
    engine.run(steps=3)
    now = held(engine)
    assert now["saves"] == saves and now["used"] == now["blocks"] > 0
    # Others take all that is left, many times over.
    with faults.asking(engine, [rig.prompt(f"others {i}", 1500)
                                for i in range(16)]):
        pass
    engine.ask("held", "open")
    back(engine)
    assert held(engine)["seen"]["compared"] >= saves


def test_a_loose_block_is_seen(engine):
    """The test of the test: without holding, others overwrite what is read."""
    engine.ask("held", "let_loose", loose=True)
    try:
        engine.ask("held", "shut")
        faults.ask(engine, rig.prompt(f"loose {id(engine)}", 2000))
        with faults.asking(engine, [rig.prompt(f"over {id(engine)} {i}", 1500)
                                    for i in range(16)]):
            pass
        engine.ask("held", "open")
        back(engine)
        assert engine.ask("held", "seen")["changed"] > 0
    finally:
        engine.ask("held", "let_loose", loose=False)


def test_stopped_node(told, engine):
    """Saves end by their deadline, the engine does not wait for them, and
    nothing stays held."""
    before = dropped(engine, "failed")
    watch.strike(told.node.pid, signal.SIGSTOP)
    try:
        for i in range(3):
            faults.ask(engine, rig.prompt(f"stopped {id(engine)} {i}", 1500))
        back(engine)
    finally:
        told.node.signal(signal.SIGCONT)
    faults.ask(engine, rig.prompt("drive", 300))
    assert dropped(engine, "failed") > before
    ids = PROMPTS["held 1"]

    def hits():
        rig.fresh(engine)
        return faults.ask(engine, ids)["cached"] > 0

    until(hits, 30, "it does not hit any more")


# ---- sleep ----

# The CPU build of 0.33, whose workers sleep, is not there. This one's engine
# pauses in the same way.
SLEEPS = pytest.mark.versions("0.32.0")


def asleep(engine, **how):
    """As vLLM 0.33 calls the connector around it; then it steps, and wakes."""
    told = engine.ask("asleep", "sleep", **how)
    assert told["pages"] > 1 << 20 and told["loading"] == 0
    engine.run(steps=3)
    engine.ask("asleep", "wake")
    return told


@SLEEPS
def test_sleep_amid_copies(told, engine):
    """A load and saves are under way. They end before the memory is gone, and
    what the store has is loaded after it: every page as it was saved."""
    ids, more = (rig.prompt(f"asleep {id(engine)} {i}", 2000)
                 for i in range(2))
    faults.ask(engine, ids)
    back(engine)
    rig.fresh(engine)
    engine.ask("held", "shut")
    faults.ask(engine, more)  # computed; its saves stand at the gate
    assert held(engine)["saves"] > 0
    engine.ask("watch", "hold_loads")
    names = engine.add([ids])
    until(lambda: engine.run(steps=1) is not None
          and engine.ask("watch", "held"), seconds=faults.HANG)
    engine.abort(*names)
    found = asleep(engine, clear=False, soon=[["held", "open"],
                                              ["watch", "let_go"]])
    assert found["busy"] == 1
    for one in (ids, more):
        back(engine)
        rig.fresh(engine)
        answer = faults.ask(engine, one)
        assert answer["cached"] == rig.whole(len(one) - 1, faults.CHUNK)
    faults.right_pages(engine, 3)


@SLEEPS
@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_sleep_empties_the_space(engine, mode):
    """vLLM resets the connector when it sleeps. Requests that it keeps are
    computed again, and not saved: the weights may be others."""
    prompts = [rig.prompt(f"{mode} {id(engine)} {i}", 1500) for i in range(3)]
    names = engine.add(prompts, max_tokens=40)
    engine.run("first")
    if mode == "abort":
        engine.abort(*names)
    asleep(engine, mode=mode)
    kept = engine.run(timeout=faults.HANG)
    assert [len(a["tokens"]) for a in kept.values()] == (
        [40] * 3 if mode == "keep" else [])
    for cached in (0, 1280):
        back(engine)
        rig.fresh(engine)
        assert faults.ask(engine, prompts[0])["cached"] == cached
    faults.right_pages(engine)
