"""Topics of a node and of the pool behind it: what any engine described, once;
and what a load would find elsewhere, with where that is."""
import random

import pytest

import capi
from daemon import LONG, free_port, refused, secret_file, until
from router import CHUNK, PER, VALUE, Engine, ask, number, prompt
from subscriber import Router

NODE, POOL = "kv@node:n0@m", "kv@pool:n0@m"


def urls():
    return {"events": f"tcp://127.0.0.1:{free_port()}",
            "events_replay": f"tcp://127.0.0.1:{free_port()}"}


def listen(daemon, **more):
    return Router(daemon.given["events"], daemon.given["events_replay"],
                  **more)


def settle(router, topic, done, fresh=False):
    """Reads on until done(index). fresh: asks for everything, so that what is
    elsewhere is looked up now, and not within ten seconds."""
    if fresh:
        router.ask(topic, (1 << 64) - 1)

    def look():
        router.read()
        return done(router.index(topic))
    return until(look, text=lambda: f"{topic}: {router.index(topic).blocks}")


def numbers(engine, tokens):
    return [number(h) for h in engine.hashes(tokens)]


# ---- one topic for all engines ---------------------------------------------

@pytest.fixture
def node(serve):
    return serve(admin="127.0.0.1:0", query="on", events_topics="node",
                 events_node="n0", **urls())


def test_a_block_of_two_engines(node):
    """That hash alike: it is stored once, and until no engine's chunk has
    it."""
    router = listen(node)
    tokens = prompt("two", 2)
    with (Engine(node.url(), "a") as a, Engine(node.url(), "b") as b,
          Engine(node.url(), "a", descriptor=b"another space") as c):
        hashes = numbers(a, tokens)
        for engine in (a, b, c):
            assert engine.describe(tokens) == capi.OK
        a.save(tokens, [0, 1])
        c.save(tokens, [0])
        settle(router, NODE, lambda i: i.longest(hashes)[0] == 2 * PER)
        assert list(router.indexes) == [NODE]
        # Each engine is asked for by its own name still.
        for pod in ("a", "b"):
            assert ask(node, pod=pod, token_ids=tokens)[0]["blocks"][
                "any"] == 2 * PER
        a.drop(tokens, 0)
        a.drop(tokens, 1)
        settle(router, NODE, lambda i: i.longest(hashes)[0] == PER
               and not i.blocks[hashes[PER]])
        c.drop(tokens, 0)
        settle(router, NODE, lambda i: not any(i.blocks.values()))
    assert node.value("larder_description_sources") == 3
    assert node.value("larder_descriptions") == 6
    router.close()


def test_engines_that_hash_otherwise(node):
    """Both are announced, each with its own parents."""
    router = listen(node)
    tokens = prompt("seeds", 2)
    with Engine(node.url(), "a") as a, Engine(node.url(), "b",
                                              seed=b"x") as b:
        a.describe(tokens)
        b.describe(tokens)
        a.save(tokens, [0, 1])
        for engine in (a, b):
            mine = numbers(engine, tokens)
            settle(router, NODE, lambda i, mine=mine:
                   i.longest(mine)[0] == 2 * PER)
            index = router.index(NODE)
            assert [index.parents[h] for h in mine] == [None] + mine[:-1]
            assert ask(node, pod=engine.pod, token_ids=tokens)[0][
                "blocks"]["any"] == 2 * PER
    router.close()


def test_a_pod_with_two_spaces(serve):
    """It was started again with other settings: one block, one topic."""
    node = serve(admin="127.0.0.1:0", **urls())
    router = listen(node)
    tokens = prompt("again", 1)
    with (Engine(node.url()) as old,
          Engine(node.url(), descriptor=b"other settings") as new):
        for engine in (old, new):
            engine.describe(tokens)
            engine.save(tokens, [0])
        settle(router, "kv@pod-a@m",
               lambda i: i.longest(numbers(old, tokens))[0] == PER)
        old.drop(tokens, 0)
        until(lambda: node.value("larder_descriptions") == 2)
        router.read(300)
        assert router.index("kv@pod-a@m").longest(
            numbers(old, tokens))[0] == PER
        new.drop(tokens, 0)
        settle(router, "kv@pod-a@m", lambda i: not any(i.blocks.values()))
    router.close()


def test_dropped_descriptions_are_counted(serve):
    node = serve(admin="127.0.0.1:0", query="on", describe_memory="1M")
    with Engine(node.url()) as engine:
        for i in range(20):
            engine.describe(prompt(f"many {i}", 32))
    assert 0 < node.value("larder_description_bytes") <= 1 << 20
    assert (node.value("larder_descriptions")
            + node.value("larder_descriptions_dropped_total") == 20 * 32)


def test_names(serve):
    daemon = serve(start=False)
    assert "has an @" in refused(daemon, "--events_node", "a@b")


# ---- elsewhere: other members ----------------------------------------------

@pytest.fixture
def members(serve, tmp_path):
    """Two; the first has routers."""
    ports = [free_port() for _ in range(2)]
    nodes = [serve(
        name=f"n{i}", admin="127.0.0.1:0", query="on", member_name=f"n{i}",
        cluster="static:" + ",".join(f"n{k}=127.0.0.1:{port}"
                                     for k, port in enumerate(ports)),
        cluster_secret=secret_file(tmp_path / "secret"), cluster_ramp_s=0,
        peer_match_ms=5000, peer_save="never", dram="16M",
        **(dict(urls(), events_topics="pool") if i == 0 else {}))
        for i in range(2)]
    for one in nodes:
        until(lambda one=one: one.value("larder_peer_well") == 1)
    return nodes


