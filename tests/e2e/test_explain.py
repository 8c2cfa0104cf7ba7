"""`larder explain`, on files as the connector's own code writes them."""
import ast
import collections
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import pytest

OK, NO, USAGE, FAILED = 0, 1, 2, 3
ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))

from larder_kv.engine import explain  # noqa: E402


class Counts:
    def __init__(self):
        self.counters = collections.Counter()
        self.times = collections.defaultdict(list)

    def add(self, name, by=1):
        self.counters[name] += by

    def time(self, name, ms):
        self.times[name].append(ms)


def look(matched=11, chunks=11, dram=9 << 20, ssd=0, reason="none"):
    return types.SimpleNamespace(
        matched=matched, chunks=chunks, tier_bytes=(dram, ssd, 0),
        reason=reason,
        began=10.0, found=10.0004, ended=10.002)


def hit(request_id, **found):
    """A request of 3,000 tokens that was loaded."""
    record = explain.Record(request_id, 3000)
    record.look = look(**found)
    record.claim(0, record.look.chunks * 256)
    record.issued = 20.0
    record.report(False)
    record.reported = 20.003
    record.schedule()
    record.scheduled = 20.0035
    record.saved_chunks = 1
    return record


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "explain"


@pytest.fixture
def write(folder, monkeypatch):
    """Writes records, gives what was counted."""
    monkeypatch.setenv("LARDER_LIBRARY",
                       os.environ["LARDER_BUILD"] + "/lib/liblarder.so")

    def run(*records):
        counts = Counts()
        one = explain.Explain(counts, 256, folder, "vllm")
        for record in records:
            one.end(record)
        one.close()
        assert not one._thread.is_alive()
        return counts
    return run


def test_a_hit(larder, folder, write):
    counts = write(hit("cmpl-7"))
    text = larder("explain", "cmpl-7", "--dir", folder).out
    assert "request cmpl-7\n" in text
    assert f"engine process {os.getpid()}\n" in text
    assert "3000 tokens; 11 chunks of 256 could be loaded, 2816 tokens" in text
    assert ("11 chunks in the store, 2816 tokens; 11 staged (9.0 MiB from "
            "dram, 0 B from ssd)") in text
    assert "loaded    2816 tokens" in text and "missed    nothing" in text
    assert "saved     1 chunk\n" in text
    assert ("times     lookup 0.4 ms, stage 1.6 ms, copy 3.0 ms, "
            "resume 0.5 ms") in text
    assert counts.times == {"lookup_ms": [0.4], "stage_ms": [1.6],
                            "copy_ms": [3.0], "resume_ms": [0.5]}
    assert not counts.counters


def test_json_is_what_was_recorded(larder, folder, write):
    record = hit("a", ssd=4096, chunks=4, reason="slower")
    write(record)
    [found] = larder.json("explain", "a", "--dir", folder)
    assert found == record.fields(256)
    assert found["loaded_tokens"] == 1024 and found["missed_tokens"] == 1792


def miss(request_id, **about):
    record = explain.Record(request_id, about.pop("tokens", 3000))
    for name, value in about.items():
        setattr(record, name, value)
    return record


CASES = {
    "short": miss("short", tokens=256, look=None),
    "skip": explain.Record("skip", 3000, "skip"),
    "off": miss("off"),
    "absent": miss("absent", look=look(0, 0, 0, reason="absent")),
    "slower": miss("slower", look=look(11, 0, reason="slower")),
    "late": miss("late", look=look(0, 0, 0, reason=""), why="late"),
    "load": miss("load", look=look(), claimed_tokens=2816, failed=True),
    "engine": miss("engine", look=look(), claimed_tokens=2560),
}


