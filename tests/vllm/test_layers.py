"""Loads in the step that needs them (load_layers), as vLLM sees them: hits are
right, and one that fails when the forward has used it leaves no trace: the
request is computed anew, and nothing of that step is saved. On the CPU the
option does nothing, and says so; see in_step for what stands for the GPU."""
import contextlib
import pathlib

import pytest

import rig

CHUNK = 128  # each step computes one, see rig.settings
LONG = rig.prompt("layers", 1400)
BRANCH = LONG[:700] + rig.prompt("branch", 600)  # shares 640 tokens
LENGTHS = (200, 700, 1400)
OPTIONS = dict(load_layers=3, chunk=CHUNK)


class Told:
    pass


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    told = Told()
    folder = tmp_path_factory.mktemp("wrong")
    told.wrong = folder / "wrong"
    with contextlib.ExitStack() as stack:
        node = told.node = stack.enter_context(rig.node(
            tmp_path_factory.mktemp("node")))
        given = rig.transfer(node.url(), **OPTIONS)
        given.update(kv_connector="InStepConnector",
                     kv_connector_module_path="in_step")
        told.engine = stack.enter_context(rig.engine(
            version, "dense", kv_transfer_config=given,
            async_scheduling=False,
            env={"LARDER_TEST_FOLDER": str(folder),
                 "PYTHONPATH": str(pathlib.Path(__file__).parent)}))
        told.engine.ask_one(LONG)
        told.own = {n: told.engine.ask_one(LONG[:n]) for n in LENGTHS}
        told.branch = told.engine.ask_one(
            BRANCH, kv_transfer_params={"larder": {"skip_save": True}})
        yield told


def layered(told):
    """What the connector counts: loads in a step, loads that failed."""
    counted = told.engine.counters()
    return [int(counted.get(f"vllm:larder_{name}", 0))
            for name in ("loads_layered", "load_failures")]


@pytest.mark.parametrize("tokens", LENGTHS)
def test_hit(told, tokens):
    done, failed = layered(told)
    answer = rig.hit(told.engine, LONG[:tokens], rig.whole(tokens - 1, CHUNK))
    rig.check_same(answer, told.own[tokens])
    assert layered(told) == [done + 1, failed]


def test_several_at_once(told):
    """One is loaded in its step, the others are not made to wait for it."""
    rig.fresh(told.engine)
    answers = told.engine.generate([LONG[:n] for n in LENGTHS])
    for tokens, answer in zip(LENGTHS, answers):
        rig.check_same(answer, told.own[tokens])


@pytest.mark.parametrize("tokens", LENGTHS)
def test_failure(told, tokens):
    """The forward has used what was not loaded."""
    done, failed = layered(told)
    rig.fresh(told.engine)
    told.wrong.touch()
    try:
        answer = told.engine.ask_one(LONG[:tokens])
    finally:
        told.wrong.unlink()
    assert layered(told) == [done, failed + 1]
    rig.check_same(answer, told.own[tokens])
    # What is in the engine's own cache since is right: of the blocks that
    # were not loaded there are none, and so they come from the store.
    with rig.Counted(told.engine) as counted:
        again = told.engine.ask_one(LONG[:tokens])
    assert counted.local == 0
    assert counted.external == rig.whole(tokens - 1, CHUNK)
    rig.check_same(again, told.own[tokens])
    rig.check_same(rig.hit(told.engine, LONG[:tokens],
                           rig.whole(tokens - 1, CHUNK)), told.own[tokens])


def test_failure_is_not_saved(told):
    """The step that failed computed a chunk that the store does not have."""
    rig.fresh(told.engine)
    told.wrong.touch()
    try:
        answer = told.engine.ask_one(BRANCH)
    finally:
        told.wrong.unlink()
    rig.check_same(answer, told.branch)
    rig.check_same(rig.hit(told.engine, BRANCH,
                           rig.whole(len(BRANCH) - 1, CHUNK)), told.branch)


def test_one_line_where_it_cannot_be(version, told):
    with rig.engine(version, "dense", told.node.url(),
                    options=OPTIONS) as engine:
        rig.check_same(rig.hit(engine, LONG, rig.whole(len(LONG) - 1, CHUNK)),
                       told.own[len(LONG)])
        lines = [line for line in engine.larder_lines()
                 if "load_layers" in line]
    assert len(lines) == 1 and "not on a GPU" in lines[0]
