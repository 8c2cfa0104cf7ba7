"""Saves beside the steps with more than one group: sliding windows (Gemma 3),
whose blocks leave the window while they are read, and states of linear
attention (Qwen3-Next), which vLLM offers in one step only."""
import contextlib

import pytest

import rig
from test_held_dense import back, held

PROMPTS = {"gemma3": [rig.prompt("held gemma", n) for n in (800, 2100, 3200)],
           "next": [rig.prompt("held next", n) for n in (700, 3000)]}
CHUNK = {"gemma3": 256, "next": 640}


def start(version, kind, url):
    engine = rig.engine(version, kind, url, options=dict(save_threads=1))
    engine.ask("held", "look")
    return engine


@pytest.mark.parametrize("kind", [
    "gemma3",
    pytest.param("next", marks=pytest.mark.versions("0.29.0", "0.32.0"))])
def test_restart(version, kind, tmp_path):
    """The answers of a second engine, that hits, are those of the first."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(tmp_path / "node"))
        own = []
        with start(version, kind, node.url()) as engine:
            for ids in PROMPTS[kind]:
                engine.ask_one(ids)
                own.append(engine.ask_one(ids))
            back(engine)
            now = held(engine)
            assert 0 < now["peak"] <= now["most"]
            assert now["seen"]["compared"] > 0 == now["seen"]["changed"]
        engine = stack.enter_context(start(version, kind, node.url()))
        for ids, wanted in zip(PROMPTS[kind], own):
            rig.fresh(engine)
            answer = engine.ask_one(ids)
            assert answer["cached"] == rig.whole(len(ids) - 1, CHUNK[kind])
            rig.check_same(answer, wanted)
            back(engine)


@pytest.fixture(scope="module")
def short(version, tmp_path_factory):
    """Chunks of twice the window: the front of each has left it when the chunk
    is whole. Few blocks, so that each is soon used again."""
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(rig.node(tmp_path_factory.mktemp("short")))
        yield told, lambda: rig.engine(
            version, "gemma3", told.url(), num_gpu_blocks_override=160,
            max_model_len=4096, options=dict(save_threads=1, chunk=1024))


@pytest.mark.parametrize("loose", [False, True])
def test_short_window(short, loose):
    """What a save reads is held when its request has ended, and the next
    engine's hits are right. The test of the test: with nothing held, others
    overwrite it."""
    node, started = short
    prompts = [rig.prompt(f"short {loose} {n}", n) for n in (1100, 2200)]
    own = []
    with started() as engine:
        engine.ask("held", "look")
        for ids in prompts:
            engine.ask("held", "shut")
            engine.ask("held", "let_loose", loose=loose)
            engine.ask_one(ids)
            for i in range(6):
                engine.ask_one(rig.prompt(f"over {loose} {i}", 1000))
            engine.ask("held", "open")
            back(engine)
            engine.ask("held", "let_loose", loose=False)
        seen = engine.ask("held", "seen")
        assert seen["compared"] >= 2 and (seen["changed"] > 0) == loose, seen
        if loose:
            return
        for ids in prompts:
            rig.fresh(engine)
            engine.ask_one(ids)
            own.append(engine.ask_one(ids))
    with started() as engine:
        for ids, wanted in zip(prompts, own):
            rig.fresh(engine)
            answer = engine.ask_one(ids)
            assert answer["cached"] == rig.whole(len(ids) - 1, 1024)
            rig.check_same(answer, wanted)
