"""`larder serve --takeover`: a new daemon in the place of one that runs."""
import contextlib
import ctypes
import os
import re
import signal
import socket
import time

import pytest

import capi
import wireclient as w
from capi import found, put_some
from daemon import (FAILED, PATIENCE_S, Child, free_port, hear, refused,
                    until)
from wireclient import key_of

both = pytest.mark.parametrize("transport", ("unix", "tcp"))


@both
def test_takeover_under_load(serve, transport):
    """The new daemon is there at once; clients go on by themselves, and see
    right bytes or misses meanwhile."""
    port = free_port()
    first = serve(dirs=1, listen=f"127.0.0.1:{port}")
    with capi.Node(first.url(transport)) as node:
        put_some(node, 100)
    read_fd, write_fd = os.pipe()
    url = first.url(transport, timeout_ms=1000, breaker_ms=50)

    def work():
        node = capi.Node(url)
        hits_before = found(node, 100)
        os.write(write_fd, b"x")
        offline = hits = 0
        end = time.monotonic() + PATIENCE_S / 2
        # Until all of them are there again, after it was away.
        while time.monotonic() < end:
            now = 0
            for i in range(100):
                status, cause, value = node.get(f"k {i}")
                if status == capi.OK:
                    assert value == capi.value_of(f"k {i}", 1, 60000)
                    now += 1
                elif cause == "offline" or status == capi.E_OFFLINE:
                    offline += 1
                    time.sleep(0.005)
            hits = now
            if hits == 100 and offline:
                break
        assert hits_before == 100 and hits == 100, (hits_before, hits)
        assert node.put("after", b"x" * 5000) == capi.OK
        assert node.get("after")[2] == b"x" * 5000
        node.close()
        return offline

    second = serve(start=False, dirs=0, socket=first.socket,
                   listen=f"127.0.0.1:{port}")
    second.dirs = first.dirs

    child = Child(work)
    hear(read_fd, child)
    second.start("--takeover")
    child.result()
    assert first.wait() == 0
    assert re.search(r"took over: \d+ bytes of DRAM stayed behind; the SSD "
                     r"tier has all of it", second.log())
    assert re.search(r"\d+ chunks with \d+ bytes in DRAM were taken over",
                     second.log())
    second.alive()
    os.close(read_fd)
    os.close(write_fd)


def test_takeover_from_nobody(serve):
    """It starts as if --takeover were not there; also after a crash."""
    daemon = serve(start=False)
    daemon.start("--takeover")
    daemon.alive()
    daemon.kill()
    assert os.path.exists(daemon.socket)
    daemon.start("--takeover")
    daemon.alive()


@both
def test_takeover_keeps_dram(serve, transport):
    """Without any disk: what was in DRAM is there, the oldest first to go."""
    port = free_port()
    first = serve(listen=f"127.0.0.1:{port}")
    with capi.Node(first.url(transport)) as node:
        put_some(node, 100)
        assert node.remove("k 7") == capi.OK
    second = serve(start=False, socket=first.socket,
                   listen=f"127.0.0.1:{port}")
    second.start("--takeover")
    assert first.wait() == 0
    taken = re.search(r"(\d+) chunks with (\d+) bytes in DRAM were taken over, "
                      r"0 bytes were given up", second.log())
    assert taken, second.log()
    assert int(taken.group(1)) == 99
    with capi.Node(second.url(transport)) as node:
        assert found(node, 100) == 99
        assert node.get("k 7")[:2] == (capi.MISS, "absent")
        assert node.put("after", b"x" * 5000) == capi.OK
        assert node.get("after")[2] == b"x" * 5000
    second.alive()
    third = serve(start=False, socket=first.socket,
                  listen=f"127.0.0.1:{port}")
    third.start("--takeover")
    assert second.wait() == 0
    with capi.Node(third.url(transport)) as node:
        assert found(node, 100) == 99
        assert node.get("after")[2] == b"x" * 5000


