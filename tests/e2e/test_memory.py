"""How much memory a node takes and when (dram_start), and nodes that end by
themselves when nobody uses them (idle_exit_s)."""
import contextlib
import random
import re
import signal
import time

import pytest

import wireclient
from capi import OK, Node
from daemon import until

MIB = 1 << 20
SLACK = 8 * MIB  # slices that were in somebody's hands


def resident(daemon):
    return daemon.value("larder_dram_resident_bytes")


def settled(daemon, low, high):
    """It becomes at least low MiB, and stays below high."""
    until(lambda: resident(daemon) >= low * MIB,
          text=lambda: f"{resident(daemon) / MIB} of {low}")
    time.sleep(0.3)
    assert resident(daemon) <= high * MIB + SLACK


def value(i):
    return random.Random(i).randbytes(MIB)


def put(node, first, last):
    for i in range(first, last):
        assert node.put(f"k{i}", value(i)) == OK


def is_there(node, i):
    return node.get(f"k{i}", MIB)[::2] == (OK, value(i))


def test_memory_grows_with_use(serve):
    """So much is free ahead of what is used (three quarters of it at least),
    and what is saved is there."""
    daemon = serve(dram="256M", dram_start="16M")
    settled(daemon, 16, 16)
    assert daemon.status("RssShmem") < 64 * 1024  # KiB
    with Node(daemon.url()) as node:
        put(node, 0, 40)
        settled(daemon, 52, 56)
        put(node, 40, 100)
        settled(daemon, 112, 116)
        for i in range(100):
            assert is_there(node, i)
        put(node, 100, 240)
        assert daemon.value("larder_evicted_chunks_total") == 0
        settled(daemon, 252, 256)
        put(node, 240, 300)  # more than there is: older ones leave
        assert resident(daemon) == 256 * MIB
        assert daemon.value("larder_evicted_chunks_total") > 0
        assert is_there(node, 299)


def test_each_tenant_has_some_ahead(serve, tmp_path):
    """What one has free is no help to another."""
    token = tmp_path / "token"
    token.write_text("a-token-of-a-0123456789abcdef0123456\n")
    token.chmod(0o600)
    daemon = serve(dram="256M", dram_start="16M",
                   config=f"[tenant a]\ntoken_file = {token}\n")
    settled(daemon, 16, 16)
    with Node(daemon.url()) as one, \
            Node(daemon.url(tenant="a", token_file=token)) as two:
        put(one, 0, 30)
        put(two, 0, 30)
        settled(daemon, 60 + 12, 60 + 3 * 16)  # each, and who comes next
        for node in (one, two):
            assert is_there(node, 7)


@pytest.mark.parametrize("start", ["0", "64M", "1G"])
def test_all_of_it_at_once(serve, start):
    daemon = serve(dram="64M", dram_start=start)
    settled(daemon, 64, 64)
    assert "takes 64M of memory (dram)" in daemon.log()


def test_memory_is_taken_over(serve):
    """What the one before had is not given back, nor is more made."""
    first = serve(dram="256M", dram_start="16M")
    with Node(first.url()) as node:
        put(node, 0, 40)
    settled(first, 52, 56)
    second = serve(dram="256M", dram_start="16M", socket=first.socket,
                   flags=("--takeover",))
    first.wait()
    settled(second, 52, 80)
    with Node(second.url()) as node:
        assert is_there(node, 3)
        put(node, 100, 140)
        settled(second, 92, 128)


def test_it_says_what_it_takes(serve):
    daemon = serve(dram="256M", dram_start="16M", dirs=2, ssd="64M",
                   idle_exit_s=3600)
    line = re.search(r"process (\d+) takes (.*)", daemon.log())
    assert int(line[1]) == daemon.pid
    assert line[2].startswith("16M of memory, up to 256M as it is used "
                              "(dram_start, dram); ")
    assert re.search(r"; \d+M of disk, up to 128M \(ssd, dir\); ends after "
                     r"3600 s without a session \(idle_exit_s\)$", line[2])
    assert "; no disk (dir)" in serve().log()


# ---- nobody uses it --------------------------------------------------------

def test_ends_when_nobody_uses_it(serve, larder):
    """A session keeps it, however silent; asking by HTTP does not. A reload
    says for how long."""
    daemon = serve(config="idle_exit_s = 0\n", dirs=1, admin="127.0.0.1:0")
    with Node(daemon.url()) as node, daemon.enter() as silent:
        assert node.put("k", b"value") == OK
        daemon.write_config("idle_exit_s = 1\n")
        daemon.signal(signal.SIGHUP)
        node.close()
        time.sleep(3)
        assert silent.ask(wireclient.PING).status == wireclient.OK
    end = time.monotonic() + 40
    while daemon.process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            daemon.http("/metrics")
        time.sleep(0.1)
    assert daemon.wait() == 0
    assert "no session for 1 s (idle_exit_s): draining" in daemon.log()
    daemon.write_config("idle_exit_s = 0\n")
    daemon.start()
    with Node(daemon.url()) as node:
        assert node.get("k", 5)[::2] == (OK, b"value")  # from the disk


def test_never_by_default(serve):
    daemon = serve()
    time.sleep(3)
    daemon.alive()
    assert "idle_exit_s" not in daemon.log()