@pytest.mark.parametrize("reason", CASES)
def test_reasons(larder, folder, write, reason):
    counts = write(CASES[reason])
    [found] = larder.json("explain", reason, "--dir", folder)
    assert found["reason"] == reason
    missed = {"short": 0, "engine": 256}.get(reason, 2816)
    assert found["missed_tokens"] == missed
    assert counts.counters[f"missed_requests:{reason}"] == 1
    assert counts.counters[f"missed_tokens:{reason}"] == missed
    text = larder("explain", reason, "--dir", folder).out
    assert re.search(rf"missed +{missed} tokens: {reason} \(.+\)\n", text)
    assert "does not know" not in text
    assert ("failed    2816 tokens" in text) == (reason == "load")


def test_every_cause_has_a_text(larder, folder, write):
    """Also those that come from the library."""
    header = (ROOT / "include/larder/larder.h").read_text()
    names = re.findall(r'X\(LARDER_CAUSE_\w+, "(\w+)"\)', header)
    assert len(names) > 8
    write(*(miss(n, look=look(0, 0, 0, reason=n)) for n in names
            if n != "none"))
    for name in names:
        if name != "none":
            assert "does not know" not in larder("explain", name, "--dir",
                                                 folder).out


def test_own_cache_is_no_miss(larder, folder, write):
    counts = write(miss("r", look=look(0, 0, 0, reason="absent"),
                        local_tokens=2816))
    assert "missed    nothing" in larder("explain", "r", "--dir", folder).out
    assert not counts.counters


def test_after_a_preemption(larder, folder, write):
    record = hit("r")
    record.again()
    record.look = look(0, 0, 0, reason="evicted")
    write(record)
    text = larder("explain", "r", "--dir", folder).out
    assert "preempted 1 time;" in text and "2816 tokens: evicted" in text
    assert "copy -, resume -" in text


def half(record, side, **about):
    record.half = explain.Half(side, 3000)
    for name, value in about.items():
        setattr(record.half, name, value)
    return record


def test_a_hand_off(larder, folder, write):
    """Both halves, under the id that a proxy gave both."""
    given, taken = miss("cmpl-9-aa"), hit("cmpl-9-bb")
    given.began = taken.began = 10.0
    half(given, "prefill", promised=10.0004, saved=10.3, ended=10.312)
    half(taken, "decode", member="n1", ended=10.002, whole=True)
    write(given, taken)
    text = larder("explain", "cmpl-9", "--dir", folder).out
    assert ("gave      3000 tokens to a decode engine, promised at 0.4 ms, "
            "last saves at 300.0 ms, answered at 312.0 ms\n") in text
    assert ("took      all of a hand-off from n1, staged at 2.0 ms\n") in text
    assert [r["handoff"] for r in larder.json(
        "explain", "cmpl-9", "--dir", folder)] == ["prefill", "decode"]
    assert "gave" not in larder("explain", "cmpl-9-bb", "--dir", folder).out


def reasons_of_hand_offs():
    """All that the connector says."""
    found = set()
    for name in ("engine", "vllm"):
        text = (ROOT / f"python/larder_kv/{name}/handoff.py").read_text()
        found |= set(re.findall(r'Refused\("(\w+)"\)', text))
        for line in re.findall(r"half\.why = (.+)", text):
            found |= set(re.findall(r'"(\w+)"', line))
    return sorted(found)


def test_reasons_of_hand_offs(larder, folder, write):
    names = reasons_of_hand_offs()
    assert {"forged", "member", "unable", "ended", "busy"} <= set(names)
    write(*(half(miss(f"r-{name}"), "decode", why=name) for name in names),
          half(miss("short"), "decode", why="absent", ended=time.monotonic()))
    for name in names:
        text = larder("explain", f"r-{name}", "--dir", folder).out
        assert f"took      nothing of a hand-off; {name} (" in text
        assert "does not know" not in text
    text = larder("explain", "short", "--dir", folder).out
    assert "took      a part of a hand-off, staged at" in text
    assert "; absent (the store does not have it)" in text


