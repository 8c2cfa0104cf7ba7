"""POST /query: where a prompt is, who may ask, and what is refused."""
import http.client
import socket
import time

import pytest

import capi
from daemon import free_port, secret_file, until
from router import (BLOCK, CHUNK, PER, Engine, ask, number, post,
                    prompt)
from tenants import A, B, config


@pytest.fixture
def node(serve):
    return serve(admin="127.0.0.1:0", query="on", dirs=1)


def blocks(match):
    return (match["blocks"]["CPU"], match["blocks"]["STORAGE"],
            match["blocks"]["any"])


def test_tokens_and_hashes(node):
    """The longest prefix that is there, in blocks and in whole chunks."""
    with Engine(node.url(), pod="10.0.0.7") as engine:
        tokens = prompt("one", 4)
        assert engine.describe(tokens) == capi.OK
        [match] = ask(node, model="m", token_ids=tokens)
        assert blocks(match) == (0, 0, 0) and match["loadable_tokens"] == 0
        assert engine.save(tokens, [0, 1, 3]) == [capi.OK] * 3
        hashes = [number(h) for h in engine.hashes(tokens)]
        for question in ({"token_ids": tokens}, {"block_hashes": hashes}):
            [match] = ask(node, model="m", **question)
            assert blocks(match)[0] == 2 * PER == blocks(match)[2]
            assert match["loadable_tokens"] == 2 * CHUNK
            assert match["pod"] == "10.0.0.7" and match["group_idx"] == 5
            assert match["block_size"] == BLOCK and not match["partial"]
        engine.node.flush()
        [match] = ask(node, token_ids=tokens)
        assert blocks(match) == (2 * PER,) * 3
        assert match["tiers"]["dram"] == 2 * CHUNK
        # A prompt that differs inside the second chunk: its first block is
        # there, and no more of it could be loaded.
        other = tokens[:CHUNK + BLOCK] + prompt("other", 1)
        [match] = ask(node, token_ids=other)
        assert blocks(match)[2] == PER + 1
        assert match["loadable_tokens"] == CHUNK
        assert engine.drop(tokens, 0) == capi.OK
        [match] = ask(node, block_hashes=hashes)
        assert blocks(match) == (0, 0, 0) and match["loadable_tokens"] == 0
        assert ask(node, model="another", token_ids=tokens) == []


def test_long_prompts(node):
    """Of more blocks than are looked for at once, up to what is missing."""
    chunks = 160
    with Engine(node.url()) as engine:
        tokens = prompt("long", chunks)
        engine.describe(tokens)
        engine.save(tokens, range(chunks))
        hashes = [number(h) for h in engine.hashes(tokens)]
        for there in (chunks, 129, 128, 127, 64, 63):
            if there < chunks:
                engine.drop(tokens, there)
            for question in ({"token_ids": tokens}, {"block_hashes": hashes}):
                [match] = ask(node, **question)
                assert blocks(match)[2] == there * PER
                assert match["loadable_tokens"] == there * CHUNK


def test_hashes_as_bytes(node):
    with Engine(node.url(), hash_bytes=32) as engine:
        tokens = prompt("bytes", 2)
        engine.describe(tokens)
        engine.save(tokens, [0, 1])
        hashes = [number(h) for h in engine.hashes(tokens)]
        [match] = ask(node, block_hashes=hashes)
        assert blocks(match)[0] == 2 * PER
        assert ask(node, block_hashes=[1, 2]) == [], "of another length"


def test_on_disk_after_a_restart(node):
    """Descriptions are gone with the daemon; chunks are not. Described again,
    they are found where they are."""
    tokens = prompt("disk", 3)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, range(3))
        engine.node.flush()
    node.stop()
    node.start()
    assert ask(node, token_ids=tokens) == []
    with Engine(node.url()) as engine:
        engine.describe(tokens, 0, 1)
        engine.describe(tokens, 1, 2)  # its tokens go on from there
        [match] = ask(node, token_ids=tokens)
        assert blocks(match) == (0, 3 * PER, 3 * PER)
        assert match["tiers"]["ssd"] == 3 * CHUNK
        assert capi.library().larder_space_reset(engine.node.space,
                                                 5000) == capi.OK
        [match] = ask(node, token_ids=tokens)
        assert blocks(match) == (0, 0, 0)


