"""Proof 5, the node's disk: it is full, and its files are damaged, while
requests run. The node has little DRAM, so that hits come from the disk."""
import contextlib
import shutil
import subprocess

import pytest

pytest.register_assert_rewrite("faults")

import faults
import rig
from daemon import until

FILE_SYSTEM = 256 << 20  # bytes: more than all of these tests save
SEGMENT = 4 << 20
NODE = dict(dram="16M", ssd="1G", segment="4M", retry_ms=200)


@contextlib.contextmanager
def small_file_system(folder):
    """What tmpfs cannot be mounted on is just a directory: gives False."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM}", "tmpfs", folder],
        capture_output=True)
    if done.returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module", params=["dense", "gemma3"])
def told(request, version, tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    disk = folder / "dir0"
    disk.mkdir()
    with contextlib.ExitStack() as stack:
        small = stack.enter_context(small_file_system(disk))
        told = faults.Told(version, request.param, folder, stack, **NODE)
        told.small, told.disk = small, disk
        yield told


@pytest.fixture(autouse=True)
def well(told):
    with told.well():
        yield


def test_damaged(told):
    """Files are overwritten in places while a request runs: what is damaged
    is missed, computed and saved again. (DRAM holds what was used last.)"""
    misses = told.node.value("larder_misses_total", cause="corrupt")
    with faults.asking(told.engine, [told.prompts["kill"]]) as found:
        assert told.spoil() > 50
    told.check("kill", found[0])
    for name in faults.STORED:
        rig.fresh(told.engine)
        told.ask(name)
    assert told.node.value("larder_misses_total", cause="corrupt") > misses
    for name in faults.STORED:
        told.hits(name)


def test_damaged_and_restarted(told):
    """The same, found by the node that is started on it."""
    with faults.asking(told.engine, [told.prompts["restart"]]) as found:
        told.node.kill()
        told.spoil(2)
        told.node.start()
    told.check("restart", found[0])
    for name in faults.STORED:
        rig.fresh(told.engine)
        told.ask(name)


def test_full(told):
    """Another fills the file system while a request runs, and later goes: the
    node keeps to the room it has, and then takes more again."""
    if not told.small:
        pytest.skip("NOT RUN: a small file system cannot be mounted here; "
                    "run it as root")
    ballast = told.disk / "ballast"
    assert shutil.disk_usage(told.disk).free > 8 * SEGMENT, "full already"

    def fill():
        with open(ballast, "wb", buffering=0) as file, \
                contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    told.through("full", fill)
    for name in ("stop", "end", *[f"stop {i}" for i in range(6)]):
        told.ask(name)
    until(lambda: "disk full" in told.node.log())
    segments = told.node.value("larder_disk_segments")
    ballast.unlink()
    for i in range(100):  # retry_ms is long over when these are written
        ask_new(told, i)
        if told.node.value("larder_disk_segments") > segments:
            break
    else:
        pytest.fail("the disk was not used again")


def ask_new(told, i):
    faults.ask(told.engine, rig.prompt(f"more {i}", 1500))
