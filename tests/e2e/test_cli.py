"""The program from outside: what it prints, what it leaves on disk, and with
which exit code it ends."""
import fcntl
import hashlib
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import time

import pytest

from conftest import payload

OK, NO, USAGE, FAILED = 0, 1, 2, 3
BLOCK = 4096
SUPER_BYTES = 128 * 1024
VALUE_MAX = 60 << 20
DOCS = pathlib.Path(__file__).parents[2] / "docs"


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.iterdir())}


def poke(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path, offset):
    with open(path, "rb") as file:
        file.seek(offset)
        byte = file.read(1)[0]
    poke(path, offset, bytes([byte ^ 8]))


def record_of(folder, value):
    """The segment file and the offset where a value lies."""
    for path in sorted(folder.glob("segment-*")):
        at = path.read_bytes().find(value)
        if at >= 0:
            return path, at
    raise AssertionError("not on disk")


# ---- the command line ------------------------------------------------------

def test_version(larder):
    assert re.match(r"larder \d+\.\d+\.\d+ \(.+\)\n$", larder("--version").out)


def test_help_lists_every_command(larder):
    text = larder("--help").out
    for command in ("put", "get", "ls", "stat", "flush", "reset", "wipe",
                    "fsck", "bench", "options"):
        assert re.search(rf"^  {command} ", text, re.M)
        assert "usage" in larder(command, "--help").out


def test_help_of_each_command(larder):
    for command in re.findall(r"^  ([a-z]+) ", larder("--help").out, re.M):
        if command != "larder":
            usage, what = larder(command, "--help").out.split("\n")[:2]
            assert "  " not in usage.strip() and what, command
    # Whose data goes is said, or all of it goes: no tenant is the default.
    for command in ("wipe", "tier"):
        assert "default" not in larder(command, "--help").out
    text = larder("cluster", "--help").out
    for what in ("status", "members", "weights", "wait-healthy", "drain NODE"):
        assert what in text
    assert "status" not in text.split("\n")[1]  # the name of its manual page


@pytest.mark.parametrize("args, hint", [
    ([], "larder --help"),
    (["frobnicate"], "unknown command 'frobnicate'"),
    (["flush"], "usage: larder flush"),
    (["ls", "a", "b"], "usage: larder ls"),
    (["ls", "a", "--frob"], "unknown flag --frob"),
    (["ls", "a", "--ttl", "1"], "unknown flag --ttl"),
    (["put", "a", "k", "f", "--ttl"], "--ttl needs a value"),
    (["put", "a", "k", "f", "--ttl", "0"], "--ttl 0"),
    (["put", "a", "k", "f", "--ttl", "1x"], "--ttl 1x"),
    (["put", "a", "k", "f", "--ttl", "99999999"], "--ttl 99999999"),
    (["put", "a", "k", "f", "--shard", "1"], "--shard 1"),
    (["put", "a", "k", "f", "--shards", "129"], "--shards 129"),
    (["put", "a", "k", "f", "--group", "64"], "--group 64"),
    (["put", "a", "", "f"], "KEY is empty"),
    (["ls", "embed:"], "names no directory"),
    (["ls", "embed:d?frob=1"], "unknown option 'frob'"),
    (["ls", "embed:d?ssd=many"], "is no size"),
    (["stat", "d", "--json", "--prometheus"], "--json or --prometheus"),
    (["put", "tpc://127.0.0.1:9400", "k", "f"], "./tpc://127.0.0.1:9400"),
    (["put", "http://x", "k", "f"], "is not the URL of a node"),
    (["put", "UNIX:/run/x", "k", "f"], "is not the URL of a node"),
    (["put", "Embed:d", "k", "f"], "is not the URL of a node"),
    (["put", "tcp:h:1", "k", "f"], "is not the URL of a node"),
    (["put", "a", "k", "f", "--tenant", "a b"], "--tenant a b"),
    (["put", "tcp://127.0.0.1", "k", "f"], "127.0.0.1"),
    (["stat", "unix:"], "unix:"),
    (["stat", "unix:/x?tenant=a b"], "is no tenant"),
    (["stat", "tcp://h:1?tokenfile=x"], "token_file"),
    (["top", "tcp://h:1?tokenfile=x"], "token_file"),
    (["tier", "create", "/x/kv"], "/x/kv"),
    (["tier", "create", "dir:rel"], "dir:rel"),
    (["pause", "tcp://h:1"], "own socket"),
    (["bench", "bogus"], "bogus: is none of dram-get, "),
])
def test_usage(larder, tmp_path, args, hint):
    (tmp_path / "f").write_bytes(b"x")
    done = larder(*args, code=USAGE)
    assert hint in done.err and "larder" in done.err and "--help" in done.err
    assert done.out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_output_that_cannot_be_written(larder):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([larder.binary, "options"], stdout=full,
                              stderr=subprocess.PIPE, check=False)
    assert done.returncode == FAILED and b"standard output" in done.stderr


