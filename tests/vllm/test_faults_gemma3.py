"""Proof 5, a model with windows: as in test_faults_dense. vLLM before 0.30
cannot be told that a load of such a model failed, and the engine would die of
it: there the connector claims only what it has already fetched."""
import contextlib
import signal

import pytest

pytest.register_assert_rewrite("faults")

import faults
import rig


@pytest.fixture(scope="module")
def told(version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield faults.Told(version, "gemma3", tmp_path_factory.mktemp("node"),
                          stack)


@pytest.fixture(autouse=True)
def well(told):
    with told.well():
        yield


@pytest.mark.parametrize("fault", ["kill", "restart", "stop", "end"])
def test_fault(told, fault):
    getattr(told, fault)()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_between_claim_and_load(told, version, number):
    """The load fails and the request is computed; or the load does not need
    the node any more."""
    with told.between(number) as found:
        if version == "0.32.0":
            assert found["failed"] == 1 and found["loads"] == 0
        else:
            assert found["failed"] == 0 and found["loads"] == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_many_and_a_fault(told, number):
    told.many(number)


@pytest.mark.parametrize("group", range(6))
def test_one_bit_is_seen(told, group):
    """The test of the test, in a page of each group that the hit loads."""
    ids = told.prompts["stored 2"]
    with rig.Store(told.node.url(), told.engine) as store:
        _, layer = store.about["engine_groups"][group]
        _, stored, at = store.about["layers"][layer]
        with store.flipped(ids, 4, group=stored, at=at):
            rig.fresh(told.engine)
            answer = faults.ask(told.engine, ids)
            assert answer["cached"] == 1280
            [wrong] = told.engine.ask("watch", "found")["wrong"]
            assert wrong[1:] == [store.keys(ids)[4].hex(), group]
            assert not rig.same(answer, told.wanted["stored 2"])
    told.engine.ask("watch", "pages")
