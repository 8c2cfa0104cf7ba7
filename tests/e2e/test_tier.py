"""`larder tier`, and what `larder doctor` and `larder bench` say of a shared
tier in a directory."""
import json
import os
import shutil
import subprocess

import pytest

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
    assert all(line["verdict"] in ("ok", "warn") for line in lines)
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
    assert len(lines) == 1 + len(warned) == 1 + (text is not None)
    assert text is None or text in warned[0]["found"]
    assert "GB/s" in lines[-1]["found"]
    assert os.listdir(place) == ["larder.tier"]


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
