"""What vLLM's connector describes, as a router sees it: the node's events, read
with vLLM's own code, against vLLM's own events and against /query."""
import contextlib
import json
import pathlib
import queue
import random
import urllib.request

import pytest

import daemon
import rig
from subscribe import Lines, Subscriber
from subscriber import Router

EXAMPLE = pathlib.Path(__file__).with_name("example_subscriber.py")

CHUNK, BLOCK = 256, 128


@pytest.fixture(scope="module")
def world(version, tmp_path_factory):
    folder = tmp_path_factory.mktemp("describe")
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(
            folder / "node", dirs=1, admin="127.0.0.1:0", query="on",
            events=f"ipc://{folder}/n", events_replay=f"ipc://{folder}/nr"))
        python = rig.python_of(version)
        theirs = stack.enter_context(Subscriber(python, f"ipc://{folder}/n"))
        own = stack.enter_context(Subscriber(python, f"ipc://{folder}/e"))
        engine = stack.enter_context(rig.engine(
            version, "dense", node.url(), kv_events_config={
                "enable_kv_cache_events": True, "publisher": "zmq",
                "topic": "kv@10.1.2.3@some-model",
                "endpoint": f"ipc://{folder}/e",
                "replay_endpoint": f"ipc://{folder}/er"}))
        yield node, engine, theirs, own


def ask(node, **question):
    asked = urllib.request.Request(
        node.admin + "/query", json.dumps(question).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)["matches"]


def hashes_of(listener, medium, ids):
    """Of blocks of this prompt that were announced: hash by first token."""
    found = {}
    for event in listener.events:
        if event["type"] != "BlockStored" or event["medium"] != medium:
            continue
        for i, one in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][i * BLOCK:(i + 1) * BLOCK]
            for at in range(0, len(ids) - BLOCK + 1, BLOCK):
                if ids[at:at + BLOCK] == tokens:
                    found[at] = one
    return found


