"""Proof 5, dense: the store is killed, stopped and restarted while requests
run. Every answer is the one of an engine without Larder, bit by bit; no request
hangs, no engine dies, and prompts hit again when the node is back.

Requests run one at a time, for vLLM's own answers vary otherwise; where many
run at once, every page that is loaded is compared with what was saved."""
import contextlib
import signal

import pytest

pytest.register_assert_rewrite("faults")

import faults
import rig


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield faults.Told(version, "dense", tmp_path_factory.mktemp("node"),
                          stack)


@pytest.fixture(autouse=True)
def well(told):
    with told.well():
        yield


@pytest.mark.parametrize("fault", [
    pytest.param("kill", marks=pytest.mark.core), "restart",
    pytest.param("stop", marks=pytest.mark.core), "end"])
def test_fault(told, fault):
    getattr(told, fault)()


@pytest.mark.core
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_between_claim_and_load(told, number):
    """The load fails, at once or by its deadline, and the request is
    computed."""
    with told.between(number) as found:
        assert found["failed"] == 1 and found["loads"] == 0


def test_many(told):
    found = told.many()
    assert found["failed"] == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_many_and_a_fault(told, number):
    told.many(number)


@pytest.mark.parametrize("at", [0.1, 0.9])
def test_one_bit_is_seen(told, at):
    """The test of the test: another bit in the store than was saved."""
    ids = told.prompts["stored 2"]
    with rig.Store(told.node.url(), told.engine) as store:
        with store.flipped(ids, 1, at=at):
            rig.fresh(told.engine)
            answer = faults.ask(told.engine, ids)
            assert answer["cached"] == 1280
            [wrong] = told.engine.ask("watch", "found")["wrong"]
            assert wrong[1:] == [store.keys(ids)[1].hex(), 0]
            assert not rig.same(answer, told.wanted["stored 2"])
    told.engine.ask("watch", "pages")
