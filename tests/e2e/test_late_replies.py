"""Answers that come when nobody waits for them any more: what they grant is
given back by itself, while the client lives on and says nothing else."""
import pathlib
import signal

import pytest

import capi
from capi import found, put_some, value_of
from daemon import until

SIZE = 60000
LATE_MS = 200


def is_stopped(pid):
    """All its threads are: a signal takes a moment to reach them."""
    states = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text(encoding="ascii")
        states.append(stat.rpartition(")")[2].split()[0])
    return set(states) == {"T"}


@pytest.fixture
def stopped(serve, request):
    """stopped(call): the call on a daemon that gets to it too late. The fixture
    may be given for how long the daemon is left alone then."""
    daemon = serve()
    url = daemon.url("unix", timeout_ms=20000,
                     breaker_ms=getattr(request, "param", 50))
    with capi.Node(url) as node:
        put_some(node, 3)
        assert found(node, 3) == 3  # it has mapped what it needs

        def run(call):
            daemon.signal(signal.SIGSTOP)
            try:
                until(lambda: is_stopped(daemon.pid))
                return call(node)
            finally:
                daemon.signal(signal.SIGCONT)

        yield run, node, daemon


def saved(node, name):
    """Whether it can be saved now: a room that was left behind would be in
    the way for as long as its session lives."""
    return node.put(name, value_of(name, 1, SIZE)) == capi.OK


@pytest.mark.parametrize("times", (1, 3))
def test_room_for_a_save(stopped, times):
    run, node, daemon = stopped

    def put(node):
        return [node.put(f"late {i}", value_of(f"late {i}", 1, SIZE),
                         timeout_ms=LATE_MS) for i in range(times)]

    assert not set(run(put)) & {capi.OK, capi.PRESENT}
    for i in range(times):
        until(lambda: saved(node, f"late {i}"))
    assert found(node, times, name="late") == times
    until(lambda: daemon.value("larder_reservations") == 0)


def test_room_to_save_in_place(stopped):
    run, node, daemon = stopped
    status, lease = run(
        lambda node: node.reserve("late", SIZE, timeout_ms=LATE_MS))
    assert status != capi.OK and not lease
    until(lambda: saved(node, "late"))
    until(lambda: daemon.value("larder_reservations") == 0)


def test_lease_of_a_load(stopped):
    run, node, daemon = stopped
    assert run(lambda node: node.get("k 0", timeout_ms=LATE_MS))[0] == capi.MISS
    until(lambda: node.get("k 1")[0] == capi.OK)  # it was asked before
    until(lambda: daemon.value("larder_leases") == 0)
    assert found(node, 3) == 3


def test_lease_that_was_staged(stopped):
    run, node, daemon = stopped
    run(lambda node: node.stage(["k 0"], timeout_ms=LATE_MS))
    until(lambda: node.get("k 1")[0] == capi.OK)
    until(lambda: daemon.value("larder_leases") == 0)
    assert found(node, 3) == 3


@pytest.mark.parametrize("stopped", (30000,), indirect=True)
def test_commit_that_is_not_sent(stopped):
    """The daemon is left alone: what was reserved is given back all the same,
    when it goes on."""
    run, node, daemon = stopped
    status, lease = node.reserve("late", SIZE)
    assert status == capi.OK
    assert daemon.value("larder_reservations") == 1

    def commit(node):
        assert node.get("k 0", timeout_ms=LATE_MS)[0] == capi.MISS
        return node.commit(lease, timeout_ms=LATE_MS)

    assert run(commit) == capi.E_OFFLINE
    until(lambda: daemon.value("larder_reservations") == 0)
