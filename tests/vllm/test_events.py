"""KV events, read by a subscriber with vLLM's own code; and, since an engine
runs already, what `larder explain` and the metrics say of its requests.

Every test has prompts of its own: their order does not matter."""
import contextlib
import json
import os
import subprocess

import pytest

import daemon
import rig
from subscribe import Subscriber

CHUNK, BLOCK = 256, 128
FAMILIES = ("lookup_ms", "stage_ms", "copy_ms", "resume_ms")


class World:
    """A node with a disk, an engine that publishes, and who listens."""

    def __init__(self):
        self.hashes = {}  # of blocks, to the head of the prompt they are of
        self.settled = 0

    def of(self, kind, ids, medium=None):
        """The blocks of this prompt in events of a kind: (medium, group,
        hash, parent, tokens), or (medium, group, hash) if they are removed."""
        found = []
        for event in self.listener.events:
            if event["type"] != kind or medium not in (None, event["medium"]):
                continue
            if kind == "BlockRemoved":
                found += [(event["medium"], event["group_idx"], h)
                          for h in event["block_hashes"]
                          if self.hashes.get(h) == tuple(ids[:4])]
                continue
            found += self._blocks(event, ids)
        return found

    def _blocks(self, event, ids):
        size, tokens = event["block_size"], event["token_ids"]
        parents = [event["parent_block_hash"], *event["block_hashes"]]
        assert len(tokens) == size * len(event["block_hashes"])
        begin = next((i for i in range(0, len(ids), BLOCK)
                      if ids[i:i + len(tokens)] == tokens), None)
        if begin is None:
            return []
        for one in event["block_hashes"]:
            self.hashes[one] = tuple(ids[:4])
        return [(event["medium"], event["group_idx"], one, parent,
                 tuple(tokens[i * size:(i + 1) * size]))
                for i, (one, parent) in enumerate(
                    zip(event["block_hashes"], parents))]

    def wait(self, kind, ids, medium, blocks):
        """Until so many blocks of the prompt were announced."""
        self.listener.until(
            lambda: len(self.of(kind, ids, medium)) >= blocks)
        found = self.of(kind, ids, medium)
        assert len(found) == blocks
        return found

    def hit(self, ids, wanted):
        """A prompt of which so many tokens come from the store."""
        rig.fresh(self.engine)
        answer = self.engine.ask_one(ids)
        assert answer["cached"] == wanted
        return answer

    def step(self):
        """Events leave with a step: any request makes some."""
        self.engine.ask_one([3, 4, 5])

    def settle(self, block=BLOCK):
        """All events until now have come: vLLM's own of a new prompt have."""
        self.settled += 1
        ids = rig.prompt(("settle", self.settled), block + 10)
        self.engine.ask_one(
            ids, kv_transfer_params={"larder": {"skip_save": True}})
        self.listener.until(lambda: any(
            event.get("token_ids") == ids[:block]
            for event in self.listener.events))

    def explain(self, request_id):
        out = daemon.until(lambda: subprocess.run(
            [str(rig.PROGRAM), "explain", request_id, "--json"],
            env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=30, check=False).stdout)
        [line] = out.splitlines()
        return json.loads(line)


@contextlib.contextmanager
def started(version, kind, folder):
    w = World()
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    endpoint = f"ipc://{folder}/e"
    w.env = dict(os.environ, XDG_RUNTIME_DIR=str(runtime))
    w.env.pop("RUNTIME_DIRECTORY", None)
    with contextlib.ExitStack() as stack:
        w.node = stack.enter_context(rig.node(folder / "node", dirs=1))
        w.listener = stack.enter_context(Subscriber(rig.python_of(version),
                                                    endpoint))
        w.engine = stack.enter_context(rig.engine(
            version, kind, w.node.url(),
            env={"XDG_RUNTIME_DIR": str(runtime)},
            kv_events_config={"enable_kv_cache_events": True,
                              "publisher": "zmq", "endpoint": endpoint}))
        w.store = stack.enter_context(rig.Store(w.node.url(), w.engine))
        yield w


@pytest.fixture(scope="module")
def world(version, tmp_path_factory):
    with started(version, "dense", tmp_path_factory.mktemp("events")) as w:
        yield w


