"""What people call a space: given by whoever opens it, shown beside its id, and
never trusted."""
import json
import re

import pytest

import wireclient as w
from daemon import Metrics, until

both = pytest.mark.parametrize("transport", ["unix", "tcp"])
LABEL = "Qwen3-8B bf16"
KEY = "ab" * 32


def labels(daemon):
    """{space: label} of the metric."""
    found = re.findall(r'^larder_space_info\{tenant="default",space="(\w+)",'
                       r'label="(.*)"\} 1$', daemon.http("/metrics"), re.M)
    return dict(found)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "value"
    path.write_bytes(b"value")
    return path


@both
def test_shown(serve, larder, file, transport):
    daemon = serve(admin="127.0.0.1:0")
    url = daemon.url(transport)
    assert larder.json("stat", url)[0]["spaces"] == []
    larder("put", url, KEY, file, "--label", LABEL)
    larder("put", url, KEY, file, "--space", "other")
    found = labels(daemon)
    assert list(found.values()) == [LABEL], "the other has none"
    mine, = found
    rows = {r["label"]: r for r in larder.json("ls", url)}
    assert set(rows) == {LABEL, ""}
    assert rows[LABEL]["space"][8:16] == mine
    assert re.search(rf"{mine} .*dram +{LABEL}$", larder("ls", url).out, re.M)
    spaces = {s["label"]: s for s in larder.json("stat", url)[0]["spaces"]}
    assert spaces[LABEL] == {"space": mine, "tenant": "default",
                             "label": LABEL, "chunks": 1}
    assert f"space {mine} default, {LABEL}: 1 chunk" in larder(
        "stat", url).out
    top = larder("top", url, "--once", "--interval", "1").out
    assert re.search(rf"^{mine} +{LABEL} +default ", top, re.M), top
    shown = json.loads(daemon.http("/status.json"))["spaces"]
    assert {s["id"]: s["label"] for s in shown}[mine] == LABEL


def test_the_last_one_given_stays(serve, larder, file):
    """It is no part of the space's name: the same chunk is found."""
    daemon = serve(admin="127.0.0.1:0")
    url = daemon.url()
    larder("put", url, KEY, file, "--label", "first")
    assert "present" in larder("put", url, KEY, file, "--label", "second").out
    assert list(labels(daemon).values()) == ["second"]
    for flags in ((), ("--label", "")):  # none is given
        assert larder("get", url, KEY, "-", *flags).stdout == b"value"
        assert list(labels(daemon).values()) == ["second"]
    # A node that starts anew hears of it from the next engine.
    daemon.stop()
    daemon.start()
    larder("get", url, KEY, "-", "--label", "third", code=1)
    assert list(labels(daemon).values()) == ["third"]


HOSTILE = (
    (b'"} 1\nevil{a="', r'\"} 1?evil{a=\"'),
    (b"back\\slash\\", r"back\\slash\\"),
    (b"\x1b]0;title\x07\x1b[2J", "?]0;title??[2J"),
    (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
    (b"</script><img src=x onerror=alert(1)>"[:64],
     "</script><img src=x onerror=alert(1)>"),
    ("\N{RIGHT-TO-LEFT OVERRIDE}\N{SNOWMAN}".encode(), "??????"),
    (b"before\0behind", "before"),
    (b"%s%n%x" + b"x" * 58, "%s%n%x" + "x" * 58),
)


def test_hostile(serve, larder):
    """Metrics stay what they are, terminals and pages as well."""
    daemon = serve(admin="127.0.0.1:0")
    peer = daemon.enter("tcp")
    for i, (given, _) in enumerate(HOSTILE):
        reply = peer.ask(w.SPACE, w.space_body(f"s {i}", label=given))
        assert reply.status == w.OK
        assert peer.put_one(reply.number, w.key_of("k"), b"value") == w.OK
    assert sorted(labels(daemon).values()) == sorted(s for _, s in HOSTILE)
    text = daemon.http("/metrics")
    assert "\nevil" not in text
    assert Metrics(text)["larder_spaces"] == len(HOSTILE)
    plain = sorted(re.sub(r"\\(.)", r"\1", shown) for _, shown in HOSTILE)
    rows = json.loads(daemon.http("/status.json"))["spaces"]
    assert sorted(row["label"] for row in rows) == plain
    assert sorted(r["label"] for r in larder.json("ls", daemon.url())) == plain
    for command in (("top", "--once", "--interval", "1"), ("stat",), ("ls",)):
        out = larder(command[0], daemon.url(), *command[1:]).out
        assert all(" " <= c <= "~" or c == "\n" for c in out)
        for label in plain:
            assert label[:16] in out
    assert "<script>alert" not in daemon.http("/").split("<body")[0]


@pytest.mark.parametrize("body", [
    w.space_body("s", label=b"x" * 65), w.space_body("s", label=b"x" * 64)[:-1],
    w.space_body("s", label=b"x") + b"y", w.space_body("s")[:-4]],
    ids=["long", "short", "more", "none"])
def test_malformed(daemon, body):
    peer = daemon.enter("tcp")
    peer.start(w.SPACE, body)
    assert peer.ended()
    daemon.alive()


def test_many_spaces(serve):
    """Of the busiest only, like all that is told of spaces."""
    daemon = serve(admin="127.0.0.1:0")
    peer = daemon.enter("tcp")
    for i in range(60):
        reply = peer.ask(w.SPACE, w.space_body(f"s {i}",
                                               label=b"model %d" % i))
        assert reply.status == w.OK
    until(lambda: len(labels(daemon)) == 50)
