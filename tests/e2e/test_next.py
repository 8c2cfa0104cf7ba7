"""Two builds that are one tier, one cause and two statuses apart
(next_build.py) work together, whichever of them is the daemon: the same bytes,
the same figures, and where one says what the other does not know, what larder.h
promises."""
import os
import pathlib
import subprocess
import sys

import pytest

import capi
import next_build
from capi import E_UNSUPPORTED, MISS, OK, PRESENT, VERIFY_PUT, key_of, value_of
from conftest import Larder
from daemon import FAILED, Daemon, until

sys.path.append(str(pathlib.Path(__file__).parents[2] / "python"))
from larder_kv import _lib  # noqa: E402

E_INVALID, E_MISMATCH, E_TIER_OFF, E_OTHER = -1, -9, -61, -70
SSD, SHARED, PEER, NEXT_TIER = 1, 2, 3, 4
ABSENT, OTHER, NEXT_CAUSE = 1, 11, 12
COUNT = 12
NAMES = [f"k {i}" for i in range(COUNT)]

both = pytest.mark.parametrize("transport", ["unix", "tcp"])


@pytest.fixture(scope="module")
def builds():
    """Folders: ours, and the next one's."""
    return {"ours": pathlib.Path(os.environ["LARDER_BUILD"]),
            "next": next_build.build()}


@pytest.fixture
def node(builds, monkeypatch):
    """node(which, url): a client of that build."""
    opened = []

    def make(which, url):
        with monkeypatch.context() as m:
            m.setenv("LARDER_BUILD", str(builds[which]))
            m.setattr(capi, "_lib", None)
            opened.append(capi.Node(url))
        return opened[-1]
    yield make
    for one in opened:
        one.close()


@pytest.fixture
def daemon(builds, binary, tmp_path):
    """daemon(which): one of that build."""
    started = []

    def make(which, **options):
        program = (binary if which == "ours"
                   else str(builds[which] / "bin/larder"))
        started.append(Daemon(program, tmp_path / which, **options))
        return started[-1].start()
    yield make
    for one in started:
        one.end()


def program(builds, which, binary, folder):
    return Larder(binary if which == "ours"
                  else str(builds[which] / "bin/larder"), folder)


def match(node, names):
    keys = (capi.Key * len(names))(*map(key_of, names))
    out = capi.Match()
    assert node.lib.larder_match(node.space, keys, len(names), 0,
                                 capi.byref(out)) == OK
    return out


def miss(node, op, name):
    """(status, cause) of one item."""
    items = (capi.Item * 1)()
    key = key_of(name)
    items[0].key = capi.ctypes.pointer(key)
    assert node._run(op, items, 0) == OK
    return items[0].status, items[0].cause


