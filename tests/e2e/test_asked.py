"""The headline figure, found ÷ asked for: what an engine that matches first
does not find is seen everywhere, also when nothing was ever found."""
import json
import re

import pytest

from capi import MISS, OK, Node
from middle import Middle

FOUND = {"outcome": "found"}
NOT_FOUND = {"outcome": "not_found"}


def names(prefix, count=10):
    return [f"{prefix} {i}" for i in range(count)]


def figures(daemon, **labels):
    """(found, asked) of the metrics: by tenant, by space, and the JSON's."""
    out = []
    for name in ("larder_asked_chunks_total",
                 "larder_space_asked_chunks_total"):
        found = daemon.value(name, **FOUND, **labels)
        out.append((found, found + daemon.value(name, **NOT_FOUND, **labels)))
    if not labels:
        status = json.loads(daemon.http("/status.json"))
        out += [(status["found"], status["asked"])]
        out += [(sum(s["found"] for s in status["spaces"]),
                 sum(s["asked"] for s in status["spaces"]))]
    assert len(set(out)) == 1, out
    return out[0]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_nothing_found(serve, larder, transport):
    daemon = serve(admin="127.0.0.1:0")
    assert figures(daemon) == (0, 0)
    assert "- since start" in larder("top", daemon.url(), "--once",
                                     "--interval", "1").out
    with Node(daemon.url(transport)) as node:
        assert node.match(names("never")) == (OK, 0)
        assert figures(daemon) == (0, 10)
        top = larder("top", daemon.url(), "--once", "--interval", "1").out
        assert re.search(r"hit rate .* 0\.0% since start", top), top
        stat = larder("stat", daemon.url()).out
        assert re.search(r"chunks found +0 of 10 asked for, 0\.0 %", stat)
        doc = json.loads(larder("stat", daemon.url(), "--json").out)
        assert (doc["found_chunks"], doc["asked_chunks"]) == (0, 10)
    assert daemon.value("larder_misses_total") == 0  # which saw nothing of it


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_once(serve, transport):
    """Matched, staged and loaded: asked for once, by whichever connection."""
    daemon = serve(admin="127.0.0.1:0")
    chain = names("k")
    with Node(daemon.url(transport)) as node:
        pairs = [(n, b"x" * 600000) for n in chain[:4]]
        assert node.put_many(pairs) == [OK] * 4
        assert node.match(chain) == (OK, 4)
        status, staged, lease = node.stage(chain)
        assert (status, len(staged)) == (OK, 4) and None not in staged
        assert [r[0] for r in node.get_many(chain[:4], 600000)] == [OK] * 4
        node.release(lease)
        assert figures(daemon) == (4, 10)
    assert daemon.value("larder_loads_total") > 4  # a stage and a copy


def test_gets_alone(serve):
    daemon = serve(admin="127.0.0.1:0")
    chain = names("k")
    with Node(daemon.url()) as node:
        node.match(names("other"))  # somebody else matches, in another space
    with Node(daemon.url(), descriptor=b"gets") as node:
        before = figures(daemon)
        assert node.put(chain[0], b"x") == OK
        for name in chain:
            node.get(name)
        assert figures(daemon) == (before[0] + 1, before[1] + 10)


def test_older_client(serve, tmp_path):
    """One that does not say what it has asked for before: its matches count,
    and its loads if it never matches."""
    daemon = serve(admin="127.0.0.1:0")
    with Node(daemon.url()) as node:
        node.put("k 0", b"x")
    with Middle(daemon, "tcp", tmp_path, hello=lambda low, high, has:
                (low, high, has & 7)) as middle:
        with Node(middle.url) as node:
            assert node.match(names("k")) == (OK, 1)
            assert node.get("k 0")[0] == OK
        assert figures(daemon) == (1, 10)
        with Node(middle.url) as node:
            assert node.get("k 0")[0] == OK and node.get("k 1")[0] == MISS
        assert figures(daemon) == (2, 12)


def test_paused(serve, larder):
    daemon = serve(admin="127.0.0.1:0")
    with Node(daemon.url()) as node:
        node.put("k 0", b"x")
        larder("pause", daemon.url())
        assert node.match(names("k")) == (OK, 0)
        assert node.get("k 0")[0] == MISS
        assert figures(daemon) == (0, 11)


def test_many_spaces(serve):
    """As many series as ever, however many spaces there are; the sums of
    tenants have them all."""
    daemon = serve(admin="127.0.0.1:0")
    for i in range(60):
        with Node(daemon.url(), descriptor=b"model %d" % i) as node:
            node.match(names("k", 50))
    shown = re.findall(r'larder_space_asked_chunks_total\{[^}]*space="(\w+)"',
                       daemon.http("/metrics"))
    assert len(set(shown)) == 50
    assert daemon.value("larder_asked_chunks_total") == 60 * 50


def test_tenants_apart(serve):
    daemon = serve(admin="127.0.0.1:0",
                   config="[tenant acme]\nuids = any\n[tenant beta]\n"
                          "uids = any\n")
    for tenant, count in (("acme", 3), ("beta", 7)):
        with Node(daemon.url(tenant=tenant), tenant=tenant) as node:
            node.match(names("k", count))
    assert figures(daemon, tenant="acme") == (0, 3)
    assert figures(daemon, tenant="beta") == (0, 7)