# ---- put and get -----------------------------------------------------------

@pytest.mark.parametrize("size", [1, 4095, 4096, 65537, 3 << 20])
def test_round_trip(larder, place, tmp_path, size):
    value = payload(size)
    (tmp_path / "in").write_bytes(value)
    assert larder("put", place, "k", "in").out.startswith("stored ")
    larder("get", place, "k", "out")
    assert (tmp_path / "out").read_bytes() == value
    assert larder("get", place, "k", "-").stdout == value


def test_plain_path(larder, tmp_path):
    """A path needs no URL, whatever is in its name, and what is there later
    is opened as it is."""
    name = "a,b?c%41 d"
    larder("put", f"embed:{name.replace('%', '%25').replace(',', '%2C')}"
           .replace("?c", "%3Fc") + "?dram=8M&ssd=64M", "k", "-", stdin=b"one")
    assert (tmp_path / name / "larder.super").exists()
    assert larder("get", name, "k", "-").stdout == b"one"
    larder("put", name, "k2", "-", stdin=b"two")
    assert larder("get", name, "k2", "-").stdout == b"two"
    assert {p.stat().st_size for p in (tmp_path / name).glob("segment-*")} \
        == {4 << 20}


def test_path_that_looks_like_a_url(larder, tmp_path):
    larder("put", "./tpc://x", "k", "-", stdin=b"one")
    assert (tmp_path / "tpc:" / "x" / "larder.super").exists()
    assert larder("get", "./tpc://x", "k", "-").stdout == b"one"


def test_directory_that_is_off(larder, place, filled, tmp_path):
    """What it holds is not known: that is no miss."""
    folder = next(tmp_path.glob("*/larder.super")).parent
    (folder / "larder.lock").unlink()
    (folder / "larder.lock").mkdir()
    for args in (("get", "out"), ("put", "-")):
        done = larder(args[0], place, "key-0", args[1], code=FAILED,
                      stdin=b"x")
        last = done.err.splitlines()[-1]
        assert last.startswith(f"larder {args[0]}: ")
        assert folder.name in last and "larder.lock" in last
    assert not (tmp_path / "out").exists()


def test_failure_is_said_once(larder, tmp_path):
    done = larder("stat", f"unix:{tmp_path}/none", code=FAILED)
    assert done.err.count("cannot connect") == 1, done.err


def test_default_never_shrinks(larder, tmp_path):
    """Without ssd= a directory larger than the default keeps what it has."""
    big = "embed:kv?dram=8M&segment=1G&ssd=6G"
    larder("put", big, "k", "-", stdin=b"value")
    assert larder("get", "kv", "k", "-").stdout == b"value"
    assert larder.json("stat", "kv")[0]["disks"][0]["bytes_max"] > 5 << 30


