"""`larder tier`, and what `larder doctor` and `larder bench` say of a shared
tier in a directory."""
import json
import os
import shutil
import subprocess

import pytest

from daemon import until

NO, USAGE, FAILED = 1, 2, 3


def tree(path):
    return sorted(os.path.join(folder, name)
                  for folder, _, names in os.walk(path) for name in names)


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "kv"
    path.mkdir()
    return path


def shared(larder, url, *args, env=None):
    """What doctor says of it: one or several lines."""
    done = subprocess.run(
        [larder.binary, "doctor", "--json", "--shared", url, *args],
        cwd=larder.cwd, capture_output=True, timeout=300, check=False,
        env={**os.environ, "LARDER_ADMIN": "none", **(env or {})})
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [line for line in lines if line["check"] == "shared"]
    assert lines and all(line["subject"] == url for line in lines)
    return lines


def test_create_check_ls(larder, place):
    url = f"dir:{place}"
    assert "is it mounted?" in larder("tier", "check", url, code=NO).err
    assert "larder tier create" in larder("tier", "ls", url, code=NO).err
    assert tree(place) == []
    assert "is a shared tier now" in larder("tier", "create", url).out
    assert tree(place) == [str(place / "larder.tier")]
    before = (place / "larder.tier").read_bytes()
    assert json.loads(larder("tier", "create", url, "--json").out) == {
        "url": url, "present": True}
    assert (place / "larder.tier").read_bytes() == before
    assert "can be read and written" in larder("tier", "check", url).out
    lines = larder("tier", "ls", url, "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": "larder.tier", "bytes": len(before)}]
    assert "0 objects" in larder("tier", "ls", url).out


@pytest.mark.parametrize("args, hint", [
    (["frob", "dir:/a"], "create, check, ls or wipe"),
    (["ls", "frob:/a"], "use dir:/PATH"),
    (["check", "dir:relative"], "whole path"),
    (["ls"], "usage: larder tier"),
])
def test_usage(larder, args, hint):
    assert hint in larder("tier", *args, code=USAGE).err


def test_create_needs_a_directory(larder, tmp_path):
    url = f"dir:{tmp_path}/none"
    assert "is it mounted?" in larder("tier", "create", url, code=FAILED).err
    assert not os.path.exists(tmp_path / "none")


# ---- doctor ----------------------------------------------------------------

def test_doctor_well(larder, place):
    url = f"dir:{place}"
    larder("tier", "create", url)
    lines = shared(larder, url)
    assert "GB/s" in lines[-1]["found"]
    assert all(line["verdict"] in ("ok", "warn") for line in lines
               if ": locks " not in line["found"])
    assert os.listdir(place) == ["larder.tier"]


def test_doctor_no_tier(larder, place):
    url = f"dir:{place}"
    line, = shared(larder, url)
    assert line["verdict"] == "bad" and "no larder.tier" in line["found"]
    assert f"(For a new tier: `larder tier create {url}`)" in line["found"]
    assert line["do"] == "mount it, if there is one"
    assert os.listdir(place) == []
    line, = shared(larder, "frob:/x")
    assert line["verdict"] == "bad" and "use dir:/PATH" in line["found"]


@pytest.mark.parametrize("fault, verdict, text", [
    ("dir_full:1:0", "bad", "No space left on device"),
    ("dir_write:1:0", "bad", "Input/output error"),
    ("dir_read:1:0", "bad", "Input/output error"),
    ("dir_no_replace:1:0", "ok", "GB/s"),
    ("dir_stale:1:1", "ok", "GB/s"),
    ("dir_taken:1:0", "bad", "only if there is none of that name"),
    ("dir_kept:2:1", "bad", "an object that was replaced can still be seen"),
    ("thread_create:1:1", "bad", "cannot start a thread"),
    ("thread_create:3:1", "bad", "cannot start a thread"),
])
def test_doctor_trouble(larder, place, fault, verdict, text):
    url = f"dir:{place}"
    larder("tier", "create", url)
    lines = shared(larder, url, env={"LARDER_FAULTS": fault})
    assert text in lines[-1]["found"]
    assert lines[-1]["verdict"] in (verdict, "warn" if verdict == "ok" else "")
    assert os.listdir(place) == ["larder.tier"]


@pytest.mark.parametrize("fault, text", [
    ("dir_behind:1:1", "its listings are not up to date"),
    ("dir_behind:2:1", None),  # shows no more what was removed: as it should
    ("dir_folder:1:0", "directories cannot be synced (Invalid argument)"),
])
def test_doctor_warns(larder, place, fault, text):
    """What costs hits, or the last puts when power fails, is said; and the
    rest is looked at all the same."""
    url = f"dir:{place}"
    larder("tier", "create", url)
    lines = shared(larder, url, env={"LARDER_FAULTS": fault})
    warned = [line for line in lines[:-1] if line["verdict"] == "warn"]
    assert len(lines) == 2 + len(warned) == 2 + (text is not None)
    assert text is None or text in warned[0]["found"]
    assert "GB/s" in lines[-1]["found"]
    assert os.listdir(place) == ["larder.tier"]


# Locks of another file system, below probe/: what LOCKS says of each kind.
SHIM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

