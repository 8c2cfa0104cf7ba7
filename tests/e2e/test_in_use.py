"""What to do with a directory that a running node has: every message leads on.
`larder ls` asks the node, and shows each tenant its own."""
import json
import os
import re
import subprocess

import pytest

from capi import OK, Node, key_of
from daemon import Daemon

FAILED, USAGE = 3, 2


def hexes(names):
    return {bytes(key_of(name)).hex() for name in names}


def rows(larder, *args):
    return [json.loads(line)
            for line in larder("ls", *args, "--json").out.splitlines()]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_ls_node(serve, larder, transport):
    daemon = serve(dirs=1)
    names = [f"k {i}" for i in range(10)]
    with Node(daemon.url(transport)) as node:
        assert rows(larder, daemon.url(transport)) == []
        for i, name in enumerate(names):
            assert node.put(name, bytes(1000 + i)) == OK
        assert node.flush() == OK
        found = rows(larder, daemon.url(transport))
        assert {r["key"] for r in found} == hexes(names)
        assert sorted(r["bytes"] for r in found) == list(range(1000, 1010))
        assert {r["tier"] for r in found} <= {"dram+ssd"}
        table = larder("ls", daemon.url(transport)).out
        assert re.search(r"10 shards, 9\.8 KiB, of this tenant", table)
        assert node.remove(names[0]) == OK
        assert {r["key"] for r in rows(larder, daemon.url(transport))} == (
            hexes(names[1:]))
        assert node.reset() == OK
        assert rows(larder, daemon.url(transport)) == []


def test_ls_of_what_is_on_disk(serve, larder):
    """After a restart nothing is in dram: keys, lengths and ages come from the
    disk. More than a page of them."""
    daemon = serve(dirs=1, dram="64M", ssd="256M")
    names = [f"k {i}" for i in range(700)]
    with Node(daemon.url()) as node:
        for at in range(0, 700, 100):
            assert set(node.put_many(
                [(n, bytes(500 + i % 7)) for i, n in
                 enumerate(names[at:at + 100])])) == {OK}
        assert node.flush() == OK
    daemon.stop()
    daemon.start()
    found = rows(larder, daemon.url())
    assert {r["key"] for r in found} == hexes(names) and len(found) == 700
    assert {r["tier"] for r in found} == {"ssd"}
    assert {r["bytes"] for r in found} == set(range(500, 507))
    # The figures of loads do not know of it.
    assert daemon.value("larder_loads_total") == 0


def test_ls_of_what_cannot_be_read(serve, larder):
    """Damage costs the key, not the list."""
    daemon = serve(dirs=1)
    with Node(daemon.url()) as node:
        assert node.put_many([(f"k {i}", b"x" * 100) for i in range(20)]) == (
            [OK] * 20)
        assert node.flush() == OK
    daemon.stop()
    daemon.start()
    for path in daemon.dirs[0].glob("segment-*"):
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(bytes(2 << 20))
            os.fsync(file.fileno())
    found = rows(larder, daemon.url())
    assert len(found) == 20 and {r["key"] for r in found} == {None}
    assert "(cannot be read)" in larder("ls", daemon.url()).out


def test_ls_obeys_tenants(serve, larder):
    daemon = serve(dirs=1, config="[tenant acme]\nuids = any\n"
                                  "[tenant beta]\nuids = any\n")
    for tenant, names in (("acme", ["a", "b"]), ("beta", ["c"])):
        with Node(daemon.url(tenant=tenant), tenant=tenant) as node:
            for name in names:
                assert node.put(name, b"x" * 100) == OK
            assert node.flush() == OK
    for _ in range(2):
        for tenant, count in (("acme", 2), ("beta", 1), (None, 0)):
            options = {"tenant": tenant} if tenant else {}
            assert len(rows(larder, daemon.url(**options))) == count
        daemon.stop()
        daemon.start()


def test_ls_of_several_shards(serve, larder):
    daemon = serve(dirs=1)
    with Node(daemon.url(), shards=4) as node:
        assert node.put("k", b"x") == OK
        found = rows(larder, daemon.url())
        assert [(r["shard"], r["shards"]) for r in found] == [(0, 4)]


