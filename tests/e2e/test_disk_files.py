"""The files of a directory, lost, cut off, swapped or overwritten: what still
loads, what `fsck` says of it, and what `fsck --repair` makes of it."""
import random

import pytest

OK, NO, FAILED = 0, 1, 3
SUPER_BYTES = 128 * 1024


def payload(size, seed=1):
    return random.Random(seed).randbytes(size)


@pytest.fixture
def filled(larder, place):
    """Three keys in the directory; gives their bytes."""
    values = {f"key-{i}": payload(50000 + i, i) for i in range(3)}
    for name, value in values.items():
        larder("put", place, name, "-", stdin=value)
    return values


def truncate(path, size):
    with open(path, "r+b") as file:
        file.truncate(size)


def check(larder, place, values):
    for name, value in values.items():
        assert larder("get", place, name, "-").stdout == value


# ---- the superblock ----------------------------------------------------------

@pytest.mark.parametrize("size", [2 * SUPER_BYTES - 1, SUPER_BYTES + 4096,
                                  SUPER_BYTES])
@pytest.mark.parametrize("mend", ["open", "fsck"])
def test_short_superblock(larder, place, folder, filled, size, mend):
    """Copy 0 is whole: nothing is lost, and nobody is told to wipe."""
    path = folder / "larder.super"
    truncate(path, size)
    finding, report = larder.json("fsck", place, code=NO)
    assert finding["finding"] == "super-bad" and finding["copy"] == 1
    assert "wipe" not in larder("fsck", place, code=NO).out
    if mend == "fsck":
        assert larder.json("fsck", place, "--repair")[-1]["repaired"] == 1
    check(larder, place, filled)
    assert path.stat().st_size == 2 * SUPER_BYTES
    assert len(larder.json("fsck", place)) == 1
    # Both copies are whole again: now the other one may go.
    with open(path, "r+b") as file:
        file.write(b"damage")
    check(larder, place, filled)


def test_long_superblock(larder, place, folder, filled):
    path = folder / "larder.super"
    truncate(path, 3 * SUPER_BYTES + 1)
    finding, report = larder.json("fsck", place)
    assert finding["finding"] == "super-long" and report["clean"] is True
    larder("fsck", place, "--repair")
    assert path.stat().st_size == 2 * SUPER_BYTES
    check(larder, place, filled)


@pytest.mark.parametrize("size", [SUPER_BYTES - 1, 0, None])
def test_no_superblock(larder, place, folder, filled, size):
    """Resets may be lost with it: refused, nothing touched, and only here is
    wipe what remains."""
    path = folder / "larder.super"
    path.unlink() if size is None else truncate(path, size)
    for command in (["get", place, "key-0", "-"], ["fsck", place],
                    ["fsck", place, "--repair"]):
        code = FAILED if command[0] == "get" else NO
        assert "larder wipe" in larder(*command, code=code).err
    assert path.exists() == (size is not None)
    larder("wipe", place, "--yes")
    larder("put", place, "key-0", "-", stdin=b"x")