def test_takeover_of_a_paused_one(serve, larder):
    """Somebody did not trust what it holds: nor is it given out by the next,
    nor by the one after that, until it is resumed."""
    daemons = [serve()]
    with capi.Node(daemons[0].url()) as node:
        put_some(node, 10)
    larder("pause", daemons[0].socket)
    for _ in range(2):
        daemons.append(serve(start=False, socket=daemons[0].socket))
        daemons[-1].start("--takeover")
        assert daemons[-2].wait() == 0
        assert "is paused" in daemons[-1].log()
        assert daemons[-1].value("larder_mode", mode="paused") == 1
        with capi.Node(daemons[-1].url()) as node:
            assert node.get("k 0")[:2] == (capi.MISS, "paused")
    larder("resume", daemons[0].socket)
    daemons.append(serve(start=False, socket=daemons[0].socket))
    daemons[-1].start("--takeover")
    assert daemons[-2].wait() == 0
    assert "is paused" not in daemons[-1].log()
    with capi.Node(daemons[-1].url()) as node:
        assert found(node, 10) == 10


@pytest.mark.parametrize("kind", ("lease", "reservation"))
def test_takeover_leaves_what_is_held(serve, kind):
    """A client that lives on with a lease or a reservation may still read or
    write there: that memory stays behind, and is nobody else's."""
    first = serve(dram="64M")
    read_fd, write_fd = os.pipe()

    def work():
        node = capi.Node(first.url("unix", timeout_ms=5000, breaker_ms=50))
        put_some(node, 20)
        if kind == "lease":
            status, _, lease = node.stage(["k 3"])
            segments = node.segments(lease)
        else:
            status, lease = node.reserve("mine", 60000)
            segments = node.segments(lease, reserved=True)
        assert status == capi.OK and segments
        os.write(write_fd, b"x")
        until(lambda: node.get("other 899")[0] == capi.OK)
        if kind == "lease":
            assert (b"".join(ctypes.string_at(*s) for s in segments)
                    == capi.value_of("k 3", 1, 60000))
        else:
            for address, size in segments:
                ctypes.memset(address, 0xee, size)
            assert node.commit(lease) != capi.OK
        # Saved since then, over all that was free.
        assert found(node, 900, name="other") == 900
        assert found(node, 20) == 0  # in that same extent
        node.close()

    child = Child(work)
    hear(read_fd, child)
    second = serve(start=False, dram="64M", socket=first.socket)
    second.start("--takeover")
    assert first.wait() == 0
    assert re.search(r"took over: [1-9]\d* bytes of DRAM stayed behind",
                     second.log()), second.log()
    with capi.Node(second.url("unix")) as node:
        put_some(node, 900, name="other")
    child.result()
    second.alive()
    os.close(read_fd)
    os.close(write_fd)


def test_takeover_of_other_sizes(serve):
    """Memory that cannot be used is given up, with the reason."""
    first = serve(dram="64M")
    with capi.Node(first.url("unix")) as node:
        put_some(node, 10)
    second = serve(start=False, dram="1G", socket=first.socket)
    second.start("--takeover")
    assert first.wait() == 0
    assert "is not used: its memory lies in extents of another size" in (
        second.log())
    with capi.Node(second.url("unix")) as node:
        assert found(node, 10) == 0
        put_some(node, 10)
    third = serve(start=False, dram="1G", isolation="strict",
                  socket=first.socket)
    third.start("--takeover")
    assert second.wait() == 0
    assert "isolation is strict now" in third.log()
    with capi.Node(third.url("unix")) as node:
        assert found(node, 10) == 0


def test_takeover_with_many_addresses(serve):
    """As many as the option takes, and the unix socket."""
    first = serve()
    second = serve(start=False, socket=first.socket, listen=",".join(
        f"127.0.0.{i + 1}:0" for i in range(16)))
    second.start("--takeover")
    assert first.wait() == 0
    second.alive()


