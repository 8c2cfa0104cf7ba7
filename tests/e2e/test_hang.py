"""A daemon whose disk does not answer any more: it goes on with what is in
memory, and ends within its bound, for good or for a successor."""
import json
import signal
import time

import pytest

import capi
from capi import found, put_some

SSD = 1
MANY = 40
# Requests to the disk before it hangs: the daemon has started by then.
HANGS = {"LARDER_FAULTS": "io_hang:60:0"}


@pytest.fixture
def hung(serve):
    """It hangs; MANY chunks are in memory."""
    daemon = serve(start=False, dirs=1, io="plain", drain_ms=1500, jobs=2,
                   env=HANGS)
    daemon.clean = False  # it cannot end as it should
    daemon.start()
    with capi.Node(daemon.url("unix")) as node:
        status = capi.OK
        i = 0
        while status != capi.E_DEADLINE:
            assert node.put(f"before {i}", bytes(100000)) == capi.OK
            status = node.lib.larder_flush(node.node, SSD, 500)
            i += 1
        put_some(node, MANY)
    return daemon


def test_memory_goes_on(hung):
    """Also for those who come now, and while others wait for the disk."""
    with (capi.Node(hung.url("unix")) as first,
          capi.Node(hung.url("tcp")) as second):
        for node in (first, second):
            assert node.reset(200) in (capi.E_DEADLINE, capi.E_OFFLINE)
            assert found(node, MANY) == 0
            put_some(node, MANY)
        for transport in ("unix", "tcp"):
            with capi.Node(hung.url(transport), transport.encode()) as third:
                put_some(third, 5)
                assert found(third, 5) == 5
        assert found(first, MANY) == MANY
    hung.alive()


@pytest.mark.parametrize("waiting", (False, True))
def test_it_ends(hung, waiting):
    """Within drain_ms and a few seconds, requests that wait for the disk or
    not."""
    with capi.Node(hung.url("unix")) as node:
        if waiting:
            node.reset(100)
        begin = time.monotonic()
        hung.signal(signal.SIGTERM)
        assert hung.wait() != 0  # not all of it was written down
        assert time.monotonic() - begin < 30
    assert "does not answer" in hung.log()


def test_it_is_taken_over(hung, serve):
    """Its memory goes along; the directory is tried again."""
    second = serve(start=False, socket=hung.socket, io="plain",
                   flags=("--dir", hung.dirs[0]))
    second.start("--takeover")
    hung.wait()
    with capi.Node(second.url("unix")) as node:
        assert found(node, MANY) == MANY
    second.alive()


def test_it_starts(serve):
    """Without the directory whose disk hangs, and ends within its bound."""
    daemon = serve(start=False, dirs=1, io="plain", drain_ms=1500,
                   admin="127.0.0.1:0")
    daemon.start()
    with capi.Node(daemon.url("unix")) as node:
        put_some(node, MANY)
        assert node.lib.larder_flush(node.node, SSD, 20000) == capi.OK
    daemon.stop()
    daemon.env = {"LARDER_FAULTS": "io_hang:1:0"}
    daemon.clean = False
    daemon.start()
    assert "starts off: the disk does not answer" in daemon.log()
    with capi.Node(daemon.url("unix")) as node:
        assert found(node, MANY) == 0
        put_some(node, MANY)
        assert found(node, MANY) == MANY
    disk, = json.loads(daemon.http("/status.json"))["disks"]
    assert not disk["on"] and disk["reason"] == "the disk does not answer"
    assert daemon.value("larder_disk_on") == 0
    begin = time.monotonic()
    daemon.signal(signal.SIGTERM)
    daemon.wait()
    assert time.monotonic() - begin < 30
    assert "closed without it" in daemon.log()
    # The disk answers again, and has what it had.
    daemon.env = None
    daemon.clean = True
    daemon.start()
    with capi.Node(daemon.url("unix")) as node:
        assert found(node, MANY) == MANY


def test_it_takes_over(serve):
    """One to whom the disk gives no answer: neither the look at it before, nor
    opening it, holds up the upgrade."""
    first = serve(dirs=1, io="plain")
    with capi.Node(first.url("unix")) as node:
        put_some(node, MANY)
    second = serve(start=False, socket=first.socket, io="plain",
                   drain_ms=1500, env={"LARDER_FAULTS": "io_hang:1:0"},
                   flags=("--dir", first.dirs[0]))
    second.clean = False
    second.start("--takeover")
    assert first.wait() == 0
    assert "starts off: the disk does not answer" in second.log()
    with capi.Node(second.url("unix")) as node:
        assert found(node, MANY) == MANY
    second.alive()