def test_first_put_counts(larder, place):
    first = larder.json("put", place, "k", "-", stdin=b"one")[0]
    second = larder.json("put", place, "k", "-", stdin=b"two")[0]
    assert first["status"] == "stored" and second["status"] == "present"
    assert first["key"] == second["key"]
    assert larder("get", place, "k", "-").stdout == b"one"


def test_miss(larder, place, filled, tmp_path):
    done = larder("get", place, "nothing", "out", code=NO)
    assert "miss (absent)" in done.err
    assert not (tmp_path / "out").exists()
    miss = larder.json("get", place, "nothing", "out", code=NO)[0]
    assert miss["status"] == "miss" and miss["cause"] == "absent"
    assert larder("get", place, "nothing", "-", "--json", code=NO).out == ""


def test_hex_key(larder, place, filled, tmp_path):
    key = larder("put", place, "named", "-", stdin=b"value").out.split()[1]
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert larder("get", place, key, "-").stdout == b"value"
    assert larder("get", place, key.upper(), "-").stdout == b"value"
    own = "0123456789abcdef" * 4
    put = larder.json("put", place, own, "-", stdin=b"mine")[0]
    assert put["key"] == own
    assert larder("get", place, own, "-").stdout == b"mine"
    assert own in larder("ls", place).out


def secret_file(path, text):
    path.write_text(text)
    path.chmod(0o600)


def test_spaces_are_apart(larder, place, tmp_path):
    """Every flag that names the space makes it another one."""
    secret_file(tmp_path / "secret", "s3cret of enough bytes\n")
    (tmp_path / "descriptor").write_bytes(b"model\0\xff")
    spaces = [[], ["--space", "other"], ["--tenant", "bob"],
              ["--tenant", "eve", "--secret-file", "secret"],
              ["--shards", "2"], ["--space-file", "descriptor"]]
    for i, space in enumerate(spaces):
        larder("put", place, "k", "-", *space, stdin=b"value %d" % i)
    for i, space in enumerate(spaces):
        got = larder("get", place, "k", "-", *space).stdout
        assert got == b"value %d" % i
    assert len({row["space"] for row in larder.json("ls", place)}) == 6
    shown = {line.split()[1] for line in larder("ls", place).out.splitlines()}
    assert len(shown & {row["space"][8:16]
                        for row in larder.json("ls", place)}) == 6


def test_secret(larder, place, tmp_path):
    """A newline at the end is no part of it; another one is refused."""
    secret_file(tmp_path / "a", "s3cret of enough bytes\n")
    secret_file(tmp_path / "b", "s3cret of enough bytes")
    secret_file(tmp_path / "c", "another of enough bytes")
    larder("put", place, "k", "-", "--secret-file", "a", stdin=b"v")
    assert larder("get", place, "k", "-", "--secret-file", "b").stdout == b"v"
    done = larder("get", place, "k", "-", "--secret-file", "c", code=FAILED)
    assert "another secret" in done.err
    done = larder("get", place, "k", "-", "--secret-file", "no", code=FAILED)
    assert "no: cannot read the secret file" in done.err
    (tmp_path / "a").chmod(0o644)
    done = larder("get", place, "k", "-", "--secret-file", "a", code=FAILED)
    assert "chmod o-rwx a" in done.err
    secret_file(tmp_path / "c", "\n")
    done = larder("get", place, "k", "-", "--secret-file", "c", code=FAILED)
    assert "c: no secret in it" in done.err


def test_shards_and_groups(larder, place):
    for shard in range(2):
        for group in range(2):
            larder("put", place, "k", "-", "--shards", 2, "--shard", shard,
                   "--group", group, stdin=b"%d %d" % (shard, group))
    for shard in range(2):
        for group in range(2):
            got = larder("get", place, "k", "-", "--shards", 2, "--shard",
                         shard, "--group", group).stdout
            assert got == b"%d %d" % (shard, group)