def test_lists_the_newest(larder, folder, write):
    records = []
    for i in range(30):
        records.append(explain.Record(f"r{i}", 3000, "skip"))
        records[-1].came = 1e9 + i
    write(*reversed(records))
    lines = larder("explain", "--dir", folder).out.splitlines()
    assert lines[0].split()[-2:] == ["WHY", "REQUEST"]
    assert [line.split()[-1] for line in lines[1:]] == [
        f"r{i}" for i in range(10, 30)]
    found = larder.json("explain", "--dir", folder)
    assert [r["id"] for r in found] == [f"r{i}" for i in range(10, 30)]


def test_prefix_or_the_very_id(larder, folder, write):
    """vLLM appends digits of its own to ids."""
    write(hit("chat-1-aaaa"), hit("chat-1-bbbb"), hit("chat-2"), hit("chat-22"))
    def ids(wanted):
        return [r["id"] for r in larder.json("explain", wanted, "--dir",
                                             folder)]
    assert ids("chat-1") == ["chat-1-aaaa", "chat-1-bbbb"]
    assert ids("chat-2") == ["chat-2"]
    text = larder("explain", "chat-1", "--dir", folder).out
    assert text.count("request chat-1-") == 2


def test_unknown(larder, folder, write):
    write(hit("a"), hit("b"))
    error = larder("explain", "zz", "--dir", folder, code=NO).err
    assert error.count("\n") == 1 and str(folder) in error
    assert "no request zz" in error and "keeps 2 requests" in error


def test_no_directory(larder, tmp_path):
    error = larder("explain", "--dir", tmp_path / "none", code=NO).err
    assert "No such file" in error and "--dir" in error
    assert error.count("\n") == 1
    (tmp_path / "file").write_text("x")
    larder("explain", "--dir", tmp_path / "file", code=FAILED)
    larder("explain", "a", "b", code=USAGE)


def test_default_directory(binary, tmp_path, monkeypatch):
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    one = explain.Explain(Counts(), 256, tmp_path / "explain", "vllm")
    one.end(hit("here"))
    one.close()
    out = subprocess.run([binary, "explain", "here"], stdout=subprocess.PIPE,
                         timeout=300, check=True).stdout
    assert b"request here\n" in out


def test_strange_ids(larder, folder, write):
    """Users choose them: nothing of them may reach the terminal, or break a
    line apart."""
    evil = "x\tid=other\n\x1b[31m\\n\x9b31m\u00e9"
    write(explain.Record(evil, 3000, "skip"), hit("after"),
          hit("long" + "y" * 100000))
    for arguments in (["x"], ["x", "--json"], []):
        out = larder("explain", *arguments, "--dir", folder).out
        assert "\x1b" not in out and "\x9b" not in out
        assert "x\\x09id=other\\x0a\\x1b[31m" in out.replace("\\\\", "\\")
        assert "\u00e9" in out
    assert larder.json("explain", "after", "--dir", folder)
    [found] = larder.json("explain", "long", "--dir", folder)
    assert len(found["id"]) == 256


def test_damaged_files(larder, folder, write):
    write(hit("good"))
    [path] = folder.iterdir()
    line = path.read_bytes()
    rubbish = [b"\x00" * 4096, b"no pair\tid=x\n", b"id=1\ttime_ms=\n",
               b"id=2\ttime_ms=1e9\n", b"=\t=\n\n\t\n", os.urandom(4096), line]
    for cut in range(1, len(line), 7):
        path.write_bytes(b"\n".join(rubbish) + line[:cut] + b"\n" + line)
        assert larder.json("explain", "good", "--dir", folder)
    # Whole ones only: a line that was cut late is a record all the same.
    path.write_bytes(b"\n".join(rubbish) + line)
    (folder / "vllm-1.log").symlink_to(path)
    os.mkfifo(folder / "vllm-2.log")
    (folder / "vllm-3.log").mkdir()
    (folder / "other.log").write_bytes(line.replace(b"good", b"bad"))
    assert len(larder.json("explain", "--dir", folder)) == 2
    larder("explain", "bad", "--dir", folder, code=NO)