def flat(value):
    """A structure as nested lists."""
    if isinstance(value, capi.Structure):
        return {name: flat(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, capi.ctypes.Array) and not isinstance(value, bytes):
        return [flat(one) for one in value]
    return value


def stats(node):
    out = _lib.stats_type(node.lib)()
    assert node.lib.larder_stats(node.node, capi.byref(out)) == OK
    return flat(out)


def bytes_of(name):
    return value_of(name, 1, 100000)


PAIRS = pytest.mark.parametrize("client, server", [("ours", "next"),
                                                   ("next", "ours")])


@both
@PAIRS
def test_pair(builds, daemon, node, binary, tmp_path, transport, client,
              server):
    newer = server == "next"
    d = daemon(server)
    c = node(client, d.url(transport))
    saved = [(name, bytes_of(name)) for name in NAMES]
    # what is there
    assert c.put_many(saved) == [OK] * COUNT
    assert c.put_many(saved) == [PRESENT] * COUNT
    assert c.put_many([(NAMES[0], b"x")], flags=VERIFY_PUT) == [E_MISMATCH]
    assert [c.exists(name) for name in NAMES] == [OK] * COUNT
    assert c.get_many(NAMES, 100000) == [(OK, "none", v) for _, v in saved]
    status, staged, lease = c.stage(NAMES)
    assert status == OK and staged == [v for _, v in saved]
    c.release(lease)
    # what is not
    lost = (MISS, OTHER if newer else ABSENT)
    for op in (capi.EXISTS, capi.REMOVE):
        assert miss(c, op, "nothing") == lost
    assert c.get("nothing")[:2] == (MISS, capi.CAUSES[lost[1]])
    # by tier: none of it is lost, and nothing that is not in dram is there
    found = match(c, NAMES + ["nothing"])
    where = PEER if newer else 0
    total = sum(len(v) for _, v in saved)
    assert found.chunks == COUNT and found.cause == lost[1]
    assert list(found.tier_chunks) == [
        COUNT if i == where else 0 for i in range(8)]
    assert list(found.tier_bytes) == [
        total if i == where else 0 for i in range(8)]
    assert found.struct_bytes == capi.ctypes.sizeof(found)
    # a failure that is not known is one all the same
    assert c.flush(SSD) == (E_OTHER if newer else E_TIER_OFF)
    assert c.lib.larder_flush(c.node, NEXT_TIER, 1000) == (
        E_INVALID if newer else E_UNSUPPORTED)
    # the program, too
    run = program(builds, client, binary, tmp_path)
    url = d.url(transport)
    assert run.json("stat", url)[0]["saves_stored"] == COUNT
    # what is listed, with one flag that only the next build has
    rows = run.json("ls", url)
    assert len(rows) == COUNT and {r["tier"] for r in rows} == {"dram"}
    run("get", url, "0" * 64, "-", code=1)
    assert c.remove(NAMES[0]) == OK and c.remove(NAMES[0]) == MISS
    assert c.match(NAMES) == (OK, 0)
    assert c.reset() == OK and c.exists(NAMES[1]) == MISS
    assert run("flush", url, code=FAILED).err


@both
@PAIRS
def test_figures(daemon, node, tier, transport, client, server):
    """Every field, as the daemon's own build reads it."""
    d = daemon(server, dirs=2, shared=f"dir:{tier}")
    c, own = node(client, d.url(transport)), node(server, d.url(transport))
    for name in NAMES:
        assert c.put(name, bytes_of(name)) == OK
    assert c.get("nothing")[0] == MISS and c.flush(SSD) == OK
    assert c.flush(SHARED) == OK

    def same():
        """Nothing happens between the two, sooner or later."""
        nonlocal one, other
        one, other = stats(c), stats(own)
        return all(one[field] == other[field] for field in other
                   if field != "misses" and not field.startswith("client_"))

    one = other = None
    until(same)
    assert one["client_calls"] > other["client_calls"] > 0
    assert one["saves_stored"] == COUNT == one["offers_written"]
    if transport == "unix":  # the operator's: the whole node
        assert one["disks"] == 2 and one["disk"][0]["path"]
        assert one["disk"][1]["bytes_max"] == 64 << 20
        assert one["shared_tier"]["url"].decode() == f"dir:{tier}"
        assert one["shared_tier"]["shards"] == COUNT
    for figures, cause in ((one, OTHER), (other, NEXT_CAUSE)):
        wanted = [0] * len(figures["misses"])
        wanted[cause if server == "next" else ABSENT] = 1
        assert figures["misses"] == wanted


BINDING = """
from larder_kv import _lib
node = _lib.Node({url!r})
stats = node.stats()
print(_lib.TIERS, len(_lib.CAUSES), _lib.CAUSES[-1], stats.saves_stored,
      stats.struct_bytes == _lib.ctypes.sizeof(stats))
node.close()
"""


@pytest.mark.parametrize("server", ["ours", "next"])
@pytest.mark.parametrize("library", ["ours", "next"])
def test_binding(builds, daemon, library, server):
    """Python's takes what it has to know from the library that it finds."""
    d = daemon(server)
    done = subprocess.run(
        [sys.executable, "-B", "-c", BINDING.format(url=d.url())], text=True,
        env={**os.environ, "PYTHONPATH": str(next_build.ROOT / "python"),
             "LARDER_LIBRARY": str(builds[library] / "lib/liblarder.so")},
        stdout=subprocess.PIPE, check=True)
    tiers = ("dram", "ssd", "shared", "peer") + (
        ("next",) if library == "next" else ())
    assert done.stdout.split("\n")[0] == (
        f"{tiers} {12 + (library == 'next')} "
        f"{'next' if library == 'next' else 'other'} 0 True")