def test_engines_that_hash_differently(node):
    """Each has its own answer; both see the same chunks."""
    tokens = prompt("two engines", 2)
    with Engine(node.url(), "a") as one, Engine(node.url(), "b",
                                                seed=b"x") as other:
        one.describe(tokens)
        one.save(tokens, [0, 1])
        other.describe(tokens, 0, 1)
        found = {m["pod"]: blocks(m)[0] for m in ask(node, token_ids=tokens)}
        assert found == {"a": 2 * PER, "b": PER}
        theirs = [number(h) for h in other.hashes(tokens)]
        found = {m["pod"]: blocks(m)[0] for m in ask(node,
                                                     block_hashes=theirs)}
        assert found == {"a": 0, "b": PER}
        assert [m["pod"] for m in ask(node, pod="b", token_ids=tokens)] == ["b"]


def test_more_engines_than_an_answer_has(node):
    """It says so."""
    tokens = prompt("many engines", 1)
    with Engine(node.url()) as engine:
        engine.save(tokens, [0])
        for count in range(1, 18):
            engine.pod = f"pod-{count}"
            engine.describe(tokens)
            status, answer = post(node, {"token_ids": tokens})
            assert status == 200 and answer["partial"] == (count > 16)
            assert len(answer["matches"]) == min(count, 16)
    _, answer = post(node, {"token_ids": tokens, "pod": "pod-17"})
    assert not answer["partial"] and len(answer["matches"]) == 1


def test_which_member_has_it(serve, tmp_path):
    """Chunks of another member are counted by its name."""
    ports = [free_port(), free_port()]
    cluster = "static:" + ",".join(
        f"n{i}=127.0.0.1:{port}" for i, port in enumerate(ports))
    one, other = (serve(
        admin="127.0.0.1:0", query="on", member_name=f"n{i}", cluster=cluster,
        cluster_secret=secret_file(tmp_path / "secret"), cluster_ramp_s=0,
        peer_match_ms=5000, peer_save="never") for i in range(2))
    for daemon in (one, other):
        until(lambda d=daemon: d.value("larder_peer_well") == 1)
    tokens = prompt("members", 4)
    with Engine(one.url()) as near, Engine(other.url()) as far:
        near.describe(tokens)
        near.save(tokens, [0])
        far.save(tokens, [1, 2])
        [match] = ask(one, token_ids=tokens)
        assert match["loadable_tokens"] == 3 * CHUNK
        assert match["tiers"]["dram"] == CHUNK
        assert match["tiers"]["peer"] == 2 * CHUNK
        assert match["members"] == {"n1": 2 * CHUNK}
        assert blocks(match)[2] == PER  # of the node itself


def test_off_by_default(serve):
    daemon = serve(admin="127.0.0.1:0")
    with Engine(daemon.url()) as engine:
        assert engine.describe(prompt("off", 1)) == capi.DECLINED
    status, text = post(daemon, {"token_ids": [1]})
    assert status == 404 and "query = off" in text
    with capi.Node("embed:?dram=16M") as embedded:
        engine.node, engine.lib = embedded, embedded.lib
        assert engine.describe(prompt("off", 1)) == capi.DECLINED


def test_tenants(serve, tmp_path):
    """The token says whose chunks may be asked for; without one nobody's."""
    daemon = serve(config=config(tmp_path), admin="127.0.0.1:0", query="on")
    tokens = prompt("secret", 2)
    with Engine(daemon.url(tenant="a", token_file=tmp_path / "a"),
                tenant="a") as engine:
        assert engine.describe(tokens) == capi.OK
        engine.save(tokens, [0, 1])
        [match] = ask(daemon, A, token_ids=tokens)
        assert blocks(match)[0] == 2 * PER
        assert ask(daemon, B, token_ids=tokens) == []
        for token in (None, A[:-1], A + "0", "x" * 5000):
            status, _ = post(daemon, {"token_ids": tokens}, token)
            assert status in (401, 431), token
        assert daemon.value("larder_auth_failures_total", reason="token") >= 3


