"""Dynamo's KV indexer (`python -m dynamo.indexer`, from PyPI) reads the node's
events, and finds what the node finds."""
import json
import os
import pathlib
import random
import subprocess
import urllib.error
import urllib.request

import pytest

import capi
from daemon import Daemon, free_port, until
from router import BLOCK, CHUNK, PER, Engine, ask, prompt

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
PYTHON = ROOT / "build/dynamo/bin/python"
INSTANCE = 7


class Indexer:
    """One of its own, which knows one worker: the node."""

    def __init__(self, folder):
        self.url = f"http://127.0.0.1:{free_port()}"
        with open(folder / "indexer.log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(PYTHON), "-m", "dynamo.indexer", "--threads", "1",
                 "--port", self.url.rpartition(":")[2]],
                stdout=log, stderr=log)
        until(self._is_up)

    def _is_up(self):
        assert self.process.poll() is None, "the indexer has ended"
        try:
            return self.call("/health") is not None
        except urllib.error.URLError:
            return False

    def end(self):
        self.process.terminate()
        self.process.wait(60)

    def call(self, path, body=None):
        asked = urllib.request.Request(
            self.url + path, json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.read()

    def register(self, node):
        self.call("/register", {
            "instance_id": INSTANCE, "model_name": "m", "block_size": BLOCK,
            "endpoint": node.given["events"],
            "replay_endpoint": node.given["events_replay"]})

    def query(self, tokens):
        """Tokens from the first on that are in dram, and on disk."""
        found = json.loads(self.call("/query", {
            "model_name": "m", "token_ids": tokens}))["instances"]
        mine = found.get(str(INSTANCE), {})
        return mine.get("cpu", 0), mine.get("disk", 0)


@pytest.fixture
def node(tmp_path):
    made = Daemon(
        str(BUILD / "bin/larder"), tmp_path / "node", admin="127.0.0.1:0",
        query="on", dirs=1, events=f"tcp://127.0.0.1:{free_port()}",
        events_replay=f"tcp://127.0.0.1:{free_port()}",
        events_ownership="off")
    made.start()
    yield made
    made.end()


@pytest.fixture
def indexer(tmp_path):
    made = Indexer(tmp_path)
    yield made
    made.end()


def known(node, tokens):
    [match] = ask(node, token_ids=tokens)
    return match["blocks"]["CPU"] * BLOCK, match["blocks"]["STORAGE"] * BLOCK


def test_what_it_finds(node, indexer):
    """Stored, on disk, removed, and cleared by a restart of the node."""
    indexer.register(node)
    tokens = prompt("dynamo", 3)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, [0, 1, 2])
        until(lambda: indexer.query(tokens)[0] == 3 * CHUNK)
        engine.node.flush()
        until(lambda: indexer.query(tokens)[1] == 3 * CHUNK)
        assert indexer.query(prompt("another", 3)) == (0, 0)
        engine.drop(tokens, 1)
        until(lambda: indexer.query(tokens)[0] == CHUNK)
    node.stop()
    node.start()
    with Engine(node.url()) as engine:
        assert ask(node, token_ids=tokens) == []
        engine.describe(tokens)
        until(lambda: indexer.query(tokens) == known(node, tokens))


def test_it_finds_what_the_node_finds(node, indexer):
    """After random saves, removals and resets of prompts that begin alike."""
    indexer.register(node)
    rng = random.Random(1)
    prompts = [prompt(f"{i % 3}/{i}", 3, parts=rng.randrange(1, 2 * PER))
               for i in range(8)]
    with Engine(node.url()) as engine:
        for tokens in prompts:
            engine.describe(tokens)
        for _ in range(12):
            for _ in range(4):
                tokens, chunk = rng.choice(prompts), rng.randrange(3)
                what = rng.random()
                if what < 0.6:
                    engine.save(tokens, range(chunk + 1))
                elif what < 0.9:
                    engine.drop(tokens, chunk)
                else:
                    capi.library().larder_space_reset(engine.node.space, 5000)
            until(lambda: all(
                max(indexer.query(t)) == max(known(node, t)) for t in prompts))
