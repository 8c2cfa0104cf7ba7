"""Mistakes that everybody makes once: the message says what is wrong, and what
to do about it. What it says would be right is tried."""
import contextlib
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading

import pytest

from daemon import FAILED, USAGE, refused, until
from mounts import mount, own_mounts

NOBODY = 65534
REMOUNT_READ_ONLY = 32 | 1
TOKEN = "a-token-of-a-0123456789abcdef0123456\n"


@pytest.fixture
def open_folder():
    """One that other users reach, too."""
    with tempfile.TemporaryDirectory(prefix="larder-") as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


def as_nobody(larder, *args):
    """As another user; who is no root is that user already."""
    who = {}
    if os.geteuid() == 0:
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        if subprocess.run(["/bin/sh", "-c", f"test -x {larder.binary}"],
                          check=False, **who).returncode != 0:
            pytest.skip("the tree cannot be read by other users")
    return subprocess.run([larder.binary, *map(str, args)], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=300, check=False,
                          cwd="/", **who)


@pytest.fixture
def own(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("no right to mount a file system here")
    with own_mounts(tmp_path):
        yield


def small_disk(folder, size):
    """A file system of so many bytes."""
    folder.mkdir()
    mount(folder, b"tmpfs", 0, f"size={size}".encode())
    return folder


# ---- addresses -------------------------------------------------------------

def test_the_dashboard_is_no_node(larder, serve):
    """It listens, but does not speak to engines: said long before the
    deadline."""
    daemon = serve(admin="127.0.0.1:0")
    port = daemon.admin.rpartition(":")[2]
    done = larder("stat", f"tcp://127.0.0.1:{port}?timeout_ms=40000",
                  code=FAILED)
    assert "does not speak Larder's protocol but HTTP" in done.err
    assert "option admin" in done.err and "`listening:`" in done.err
    assert "did not answer in time" not in done.err


class WebServer:
    """Answers to GET, and to anything else what it is told to; None: keeps
    silent."""

    def __init__(self, other):
        self.other, self.kept = other, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for one in (self.listener, *self.kept):
            one.close()

    def run(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            self.kept.append(one)
            with contextlib.suppress(OSError):
                self.answer(one)

    def answer(self, one):
        if one.recv(4096).startswith(b"GET "):
            one.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")
        elif self.other is None:
            return
        elif self.other:
            one.sendall(self.other)
        one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("other", [None, b"", b"HTTP/1.1 400 Bad Request\r\n"
                                   b"Connection: close\r\n\r\nno", b"?" * 80])
def test_web_servers(larder, other):
    """Whatever one makes of bytes that are no HTTP."""
    with WebServer(other) as server:
        done = larder("stat", f"tcp://127.0.0.1:{server.port}"
                      "?timeout_ms=40000", code=FAILED)
        assert "does not speak Larder's protocol but HTTP" in done.err


def test_a_slow_node_is_no_web_server(larder, serve):
    """One that is stopped does not answer, to neither question."""
    daemon = serve()
    address = daemon.url("tcp", timeout_ms=3000)
    daemon.freeze()
    done = larder("stat", address, code=FAILED)
    assert "did not answer in time" in done.err


def test_address_for_a_directory(larder, tmp_path):
    for command in (("stat",), ("put", "k", "-"), ("ls",)):
        done = larder(command[0], "127.0.0.1:9400", *command[1:], stdin=b"v",
                      code=USAGE)
        assert "tcp://127.0.0.1:9400" in done.err
    assert not list(tmp_path.iterdir())
    larder("put", "./127.0.0.1:9400", "k", "-", stdin=b"v")
    assert larder("get", "127.0.0.1:9400", "k", "-").stdout == b"v"


# ---- who may come in -------------------------------------------------------

def test_socket_of_another_user(larder, open_folder, serve):
    daemon = serve(socket=open_folder / "sock", socket_mode="0600")
    about = os.stat(daemon.socket)
    if os.geteuid() != 0:
        os.chmod(daemon.socket, 0)
        about = os.stat(daemon.socket)
    done = as_nobody(larder, "stat", f"unix:{daemon.socket}")
    assert done.returncode == FAILED
    uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    for word in ("Permission denied", f"group {about.st_gid}",
                 f"mode {about.st_mode & 0o7777:04o}", f"uid {uid}",
                 "--socket-mode"):
        assert word in done.stderr, done.stderr
    os.chmod(daemon.socket, 0o600)


def test_socket_behind_a_closed_directory(larder, open_folder):
    (open_folder / "closed").mkdir(mode=0)
    done = as_nobody(larder, "stat", f"unix:{open_folder}/closed/sock")
    assert done.returncode == FAILED
    assert "a directory above it is closed" in done.stderr
    assert "uid " in done.stderr


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_no_token_was_sent(larder, serve, tmp_path, transport):
    """That is not the same as a wrong one."""
    for name, text in (("token", TOKEN), ("wrong", TOKEN[::-1].strip())):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    daemon = serve(config=f"[tenant a]\ntoken_file = {tmp_path}/token\n")
    larder("stat", daemon.url(transport, tenant="a"), code=FAILED)
    until(lambda: "refused as tenant 'a': it sent no token" in daemon.log())
    assert "is not right" not in daemon.log()
    larder("stat", daemon.url(transport, tenant="a",
                              token_file=tmp_path / "wrong"), code=FAILED)
    until(lambda: "refused as tenant 'a': the token is not right"
          in daemon.log())


# ---- directories -----------------------------------------------------------

def mistakes(folder):
    (folder / "file").write_text("x")
    (folder / "closed").mkdir(mode=0o500)
    (folder / "locked").mkdir()
    (folder / "locked" / "larder.lock").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("/proc/nowhere")
    return {"a file": folder / "file", "below a file": folder / "file/kv",
            "no permission": folder / "closed/kv",
            "not to be made": "/proc/nowhere/kv",
            "a loop": folder / "loop/kv", "a link": folder / "nowhere",
            "its lock is a directory": folder / "locked"}


def test_directory_that_cannot_be_one(serve, open_folder):
    """It costs nobody the disk tier: such a daemon never serves."""
    cases = mistakes(open_folder)
    if os.geteuid() == 0:
        del cases["no permission"]  # there is none for root: see below
    for case, path in cases.items():
        daemon = serve(start=False, flags=("--dir", path))
        text = refused(daemon)
        assert str(path) in text and "give a directory" in text, (case, text)
        assert "ready" not in text and "listening" not in text, (case, text)


def test_directory_without_permission(larder, open_folder):
    (open_folder / "closed").mkdir(mode=0o555)
    path = open_folder / "closed/kv"
    done = as_nobody(larder, "serve", "--dir", path, "--admin", "none",
                     "--dram", "8M", "--socket", open_folder / "none/sock")
    uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    assert done.returncode == FAILED
    assert f"{path}: cannot make the directory: Permission denied" \
        in done.stderr
    assert f"uid {uid}" in done.stderr and "ready" not in done.stderr


def test_one_of_several_directories(serve, tmp_path):
    (tmp_path / "file").write_text("x")
    daemon = serve(start=False, dirs=1, flags=("--dir", tmp_path / "file"))
    assert "cannot make the directory" in refused(daemon)


def test_directory_of_an_embedded_node(larder, tmp_path):
    (tmp_path / "file").write_text("x")
    done = larder("put", "file/kv", "k", "-", stdin=b"v", code=FAILED)
    assert "cannot make the directory: Not a directory" in done.err
    assert "give a directory" in done.err


def test_read_only_after_a_failure(own, serve, tmp_path):
    """The kernel makes it so when a disk fails: a node that had the directory
    starts without it; one that never had it is told."""
    disk = small_disk(tmp_path / "disk", "128M")
    daemon = serve(start=False, flags=("--dir", disk / "kv"))
    daemon.start()
    assert "starts off" not in daemon.log()
    daemon.stop()
    mount(disk, None, REMOUNT_READ_ONLY)
    daemon.start()
    assert "kv: starts off" in daemon.log()
    assert "Read-only file system" in daemon.log()
    daemon.alive()
    daemon.stop()
    other = serve(start=False, flags=("--dir", disk / "other"))
    assert "Read-only file system: give a directory" in refused(other)


def test_failing_disk_at_the_start(serve):
    """EIO is no mistake of whoever configured it."""
    daemon = serve(start=False, dirs=1,
                   env={"LARDER_FAULTS": "io_open:1:0"})
    daemon.start()
    assert "starts off" in daemon.log()
    daemon.alive()


def test_how_much_a_full_disk_lacks(own, larder, tmp_path):
    small_disk(tmp_path / "disk", "2M")
    done = larder("put", "embed:disk/kv?ssd=64M", "k", "-", stdin=b"v",
                  code=FAILED)
    assert "the first segment needs 4M, all of ssd 64M" in done.err
    small_disk(tmp_path / "tiny", "64K")
    done = larder("put", "embed:tiny/kv?ssd=64M", "k", "-", stdin=b"v",
                  code=FAILED)
    assert "ssd=64M may need as much there" in done.err


def test_ssd_that_is_too_small(larder, serve, tmp_path):
    """It says what would do, and that does."""
    larder("put", "embed:kv?dram=8M&segment=64M&ssd=512M", "k", "-",
           stdin=b"value")
    daemon = serve(start=False, ssd="100M", flags=("--dir", tmp_path / "kv"))
    text = refused(daemon, code=USAGE)
    assert "ssd=100M is too small for segments of 64M" in text
    enough = re.search(r"set ssd=(\d+M) or more", text).group(1)
    assert enough == "257M"  # and 2 superblocks
    done = larder("get", "embed:kv?dram=8M&ssd=256M", "k", "-", code=USAGE)
    assert f"set ssd={enough} or more" in done.err
    got = larder("get", f"embed:kv?dram=8M&ssd={enough}", "k", "-")
    assert got.stdout == b"value"


@pytest.mark.parametrize("file, offset, what", [
    ("larder.super", 8, "kv: written in format 7"),
    ("larder.super", 128 * 1024 + 8, "kv: written in format 7"),
    ("segment-000000", 8, "segment-000000 written in format 7")])
def test_format_of_a_later_version(larder, place, folder, file, offset, what):
    larder("put", place, "k", "-", stdin=b"value")
    with open(folder / file, "r+b") as f:
        f.seek(offset)
        f.write(b"\x07")
    for command in (("get", "k", "-"), ("ls",), ("fsck",)):
        done = larder(command[0], place, *command[1:], code=FAILED)
        assert what in done.err and "knows format 1" in done.err
        assert "as new as its writer" in done.err
        assert "nothing was touched" in done.err
    done = larder("wipe", place, "--yes", code=FAILED)
    assert "format 7" in done.err and "--force" in done.err


# ---- the command line ------------------------------------------------------

def test_shard_beyond_the_shards(larder, place):
    done = larder("put", place, "k", "-", "--shard", 5, stdin=b"v", code=USAGE)
    assert "--shard 5" in done.err and "--shards 1" in done.err
    assert "give --shards" in done.err and "0 to 0" not in done.err
    larder("put", place, "k", "-", "--shard", 5, "--shards", 6, stdin=b"v")
    done = larder("put", place, "k", "-", "--shard", "x", stdin=b"v",
                  code=USAGE)
    assert "--shard x: give a number from 0 to 127" in done.err


def test_figure_that_bench_has_not(larder):
    done = larder("bench", "nosuch", code=USAGE)
    for name in larder("bench", "--list").out.split():
        assert re.search(rf"\b{name}\b", done.err), name
    assert "nosuch" in done.err


@pytest.mark.parametrize("flags, right", [
    (("--size", "5"), "4K to 16M"), (("--seconds", "0"), "3600"),
    (("--clients", "3"), "1 or 2"), (("--entries", "1"), "1000 to"),
    (("--size",), "lacks its value"), (("--frob",), "is no flag")])
def test_flag_that_bench_has_not(larder, flags, right):
    done = larder("bench", *flags, code=USAGE)
    assert " ".join(flags) + ": " in done.err and right in done.err