def test_chunk_tokens(larder, place):
    """Spaces of engines: keys are hex digits there."""
    flags = ["--space", "model", "--chunk-tokens", "256"]
    done = larder("put", place, "name", "-", *flags, stdin=b"v", code=USAGE)
    assert "64 hex digits" in done.err
    larder("put", place, "ab" * 32, "-", *flags, stdin=b"v")
    assert larder("get", place, "ab" * 32, "-", *flags).stdout == b"v"


def test_ttl(larder, place):
    larder("put", place, "long", "-", "--ttl", 3600, stdin=b"v")
    assert larder("get", place, "long", "-").stdout == b"v"
    row = larder.json("ls", place)[0]
    assert row["expires_s"] > 0 and row["state"] == "live"
    larder("put", place, "pinned", "-", "--pin", stdin=b"v")
    assert larder.json("ls", place)[1]["pinned"] is True


def test_expired(larder, place):
    """Past its time it is a miss, and ls says why."""
    larder("put", place, "short", "-", "--ttl", 1, stdin=b"v")
    deadline = time.monotonic() + 30
    while larder.json("ls", place) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert larder.json("ls", place) == []
    larder("get", place, "short", "-", code=NO)
    assert larder.json("ls", place, "--all")[0]["state"] == "expired"


def test_no_place_for_a_directory(larder, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    done = larder("put", "file/kv", "k", "file", code=FAILED)
    assert "file/kv" in done.err
    assert (tmp_path / "file").read_bytes() == b"x"


def test_refused_values(larder, place, folder, tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(VALUE_MAX + 1)
    (tmp_path / "empty").write_bytes(b"")
    assert str(VALUE_MAX) in larder("put", place, "k", "large",
                                    code=FAILED).err
    assert "empty" in larder("put", place, "k", "empty", code=FAILED).err
    assert "empty" in larder("put", place, "k", "-", code=FAILED).err
    assert "cannot be read" in larder("put", place, "k", "none",
                                      code=FAILED).err
    assert not folder.exists()
    with open(tmp_path / "large", "rb") as file:
            done = subprocess.run([larder.binary, "put", place, "k", "-"],
                              stdin=file, stderr=subprocess.PIPE, check=False)
    assert done.returncode == FAILED and b"larger" in done.stderr


def test_larger_than_a_segment(larder, place):
    done = larder("put", place, "k", "-", stdin=payload(5 << 20), code=FAILED)
    assert "segment" in done.err


def test_largest(larder, tmp_path):
    value = payload(1 << 20) * 60
    (tmp_path / "in").write_bytes(value)
    larder("put", "kv", "k", "in")
    larder("get", "kv", "k", "out")
    assert (tmp_path / "out").read_bytes() == value


def test_get_to_a_bad_file(larder, place, filled):
    done = larder("get", place, "key-0", "no/such/file", code=FAILED)
    assert "no/such/file: cannot be written" in done.err


# ---- what needs a directory of Larder's ------------------------------------

@pytest.mark.parametrize("command", ["ls", "stat", "flush", "reset", "wipe",
                                     "fsck"])
def test_no_directory_is_made(larder, tmp_path, command):
    flags = ["--yes"] if command == "wipe" else []
    assert "no such directory" in larder(command, "none", *flags,
                                         code=FAILED).err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("x")
    assert "is not a directory of Larder's" in larder(command, "other", *flags,
                                                   code=FAILED).err
    assert not (tmp_path / "none").exists()
    assert os.listdir(tmp_path / "other") == ["mine"]
    assert larder("get", "none", "k", "-", code=FAILED)


@pytest.mark.parametrize("args", [
    ["put", "PLACE", "k", "-"], ["get", "PLACE", "k", "-"], ["ls", "PLACE"],
    ["stat", "PLACE"], ["flush", "PLACE"], ["reset", "PLACE"],
    ["wipe", "PLACE", "--yes", "--force"], ["fsck", "PLACE"],
    ["fsck", "PLACE", "--repair"]])
def test_locked(larder, place, folder, filled, args):
    before = hashes(folder)
    with open(folder / "larder.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = larder(*[place if a == "PLACE" else a for a in args],
                      code=FAILED, stdin=b"v")
    assert f"{folder}: in use by " in done.err
    assert f"process {os.getpid()}" in done.err
    assert hashes(folder) == before
    assert larder("get", place, "key-0", "-").stdout == filled["key-0"]


@pytest.mark.parametrize("file, offset", [
    ("larder.super", 8), ("larder.super", SUPER_BYTES + 8),
    ("segment-000000", 8)])
def test_unknown_version(larder, place, folder, filled, file, offset):
    poke(folder / file, offset, struct.pack("<I", 77))
    before = hashes(folder)
    for args in (["put", place, "k", "-"], ["get", place, "key-0", "-"],
                 ["ls", place], ["stat", place], ["flush", place],
                 ["reset", place], ["fsck", place],
                 ["fsck", place, "--repair"], ["wipe", place, "--yes"]):
        done = larder(*args, code=FAILED, stdin=b"v")
        assert "in format 77" in done.err
        assert "nothing was touched" in done.err
        assert hashes(folder) == before, args
    larder("wipe", place, "--yes", "--force")
    assert os.listdir(folder) == ["larder.lock"]


# ---- ls, stat, flush, reset, options ---------------------------------------

def test_ls(larder, place, filled):
    rows = larder.json("ls", place)
    assert [row["bytes"] for row in rows] == [50000, 50001, 50002]
    assert all(row["state"] == "live" and row["age_s"] < 3600 and
               row["depth"] == 0 and row["group"] == 0 and row["shard"] == 0
               for row in rows)
    again = larder.json("ls", place, "--all")
    assert [{**row, "age_s": 0} for row in again] == (
        [{**row, "age_s": 0} for row in rows])
    table = larder("ls", place).out.splitlines()
    assert len(table) == 5 and "3 shards" in table[-1]
    for row, line in zip(rows, table[1:]):
        assert line.startswith(f"{row['key']}  {row['space'][8:16]} ")
        assert larder("get", place, row["key"], "-").stdout \
            in filled.values()


def test_ls_writes_nothing(larder, place, folder, filled):
    before = hashes(folder)
    larder("ls", place, "--all")
    assert hashes(folder) == before


def test_reset(larder, place, filled):
    larder("put", place, "k", "-", "--space", "other", stdin=b"stays")
    assert larder.json("reset", place) == [{"status": "reset"}]
    for name in filled:
        larder("get", place, name, "-", code=NO)
    assert larder("get", place, "k", "-", "--space", "other").stdout == b"stays"
    assert len(larder.json("ls", place)) == 1
    states = [row["state"] for row in larder.json("ls", place, "--all")]
    assert sorted(states) == ["live", "stale", "stale", "stale"]
    larder("put", place, "key-0", "-", stdin=b"new")
    assert larder("get", place, "key-0", "-").stdout == b"new"


def test_one_chunk_of_a_space(larder, serve):
    daemon = serve()
    larder("put", daemon.url(), "k", "-", stdin=b"x")
    assert re.search(r"^space [0-9a-f]+ default.*: 1 chunk$",
                     larder("stat", daemon.url()).out, re.M)


def test_stat(larder, place, folder, filled):
    stat = larder.json("stat", place)[0]
    disk = stat["disks"][0]
    assert stat["entries"] == 3 and stat["dram_bytes"] == 8 << 20
    assert disk["path"] == str(folder) and disk["on"] is True
    assert disk["bytes_max"] == 64 << 20 and disk["segments"] >= 1
    assert set(stat["misses"]) >= {"absent", "evicted", "corrupt", "stale"}
    table = larder("stat", place).out
    assert re.search(r"^chunks known +3$", table, re.M)
    assert f"ssd {folder}: on" in table
    text = larder("stat", place, "--prometheus").out
    assert re.search(r"^larder_entries 3$", text, re.M)
    assert all(re.match(r"(# (HELP|TYPE) larder_\w+ .+"
                        r"|larder_\w+(\{\w+=\".*\"\})? \d+)$", line)
               for line in text.splitlines())


def test_flush(larder, place, filled):
    assert larder.json("flush", place) == [{"status": "flushed"}]
    assert "on disk" in larder("flush", place).out


def test_two_directories(larder, tmp_path):
    place = "embed:one,two?dram=8M&ssd=32M"
    for i in range(4):
        larder("put", place, i, "-", stdin=payload(10000, i))
    assert len(larder.json("ls", place)) == 4
    assert len(larder.json("fsck", place)) == 2
    assert len(larder.json("stat", place)[0]["disks"]) == 2
    assert [w["dir"] for w in larder.json("wipe", place, "--yes")] == \
        ["one", "two"]


def test_options(larder):
    """docs/reference/options.md has every option, its default and its text."""
    options = larder.json("options")
    table = larder("options").out
    page = (DOCS / "reference/options.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M))
    assert [o["name"] for o in options] == list(rows)
    for option in options:
        name, default = option["name"], option["default"]
        assert re.search(rf"^{name} +{default} ", table, re.M)
        assert rows[name].startswith(f"{default} |")
        assert rows[name].endswith(f"| {option['text']}")


def test_every_command_and_flag_is_documented(larder):
    page = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
    options = (DOCS / "reference/options.md").read_text(encoding="utf-8")
    commands = re.findall(r"^  (\w+) ", larder("--help").out, re.M)
    for command in set(commands) - {"larder"}:
        assert f"larder {command}" in page
        flags = re.findall(r"^  (--[\w-]+)", larder(command, "--help").out,
                           re.M)
        for flag in set(flags) - {"--help"}:
            assert f"`{flag}" in page or command == "serve" and (
                f"`{flag}" in options or f"\n| `{flag[2:]}` |" in options), \
                (command, flag)


# ---- wipe ------------------------------------------------------------------

def test_wipe(larder, place, folder, filled):
    (folder / "mine").write_text("x")
    (folder / "my-segment-000000").write_text("x")
    before = hashes(folder)
    done = larder("wipe", place, code=USAGE)
    assert "--yes" in done.err and hashes(folder) == before
    wiped = larder.json("wipe", place, "--yes")[0]
    assert wiped["status"] == "wiped" and wiped["others"] == 2
    assert sorted(os.listdir(folder)) == ["larder.lock", "mine",
                                          "my-segment-000000"]
    larder("put", place, "k", "-", stdin=b"new")
    larder("get", place, "key-0", "-", code=NO)


def test_json_of_odd_names(larder, tmp_path):
    """A directory may have any name; what is printed is JSON all the same."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b'/a"\\\x7f\xff')
    larder("put", folder, "key", "-", stdin=b"value")
    done = larder("wipe", folder, "--yes", "--json")
    assert json.loads(done.stdout)["dir"] == f'{tmp_path}/a"\\\x7f\ufffd'


def test_wipe_asks(larder, place, folder, filled):
    """At a terminal it asks, and only "yes" will do."""
    for answer, code in (("y", FAILED), ("yes", OK)):
        master, slave = pty.openpty()
        with subprocess.Popen([larder.binary, "wipe", place], stdin=slave,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            os.write(master, answer.encode() + b"\n")
            process.communicate(timeout=300)
            assert process.returncode == code
        os.close(slave)
        os.close(master)
        assert (folder / "larder.super").exists() == (code != OK)


def test_wipe_of_a_corrupt_directory(larder, place, folder, filled):
    for copy in range(2):
        poke(folder / "larder.super", copy * SUPER_BYTES, os.urandom(BLOCK))
    assert "larder wipe" in larder("get", place, "key-0", "-",
                                   code=FAILED).err
    assert "larder wipe" in larder("fsck", place, "--repair", code=NO).err
    larder("wipe", place, "--yes")
    larder("put", place, "k", "-", stdin=b"new")
    assert larder("get", place, "k", "-").stdout == b"new"


def test_wipe_without_superblock(larder, place, folder, filled):
    (folder / "larder.super").unlink()
    larder("wipe", place, "--yes")
    assert os.listdir(folder) == ["larder.lock"]


def test_wipe_needs_proof(larder, folder):
    """Files that only have the names are not taken for Larder's."""
    folder.mkdir()
    for name in ("larder.super", "segment-000000"):
        (folder / name).write_bytes(os.urandom(300000))
    before = hashes(folder)
    assert "proves" in larder("wipe", folder, "--yes", code=FAILED).err
    assert hashes(folder) == before
    larder("wipe", folder, "--yes", "--force")
    assert os.listdir(folder) == ["larder.lock"]


# ---- fsck ------------------------------------------------------------------

def test_fsck_clean(larder, place, folder, filled):
    before = hashes(folder)
    report = larder.json("fsck", place)
    assert len(report) == 1 and report[0]["clean"] is True
    assert report[0]["records"] == 3 and report[0]["damage"] == 0
    assert report[0]["payload_bytes"] == sum(map(len, filled.values()))
    assert "clean" in larder("fsck", folder).out
    assert hashes(folder) == before


def test_fsck_payload(larder, place, folder, filled):
    path, at = record_of(folder, filled["key-1"])
    flip(path, at + 777)
    before = hashes(folder)
    finding, report = larder.json("fsck", place, code=NO)
    assert finding["finding"] == "payload-bad" and finding["damage"] is True
    assert finding["segment"] == int(path.name[8:])
    assert finding["block"] == at // BLOCK
    assert report["clean"] is False and report["records"] == 2
    text = larder("fsck", place, code=NO).out
    assert f"{path.name} block {at // BLOCK}" in text and "--repair" in text
    assert hashes(folder) == before
    finding, report = larder.json("fsck", place, "--repair")
    assert report["repaired"] == 1 and report["clean"] is True
    assert larder.json("fsck", place)[0]["damage"] == 0
    larder("get", place, "key-1", "-", code=NO)
    for name in ("key-0", "key-2"):
        assert larder("get", place, name, "-").stdout == filled[name]


def test_corrupt_is_a_miss(larder, place, folder, filled, tmp_path):
    path, at = record_of(folder, filled["key-1"])
    flip(path, at + 777)
    done = larder("get", place, "key-1", "out", code=NO)
    assert "miss (corrupt)" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file, offset, word", [
    ("larder.super", 100, "super-bad"),
    ("larder.super", SUPER_BYTES + 100, "super-bad"),
    ("SEGMENT", -BLOCK + 40, "table-bad"),
    ("SEGMENT", -2 * BLOCK + 10, "table-bad"),
    ("SEGMENT", 100, "header-bad")])
def test_fsck_structures(larder, place, folder, filled, file, offset, word):
    """Damage to what is not payload: found, and repaired. Only without its
    header are a segment's records gone."""
    path, _ = record_of(folder, filled["key-2"])
    path = path if file == "SEGMENT" else folder / file
    flip(path, offset % path.stat().st_size)
    finding, report = larder.json("fsck", place, code=NO)
    assert finding["finding"] == word and report["damage"] == 1
    assert larder.json("fsck", place, "--repair")[-1]["repaired"] == 1
    report = larder.json("fsck", place)
    assert len(report) == 1 and report[0]["clean"] is True
    for name, value in filled.items():
        lost = word == "header-bad" and record_of(folder, value)[0] == path
        got = larder("get", place, name, "-", code=NO if lost else OK).stdout
        assert got == (b"" if lost else value)
    assert word != "header-bad" or lost