def test_at_another_member(members):
    """Announced when it is there, not before; withdrawn when it is here as
    well, or gone there, or nobody answers."""
    here, there = members
    router = listen(here)
    tokens = prompt("members", 3)
    with Engine(here.url()) as mine, Engine(there.url()) as other:
        hashes = numbers(mine, tokens)
        mine.describe(tokens)
        router.read(500)
        assert not router.indexes
        other.save(tokens, [0, 1, 2])
        settle(router, POOL, lambda i: i.longest(hashes)[1] == 3 * PER)
        index = router.index(POOL)
        assert all(media == {"STORAGE"} for media in index.blocks.values())
        assert [index.parents[h] for h in hashes] == [None] + hashes[:-1]
        assert not router.index(NODE).blocks
        # A load brings one here.
        name = mine.name(tokens, 0)
        assert mine.node.get(name, VALUE, timeout_ms=20000)[0] == capi.OK
        settle(router, NODE, lambda i: i.longest(hashes)[0] == PER)
        settle(router, POOL, lambda i: not i.blocks.get(hashes[0]))
        assert router.index(POOL).blocks[hashes[PER]] == {"STORAGE"}
        other.drop(tokens, 1)
        settle(router, POOL, lambda i: not i.blocks.get(hashes[PER]),
               fresh=True)
        assert router.index(POOL).blocks[hashes[2 * PER]] == {"STORAGE"}
    there.kill()
    settle(router, POOL, lambda i: not any(i.blocks.values()), fresh=True)
    assert here.value("larder_events_total", outcome="dropped") == 0
    router.close()


# ---- elsewhere: the shared tier --------------------------------------------

def test_in_the_shared_tier(serve, tier):
    """What another node put there; gone with its directory."""
    writer = serve(shared=f"dir:{tier}", admin="127.0.0.1:0")
    reader = serve(shared=f"dir:{tier}", admin="127.0.0.1:0", query="on",
                   events_topics="pool", events_node="n0", **urls())
    router = listen(reader)
    tokens = prompt("shared", 2)
    with Engine(reader.url()) as mine, Engine(writer.url()) as other:
        hashes = numbers(mine, tokens)
        mine.describe(tokens)
        other.save(tokens, [0, 1])
        assert other.node.flush(tier=2, timeout_ms=60000) == capi.OK
        settle(router, POOL, lambda i: i.longest(hashes)[1] == 2 * PER)
        assert capi.library().larder_space_reset(other.node.space,
                                                 20000) == capi.OK
        settle(router, POOL, lambda i: not any(i.blocks.values()), fresh=True)
    router.close()


# ---- an index against the node's own answers -------------------------------

class World:
    """Random deeds of two members' engines. Those of the first describe."""

    def __init__(self, members, seed):
        self.rng = random.Random(seed)
        self.here, self.there = members
        self.prompts = [prompt(f"{seed} {i % 3}/{i}", 3,
                               parts=self.rng.randrange(1, 2 * PER))
                        for i in range(8)]
        self.differs = None
        self.connect()

    def connect(self):
        self.mine = [Engine(self.here.url(), pod) for pod in ("a", "b")]
        self.other = Engine(self.there.url())

    def close(self):
        for engine in (*self.mine, self.other):
            engine.node.close()

    def step(self):
        rng = self.rng
        tokens, chunk = rng.choice(self.prompts), rng.randrange(3)
        what = rng.random()
        if what < 0.3:
            rng.choice(self.mine).describe(tokens, 0, chunk + 1)
        elif what < 0.5:
            self.mine[0].save(tokens, range(chunk + 1))
        elif what < 0.7:
            self.other.save(tokens, range(chunk + 1))
        elif what < 0.8:
            engine = rng.choice((self.mine[0], self.other))
            engine.drop(tokens, chunk)
        elif what < 0.9:
            self.mine[0].node.get(self.mine[0].name(tokens, chunk), VALUE,
                                  timeout_ms=20000)
        elif what < 0.97:  # more than dram holds
            rng.choice((self.mine[0], self.other)).node.put_many([
                (f"other {rng.random()}", rng.randbytes(400000))
                for _ in range(40)])
        else:
            self.close()
            self.there.kill()
            self.there.start()
            until(lambda: self.here.value("larder_peer_well") == 1)
            self.connect()

    def same(self, router):
        router.read(20)
        node, pool = router.index(NODE), router.index(POOL)
        for tokens in self.prompts:
            hashes = numbers(self.mine[0], tokens)
            found = ask(self.here, block_hashes=hashes)
            here = max((m["blocks"]["any"] for m in found), default=0)
            loads = max((m["loadable_tokens"] for m in found), default=0)
            both = 0
            while both < len(hashes) and (node.blocks.get(hashes[both])
                                          or pool.blocks.get(hashes[both])):
                both += 1
            # Parts of a chunk are announced by a neighbour that has them.
            if node.longest(hashes)[2] != here or both // PER * CHUNK != loads:
                self.differs = (self.prompts.index(tokens), found, here, both,
                                loads)
                return False
        return True


@pytest.mark.parametrize("seed", range(6 if LONG else 1))
def test_index_is_what_a_load_would_find(members, seed):
    rng = random.Random(f"loss {seed}")
    router = listen(members[0], lose=lambda number: rng.random() < 0.2)
    world = World(members, seed)
    checked = 0
    for round_ in range(12):
        for _ in range(world.rng.randrange(2, 9)):
            world.step()

        def look():
            router.read(20)
            for topic in (NODE, POOL):
                if topic in router.indexes:
                    router.sync(topic, 5000)
                router.ask(topic, (1 << 64) - 1)
            return world.same(router)
        until(look, text=lambda: f"seed {seed}, round {round_}: the index "
              f"and the node differ: {world.differs}")
        checked += any(router.index(POOL).blocks.values())
    world.close()
    router.close()
    assert checked >= 4
