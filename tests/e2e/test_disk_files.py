"""The files of a directory, lost, cut off, swapped or overwritten: what still
loads, what `fsck` says of it, and what `fsck --repair` makes of it."""

import capi
import pytest
from conftest import payload

OK, NO, FAILED = 0, 1, 3
SUPER_BYTES = 128 * 1024


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


# ---- segments ----------------------------------------------------------------

def segments(folder):
    return sorted(folder.glob("segment-*"))


@pytest.fixture
def sessions(folder):
    """Ten keys saved by one process and again ten by another, of which the
    first ones are removed by a third: each fills a segment of its own."""
    url = f"embed:{folder}?dram=8M&ssd=64M"
    values = {f"k{i}": capi.value_of(f"k{i}") for i in range(20)}
    older = {}
    for turn in range(2):
        with capi.Node(url) as node:
            for i in range(10 * turn, 10 * turn + 10):
                node.put(f"k{i}", values[f"k{i}"])
            node.flush()
        older = older or {p.name: p.read_bytes() for p in segments(folder)}
    before = {p: p.read_bytes() for p in segments(folder)}
    with capi.Node(url) as node:
        for i in range(5):
            node.remove(f"k{i}")
    tombs = [p for p in segments(folder) if before.get(p) != p.read_bytes()]
    return url, values, older, tombs


def loads(url, values):
    """The names that load, each with its own bytes."""
    with capi.Node(url) as node:
        got = {name: node.get(name)[2] for name in values}
    found = {name for name, value in got.items() if value is not None}
    assert all(got[name] == values[name] for name in found)
    return found


def lose(folder, path, how, older):
    others = [p for p in segments(folder) if p != path]
    if how == "gone":
        path.unlink()
    elif how == "emptied":
        truncate(path, 0)
    elif how == "short":
        truncate(path, path.stat().st_size - 1)
    elif how == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
    elif how == "garbage":
        path.write_bytes(payload(path.stat().st_size))
    elif how == "swapped":
        one, two = path.read_bytes(), others[0].read_bytes()
        path.write_bytes(two)
        others[0].write_bytes(one)
    elif how == "renamed":
        path.rename(folder / "segment-000099")
    elif how == "overwritten":
        path.write_bytes(others[0].read_bytes())
    elif how == "older":
        path.write_bytes(older[path.name])


WAYS = ["gone", "emptied", "short", "zeroed", "garbage", "swapped", "renamed",
        "overwritten"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("mend", ["open", "fsck"])
def test_removed_stays_removed(larder, folder, sessions, how, mend):
    """The segment that has the tombstones is lost, one after the other."""
    url, values, older, tombs = sessions
    kept = {f"k{i}" for i in range(5, 20)}
    assert tombs
    for path in tombs:
        lose(folder, path, how, older)
    found = larder.json("fsck", url, code=NO)
    assert found[-1]["clean"] is False and found[-1]["segments_lost"] > 0
    if mend == "fsck":
        larder("fsck", url, "--repair")
        assert larder.json("fsck", url)[-1]["clean"] is True
    left = loads(url, values)
    assert left <= kept
    assert how == "swapped" or left == kept
    assert larder.json("fsck", url)[-1]["clean"] is True
    # It is known twice again: now the ledger may go.
    for path in folder.glob("larder.ledger-*"):
        path.unlink()
    assert loads(url, values) == left


@pytest.mark.parametrize("how", WAYS)
def test_lost_segment(larder, folder, sessions, how):
    """One with shards: fsck says so, and only these are gone."""
    url, values, older, tombs = sessions
    path = next(p for p in segments(folder) if p.name in older and
                p not in tombs)
    lose(folder, path, how, older)
    found = larder.json("fsck", url, code=NO)
    words = {f["finding"] for f in found[:-1] if f["damage"]}
    assert words <= {"segment-lost", "header-bad", "file-short", "table-bad",
                     "segment-old"} and words
    text = larder("fsck", url, code=NO).out
    assert "DAMAGED" in text and path.name in text
    larder("fsck", url, "--repair")
    assert larder.json("fsck", url)[-1]["clean"] is True
    left = loads(url, values)
    assert left <= {f"k{i}" for i in range(5, 20)}
    assert how == "swapped" or left >= {f"k{i}" for i in range(10, 20)}


def test_older_copy(larder, folder):
    """A segment that was used again since is put back as it was: what it held
    then, some of which was removed and forgotten, does not load."""
    url = f"embed:{folder}?dram=8M&ssd=24M"
    values = {f"k{i}": capi.value_of(f"k{i}") for i in range(10)}
    with capi.Node(url) as node:
        for name, value in values.items():
            node.put(name, value)
        node.flush()
    older = {p: p.read_bytes() for p in segments(folder)}
    with capi.Node(url) as node:
        for name in values:
            node.remove(name)
        for i in range(200):
            node.put(f"x{i}", payload(250000, i))
            if i % 10 == 9:
                node.flush()
    for path, data in older.items():
        path.write_bytes(data)
    found = larder.json("fsck", url, code=NO)
    assert "segment-old" in {f["finding"] for f in found[:-1]}
    assert loads(url, values) == set()
    assert larder.json("fsck", url)[-1]["clean"] is True


# ---- the ledger --------------------------------------------------------------

def test_earlier_version(larder, folder, sessions):
    """One that wrote no ledger: all of it is there, and now there is one."""
    url, values, _, _ = sessions
    kept = {f"k{i}" for i in range(5, 20)}
    names = sorted(p.name for p in folder.glob("larder.ledger-*"))
    assert names == ["larder.ledger-0", "larder.ledger-1"]
    for name in names:
        (folder / name).unlink()
    note, report = larder.json("fsck", url)
    assert note["finding"] == "ledger-none" and report["clean"] is True
    assert len(larder.json("fsck", url, "--repair")) == 2
    assert loads(url, values) == kept
    assert sorted(p.name for p in folder.glob("larder.ledger-*")) == names
    assert len(larder.json("fsck", url)) == 1


@pytest.mark.parametrize("mend", ["open", "fsck"])
@pytest.mark.parametrize("how", ["gone", "short", "garbage"])
@pytest.mark.parametrize("number", [0, 1])
def test_ledger(larder, folder, sessions, number, how, mend):
    """The segments have all that it says."""
    url, values, _, _ = sessions
    path = folder / f"larder.ledger-{number}"
    unused = not any(path.read_bytes()) and how == "short"
    lose(folder, path, how, {})
    found = larder.json("fsck", url, code=OK if unused else NO)
    assert unused or \
        (found[0]["finding"], found[0]["ledger"]) == ("ledger-bad", number)
    if mend == "fsck":
        larder("fsck", url, "--repair")
        assert larder.json("fsck", url)[-1]["clean"] is True
    assert loads(url, values) == {f"k{i}" for i in range(5, 20)}
    assert larder.json("fsck", url)[-1]["clean"] is True


def test_wipe_takes_it_along(larder, place, folder, filled):
    larder("wipe", place, "--yes")
    assert [p.name for p in folder.iterdir()] == ["larder.lock"]
