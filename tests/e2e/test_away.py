"""Daemons that are stopped, killed, started late: what clients notice. Every
call ends by its deadline, and nobody needs to be told when it is back."""
import os
import signal
import time

import pytest

import capi
from capi import found, put_some
from daemon import Child, free_port, in_child, until

BOTH = ("unix", "tcp")
both = pytest.mark.parametrize("transport", BOTH)
SLACK_S = 10.0


def timed(call, timeout_ms):
    """Ends by its deadline."""
    begin = time.monotonic()
    result = call()
    took = time.monotonic() - begin
    assert took < timeout_ms / 1000 + SLACK_S, f"it took {took:.2f} s"
    return result, took


@both
def test_deadlines_of_a_stopped_daemon(serve, transport):
    """Every call ends by its deadline; after SIGCONT it works by itself."""
    daemon = serve()

    def work():
        node = capi.Node(daemon.url(transport, breaker_ms=200))
        put_some(node, 5)
        assert found(node, 5) == 5
        status, out, lease = node.stage(["k 0"])
        assert status == capi.OK
        os.kill(daemon.pid, signal.SIGSTOP)
        late = 0
        try:
            for call in (
                    lambda: node.get("k 0", timeout_ms=300)[0],
                    lambda: node.put("new", b"x" * 50000, timeout_ms=300),
                    lambda: node.exists("k 1", timeout_ms=300),
                    lambda: node.remove("k 1", timeout_ms=300),
                    lambda: node.stage(["k 2"], timeout_ms=300)[0],
                    lambda: node.reserve("r", 5000, timeout_ms=300)[0],
                    lambda: node.flush(0, timeout_ms=300),
                    lambda: node.get("k 3", timeout_ms=300)[0]):
                time.sleep(0.25)  # past the breaker, so that it is asked
                status, took = timed(call, 300)
                assert status in (capi.MISS, capi.E_OFFLINE, capi.E_DEADLINE)
                late += took > 0.1
            timed(lambda: node.release(lease), 300)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert late > 0, "nobody waited for it"
        until(lambda: node.get("k 0")[0] == capi.OK,
              text="it does not come back")
        for i in (0, 2, 3, 4):
            assert node.get(f"k {i}")[2] == capi.value_of(f"k {i}", 1, 60000)
        assert node.put("again", b"x") == capi.OK
        # It ends by its deadline too, whatever the daemon does.
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            timed(lambda: node.close(300), 300)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        return True

    assert in_child(work)
    daemon.nothing_held()


@both
def test_opening_a_stopped_daemon(serve, transport):
    daemon = serve()

    def work():
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            try:
                capi.Node(daemon.url(transport, timeout_ms=500))
                return "opened"
            except capi.Error as e:
                assert e.status in (capi.E_OFFLINE, capi.E_DEADLINE), e
            assert time.monotonic() - begin < 0.5 + SLACK_S
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        return "refused"

    assert in_child(work) == "refused"


@both
def test_killed_daemon(serve, transport):
    """Misses at once, and not one deadline each; the next daemon is found
    without anybody's help."""
    port = free_port()
    daemon = serve(dirs=1, listen=f"127.0.0.1:{port}")
    to_child, to_parent = os.pipe(), os.pipe()
    url = daemon.url(transport, timeout_ms=2000, breaker_ms=500)

    def work():
        node = capi.Node(url)
        put_some(node, 20)
        assert node.flush() == capi.OK
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        begin = time.monotonic()
        for i in range(200):
            status, cause, _ = node.get(f"k {i % 20}")
            assert status in (capi.MISS, capi.E_OFFLINE)
            assert status != capi.MISS or cause == "offline", cause
        took = time.monotonic() - begin
        assert took < 2 * 200 / 10, f"{took:.1f} s for 200 calls: each waits"
        assert node.put("new", b"x") == capi.E_OFFLINE
        os.write(to_parent[1], b"2")
        until(lambda: node.get("k 0")[0] == capi.OK,
              text="it does not come back")
        assert found(node, 20) == 20
        assert node.put("new", b"x") == capi.OK
        node.close()
        return took

    child = Child(work)
    os.read(to_parent[0], 1)
    daemon.kill()
    os.write(to_child[1], b"x")
    os.read(to_parent[0], 1)
    daemon.start()
    took = child.result()
    print(f"200 calls to nobody: {took * 1000:.0f} ms")
    for fd in to_child + to_parent:
        os.close(fd)


@both
def test_lazy_connect(serve, transport):
    """Opening succeeds without a daemon, and it is found when it comes."""
    port = free_port()
    daemon = serve(start=False, listen=f"127.0.0.1:{port}")
    where = (f"unix:{daemon.socket}" if transport == "unix"
             else f"tcp://127.0.0.1:{port}")
    with pytest.raises(capi.Error) as e:
        capi.Node(where + "?timeout_ms=500")
    assert e.value.status == capi.E_OFFLINE
    ready = os.pipe()

    def work():
        node = capi.Node(where + "?connect=lazy&breaker_ms=50&timeout_ms=1000")
        assert node.get("k")[0] in (capi.MISS, capi.E_OFFLINE)
        os.write(ready[1], b"x")
        until(lambda: node.put("k", b"xyz") in (capi.OK, capi.PRESENT))
        assert node.get("k")[2] == b"xyz"
        node.close()
        return True

    child = Child(work)
    os.read(ready[0], 1)
    daemon.start()
    assert child.result()
    for fd in ready:
        os.close(fd)