/* kind: 'f' flock, 'p' fcntl, 'o' fcntl by open file. -2: the real one. */
static int pretend(int fd, char kind)
{
    const char *at = strchr(getenv("LOCKS"), kind);
    char link[64], path[4096] = "";

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof(path) - 1) < 0 ||
        strstr(path, "/probe/") == NULL) {
        return -2;
    }
    switch (at != NULL ? at[1] : 0) {
    case 'L':
        errno = ENOLCK;
        return -1;
    case 'S':
        errno = ENOSYS;
        return -1;
    case 'U':
        errno = EOPNOTSUPP;
        return -1;
    case 'E':
        errno = EIO;
        return -1;
    case '0':
        return 0;
    case 'H':
        dprintf(open(getenv("HUNG"), O_WRONLY | O_APPEND), "%d\n", getpid());
        for (;;) {
            pause();
        }
    default:
        return -2;
    }
}

int flock(int fd, int how)
{
    int got = pretend(fd, 'f');

    return got == -2 ? (int)syscall(SYS_flock, fd, how) : got;
}

int fcntl(int fd, int command, ...)
{
    va_list args;
    int got = -2;

    va_start(args, command);
    void *arg = va_arg(args, void *);
    va_end(args);
    if (command == F_SETLK || command == F_OFD_SETLK) {
        got = pretend(fd, command == F_SETLK ? 'p' : 'o');
    }
    return got == -2 ? (int)syscall(SYS_fcntl, fd, command, arg) : got;
}

int fcntl64(int, int, ...) __attribute__((alias("fcntl")));
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "locks.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "locks.so", "locks.c"],
                   cwd=folder, check=True)
    return folder / "locks.so"


def locks(lines):
    """What it says of locks, and that it says it once and only says it."""
    line, = [line for line in lines if ": locks " in line["found"]]
    assert line["do"] == ""
    assert line["found"].endswith(
        "; not needed: Larder relies on exclusive creation (renameat2() or "
        "link()), which holds here")
    return line["verdict"], line["found"]


def alive(pid):
    """A process that has not ended; one that nobody waited for has."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_doctor_locks(larder, place):
    """Two processes of this host, on a real file system."""
    url = f"dir:{place}"
    larder("tier", "create", url)
    verdict, found = locks(shared(larder, url))
    kinds = ("flock()", "fcntl()", "fcntl() of open files (OFD)")
    assert (verdict == "ok") == all(f"{k} works" in found for k in kinds)
    assert all(k in found for k in kinds)


@pytest.mark.parametrize("how, texts", [
    ("fLpSoU", ["flock() not supported (No locks available)",
                "fcntl() not supported (Function not implemented)",
                "(OFD) not supported (Operation not supported)"]),
    ("f0p0o0", ["flock() does not exclude", "fcntl() does not exclude",
                "(OFD) does not exclude"]),
    ("pL", ["fcntl() not supported (No locks available), fcntl() of open"]),
    ("oE", ["(OFD) failed (Input/output error)"]),
])
def test_doctor_locks_trouble(larder, place, shim, how, texts):
    """It is told, and nothing else comes of it."""
    url = f"dir:{place}"
    larder("tier", "create", url)
    lines = shared(larder, url, env={
        "LD_PRELOAD": str(shim), "LOCKS": how,
        "ASAN_OPTIONS": "verify_asan_link_order=0"})
    verdict, found = locks(lines)
    assert verdict == "skip" and all(text in found for text in texts), found
    assert "GB/s" in lines[-1]["found"]
    assert not any(line["verdict"] == "bad" for line in lines)
    assert os.listdir(place) == ["larder.tier"]


@pytest.mark.parametrize("how, count", [("fH", 1), ("fHpHoH", 3)])
def test_doctor_locks_hang(larder, place, shim, tmp_path, how, count):
    """A lock manager that does not answer: the rest is looked at all the same,
    and no process is left."""
    url = f"dir:{place}"
    hung = tmp_path / "hung"
    hung.touch()
    larder("tier", "create", url)
    lines = shared(larder, url, env={
        "LD_PRELOAD": str(shim), "LOCKS": how, "HUNG": str(hung),
        "ASAN_OPTIONS": "verify_asan_link_order=0"})
    verdict, found = locks(lines)
    assert verdict == "skip" and found.count("did not answer within") == count
    assert "GB/s" in lines[-1]["found"]
    assert os.listdir(place) == ["larder.tier"]
    pids = [int(line) for line in hung.read_text().splitlines()]
    assert len(pids) == count
    until(lambda: not any(map(alive, pids)), text="one is left")


# ---- bench -----------------------------------------------------------------

@pytest.mark.parametrize("figure", ["shared-get", "shared-put"])
def test_bench(larder, place, figure):
    """Nothing is asserted of speed; that all was read back right, it says."""
    if shutil.disk_usage(place).free < 16 << 30:
        pytest.skip("needs 16 GiB of disk")
    url = f"dir:{place}"
    larder("tier", "create", url)
    out = larder("bench", figure, "--size", "1M", "--json", "--shared", url).out
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["bench"] for line in lines] == [figure] * 3
    assert lines[0]["goal"] == "ratio>=0.9" and lines[0]["ratio"] > 0
    assert lines[1]["variant"] == "dir, back end alone"
    assert lines[2]["variant"] == "dir, plain with tags" + (
        " and names" if figure == "shared-put" else "")
    assert tree(place) == [str(place / "larder.tier")]
