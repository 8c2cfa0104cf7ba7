"""LMCache 0.5.6 on Larder: its own bench, and vLLM with LMCache's connector.
Answers are compared bit by bit with the same prompt computed."""
import contextlib
import signal
import subprocess

import pytest

import larder_kv
import rig
from daemon import until
from served import ASK_S, BIN, Engine, Server, adapter, environment

CHUNK = 256
LENGTH = 2100
LOADED = LENGTH // CHUNK * CHUNK


def test_bench(tmp_path):
    """LMCache's own bench stores, looks up and loads, and verifies every
    byte."""
    with rig.node(tmp_path / "node", dram="1G") as node:
        out = subprocess.run(
            [BIN / "lmcache", "bench", "l2", "--l2-adapter",
             adapter(node.url()), "--no-skip-verify", "--num-keys", "16",
             "--in-flight", "4", "--data-size-kb", "1024", "--rounds", "2",
             "--lookup-max-hit-rate", "0.5"], env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=ASK_S).stdout
        assert "All 64 keys data verified OK" in out, out
        assert out.count("Total success:") == 3
        assert out.count("Rounds timed out:") == out.count(
            "Rounds timed out:                                              0")
        assert node.value("larder_saves_total", outcome="stored") == 3 * 64


@contextlib.contextmanager
def served(folder, node):
    with Server(folder, node.url(breaker_ms=100)) as server, \
            Engine(folder, server) as engine:
        yield server, engine


def stored(node):
    return node.value("larder_saves_total", outcome="stored")


def test_vllm(tmp_path):
    """One node through all of it: engines and LMCache's servers come and go,
    the node is killed, stopped and damaged."""
    one, two, three = (rig.prompt(name, LENGTH) for name in "abc")
    with rig.node(tmp_path / "node", dirs=1, clean=False) as node:
        with served(tmp_path, node) as (server, engine):
            cold = {}
            for i, ids in enumerate((one, two)):
                cold[i], hits = engine.ask(ids)
                assert hits == 0
                until(lambda: stored(node) >= (i + 1) * LOADED // CHUNK)
            server.forget()
            assert engine.ask(one) == (cold[0], LOADED)  # from Larder
        # Another server and another engine, and a node that was restarted.
        with larder_kv.open(node.url()) as client:
            client.flush()
        node.stop()
        node.start()
        with served(tmp_path, node) as (server, engine):
            assert engine.ask(one) == (cold[0], LOADED)
            assert engine.ask(two) == (cold[1], LOADED)
            killed(node, server, engine, one, cold[0])
            stopped(node, server, engine, three)
            damaged(node, server, engine, (one, two), cold)


def killed(node, server, engine, ids, wanted):
    node.kill()
    server.forget()
    assert engine.ask(ids) == (wanted, 0)
    node.start()
    until(lambda: (server.forget(), engine.ask(ids))[1] == (wanted, LOADED))


def stopped(node, server, engine, ids):
    """A prompt that nobody knows: its lookup and its saves meet a node that
    does not answer."""
    server.forget()
    node.freeze()
    answer, hits = engine.ask(ids)
    assert hits == 0
    server.forget()
    assert engine.ask(ids)[0] == answer
    node.signal(signal.SIGCONT)
    until(lambda: (server.forget(), engine.ask(ids))[1] == (answer, LOADED))


def damaged(node, server, engine, prompts, cold):
    """One byte on the disk: what it was in is computed again, and no answer
    changes."""
    with larder_kv.open(node.url()) as client:
        client.flush()
    node.kill()
    flip(node.dirs[0])
    node.start()

    def seen():
        server.forget()
        for i, ids in enumerate(prompts):
            assert engine.ask(ids)[0] == cold[i]
        return node.value("larder_misses_total", cause="corrupt") > 0

    until(seen)
    server.forget()
    assert engine.ask(prompts[0]) == (cold[0], LOADED)  # it was saved again


def flip(folder):
    """A byte in the middle of what the first segment has."""
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        used = len(data.rstrip(b"\0"))
        if used > 4 << 20:
            with open(path, "r+b") as file:
                file.seek(2 << 20)
                file.write(bytes([data[2 << 20] ^ 0x10]))
            return
    pytest.fail("nothing is on the disk")