def test_ls_finds_the_node(serve, larder):
    """By the directory: who has it is asked."""
    daemon = serve(dirs=1)
    with Node(daemon.url()) as node:
        assert node.put("k", b"x" * 100) == OK and node.flush() == OK
        done = larder("ls", daemon.dirs[0], "--json")
        assert [json.loads(x)["key"] for x in done.out.splitlines()] == (
            list(hexes(["k"])))
        assert f"process {daemon.pid}" in done.err
        assert f"asking it at unix:{daemon.socket}" in done.err
        done = larder("ls", daemon.dirs[0], "--all", code=FAILED)
        assert "in use by larder" in done.err
    larder("ls", daemon.url(), "--all", code=USAGE)
    daemon.stop()
    assert "1 shard" in larder("ls", daemon.dirs[0]).out


@pytest.mark.parametrize("command", ["fsck", "wipe"])
def test_in_use(serve, larder, command):
    """Who has it, where, and what to type; nothing goes in a circle."""
    daemon = serve(dirs=1)
    more = ["--yes"] if command == "wipe" else []
    folder = daemon.dirs[0]
    with Node(daemon.url()) as node:
        assert node.put("k", b"x") == OK and node.flush() == OK
    text = larder(command, folder, *more, code=FAILED).err
    assert f"in use by larder, process {daemon.pid}" in text
    assert f"at unix:{daemon.socket}" in text
    assert f"kill {daemon.pid}" in text
    assert f"then: larder {command} {folder}" in text
    text = larder(command, daemon.url(), *more, code=USAGE).err
    assert f"kill {daemon.pid}" in text
    assert f"then: larder {command} {folder}" in text
    # As it says.
    daemon.stop()
    larder(command, folder, *more)


def test_other_commands(serve, larder):
    daemon = serve(dirs=1)
    for command in (["stat"], ["flush"], ["reset"]):
        text = larder(command[0], daemon.dirs[0], code=FAILED).err
        assert f"process {daemon.pid}" in text
        assert f"ask it: larder {command[0]} unix:{daemon.socket}" in text
        larder(command[0], f"unix:{daemon.socket}")
    text = larder("get", daemon.dirs[0], "k", "-", code=FAILED).err
    assert f"ask it: larder get unix:{daemon.socket} ..." in text


def test_embedded(larder, folder, place):
    """An engine's own node has no socket to ask at."""
    with Node(place) as node:
        assert node.put("k", b"x") == OK
        for command in ("ls", "fsck", "stat"):
            text = larder(command, folder, code=FAILED).err
            assert f"process {os.getpid()}" in text
            assert f"end process {os.getpid()} first" in text
            assert f"then: larder {command} {folder}" in text


def test_stat_by_default(binary, tmp_path, monkeypatch, larder):
    """Without a place: this host's daemon, as top."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    for command in ("stat", "ls"):
        text = larder(command, code=FAILED).err
        assert str(tmp_path) in text
    daemon = Daemon(binary, tmp_path / "d", socket=None)
    daemon.start()
    try:
        assert json.loads(larder("stat", "--json").out)["entries"] == 0
        assert "chunks known" in larder("stat").out
        assert "larder_entries 0" in larder("stat", "--prometheus").out
        assert "0 shards" in larder("ls").out
    finally:
        daemon.given["socket"] = next(tmp_path.rglob("*.sock"))
        daemon.end()


def test_one_lists_at_a_time(serve, larder, binary):
    """Many at once all get their lists, and others their answers."""
    daemon = serve(dirs=1)
    with Node(daemon.url()) as node:
        names = [f"k {i}" for i in range(300)]
        node.put_many([(n, b"x" * 100) for n in names])
        node.flush()
        them = [subprocess.Popen([binary, "ls", daemon.url(), "--json"],
                                 stdout=subprocess.PIPE) for _ in range(8)]
        assert node.get(names[0])[0] == OK
        for one in them:
            out, _ = one.communicate(timeout=300)
            assert one.returncode == 0 and len(out.splitlines()) == 300
