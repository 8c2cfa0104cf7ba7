"""larder bench with a daemon of its own: what it says, and what it leaves."""
import json
import os
import signal
import subprocess
import tempfile
import time

import pytest

USAGE, FAILED = 2, 3


@pytest.fixture
def place():
    """A short path: it ends in that of a socket."""
    with tempfile.TemporaryDirectory(prefix="lb") as folder:
        yield folder


def daemons(place):
    """Processes that serve in this place."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and any(place.encode() in w for w in words):
            found.append(int(pid))
    return found


def gone(place):
    end = time.monotonic() + 20
    while daemons(place) and time.monotonic() < end:
        time.sleep(0.01)
    return not daemons(place)


def test_list_names_what_help_explains(larder):
    names = larder("bench", "--list").out.split()
    text = larder("bench", "--help").out
    for name in ("shm-get", "shm-put", "shm-match", "tcp-get", "tcp-put",
                 "tcp-match", "tcp-small", "tls-get", "serve-idle"):
        assert name in names
    for name in names:
        assert f"\n  {name} " in text


@pytest.mark.parametrize("args", [
    ["--clients", "3"], ["--clients"], ["--entries", "10"], ["shm-frob"],
    ["--entries=1e9"]])
def test_wrong_arguments(larder, args):
    assert " ".join(args) + ": " in larder("bench", *args, code=USAGE).err


@pytest.mark.parametrize("figure, variants", [
    ("shm-get", {"checksum", "verify=entry", "checksum, one a call"}),
    ("tcp-put", {"1 connection", "1 connection, of checked streams",
                 "1 connection, one a call",
                 "1 connection, one a call, of checked streams"}),
    ("tls-get", {"1 connection", "1 connection, of TLS"}),
])
def test_values(larder, place, figure, variants):
    rows = larder.json("bench", figure, "--size", "1M", "--clients", "1",
                       "--seconds", "0.1", "--dir", place)
    assert {row["variant"] for row in rows} == variants
    for row in rows:
        assert row["bench"] == figure and row["bytes"] == 1 << 20
        assert row["unit"] == "GB/s" and row["value"] > 0
        assert abs(row["ratio"] - row["value"] / row["limit"]) < 0.01
    assert not os.listdir(place) and gone(place)


def test_lookups(larder, place):
    rows = larder.json("bench", "shm-match", "tcp-match", "tcp-small",
                       "--entries", "100000", "--seconds", "0.1", "--dir",
                       place)
    assert {row["bench"] for row in rows} == {"shm-match", "tcp-match",
                                              "tcp-small"}
    for row in rows:
        assert row["unit"] == "us" and row["value"] > 0
        assert row["bytes"] == (4096 if row["bench"] == "tcp-small"
                                else 100000)
    assert not os.listdir(place) and gone(place)


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_its_daemon_ends_with_it(binary, place, kill):
    process = subprocess.Popen(
        [binary, "bench", "serve-idle", "--seconds", "60", "--dir", place],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not daemons(place) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.01)
        assert daemons(place)
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], check=True,
            stdout=subprocess.PIPE, text=True).stdout.split()
        if kill == signal.SIGKILL: # who guards it has nothing to pass on
            os.kill(int(children[0]), kill)
        else:
            process.send_signal(kill)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.wait()
    assert gone(place)
    assert not os.listdir(place)


def test_a_place_that_is_no_good(larder, place):
    deep = os.path.join(place, "d" * 90)
    os.mkdir(deep)
    done = larder("bench", "tcp-small", "--dir", deep, code=FAILED)
    assert "choose another --dir" in done.err
    assert json.dumps(done.out).count("tcp-small") == 0