def test_takeover_with_a_pipe(serve, tmp_path):
    """A trace that nobody reads would be waited for, and the old one gone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first = serve()
    second = serve(start=False, socket=first.socket, trace=pipe)
    assert "cannot be written" in refused(second, "--takeover")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert "is not a file" in refused(second, "--takeover")
    os.close(reader)
    first.alive()


@pytest.mark.parametrize("wrong, text", (
    ({"config": "[tenant default]\ntoken_file = nowhere\n"}, "token file"),
    ({"tls": "on", "tls_cert": "nowhere", "tls_key": "nowhere"},
     "TLS certificate"),
    ({"listen": "0.0.0.0:0"}, "other hosts"),
    ({"dram": "15T"}, "too little"),
    ({"shared": "nfs:/kv"}, "use dir:/PATH"),
    ({"shared": "dir:/kv", "shared_key": "/nowhere"}, "/nowhere"),
    ({"flags": ("--dir", "/proc/version/kv")}, "cannot use the directory"),
    ({"dirs": 1, "ssd": "8M", "segment": "8M"}, "set ssd=33M or more"),
    ({"admin": "192.0.2.1:7"}, "add `admin_open = on`"),
    ({"admin": "192.0.2.1:7", "admin_open": "on"},
     "admin: 192.0.2.1:7: cannot listen"),
    ({"trace": "/nowhere/x"}, "trace: /nowhere/x cannot be written"),
    ({"listen": "127.0.0.1:7", "admin": "127.0.0.1:7"},
     "admin: port 7 of 127.0.0.1 is listened on"),
    ({"listen": "127.0.0.1:7", "admin": "0.0.0.0:7", "admin_open": "on"},
     "admin: port 7 of 0.0.0.0 is listened on")))
def test_takeover_that_would_fail(serve, wrong, text):
    """What is wrong with the new one is found before the old one ends: it goes
    on with all that it has."""
    first = serve()
    with capi.Node(first.url("unix")) as node:
        put_some(node, 10)
        second = serve(start=False, socket=first.socket, **wrong)
        assert text in refused(second, "--takeover")
        assert found(node, 10) == 10
    assert "takes over" not in first.log()
    first.alive()


def test_takeover_of_a_broken_directory(serve, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "larder.super").write_bytes(bytes(16 << 20))
    (broken / "segment-000000").write_bytes(bytes(4096))
    first = serve()
    second = serve(start=False, socket=first.socket, flags=("--dir", broken))
    assert "no copy of the superblock" in refused(second, "--takeover")
    first.alive()


@pytest.mark.parametrize("by", ("daemon", "embedded"))
def test_takeover_and_a_lock(serve, by):
    """That a third has: found before anything is given up. What the old one
    has itself, or nobody, is no obstacle."""
    first = serve(dirs=1)
    third = serve(dirs=1)
    taken = str(third.dirs[0])
    with contextlib.ExitStack() as stack:
        if by == "embedded":
            third.stop()
            stack.enter_context(capi.Node(f"embed:{taken}?dram=8M&ssd=64M"))
        second = serve(start=False, socket=first.socket, flags=(
            "--dir", first.dirs[0], "--dir", taken))
        assert (f"{taken}: in use by another node"
                in refused(second, "--takeover"))
        first.alive()
    if by == "daemon":
        third.stop()
    second = serve(start=False, socket=first.socket, flags=(
        "--dir", first.dirs[0], "--dir", taken))
    second.start("--takeover")
    assert first.wait() == 0
    assert second.value("larder_disk_on") == 2
    second.alive()


def test_takeover_and_ports(serve):
    """A port that the old one has will be free; one that another program has
    will not."""
    port = free_port()
    first = serve(listen=f"127.0.0.1:{port}", admin=f"127.0.0.1:{free_port()}")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for option in ("listen", "admin"):
            second = serve(start=False, socket=first.socket, **{option: taken})
            assert (f"{option}: {taken} is in use by another program"
                    in refused(second, "--takeover"))
    first.alive()
    third = serve(start=False, **{name: first.given[name] for name in (
        "socket", "listen", "admin")})
    third.start("--takeover")
    assert first.wait() == 0
    third.alive()


def test_takeover_of_one_that_hangs(serve):
    """It will not hand over: that is found out soon, and nothing is lost."""
    first = serve()
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second = serve(start=False, socket=first.socket)
        text = refused(second, "--takeover", code=FAILED)
        assert "does not answer" in text and "SIGKILL" in text
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.alive()


def test_takeover_by_an_older_one(serve):
    """Which knows nothing of descriptors, and says so by its verb."""
    first = serve()
    peer = first.enter("tcp")
    assert peer.put_one(peer.space(), key_of("k"), bytes(100000)) == w.OK
    peer.close()
    first.peers.clear()
    text = w.Peer(first.socket).ask(w.ADMIN, b"takeover").text
    assert first.wait() == 0
    assert text == ("131072 bytes of DRAM were given up; there is no SSD tier")