def test_two_files_of_one_mebibyte(larder, folder, write):
    count = 20000
    for first in range(0, count, 5000):
        write(*(hit(f"r{i}") for i in range(first, first + 5000)))
    sizes = {p.name: p.stat().st_size for p in folder.iterdir()}
    pid = os.getpid()
    assert set(sizes) == {f"vllm-{pid}.log", f"vllm-{pid}.old.log"}
    assert all(0 < size <= 1 << 20 for size in sizes.values())
    assert larder.json("explain", f"r{count - 1}", "--dir", folder)
    larder("explain", "r0", "--dir", folder, code=NO)


def test_for_this_user_only(folder, write):
    write(hit("a"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    [path] = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("trap", ["open", "link", "file"])
def test_a_directory_that_is_not_ours(folder, write, caplog, trap):
    """Nothing is written; requests are still counted."""
    folder.parent.mkdir()
    if trap == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif trap == "link":
        (folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(folder.parent / "elsewhere")
    else:
        folder.write_text("")
    counts = write(hit("a"))
    assert "larder explain" in caplog.text and str(folder) in caplog.text
    assert counts.times["copy_ms"] == [3.0]
    assert trap == "file" or not list(folder.iterdir())


def test_files_of_dead_processes(folder, write):
    folder.mkdir(parents=True, mode=0o700)
    done = subprocess.Popen(["true"])
    done.wait()
    old = time.time() - 2 * 86400
    kept = {f"vllm-{done.pid}.old.log": time.time(),  # died lately
            f"vllm-{os.getppid()}.log": old,  # lives
            "notes.txt": old}
    for name, stamp in {**kept, f"vllm-{done.pid}.log": old}.items():
        (folder / name).write_text("x")
        os.utime(folder / name, (stamp, stamp))
    write(hit("a"))
    names = {p.name for p in folder.iterdir()}
    assert names == set(kept) | {f"vllm-{os.getpid()}.log"}


def test_it_may_be_deleted_while_it_is_written(larder, folder):
    one = explain.Explain(Counts(), 256, folder, "vllm")
    one.end(hit("a"))
    path = folder / f"vllm-{os.getpid()}.log"
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    path.unlink()
    one.end(hit("b"))
    one.close()
    assert [r["id"] for r in larder.json("explain", "--dir", folder)] == ["b"]


def test_a_disk_that_is_full(folder, caplog, monkeypatch):
    """The engine goes on, and says it once."""
    one = explain.Explain(Counts(), 256, folder, "vllm")
    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(explain.os, "write", full)
    for i in range(3):
        one.end(hit(f"r{i}"))
    one.close()
    assert caplog.text.count("No space left") == 1
    assert len(one.counts.times["copy_ms"]) == 3


# ---- the manual ------------------------------------------------------------

def tables():
    """Those of the connector's metrics: {name: {key: text}}."""
    source = (ROOT / "python/larder_kv/engine/counts.py").read_text()
    return {node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)}


MANUAL = ROOT / "docs/reference/vllm-metrics.md"


def test_manual_has_every_metric():
    manual = MANUAL.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `vllm:larder_(\w+)` \| (\w+)", manual, re.M))
    wanted = {}
    for name, kind in (("COUNTERS", "counter"), ("BY_REASON", "counter"),
                       ("GAUGES", "gauge"), ("TIMES", "histogram")):
        wanted.update(dict.fromkeys(tables()[name], kind))
    assert len(wanted) > 20 and rows == wanted


def test_manual_has_every_reason():
    manual = MANUAL.read_text(encoding="utf-8")
    [table] = re.findall(r"\| reason \| \|\n\|---\|---\|\n((?:\|.*\n)+)",
                         manual)
    rows = {name for row in table.splitlines()
            for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    source = (ROOT / "src/cli/cmd_explain.c").read_text()
    known = re.search(r"reasons\[\] = \{(.*?)\n\};", source, re.S).group(1)
    assert rows == set(re.findall(r'\{"(\w+)",', known))
