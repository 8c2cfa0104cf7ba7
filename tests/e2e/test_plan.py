"""`larder plan`: traces in every form, figures that are known, reports."""
import collections
import contextlib
import decimal
import gzip
import html.parser
import json
import os
import pathlib
import pty
import random
import re
import subprocess

import pytest

import capi

OK, NO, USAGE, FAILED = 0, 1, 2, 3
ROOT = pathlib.Path(__file__).parents[2]
TRACE = "conversation_trace.jsonl"

# Hit rates of the conversation trace at 1, 5, 10, 25 and 50 % of its blocks,
# from an earlier study, which has rounded to four digits, and those to three
# (docs/guide/plan.md).
SHARES = (0.01, 0.05, 0.10, 0.25, 0.50)
KNOWN = {
    "lru": (.053, .196, .279, .354, .363),
    "optimal": (.246, .366, .366, .366, .366),
}


def study_digits(hits, references):
    """As the study writes them: four digits, and of those three, halves up."""
    four = (decimal.Decimal(hits) / decimal.Decimal(references)).quantize(
        decimal.Decimal("0.0001"), decimal.ROUND_HALF_UP)
    return float(four.quantize(decimal.Decimal("0.001"),
                               decimal.ROUND_HALF_UP))


def known_trace():
    folders = [os.environ.get("LARDER_TRACES"), ROOT.parent / "shared/traces"]
    for folder in folders:
        if folder and (pathlib.Path(folder) / TRACE).exists():
            return pathlib.Path(folder) / TRACE
    pytest.skip(f"no {TRACE}: LARDER_TRACES does not name its folder, and "
                "../shared/traces is not there")


def request(ids, at=0, **more):
    return json.dumps({"timestamp": at, "input_length": 512 * len(ids),
                       "output_length": 10, "hash_ids": ids, **more})


