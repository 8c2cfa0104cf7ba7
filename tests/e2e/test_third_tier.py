"""A daemon with a third tier (tests/tier/slow.c): the same program, linked with
a table of one row more. The tier is slow, fails, and hangs while a file says
so; what engines get is right or missing all the same, and nobody waits beyond
its deadline.
"""
import itertools
import json
import os
import pathlib
import time

import pytest

import capi
import test_chaos as chaos
from daemon import LONG, until
from router import CHUNK, PER, Engine, ask, prompt
from test_chaos import test_chaos, test_killed_at_random  # they run here, too


@pytest.fixture(scope="module")
def binary():
    where = pathlib.Path(os.environ["LARDER_BUILD"]) / "bin/slow/larder"
    assert where.exists(), "built with the tests: scripts/build dev"
    return str(where)


@pytest.fixture(autouse=True)
def tier(monkeypatch, tmp_path):
    """The file that makes it hang."""
    hang = tmp_path / "hang"
    monkeypatch.setattr(chaos, "CHAOS_S",
                        min(chaos.CHAOS_S, 20 if LONG else 10))
    monkeypatch.setenv(
        "LARDER_TEST_TIER",
        f"on,delay_ms=1,read_fail=7,write_fail=5,hang={hang}")
    return hang


def flood(node, turn):
    """More than DRAM has: what was saved before is driven out."""
    for i in range(160):
        name = f"flood {turn} {i}"
        node.put(name, capi.value_of(name, 200000))


def keep(node, names):
    """Saves these, and drives them out of DRAM, until the tier gives enough of
    them back: one read in seven fails, and one write in five. Where the tier
    is too slow to take them in time they are saved again."""
    turns = itertools.count()

    def kept():
        for name in names:
            assert node.put(name, capi.value_of(name, 100000)) in (
                capi.OK, capi.PRESENT)
        time.sleep(0.2)  # it takes a millisecond for each
        flood(node, next(turns))
        return sum(node.get(name)[2] == capi.value_of(name, 100000)
                   for name in names) >= 15

    until(kept, text="it gives nearly nothing back")


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_what_dram_lost_comes_from_it(serve, transport):
    daemon = serve(dram="16M", admin="127.0.0.1:0")
    names = [f"kept {i}" for i in range(40)]
    with capi.Node(daemon.url(transport)) as node:
        keep(node, names)
        # One that is removed stays so.
        for name in names:
            node.remove(name)
        assert all(node.get(name)[0] == capi.MISS for name in names)
    loads = daemon.metrics().sum("larder_loads_total", tier="slow")
    assert loads > 0
    # The dashboard knows of it, too.
    until(lambda: history(daemon, "hits_slow") == loads)
    assert history(daemon, "loaded_slow_bytes") > 0


def test_routers_find_what_it_has(serve, monkeypatch):
    """It is this node's own storage, and its name is in the answer."""
    monkeypatch.setenv("LARDER_TEST_TIER", "on,delay_ms=1")
    daemon = serve(dram="16M", admin="127.0.0.1:0", query="on")
    tokens = prompt("third", 2)
    with Engine(daemon.url()) as engine, \
            capi.Node(daemon.url("unix")) as node:
        engine.describe(tokens)
        assert engine.save(tokens, [0, 1]) == [capi.OK] * 2

        def found(dram, below, slow):
            [match] = ask(daemon, token_ids=tokens)
            return (match["blocks"]["CPU"] == dram * PER and
                    match["blocks"]["STORAGE"] == below * PER and
                    match["tiers"].get("slow") == slow * CHUNK)

        until(lambda: found(2, 2, 0))
        flood(node, "query")
        until(lambda: found(0, 2, 2))


def history(daemon, column):
    status = json.loads(daemon.http("/status.json"))
    place = status["columns"].index(column) + 1
    return sum(row[place] for row in status["rows"])


def test_it_hangs(serve, tier):
    daemon = serve(dram="16M")
    names = [f"kept {i}" for i in range(40)]
    with capi.Node(daemon.url("unix")) as node:
        keep(node, names)
        flood(node, "more")
        tier.touch()
        begin = time.monotonic()
        for name in names[:5]:
            status, _, value = node.get(name, timeout_ms=300)
            assert status == capi.MISS or value == capi.value_of(name, 100000)
        assert time.monotonic() - begin < 12
        # DRAM goes on.
        assert node.put("new", capi.value_of("new", 1000)) == capi.OK
        assert node.get("new")[2] == capi.value_of("new", 1000)
        tier.unlink()
        until(lambda: sum(node.get(name)[0] == capi.OK for name in names) > 10)
