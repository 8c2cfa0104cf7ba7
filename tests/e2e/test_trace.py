"""`larder serve --trace`: a line for each request, without its contents, that
`larder plan` reads."""
import ctypes
import json
import resource
import stat
from ctypes import POINTER, Structure, byref, c_size_t, c_uint32, c_uint64

import pytest

import capi
from daemon import until

ID, TOKENS, HINT = 1, 2, 4  # fields of larder_announce_params_t
CLOSED, OVER = 4, 16  # LARDER_HINT_*


class Announce(Structure):
    _fields_ = [("field_mask", c_uint64), ("id", c_uint64),
                ("tokens", c_uint32), ("hint", c_uint32)]


class Engine(capi.Node):
    """Somebody who tells of requests: chains of named chunks."""

    def tell(self, names, number=0, tokens=0, hint=0):
        self.lib.larder_announce.argtypes = [
            ctypes.c_void_p, POINTER(capi.Key), c_size_t, POINTER(Announce),
            c_uint32]
        keys = (capi.Key * len(names))(*map(capi.key_of, names))
        mask = (ID * (number > 0) | TOKENS * (tokens > 0) | HINT * (hint > 0))
        self._check(self.lib.larder_announce(
            self.space, keys, len(names),
            byref(Announce(mask, number, tokens, hint)), 5000))


def chain(name, count, upto=0):
    """The first of a chain's chunks; what is before `upto` is everybody's."""
    return [f"common {i}" for i in range(upto)] + [
        f"{name} {i}" for i in range(count)]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_plan_reads_it(serve, larder, path, transport):
    daemon = serve(trace=path)
    with Engine(daemon.url(transport)) as engine:
        for i, (name, count) in enumerate([("a", 4), ("b", 6), ("a", 6),
                                           ("c", 2), ("a", 9), ("b", 7)]):
            engine.tell(chain(name, count, 3), i + 1)
    daemon.stop()
    found = rows(path)
    assert [len(row["hash_ids"]) for row in found] == [7, 9, 9, 5, 12, 10]
    assert all(row["timestamp"] > 1.7e12 for row in found)
    first = [row["hash_ids"][:3] for row in found]
    assert all(ids == first[0] for ids in first)
    assert found[2]["hash_ids"][:7] == found[0]["hash_ids"]
    assert not set(found[1]["hash_ids"][3:]) & set(found[0]["hash_ids"])
    # Nothing has to go: what was told of before hits. 3 + 7 + 3 + 9 + 9.
    row, = larder.json("plan", path, "--capacity", "100%", "--policy", "lru",
                       "--json")
    assert (row["requests"], row["references"], row["distinct"],
            row["hits"]) == (6, 52, 21, 31)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_names_nothing(serve, path):
    """Neither keys nor names, and other ids each time it starts."""
    daemon = serve(trace=path)
    for number in (1, 2):
        with Engine(daemon.url()) as engine:
            engine.tell(["secret"], number)
        daemon.stop()
        daemon.start()
    daemon.stop()
    first, second = rows(path)
    assert first["hash_ids"] != second["hash_ids"]
    assert first["timestamp"] <= second["timestamp"]
    key = bytes(capi.key_of("secret").hash)
    text = path.read_text()
    for part in (key[:8], key[24:]):
        for order in ("little", "big"):
            assert str(int.from_bytes(part, order)) not in text
    assert set(first) == {"timestamp", "input_length", "output_length",
                          "block_tokens", "hint", "hash_ids"}


def test_told_once(serve, path):
    """Ranks that tell of the same request are one, by its id or its chain."""
    daemon = serve(trace=path)
    with Engine(daemon.url()) as a, Engine(daemon.url("tcp")) as b:
        for number in (0, 7):
            for rank in (a, b, a, b):
                rank.tell(chain("x", 5), number)
        a.tell(chain("x", 5), 8)  # another request for the same
        a.tell(chain("x", 5), hint=OVER)  # no request at all
        until(lambda: daemon.value("larder_traced_requests_total",
                                   outcome="repeated") == 6)
    daemon.stop()
    assert len(rows(path)) == 3


def test_what_is_known(serve, larder, path):
    daemon = serve(trace=path)
    with Engine(daemon.url()) as engine:
        engine.tell(chain("x", 5), 1, tokens=1234, hint=CLOSED | 2)
        engine.tell(chain("y", 5), 2)
    daemon.stop()
    first, second = rows(path)
    assert (first["input_length"], first["hint"]) == (1234, 6)
    assert (second["input_length"], second["hint"]) == (5 * 256, 0)
    assert second["block_tokens"] == 256
    out = larder("plan", path, "--capacity", "10", "--policy", "lru")
    assert b"10 blocks of 256 tokens" in out.stdout
    out = larder("plan", path, "--capacity", "10", "--policy", "lru",
                 "--block-tokens", "128")
    assert b"10 blocks of 128 tokens" in out.stdout


def test_stages_and_saves(serve, path):
    """Calls tell by themselves where nobody announces."""
    daemon = serve(trace=path)
    with capi.Node(daemon.url()) as node:
        for name in chain("x", 4):
            assert node.put(name, b"v" * 1000) == capi.OK
        lease = node.stage(chain("x", 4))[2]
        node.release(lease)
    daemon.stop()
    assert [len(row["hash_ids"]) for row in rows(path)] == [4]


def test_cannot_be_written(serve, tmp_path):
    daemon = serve(trace=tmp_path / "no" / "folder", start=False)
    daemon.spawn()
    assert daemon.wait() == 2
    lines = [line for line in daemon.log().splitlines() if "trace" in line]
    assert len(lines) == 1
    assert "cannot be written: No such file" in lines[0]


def test_has_a_size(serve, path):
    daemon = serve(trace=path, trace_max=4096)
    with Engine(daemon.url()) as engine:
        for i in range(100):
            engine.tell(chain(f"x{i}", 10), i + 1)
        until(lambda: daemon.value("larder_traced_requests_total",
                                   outcome="dropped") > 0)
        assert daemon.value("larder_trace_on") == 0
        engine.tell(chain("last", 10), 101)  # and all goes on
    said = daemon.log()
    daemon.stop()
    assert said.count("trace_max") == 1
    assert 3000 < path.stat().st_size <= 4096
    found = rows(path)  # whole lines
    assert 5 < len(found) < 30


def test_full_disk(serve, path):
    """As by a full disk: a limit on the size of files."""
    daemon = serve(trace=path)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (20000, 20000))
    assert daemon.value("larder_trace_on") == 1
    with Engine(daemon.url("tcp")) as engine:
        # One line that is longer than what is written at once, too.
        for i, count in enumerate([50, 50, 5000, 50]):
            engine.tell(chain(f"x{i}", count), i + 1)
        until(lambda: daemon.value("larder_trace_on") == 0)
        engine.tell(chain("last", 10), 101)
    said = daemon.log()
    daemon.stop()
    assert said.count("no more is written") == 1, said
    assert "File too large" in said
    assert path.stat().st_size <= 20000
    for row in rows(path):
        assert len(row["hash_ids"]) == 50


def test_no_space(serve):
    daemon = serve(trace="/dev/full")
    with Engine(daemon.url()) as engine:
        engine.tell(["x"])
        until(lambda: daemon.value("larder_trace_on") == 0)
        engine.tell(["y"])
    said = daemon.log()
    daemon.stop()
    assert said.count("trace: /dev/full: No space left on device") == 1, said


def test_off(daemon):
    with Engine(daemon.url()) as engine:
        engine.tell(["x"])
    assert daemon.value("larder_trace_on") == 0
    assert daemon.value("larder_traced_requests_total") == 0