def test_bounded(serve):
    """The oldest descriptions go; the chunks stay."""
    daemon = serve(admin="127.0.0.1:0", query="on", describe_memory="1M")
    with Engine(daemon.url()) as engine:
        first = prompt("first", 1)
        engine.describe(first)
        engine.save(first, [0])
        for i in range(16):
            tokens = prompt(f"more {i}", 64)
            assert engine.describe(tokens) == capi.OK
        engine.save(tokens, [0])
        [match] = ask(daemon, token_ids=tokens)
        assert blocks(match)[0] == PER
        [match] = ask(daemon, token_ids=first)
        assert blocks(match)[2] == 0
        assert engine.node.exists(engine.name(first, 0)) == capi.OK


WRONG = [b"", b"{", b"[]", b'{"token_ids":[1', b'{"token_ids":[-1]}',
         b'{"token_ids":[1.5]}', b'{"token_ids":[4294967296]}',
         b'{"token_ids":"1"}', b'{"token_ids":[[1]]}', b'{"model":"m"}',
         b'{"token_ids":[1],"block_hashes":[1]}', b'{"token_ids":[]}',
         b'{"block_hashes":["xyz"]}', b'{"block_hashes":["abc"]}',
         b'{"block_hashes":["ab",1]}', b'{"block_hashes":[true]}',
         b'{"block_hashes":["' + b"ab" * 33 + b'"]}',
         b'{"model":1,"token_ids":[1]}', b"[" * 100000,
         b'{"a":' * 100000, b"\xff" * 1000, b"\0" * 100]


def test_hostile_questions(node):
    """Each is refused with a reason, and the daemon goes on."""
    for body in WRONG:
        status, text = post(node, body)
        assert status == 400 and text.strip(), body[:40]
    # A model and a pod that nobody has, of any length.
    assert ask(node, model="m" * 100, token_ids=[1] * 64) == []
    assert post(node, {"model": "m" * 1000, "token_ids": [1]})[0] == 400
    assert post(node, {"token_ids": [1]}, kind="text/plain")[0] == 415
    assert post(node, {"token_ids": [1]}, kind=None)[0] == 415
    assert post(node, {"token_ids": [1]}, path="/")[0] == 405
    many = b'{"token_ids":[' + b"1," * 1048576 + b"1]}"
    assert post(node, many)[0] == 400
    assert post(node, b" " * (8 << 20) + b"x")[0] == 413
    with pytest.raises(Exception, match="404"):
        node.http("/query")
    node.alive()


def test_bodies_that_never_end(node):
    """Connections that send a part of a body and wait cost little, and leave
    with the next who needs their place."""
    begun = []
    host, port = node.admin.removeprefix("http://").split(":")
    for _ in range(40):
        one = socket.create_connection((host, int(port)), timeout=60)
        one.sendall(b"POST /query HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\n"
                    b"Content-Length: 8000000\r\n\r\n" + b" " * 1000000)
        begun.append(one)
    before = time.monotonic()
    tokens = prompt("after", 1)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, [0])

    def answered():
        status, answer = post(node, {"token_ids": tokens})
        return status == 200 and answer["matches"]
    [match] = until(answered)
    assert blocks(match)[0] == PER
    assert time.monotonic() - before < 60
    assert node.status("VmRSS") < 400 * 1024
    for one in begun:
        one.close()


def test_a_page_of_another_site_cannot_ask(node):
    host, port = node.admin.removeprefix("http://").split(":")
    there = http.client.HTTPConnection(host, int(port), timeout=60)
    there.request("POST", "/query", b'{"token_ids":[1]}',
                  {"Host": "evil.example", "Content-Type": "application/json"})
    assert there.getresponse().status == 421
    there.close()
    there.request("OPTIONS", "/query")
    assert there.getresponse().status == 405
    there.close()


