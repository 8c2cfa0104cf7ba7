"""larder bench: where its program is found; with a daemon of its own, what it
says and what it leaves."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from daemon import PATIENCE_S

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
    end = time.monotonic() + PATIENCE_S
    while daemons(place) and time.monotonic() < end:
        time.sleep(0.01)
    return not daemons(place)


# ---- the program -----------------------------------------------------------

def run(*command, code=0, **env):
    done = subprocess.run([str(x) for x in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=PATIENCE_S, env={**os.environ, **env})
    assert done.returncode == code, done
    return done


def stand_in(folder):
    """In place of larder-bench: says where it lies and what it was given."""
    path = folder / "larder-bench"
    path.write_text('#!/bin/sh\necho "$0 $*"\nexit 7\n')
    path.chmod(0o755)
    return path


def test_nothing_of_it_is_in_the_product(binary):
    bench = pathlib.Path(binary + "-bench").read_bytes()
    library = pathlib.Path(binary).parents[1] / "lib/liblarder.so"
    for word in (b"dram-get", b"limit_anonymous", b"larder-bench-XXXXXX"):
        assert word in bench
        for path in (binary, library):
            assert word not in pathlib.Path(path).read_bytes(), path


def test_found_beside_then_on_the_path(binary, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    shutil.copy(binary, here)
    (tmp_path / "link").symlink_to(here / "larder")
    beside, other = stand_in(here), stand_in(there)
    env = {"PATH": f"{there}:{os.environ['PATH']}"}
    for larder in (here / "larder", tmp_path / "link"):
        done = run(larder, "bench", "hash", "--json", code=7, **env)
        assert done.stdout == f"{beside} hash --json\n"
    beside.unlink()
    done = run(here / "larder", "bench", "hash", code=7, **env)
    assert done.stdout == f"{other} hash\n"
    other.unlink()
    done = run(here / "larder", "bench", "hash", code=FAILED, **env)
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert f"cannot start {beside}: No such file" in done.stderr
    assert "make install" in done.stderr and "larder-kv" in done.stderr


def test_installed(larder, place, tmp_path):
    """Both programs are in the folder of `make install`, and find each
    other there."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake here: apt-get install cmake")
    run("cmake", "--install", os.environ["LARDER_BUILD"], "--prefix", "/usr",
        DESTDIR=str(tmp_path))
    installed = tmp_path / "usr/bin/larder"
    assert (run(installed, "bench", "--list").stdout
            == larder("bench", "--list").out)
    figure = ("bench", "serve-idle", "--seconds", "0.1", "--json", "--dir",
              place)
    assert "the daemon, CPU time" in run(installed, *figure).stdout
    installed.rename(tmp_path / "moved")
    done = run(f"{installed}-bench", *figure[1:], code=FAILED)
    assert f"cannot start {installed}: No such file" in done.stderr


# ---- the command line ------------------------------------------------------

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


# ---- with a daemon ---------------------------------------------------------

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
                       "--entries", "10000", "--seconds", "0.1", "--dir",
                       place)
    assert {row["bench"] for row in rows} == {"shm-match", "tcp-match",
                                              "tcp-small"}
    for row in rows:
        assert row["unit"] == "us" and row["value"] > 0
        assert row["bytes"] == (4096 if row["bench"] == "tcp-small"
                                else 10000)
    match = {row["variant"]: row for row in rows if row["bench"] == "shm-match"}
    bound = (match["embedded, cold, median"]["value"] + 50 +
             match["empty request, cold, median"]["value"])
    goal = match["cold, median"]["goal"].removeprefix("value<=")
    assert abs(float(goal) - bound) < 0.01 * bound
    assert not os.listdir(place) and gone(place)


def test_members_of_a_cluster(larder, place):
    rows = larder.json("bench", "peer-put", "peer-match", "--seconds", "0.1",
                       "--dir", place)
    assert [row["bench"] for row in rows] == ["peer-put", "peer-match"]
    assert rows[0]["value"] > 0 and rows[0]["limit"] > 0
    assert rows[1]["bytes"] == 1000 and rows[1]["echo_us"] > 0
    assert not os.listdir(place) and gone(place)


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_its_daemon_ends_with_it(binary, place, kill):
    process = subprocess.Popen(
        [binary, "bench", "serve-idle", "--seconds", "60", "--dir", place],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE_S
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
        assert process.wait(PATIENCE_S) != 0
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