def test_described(world):
    """The node announces vLLM's own hashes, and answers for them."""
    node, engine, theirs, own = world
    ids = rig.prompt("described", 1100)
    engine.ask_one(ids)
    wanted = 4 * CHUNK // BLOCK
    theirs.until(lambda: len(hashes_of(theirs, "CPU", ids)) == wanted)
    own.until(lambda: len(hashes_of(own, "GPU", ids)) == 1100 // BLOCK)
    mine = hashes_of(own, "GPU", ids)
    found = hashes_of(theirs, "CPU", ids)
    assert found == {at: mine[at] for at in found}
    hashes = [found[at] for at in sorted(found)]
    for question in ({"token_ids": ids}, {"block_hashes": hashes}):
        [match] = ask(node, model="some-model", pod="10.1.2.3", **question)
        assert match["blocks"]["any"] == wanted
        assert match["loadable_tokens"] == 4 * CHUNK
    [first] = [e for e in theirs.events if e["type"] == "BlockStored"
               and e["token_ids"][:BLOCK] == ids[:BLOCK]
               and e["medium"] == "CPU"]
    assert first["parent_block_hash"] is None
    if "ownership" in first:
        assert (first["locality"], first["ownership"]) == ("LOCAL", "larder")


@pytest.mark.versions("0.32.0")  # as its example is
@pytest.mark.parametrize("whose", ["n", "e"])
def test_as_vllms_example_subscribes(world, whose, version):
    """To the node, and to the engine, which has our events among its own: a
    message that was missed is asked for as vLLM's example does."""
    node, engine, *_ = world
    folder = pathlib.Path(node.given["events"][len("ipc://"):]).parent
    with Lines(rig.python_of(version), "-B", EXAMPLE, f"ipc://{folder}/{whose}",
               f"ipc://{folder}/{whose}r", "kv@") as lines:
        found = []
        for i in range(40):
            engine.ask_one(rig.prompt((whose, i), 600))
            with contextlib.suppress(queue.Empty):
                while True:
                    found.append(lines.next(1))
            if any(one["replayed"] for one in found):
                break
        assert any(one["replayed"] for one in found), found
        assert any(one["medium"] == "CPU" and one["tokens"] >= BLOCK
                   for one in found if one["type"] == "BlockStored")


def test_described_again_after_a_restart(world):
    """What a lookup finds on the disk is described, and announced there."""
    node, engine, theirs, _ = world
    ids = rig.prompt("restart", 700)
    engine.ask_one(ids)
    theirs.until(lambda: len(hashes_of(theirs, "CPU", ids)) == 4)
    node.stop()
    node.start()
    assert ask(node, token_ids=ids) == []

    def answered():
        rig.fresh(engine)
        engine.ask_one(ids)
        found = ask(node, token_ids=ids)
        return found and found[0]["blocks"]["STORAGE"] == 4
    daemon.until(answered, 200)


def test_salted_prompts_are_not_described(world):
    node, engine, *_ = world
    ids = rig.prompt("salted", 700)
    engine.ask_one(ids, cache_salt="pepper")
    plain = rig.prompt("plain", 700)
    engine.ask_one(plain)
    daemon.until(lambda: ask(node, token_ids=plain)[0]["blocks"]["any"] == 4)
    assert ask(node, token_ids=ids)[0]["blocks"]["any"] == 0


# ---- an index of events alone, and a real engine ----

TOPIC = "kv@10.1.2.3@some-model"


def believed(index, ids):
    """Blocks from the first on that an index has, found by their tokens: in
    CPU, in STORAGE, in any."""
    media = {}
    for one, where in index.blocks.items():
        media.setdefault(index.tokens[one], set()).update(where)
    blocks = [media.get(tuple(ids[at:at + BLOCK]), set())
              for at in range(0, len(ids) - BLOCK + 1, BLOCK)]
    return [next((i for i, where in enumerate(blocks) if not where & wanted),
                 len(blocks))
            for wanted in ({"CPU"}, {"STORAGE"}, {"CPU", "STORAGE"})]


def roots(index, ids):
    """What the prompt's first block was ever called."""
    return [one for one, tokens in index.tokens.items()
            if tokens == tuple(ids[:BLOCK]) and index.parents[one] is None]


class Walk:
    """Random deeds, of prompts that begin alike."""

    def __init__(self, node, router, seed):
        self.node, self.router = node, router
        self.rng = random.Random(seed)
        self.prompts = [rig.prompt(("begin", i % 2), 384)
                        + rig.prompt(("end", i), 600) for i in range(6)]
        self.engine = self.store = self.differs = None

    def step(self):
        ids = self.rng.choice(self.prompts)
        what = self.rng.random()
        if what < 0.7:
            rig.fresh(self.engine)
            self.engine.ask_one(ids[:self.rng.randrange(300, len(ids))])
        elif what < 0.9:
            self.store.remove(ids, self.rng.randrange(3))
        else:
            self.store.flush()

    def same(self):
        """Whether the index has what the node answers, for every prompt."""
        self.router.read(20)
        if TOPIC in self.router.indexes:
            self.router.sync(TOPIC, 5000)
        index = self.router.index(TOPIC)
        assert not index.late, "a child before its parent"
        for ids in self.prompts:
            found = ask(self.node, token_ids=ids)
            found = found[0]["blocks"] if found else {}
            wanted = [found.get(name, 0) for name in ("CPU", "STORAGE", "any")]
            if believed(index, ids) != wanted:
                self.differs = wanted, believed(index, ids)
                return False
        return True

    def rounds(self, count):
        """Gives how often the index had something."""
        some = 0
        for _ in range(count):
            for _ in range(self.rng.randrange(1, 4)):
                self.step()
            daemon.until(self.same, text=lambda: f"they differ: "
                         f"{self.differs}")
            some += any(self.router.index(TOPIC).blocks.values())
        return some


def test_an_index_of_events_alone(version, tmp_path):
    """Equals what the node answers, with a fifth of the messages lost: over
    removals, a reset, a restart of the node, and an engine that is started
    again under its pod's name and hashes otherwise."""
    rng = random.Random("loss")
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(rig.node(
            tmp_path / "node", dirs=1, admin="127.0.0.1:0", query="on",
            events=f"ipc://{tmp_path}/n", events_replay=f"ipc://{tmp_path}/r"))
        router = Router(node.given["events"], node.given["events_replay"],
                        lose=lambda number: rng.random() < 0.2)
        stack.callback(router.close)
        walk = Walk(node, router, 1)
        for seed in ("1", "2"):
            with rig.engine(
                    version, "dense", node.url(), env={"PYTHONHASHSEED": seed},
                    kv_events_config={
                        "enable_kv_cache_events": True, "publisher": "zmq",
                        "topic": TOPIC, "endpoint": f"ipc://{tmp_path}/e"}
                    ) as engine, rig.Store(node.url(), engine) as store:
                walk.engine, walk.store = engine, store
                ids = walk.prompts[0]
                before = roots(router.index(TOPIC), ids)
                engine.ask_one(ids)

                def named(before=before, ids=ids):
                    same = walk.same()
                    index = router.index(TOPIC)
                    return same and [
                        one for one in roots(index, ids)
                        if one not in before and index.blocks.get(one)]
                [root] = daemon.until(named, text=lambda: walk.differs)
                index = router.index(TOPIC)
                assert not any(index.blocks.get(one) for one in before)
                [match] = ask(node, block_hashes=[root])
                assert match["blocks"]["any"] == 1
                assert walk.rounds(5) > 0
                store.reset()
                daemon.until(walk.same, text=lambda: walk.differs)
                assert not any(router.index(TOPIC).blocks.values())
                assert walk.rounds(3) > 0
                if seed == "1":
                    node.stop()
                    node.start()
                    walk.rounds(3)
        assert router.replays > 5