def test_stored(world):
    """With the hashes that vLLM's own events have for the same tokens."""
    ids = rig.prompt("stored", 1100)
    world.engine.ask_one(ids)
    ours = world.wait("BlockStored", ids, "CPU", 4 * CHUNK // BLOCK)
    own = world.wait("BlockStored", ids, "GPU", 1100 // BLOCK)
    assert [b[1:] for b in ours] == [b[1:] for b in own]
    assert ours[0][3] is None and ours[3][3] == ours[2][2]
    assert world.listener.batches == list(range(len(world.listener.batches)))


def test_fields(world):
    """As vLLM fills them in, but for the medium and who keeps it."""
    ids = rig.prompt("fields", 700)
    world.engine.ask_one(ids, cache_salt="pepper")
    world.wait("BlockStored", ids, "CPU", 4)
    world.wait("BlockStored", ids, "GPU", 5)

    def first(medium):
        return next(e for e in world.listener.events
                    if e["type"] == "BlockStored" and e["medium"] == medium
                    and e["token_ids"][:BLOCK] == ids[:BLOCK])
    ours, own = first("CPU"), first("GPU")
    assert own["extra_keys"][0] == ours["extra_keys"][0] == ["pepper"]
    for name in ("block_size", "group_idx", "lora_id", "lora_name",
                 "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
                 "session_id"):
        assert ours.get(name) == own.get(name), name
    assert ours["block_size"] == BLOCK
    if "locality" in own:
        assert (ours["locality"], ours["ownership"]) == ("LOCAL", "larder")


def test_generated_tokens(world):
    """Turn one's answer is announced too."""
    ids = rig.prompt("turn", 500)
    answer = world.engine.ask_one(ids, max_tokens=300)
    both = ids + answer["tokens"]
    ours = world.wait("BlockStored", both, "CPU", 768 // BLOCK)
    own = {b[2:] for b in world.of("BlockStored", both, "GPU")}
    assert {b[2:] for b in ours} <= own


def test_removed_when_a_lookup_misses_it(world):
    ids = rig.prompt("evicted", 1100)
    world.engine.ask_one(ids)
    stored = world.wait("BlockStored", ids, "CPU", 8)
    world.store.remove(ids, 1)
    world.hit(ids, CHUNK)
    gone = world.wait("BlockRemoved", ids, "CPU", 2)
    assert [b[2] for b in gone] == [b[2] for b in stored[2:4]]
    # It was computed, and is saved and announced again: only that chunk.
    again = world.wait("BlockStored", ids, "CPU", 10)
    assert [b[2] for b in again[8:]] == [b[2] for b in gone]


def test_removed_though_nobody_asks(world):
    ids = rig.prompt("nobody", 1100)
    world.engine.ask_one(ids)
    stored = world.wait("BlockStored", ids, "CPU", 8)
    world.store.remove(ids, 1)

    def withdrawn():
        world.settle()
        return len(world.of("BlockRemoved", ids, "CPU")) >= 2
    daemon.until(withdrawn, 60)
    gone = world.wait("BlockRemoved", ids, "CPU", 2)
    assert [b[2] for b in gone] == [b[2] for b in stored[2:4]]


def test_reset(world):
    ids = rig.prompt("reset", 600)
    world.engine.ask_one(ids)
    stored = world.wait("BlockStored", ids, "CPU", 4)
    assert world.engine.reset_prefix_cache(reset_connector=True)
    world.step()
    gone = world.wait("BlockRemoved", ids, "CPU", 4)
    assert {b[2] for b in gone} == {b[2] for b in stored}


def test_found(world):
    """What others saved is announced when a lookup finds it."""
    ids = rig.prompt("found", 600)
    world.engine.ask_one(ids)
    stored = world.wait("BlockStored", ids, "CPU", 4)
    pages = world.store.pages(ids)
    assert world.engine.reset_prefix_cache(reset_connector=True)
    world.step()
    world.wait("BlockRemoved", ids, "CPU", 4)
    for (chunk, group, shard), data in pages.items():
        world.store.put(ids, chunk, data, group, shard)
    world.hit(ids, 2 * CHUNK)
    again = world.wait("BlockStored", ids, "CPU", 8)
    assert [b[1:] for b in again[4:]] == [b[1:] for b in stored]


def by_source(engine, source):
    return engine.counters().get(
        'vllm:prompt_tokens_cached_by_source{"source": "%s"}' % source, 0)


def test_on_disk(world, version):
    """A node that was restarted has it on disk only: so it is announced, and
    counted as vLLM counts such hits."""
    ids = rig.prompt("disk", 600)
    cold = world.engine.ask_one(ids)
    world.wait("BlockStored", ids, "CPU", 4)
    world.node.stop()
    world.node.start()
    disk, host = by_source(world.engine, "disk"), by_source(world.engine,
                                                            "host")
    def answered():
        rig.fresh(world.engine)
        answer = world.engine.ask_one(ids)
        return answer if answer["cached"] == 2 * CHUNK else None
    warm = daemon.until(answered, 60)
    rig.check_same(warm, cold)
    on_disk = world.wait("BlockStored", ids, "STORAGE", 4)
    own = {b[2:] for b in world.of("BlockStored", ids, "GPU")}
    assert {b[2:] for b in on_disk} <= own
    if version == "0.32.0":
        assert by_source(world.engine, "disk") == disk + 2 * CHUNK
        assert by_source(world.engine, "host") == host
    assert world.explain(warm["id"])["ssd_bytes"] > 0


def test_explain(world):
    """Of real requests: computed, loaded, in vLLM's own cache, skipped."""
    ids = rig.prompt("explain", 1100)
    cold = world.explain(world.engine.ask_one(ids)["id"])
    assert cold["prompt_tokens"] == 1100 and cold["limit_chunks"] == 4
    assert cold["reason"] == "absent" and cold["missed_tokens"] == 4 * CHUNK
    assert cold["loaded_tokens"] == 0 and cold["saved_chunks"] == 4
    assert cold["lookup_ms"] > 0 and "copy_ms" not in cold
    warm = world.explain(world.hit(ids, 4 * CHUNK)["id"])
    assert warm["loaded_tokens"] == 4 * CHUNK and warm["missed_tokens"] == 0
    assert warm["reason"] == "" and warm["local_tokens"] == 0
    assert warm["matched_chunks"] == warm["staged_chunks"] == 4
    assert warm["dram_bytes"] > 0 and warm["saved_chunks"] == 0
    assert all(warm[name] > 0 for name in FAMILIES)
    own = world.explain(world.engine.ask_one(ids)["id"])
    assert own["local_tokens"] >= 4 * CHUNK and own["reason"] == ""
    rig.fresh(world.engine)
    skipped = world.explain(world.engine.ask_one(
        ids, kv_transfer_params={"larder": {"skip_load": True}})["id"])
    assert skipped["reason"] == "skip" and skipped["loaded_tokens"] == 0


def test_metrics(world):
    """Histograms of the same times, and why tokens were missed."""
    def read():
        counters = world.engine.counters()
        names = [f"vllm:larder_{f}:count" for f in FAMILIES]
        names += ['vllm:larder_missed_%s{"reason": "absent"}' % what
                  for what in ("tokens", "requests")]
        return [counters.get(n, 0) for n in names]
    ids = rig.prompt("metrics", 600)
    before = read()
    world.engine.ask_one(ids)
    world.hit(ids, 2 * CHUNK)
    def counted():
        world.step()
        grown = [b - a for a, b in zip(before, read())]
        return grown if grown[3] else None
    assert daemon.until(counted, 30) == [2, 1, 1, 1, 2 * CHUNK, 1]


def announced(world, kind, medium):
    """(group, hash) of every block, in the order of their events."""
    return [(event["group_idx"], one) for event in world.listener.events
            if event["type"] == kind and event["medium"] == medium
            for one in event["block_hashes"]]


@pytest.mark.parametrize("kind, block, chunk, wanted", [
    # Of each group every chunk that was whole when it was computed.
    ("gemma3", 128, 256, {g: 3 * 2 for g in range(6)}),
    # Of the states (groups 0 to 2) only that of the last boundary.
    ("next", 640, 640, {0: 1, 1: 1, 2: 1, 3: 2}),
])
def test_hybrids(version, tmp_path, kind, block, chunk, wanted):
    """Each group has its events, with vLLM's own hashes."""
    if kind == "next" and version == "0.24.0":
        pytest.skip("this vLLM cannot run it")
    ids = rig.prompt(kind, 3 * 256 + 100 if kind == "gemma3" else 1400)
    with started(version, kind, tmp_path) as world:
        world.engine.ask_one(ids)
        world.settle(block)
        ours = announced(world, "BlockStored", "CPU")
        assert len(set(ours)) == len(ours)
        assert ({g: sum(one[0] == g for one in ours) for g, _ in ours}
                == wanted)
        own = announced(world, "BlockStored", "GPU")
        assert {one for _, one in ours} <= {one for _, one in own}
        world.hit(ids, rig.whole(len(ids) - 1, chunk))
        world.settle(block)
        assert announced(world, "BlockStored", "CPU") == ours
        assert not announced(world, "BlockRemoved", "CPU")
        assert world.engine.reset_prefix_cache(reset_connector=True)
        world.settle(block)
        assert sorted(announced(world, "BlockRemoved", "CPU")) == sorted(ours)