@pytest.fixture(scope="module")
def chats():
    """Requests of chats that go on, end, and share their beginnings."""
    rand = random.Random(7)
    chains, requests, fresh = [[] for _ in range(40)], [], 0
    for at in range(600):
        i = rand.randrange(len(chains))
        if len(chains[i]) > 40 or rand.random() < 0.3:
            other = rand.choice(chains)
            chains[i] = other[:rand.randrange(len(other) // 2 + 1)]
        for _ in range(rand.randint(1, 8)):
            chains[i] = chains[i] + [fresh * 7919 % 1000003 + 10 ** 12]
            fresh += 1
        requests.append((at * 500, chains[i]))
    return requests


@pytest.fixture
def trace(tmp_path, chats):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(request(ids, at) + "\n" for at, ids in chats))
    return path


def lru_hits(requests, capacity):
    """By the rule: lookup of a prefix, then all are used, deepest first."""
    cache, hits = collections.OrderedDict(), 0
    for _, ids in requests:
        for block in ids:
            if block not in cache:
                break
            hits += 1
        for block in reversed(ids):
            cache[block] = True
            cache.move_to_end(block)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


# ---- figures ---------------------------------------------------------------

def test_known_figures(larder):
    rows = larder.json("plan", known_trace(), "--policy", ",".join(KNOWN))
    assert len(rows) == len(KNOWN) * len(SHARES)
    for row in rows:
        want = KNOWN[row["policy"]][SHARES.index(row["capacity"])]
        assert study_digits(row["hits"], row["references"]) == want, row
        assert row["references"] == 288500 and row["distinct"] == 182790
        assert row["blocks"] == int(182790 * row["capacity"])


def test_default_figures(larder):
    """What the store's own policy has to reach on it, at least: more than any
    policy of the study, and more than LRU where there is something to win."""
    rows = larder.json("plan", known_trace(), "--policy", "lru,default")
    hits = {(row["policy"], row["capacity"]): row["hits"] for row in rows}
    assert set(hits) == {(p, c) for p in ("lru", "default") for c in SHARES}
    for share, floor in ((0.01, .108), (0.05, .230), (0.10, .294)):
        assert hits["default", share] / 288500 >= floor
    for share in SHARES[:-1]:
        assert hits["default", share] > hits["lru", share], share


def test_known_curve(larder):
    """It rises, up to the hits of an endless cache."""
    rows = larder.json("plan", known_trace(), "--policy", "lru", "--capacity",
                       "5%", "--curve", "30")
    points = [row for row in rows if "curve" in row]
    rates = [point["hit_rate"] for point in points]
    assert len(points) == 30 and rates == sorted(rates)
    assert points[-1]["blocks"] == 182790 and rates[-1] == 0.3664


def test_lru_against_python(larder, trace, chats):
    distinct = len({block for _, ids in chats for block in ids})
    rows = larder.json("plan", trace, "--policy", "lru,default,optimal",
                       "--capacity", "2%,10%,40%,100%")
    by = {(row["policy"], row["capacity"]): row for row in rows}
    assert len(by) == 12
    for share in (0.02, 0.1, 0.4, 1):
        capacity = int(distinct * share)
        row = by["lru", share]
        assert row["blocks"] == capacity
        assert row["hits"] == lru_hits(chats, capacity)
        assert row["requests"] == len(chats)
        assert row["hits"] <= by["optimal", share]["hits"]
    assert by["optimal", 1]["hits"] == by["lru", 1]["hits"] == \
        by["default", 1]["hits"] == by["lru", 1]["references"] - distinct


def test_one_line_each(larder, trace):
    rows = larder.json("plan", trace, "--capacity", "1%,5%,10%",
                       "--policy", "lru,default,optimal")
    assert [(r["policy"], r["capacity"]) for r in rows] == [
        (p, c) for p in ("lru", "default", "optimal")
        for c in (0.01, 0.05, 0.1)]
    for row in rows:
        assert 0 <= row["hit_rate"] <= row["token_hit_rate"] + 1e-9 <= 1
        for name in ("first_token_ms", "first_token_without_ms"):
            assert row[name]["p50"] <= row[name]["p99"]
        assert row["first_token_ms"]["mean"] <= \
            row["first_token_without_ms"]["mean"]


def test_sizes(larder, trace):
    """A block of 512 tokens and 131072 bytes a token is 64 MiB."""
    row, = larder.json("plan", trace, "--policy", "lru", "--capacity", "64G")
    assert row["blocks"] == 1024 and row["bytes"] == 64 << 30
    row, = larder.json("plan", trace, "--policy", "lru", "--capacity", "64G",
                       "--model", "llama-3.1-70b", "--block-tokens", 256)
    assert row["blocks"] == (64 << 30) // (327680 * 256)
    row, = larder.json("plan", trace, "--policy", "lru", "--capacity", "64G",
                       "--bytes-per-token", "1024")
    assert row["blocks"] == 131072


def test_ssd(larder, trace):
    args = ("plan", trace, "--policy", "lru", "--capacity", "5%")
    alone, = larder.json(*args)
    both, = larder.json(*args, "--ssd", "30%")
    assert both["hit_rate"] > alone["hit_rate"]
    assert both["dram_hit_rate"] == alone["hit_rate"]
    assert abs(both["dram_hit_rate"] + both["ssd_hit_rate"]
               - both["hit_rate"]) < 2e-4
    assert 1 <= both["write_amplification"] <= 1.34
    whole, = larder.json(*args, "--ssd", "200%", "--lookup-ms", 60000)
    assert whole["write_amplification"] == 1
    assert whole["hits"] == whole["references"] - whole["distinct"]
    # All blocks are written once, in the time of the trace.
    day = whole["distinct"] * 512 * 131072 / (599 * 0.5) * 86400
    assert abs(whole["ssd_bytes_a_day"] / day - 1) < 1e-3
    assert whole["late_hit_rate"] == 0
    # What is not up in the connector's time is no hit: at a gigabyte a second
    # 7 blocks of 67 MB are, in its half second.
    box, = larder.json(*args, "--ssd", "200%", "--ssd-speed", "1G")
    assert 0 < box["late_hit_rate"] and box["hit_rate"] < whole["hit_rate"]
    assert abs(box["late_hit_rate"] + box["hit_rate"]
               - whole["hit_rate"]) < 2e-4
    more, = larder.json(*args, "--ssd", "200%", "--ssd-speed", "1G",
                        "--lookup-ms", 60000)
    assert more["late_hit_rate"] < box["late_hit_rate"]
    # An SSD that is slower than computing is left alone.
    slow, = larder.json(*args, "--ssd", "200%", "--ssd-speed", "1M")
    assert slow["time_saved"] <= whole["time_saved"]
    assert slow["first_token_ms"]["mean"] <= \
        alone["first_token_ms"]["mean"] + 1e-6


def second_use(requests, ever):
    """Hits, blocks written and refused, of a DRAM that holds next to nothing
    and an SSD that holds all. ever: what is written at its first use, too."""
    seen, disk, hits, refused = set(), set(), 0, 0
    for _, ids in requests:
        for block in ids:
            if block not in disk:
                break
            hits += 1
        for block in ids:
            if block not in disk:
                if ever or block in seen:
                    disk.add(block)
                else:
                    refused += 1
            seen.add(block)
    return hits, len(disk), refused


def test_ssd_second_use(larder, trace, chats):
    args = ("plan", trace, "--policy", "lru", "--capacity", "1", "--ssd",
            "10000%", "--ssd-admit", "second")
    row, = larder.json(*args)
    hits, written, refused = second_use(chats, False)
    # The one block in DRAM is nobody's beginning but rarely.
    assert 0 <= row["hits"] - hits < 10
    assert row["ssd_refused_first"] == refused
    assert row["ssd_refused_budget"] == 0
    day = written * 512 * 131072 / (599 * 0.5) * 86400
    assert abs(row["ssd_bytes_a_day"] / day - 1) < 1e-3
    lost = second_use(chats, True)[0] - hits
    assert abs(row["ssd_lost_hit_rate"] - lost / row["references"]) < 0.005
    out = larder(*args).out
    assert "used once" in out and "hits lost" in out
    plain = larder(*args[:-2]).out
    assert "used once" not in plain
    assert "need --ssd" in larder("plan", trace, "--ssd-admit", "second",
                                  code=USAGE).err


def test_ssd_budget(larder, trace, tmp_path):
    args = ("plan", trace, "--policy", "lru", "--capacity", "5%", "--ssd",
            "200%",
            "--lookup-ms", 60000)
    free, = larder.json(*args)
    assert "ssd_refused_budget" not in free
    last = free["hit_rate"] + 1e-9
    for share in (0.8, 0.3, 0.1):
        budget = int(free["ssd_bytes_a_day"] * share)
        row, = larder.json(*args, "--ssd-writes", budget)
        # At least a block for each request that came when some was left.
        assert 0.9 < row["ssd_bytes_a_day"] / budget < 1.01
        assert row["ssd_refused_budget"] > 0
        assert row["hit_rate"] < last
        assert abs(row["hit_rate"] + row["ssd_lost_hit_rate"]
                   - free["hit_rate"]) < 2e-4
        last = row["hit_rate"]
    rich, = larder.json(*args, "--ssd-writes", "1000T")
    assert rich["ssd_lost_hit_rate"] == 0 or rich["ssd_refused_budget"] == 0
    page = tmp_path / "page.html"
    larder(*args, "--ssd-writes", "1T", "--html", page)
    assert "hits lost" in page.read_text()


def test_ssd_is_behind(larder, trace):
    """What comes faster than the disk writes waits while it is in DRAM."""
    args = ("plan", trace, "--policy", "lru", "--ssd", "200%")
    pace = larder.json(*args, "--capacity", "5%")[0]["ssd_bytes_a_day"] / 86400
    slow, = larder.json(*args, "--capacity", "5%", "--ssd-write-speed",
                        int(pace / 4))
    assert slow["ssd_dropped"] > 0
    room, = larder.json(*args, "--capacity", "90%", "--ssd-write-speed",
                        int(pace / 4))
    assert room["ssd_dropped"] < slow["ssd_dropped"]
    quick, = larder.json(*args, "--capacity", "5%", "--ssd-write-speed",
                         int(pace * 1000))
    assert quick["ssd_dropped"] == 0
    assert "had left DRAM" in larder(*args, "--capacity", "5%",
                                     "--ssd-write-speed", int(pace / 4)).out


def test_measured(larder, trace, tmp_path):
    """The disks' speeds from what the doctor said, which the command line
    overrules."""
    folder = tmp_path / "kv"
    folder.mkdir()
    said = subprocess.run([larder.binary, "doctor",
                           f"embed:{folder}?ssd=256M", "--json"],
                          stdout=subprocess.PIPE, text=True, timeout=300,
                          check=False).stdout  # it may warn of other things
    lines = [json.loads(line) for line in said.splitlines()]
    by = {line["check"]: line for line in lines}
    disk, memory = by["disk"], by["memory"]
    file = tmp_path / "doctor.json"
    # Only the fields count, not what people read.
    file.write_text(said.replace("writes ", "takes ").replace("copies ", ""))
    alone = ("plan", trace, "--policy", "lru", "--capacity", "5%")
    args = (*alone, "--ssd", "100%", "--dram-speed", "50G")
    wanted, = larder.json(*args, "--ssd-speed", disk["read_bytes_s"],
                          "--ssd-write-speed", disk["write_bytes_s"])
    got, = larder.json(*args, "--measured", file)
    assert got["first_token_ms"] == wanted["first_token_ms"]
    assert got["ssd_dropped"] == wanted["ssd_dropped"]
    if "copy_bytes_s" in memory:  # else there was too little of it
        wanted, = larder.json(*alone, "--dram-speed", memory["copy_bytes_s"])
        got, = larder.json(*alone, "--measured", file)
        assert got["first_token_ms"] == wanted["first_token_ms"]
        # A speed that is too low to be of use would make no difference.
        other, = larder.json(*alone, "--measured", file, "--dram-speed",
                             "1000G")
        assert other["first_token_ms"] != got["first_token_ms"]
    # Two disks give twice as much.
    file.write_text(said + said)
    twice, = larder.json(*args, "--measured", file)
    wanted, = larder.json(*args, "--ssd-speed", 2 * disk["read_bytes_s"])
    assert twice["first_token_ms"] == wanted["first_token_ms"]
    # A disk that was just busy may have been as slow as that.
    over, = larder.json(*args, "--measured", file, "--ssd-speed", "1K")
    wanted, = larder.json(*args, "--ssd-speed", "1K")
    assert over["first_token_ms"] == wanted["first_token_ms"]
    file.write_text("{}\n")
    assert "no disk in it" in larder(*args, "--measured", file, code=FAILED).err
    larder(*args, "--measured", tmp_path / "nothing", code=FAILED)


def test_measured_here(larder, trace, tmp_path, state):
    """What the doctor has measured last is the default for disks."""
    args = ("plan", trace, "--policy", "lru", "--capacity", "5%")

    def ask(*more):
        """Times, what was dropped, and what was said beside it."""
        done = larder(*args, "--ssd", "100%", *more, "--json")
        got = json.loads(done.out)
        return got["first_token_ms"], got.get("ssd_dropped"), done.err

    plain = ask()
    assert plain[1] is None and "doctor" not in plain[2]
    folder = tmp_path / "kv"
    folder.mkdir()
    subprocess.run([larder.binary, "doctor", f"embed:{folder}?ssd=256M"],
                   stdout=subprocess.PIPE, timeout=300, check=False)
    file, = (state / "larder").iterdir()
    measured = ask()
    assert "as `larder doctor` has measured them here" in measured[2]
    disk, = [line for line in map(json.loads, file.read_text().splitlines())
             if line["check"] == "disk"]
    wanted = ask("--ssd-speed", str(disk["read_bytes_s"]), "--ssd-write-speed",
                 str(disk["write_bytes_s"]))
    assert measured[:2] == wanted[:2] and "doctor" not in wanted[2]
    assert ask("--measured", "none") == plain
    assert "doctor" not in larder(*args).err  # without a disk
    file.write_text("{}\n")
    broken = ask()
    assert "no disk in it" in broken[2] and broken[:2] == plain[:2]


def test_daemon_writes_second_uses(serve):
    daemon = serve(dirs=1, ssd_admit="second")
    with capi.Node(daemon.url()) as node, \
            capi.Node(daemon.url("tcp")) as other:
        for name in "abc":
            assert node.put(name, name.encode() * 9000) == capi.OK
        assert daemon.value("larder_writes_refused_total",
                            reason="used_once") == 3
        assert node.get("a")[2] == b"a" * 9000
        assert other.put("b", b"b" * 9000) == capi.PRESENT
        assert node.flush() == capi.OK
    daemon.stop()
    daemon.start()
    with capi.Node(daemon.url()) as node:
        assert [node.exists(name) for name in "abc"] == [
            capi.OK, capi.OK, capi.MISS]


def test_daemon_has_a_budget(serve):
    daemon = serve(dirs=1, ssd_writes="1K")
    with capi.Node(daemon.url()) as node:
        for i in range(20):
            assert node.put(f"k{i}", b"v" * 50000) == capi.OK
        assert node.flush() == capi.OK
        # A first record may be written, and is paid for.
        assert daemon.value("larder_writes_refused_total",
                            reason="budget") >= 19
        assert daemon.value("larder_disk_written_bytes_total") < 70000
        assert node.get("k3")[2] == b"v" * 50000  # from DRAM


def test_engines(larder, trace):
    """The fewer engines, the longer the wait, the more a hit is worth."""
    args = ("plan", trace, "--policy", "lru", "--capacity", "100%",
            "--prefill", "5000")
    rows = [larder.json(*args, *more)[0] for more in
            ((), ("--engines", "1000"), ("--engines", "2"),
             ("--engines", "1"))]
    assert rows[1]["first_token_ms"] == rows[0]["first_token_ms"]
    for name in ("first_token_ms", "first_token_without_ms"):
        means = [row[name]["mean"] for row in rows]
        assert means == sorted(means) and means[3] > means[1]
    gains = [row["first_token_without_ms"]["mean"]
             - row["first_token_ms"]["mean"] for row in rows]
    assert gains[3] > gains[0] > 0


def test_sample(larder, tmp_path):
    """Of many blocks a fifth says much the same as all."""
    rand = random.Random(3)
    path = tmp_path / "many.jsonl"
    chains = [[] for _ in range(300)]
    with open(path, "w", encoding="utf-8") as file:
        for at in range(6000):
            i = rand.randrange(300)
            if len(chains[i]) > 30:
                chains[i] = []
            chains[i] = chains[i] + [rand.getrandbits(60)
                                     for _ in range(rand.randint(1, 6))]
            file.write(request(chains[i], at) + "\n")
    args = ("plan", path, "--policy", "lru,optimal", "--capacity", "2%,5%,20%")
    for a, b in zip(larder.json(*args), larder.json(*args, "--sample", "0.2")):
        assert b["sample"] == 0.2 and b["references"] == a["references"]
        assert abs(b["distinct"] / a["distinct"] - 1) < 0.05
        assert abs(b["hit_rate"] - a["hit_rate"]) < 0.03, (a, b)


def test_nodes(larder, trace):
    """Shared by nodes, each with a policy of its own."""
    args = ("plan", trace, "--policy", "lru,default,optimal")
    one = larder.json(*args, "--capacity", "20%,1000%")
    assert "nodes" not in one[0]
    many = larder.json(*args, "--capacity", "20%,1000%", "--nodes", 7)
    for a, b in zip(one, many):
        assert b["nodes"] == 7 and b["blocks"] == a["blocks"]
        if a["capacity"] == 10 or a["policy"] == "optimal":
            assert a["hits"] == b["hits"]
        else:
            # Chains lie across nodes, and so does what is least recent.
            assert 0.5 * a["hits"] < b["hits"] < 1.05 * a["hits"]
        if b["policy"] != "optimal":
            assert 1 <= b["busiest_node"] < 7
    # Whole chains together: with one beginning, all on one node.
    runs = larder.json(*args, "--capacity", "1000%", "--nodes", 7,
                       "--node-run", 100)
    assert runs[0]["hits"] == one[1]["hits"]
    assert runs[0]["busiest_node"] > many[1]["busiest_node"]
    assert "too few" in larder("plan", trace, "--nodes", 10000, "--capacity",
                               "10%", code=FAILED).err


# ---- traces ----------------------------------------------------------------

@pytest.mark.parametrize("begin, unpacker", [
    (gzip.compress(b"{}"), "gzip"), (b"\x28\xb5\x2f\xfd" * 9, "zstd")])
def test_compressed(larder, tmp_path, begin, unpacker):
    """It is refused, with what unpacks it."""
    path = tmp_path / "packed"  # the name says nothing
    path.write_bytes(begin)
    for args, more in ((path, {}), ("-", {"stdin": begin})):
        done = larder("plan", args, code=FAILED, **more)
        assert f"`{unpacker} -dc FILE | larder plan -`" in done.err
        assert not done.out and len(done.err.splitlines()) == 1


def test_bad_lines(larder, tmp_path):
    path = tmp_path / "trace"
    path.write_text("\n".join([request([1, 2]), "nonsense", request([1, 2]),
                               '{"timestamp": 1}', ""]))
    done = larder("plan", path, code=FAILED)
    assert f"{path}:2: it is no JSON object" in done.err
    assert f"{path}:4: it has no hash_ids" in done.err
    assert "2 bad lines of 4" in done.err and "--skip-bad" in done.err
    assert not done.out
    rows = larder.json("plan", path, "--skip-bad", "--policy", "lru",
                       "--capacity", "100%")
    assert [(r["hits"], r["bad_lines"]) for r in rows] == [(2, 2)]


def test_many_bad_lines(larder, tmp_path):
    path = tmp_path / "trace"
    path.write_text("x\n" * 5000)
    done = larder("plan", path, code=FAILED)
    assert "5000 bad lines of 5000" in done.err
    assert len(done.err.splitlines()) < 20


def test_nothing_in_it(larder, tmp_path):
    path = tmp_path / "trace"
    for text in ("", "\n\n", request([]) + "\n"):
        path.write_text(text)
        assert "no block" in larder("plan", path, code=FAILED).err
    larder("plan", tmp_path / "missing", code=FAILED)
    larder("plan", tmp_path, code=FAILED)


def test_tolerant(larder, tmp_path):
    path = tmp_path / "trace"
    path.write_text('  {"x": {"hash_ids": [9]}, "hash_ids" : [1 , 2], '
                    '"timestamp":0.5,"input_length":1024}\r\n\r\n'
                    + request([1, 2, 3], at=3, turn=2, type="text"))
    row, = larder.json("plan", path, "--policy", "lru", "--capacity", "100%")
    assert (row["requests"], row["references"], row["hits"]) == (2, 5, 2)


# ---- the command -----------------------------------------------------------

@pytest.mark.parametrize("args, says", [
    ((), "one TRACE is needed"),
    (("a", "b"), "one TRACE is needed"),
    (("t", "--policy", "lru,best"), "'best' cannot be used"),
    (("t", "--policy", "s3fifo"), "'s3fifo' cannot be used: lru, default ("),
    (("t", "--policy", "learned"), "default (what a node runs) or optimal"),
    (("t", "--policy", ""), "--policy"),
    (("t", "--capacity", "5%,much"), "'much' cannot be used"),
    (("t", "--capacity", "0%"), "--capacity"),
    (("t", "--capacity", "-5%"), "--capacity"),
    (("t", "--model", "gpt-9"), "llama-3.1-8b"),
    (("t", "--sample", "2"), "--sample: '2' cannot be used: a share above 0"),
    (("t", "--block-tokens", "0"), "from 1 to 1048576"),
    (("t", "--curve", "1"), "--curve: '1' cannot be used: a number from 2"),
    (("t", "--nodes", "10001"), "from 1 to 10000"),
    (("t", "--engines", "-1"), "from 1 to 1000000"),
    (("t", "--ssd-speed", "fast"), "like 1000, 50G"),
    (("t", "--dram-latency", "-1"), "0 or more"),
    (("t", "--ssd-admit", "third"), "always or second"),
    (("t", "--nonsense"), "unknown flag"),
    (("t", "--capacity"), "needs a value"),
])
def test_usage(larder, args, says):
    done = larder("plan", *args, code=USAGE)
    assert says in done.err and not done.out


def test_help(larder):
    text = larder("plan", "--help").out
    for flag in ("--capacity", "--policy", "--ssd", "--html", "--skip-bad"):
        assert flag in text
    assert "  plan " in larder("--help").out
    assert "deepseek-v3" in larder("plan", "--models").out


def test_temporary_files(larder, trace, tmp_path):
    """They lie in TMPDIR, and nothing of them is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    env = dict(os.environ, TMPDIR=str(folder))
    subprocess.run([larder.binary, "plan", str(trace)], env=env, timeout=300,
                   check=True, stdout=subprocess.DEVNULL)
    assert not list(folder.iterdir())
    env["TMPDIR"] = str(tmp_path / "missing")
    done = subprocess.run([larder.binary, "plan", str(trace)], env=env,
                          timeout=300, capture_output=True, check=False)
    assert done.returncode == FAILED and b"TMPDIR" in done.stderr


def test_table(larder, trace):
    out = larder("plan", trace, "--policy", "lru,optimal", "--ssd", "50%",
                 "--curve", "4").out
    lines = [line.split() for line in out.splitlines()]
    assert sum(line[:1] == ["lru"] for line in lines) == 5
    assert sum(line[:1] == ["optimal"] for line in lines) == 5
    assert "first token without a cache" in out
    assert "curve of optimal" in out


def test_progress(larder, tmp_path):
    """At a terminal, on standard error, and gone at the end."""
    path = tmp_path / "trace"
    path.write_text("".join(request([i % 50], i) + "\n" for i in range(9000)))
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run([larder.binary, "plan", str(path)], timeout=300,
                              stdout=subprocess.PIPE, stderr=theirs,
                              check=True)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal's end is read
            while data := os.read(ours, 65536):
                shown += data
        shown = shown.decode()
    finally:
        os.close(ours)
    assert "reading the trace" in shown and "lru, " in shown
    assert shown.endswith("\r\033[K")
    assert b"\r" not in done.stdout
    assert "\r" not in larder("plan", path).err


class Page(html.parser.HTMLParser):
    """Tags that are opened and closed, and all that would be fetched."""
    VOID = {"meta", "br"}
    LOOSE = {"th", "td", "tr", "p"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.fetched = [], collections.Counter(), []

    def handle_starttag(self, tag, attrs):
        self.seen[tag] += 1
        self.fetched += [v for k, v in attrs if k in ("src", "href", "action")]
        if tag not in self.VOID | self.LOOSE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] += 1

    def handle_endtag(self, tag):
        if tag not in self.LOOSE:
            assert self.open.pop() == tag


def test_html(larder, trace, tmp_path):
    odd = trace.with_name("<b>&chats.jsonl")
    trace.rename(odd)
    path = tmp_path / "report.html"
    larder("plan", odd, "--html", path, "--ssd", "50%")
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert not page.open and not page.fetched
    assert page.seen["svg"] == 2 and page.seen["polyline"] == 3 + 4
    assert "&lt;b>&amp;chats.jsonl" in text and "<b>&" not in text
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"https?://|url\(|@import|<script|nan|inf\b", text)
    # Every line lies within its chart.
    for points in re.findall(r'points="([^"]*)"', text):
        for x, y in (p.split(",") for p in points.split()):
            assert 0 <= float(x) <= 860 and 0 <= float(y) <= 400
    done = larder("plan", odd, "--html", tmp_path / "no/such/folder",
                  code=FAILED)
    assert not done.out  # found out before the trace is read


def test_html_of_little(larder, tmp_path):
    """A trace of one block, and one capacity: still a page."""
    path = tmp_path / "trace"
    path.write_text(request([5]))
    larder("plan", path, "--html", tmp_path / "r.html", "--capacity", "100%")
    text = (tmp_path / "r.html").read_text()
    assert "nan" not in text and not re.search(r"\binf\b", text)
