"""Proof 5, dense: the store is killed, stopped, restarted, its disk filled and
its files damaged while requests run. Every answer is the one of an engine
without Larder, bit by bit; no request hangs, no engine dies, and prompts hit
again when the node is back.

Requests run one at a time here, for vLLM's own answers vary otherwise."""
import contextlib
import signal

import pytest

import faults


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield faults.Told(version, "dense", tmp_path_factory.mktemp("node"),
                          stack)


@pytest.fixture(autouse=True)
def well(told):
    with told.well():
        yield


@pytest.mark.core
@pytest.mark.parametrize("fault", ["kill", "restart", "stop", "end"])
def test_fault(told, fault):
    getattr(told, fault)()


@pytest.mark.core
def test_killed_between_claim_and_load(told):
    """The load fails, and the request is computed."""
    answer, counted, found = told.between(signal.SIGKILL)
    assert found["failed"] == 1 and found["loads"] == 0
    told.node.wait()
    told.node.start()


@pytest.mark.core
def test_stopped_between_claim_and_load(told):
    """The load comes to its deadline, and the request is computed."""
    answer, counted, found = told.between(signal.SIGSTOP)
    assert found["failed"] == 1 and found["loads"] == 0
    told.node.signal(signal.SIGCONT)
