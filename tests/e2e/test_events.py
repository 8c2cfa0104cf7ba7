"""KV events of the node: an index that is made of nothing else knows what the
node knows."""
import contextlib
import random
import time

import pytest

import capi
from daemon import LONG, free_port, refused, until
from router import CHUNK, PER, Engine, ask, number, prompt
from subscriber import (DEALER, END, RCVHWM, SNDTIMEO, SUB, SUBSCRIBE, Router,
                        Socket, curve, keypair, unpack)

TOPIC = "kv@pod-a@m"


def urls():
    return {"events": f"tcp://127.0.0.1:{free_port()}",
            "events_replay": f"tcp://127.0.0.1:{free_port()}"}


@pytest.fixture
def node(serve):
    return serve(admin="127.0.0.1:0", query="on", dirs=1, **urls())


@pytest.fixture
def router(node):
    made = Router(node.given["events"], node.given["events_replay"])
    yield made
    made.close()


def settle(router, done, topic=TOPIC):
    """Reads on until done(index)."""
    def look():
        router.read()
        assert not router.index(topic).late, "a child before its parent"
        return done(router.index(topic))
    return until(look)


def test_stored_and_removed(node, router):
    """With hashes, parents and tokens; each block once, in each medium."""
    tokens = prompt("one", 3)
    with Engine(node.url()) as engine:
        hashes = [number(h) for h in engine.hashes(tokens)]
        assert engine.describe(tokens) == capi.OK
        router.read(200)
        assert not router.index(TOPIC).blocks, "nothing can be loaded yet"
        engine.save(tokens, [0, 1])
        index = settle(router, lambda i: i.longest(hashes)[0] == 2 * PER
                       and i)
        assert [index.parents[h] for h in hashes[:2 * PER]] == (
            [None] + hashes[:2 * PER - 1])
        assert [t for h in hashes[:2 * PER] for t in index.tokens[h]] == (
            tokens[:2 * CHUNK])
        engine.node.flush()
        settle(router, lambda i: i.longest(hashes) == (2 * PER,) * 3)
        engine.drop(tokens, 1)
        settle(router, lambda i: i.longest(hashes) == (PER,) * 3)
        assert capi.library().larder_space_reset(engine.node.space,
                                                 5000) == capi.OK
        settle(router, lambda i: not any(i.blocks.values()))


def test_shared_blocks(node, router):
    """A block that two chunks have stays until both are gone."""
    one, other = prompt("a", 1), prompt("a/b", 1, parts=PER - 1)
    other = one[:3 * CHUNK // PER] + other[3 * CHUNK // PER:]
    with Engine(node.url()) as engine:
        for tokens in (one, other):
            engine.describe(tokens)
            engine.save(tokens, [0])
        ours, theirs = ([number(h) for h in engine.hashes(t)]
                        for t in (one, other))
        assert ours[:PER - 1] == theirs[:PER - 1] and ours != theirs
        settle(router, lambda i: i.longest(ours)[0] == PER
               and i.longest(theirs)[0] == PER)
        engine.drop(one, 0)
        settle(router, lambda i: i.longest(ours)[2] == PER - 1)
        assert router.index(TOPIC).longest(theirs)[0] == PER
        engine.drop(other, 0)
        settle(router, lambda i: i.longest(theirs)[2] == 0)


def test_an_engine_that_hashes_anew(node, router):
    """It was restarted, under its pod's name: what it describes again has its
    new hashes, and no others; the rest is still found by tokens."""
    begin = prompt("restart", 1)[:2 * CHUNK // PER]
    tokens, other = ((begin + prompt(name, 2))[:2 * CHUNK]
                     for name in ("mine", "other"))
    with Engine(node.url()) as old, Engine(node.url(), seed=b"new") as new:
        was, now = ([number(h) for h in e.hashes(tokens)] for e in (old, new))
        for one in (tokens, other):
            assert old.describe(one) == capi.OK
            old.save(one, [0, 1])
        settle(router, lambda i: i.longest(was)[0] == 2 * PER)
        new.describe(tokens, 0, 1)
        settle(router, lambda i: i.longest(now)[0] == PER
               and not i.blocks[was[PER - 1]])
        new.describe(tokens, 1, 1)
        index = settle(router, lambda i: i.longest(now)[0] == 2 * PER and i)
        assert [index.parents[h] for h in now] == [None] + now[:-1]
        assert not any(index.blocks[h] for h in was[2:])
        [match] = ask(node, block_hashes=now)
        assert match["blocks"]["CPU"] == 2 * PER
        assert match["loadable_tokens"] == 2 * CHUNK
        assert node.value("larder_descriptions") == 4
        # Both names of the blocks that the two prompts share are of one text.
        new.drop(tokens, 0)
        [match] = ask(node, token_ids=other)
        assert match["blocks"]["CPU"] == 2 * PER
        old.describe(tokens)
        old.save(tokens, [0])
        old.drop(other, 0)
        [match] = ask(node, token_ids=tokens)
        assert match["blocks"]["CPU"] == 2 * PER


def test_topics(node):
    """Each engine has its own, with numbers of its own; who subscribes to one
    gets no other."""
    tokens = prompt("topics", 1)
    mine = Socket(SUB, node.given["events"], set=((SUBSCRIBE, b"kv@b@"),))
    time.sleep(0.3)  # a subscription takes effect some time after it is made
    with Engine(node.url(), "a") as a, Engine(node.url(), "b") as b:
        a.save(tokens, [0])
        a.describe(tokens)
        b.describe(tokens)
        topic, first, payload = mine.receive(60000)
        assert topic == b"kv@b@m"
        # Numbers begin with the time, in microseconds.
        assert abs(int.from_bytes(first, "big") / 1e6 - time.time()) < 600
        types = [e["type"] for e in unpack(payload)[1]]
        assert types[0] == "AllBlocksCleared"
        assert set(types[1:]) == {"BlockStored"}
    mine.close()


def test_requests_for_replays(node):
    """Whatever is asked, and however: an end, or nothing, and no harm."""
    tokens = prompt("replay", 2)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, [0, 1])
    asks = Router(node.given["events"], node.given["events_replay"])
    until(lambda: asks.ask(TOPIC, 0))
    [(_, payload)] = asks.ask("kv@nobody@m", 0)
    assert [e["type"] for e in unpack(payload)[1]] == ["AllBlocksCleared"]
    assert asks.ask(TOPIC, 1 << 60) == []
    # As vLLM's subscribers ask, without a topic: there is only one.
    asks.dealer.send(b"", bytes(8))
    assert asks.dealer.receive(60000)[1] == TOPIC.encode()
    while asks.dealer.receive(60000)[1] != b"":
        pass
    with Engine(node.url(), "pod-b") as other:
        other.describe(tokens)
        until(lambda: len(asks.ask("kv@pod-b@m", 0)[0][1]) > 100)
    asks.dealer.send(b"", bytes(8))  # now there are two: only the end comes
    assert asks.dealer.receive(60000)[1] == b""
    wild = Socket(DEALER, node.given["events_replay"])
    for parts in ((b"",), (b"x",), (b"", b"1"), (b"", bytes(9)),
                  (b"", bytes(8), b"t" * 4000), (b"", bytes(8), b"", b""),
                  (b"y" * 4000,), (b"", bytes(8), b"\xff")):
        wild.send(*parts)
    wild.send(b"", (1 << 63).to_bytes(8, "big"), TOPIC.encode())
    assert wild.receive(60000) is not None
    wild.close()
    asks.close()
    node.alive()


def test_replays_for_who_reads_late(serve):
    """More than all queues on the way hold: nothing of it is dropped, and each
    replay has its end."""
    node = serve(admin="127.0.0.1:0", query="on", dram="64M", **urls())
    replays = 400
    with Engine(node.url()) as engine:
        for i in range(16):
            tokens = prompt(f"late {i}", 32)
            engine.describe(tokens)
            engine.save(tokens, range(32))
        asks = Router(node.given["events"], node.given["events_replay"])
        until(lambda: sum(len(unpack(payload)[1]) for _, payload in
                          asks.ask(TOPIC, 0)) > 16 * 32)
        kept = asks.ask(TOPIC, 0)
        asks.close()
    late = Socket(DEALER, node.given["events_replay"], set=((RCVHWM, 10),))
    for _ in range(replays):
        late.send(b"", bytes(8), TOPIC.encode())
    until_full(node)
    for _ in range(replays):
        found = []
        while (parts := late.receive(20000))[3]:
            found.append((int.from_bytes(parts[2], "big"), parts[3]))
        assert found == kept
        assert int.from_bytes(parts[2], "big") == END
    late.close()


def until_full(node):
    """Until no more is sent to who does not read."""
    sent = []

    def same():
        sent.append(node.value("larder_events_total", outcome="replayed"))
        time.sleep(0.3)
        return sent[-1] > 0 and sent[-2:] == [sent[-1]] * 2

    until(same)


def test_everything_again(node, router):
    """Who asks for it when it has just been published again gets it too."""
    tokens = prompt("again", 2)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, [0, 1])
        hashes = [number(h) for h in engine.hashes(tokens)]
    whole = 2 * PER
    settle(router, lambda i: i.longest(hashes)[0] == whole)
    assert router.ask(TOPIC, END) == []
    settle(router, lambda i: i.cleared > 1 and i.longest(hashes)[0] == whole)
    late = Router(node.given["events"], node.given["events_replay"])
    until(lambda: node.value("larder_event_subscriptions") == 2)
    assert late.ask(TOPIC, END) == []
    settle(late, lambda i: i.longest(hashes)[0] == whole)
    late.close()


def test_parents_first(node, router):
    """Whatever was described last: a router that knows no parent cannot place
    its children."""
    tokens = prompt("parents", 9)
    with Engine(node.url()) as engine:
        hashes = [number(h) for h in engine.hashes(tokens)]
        engine.describe(tokens)
        engine.save(tokens, range(9))
        settle(router, lambda i: i.longest(hashes)[0] == 9 * PER)
        for chunk in (5, 3, 2, 0):
            engine.describe(tokens, chunk, 1)
        assert router.ask(TOPIC, END) == []
        index = settle(router, lambda i: i.cleared > 1
                       and i.longest(hashes)[0] == 9 * PER and i)
        # One that is not there is not waited for.
        engine.drop(tokens, 4)
        settle(router, lambda i: i.longest(hashes)[0] == 4 * PER)
        cleared = index.cleared
        assert router.ask(TOPIC, END) == []
        settle(router, lambda i: i.cleared > cleared and all(
            i.blocks.get(h) for h in hashes[5 * PER:]))
        engine.save(tokens, [4])
        settle(router, lambda i: i.longest(hashes)[0] == 9 * PER)


def test_parents_that_go_in_a_circle(node, router):
    """An engine that describes nonsense harms nobody."""
    tokens = prompt("circle", 3)
    with Engine(node.url()) as engine:
        hashes = engine.hashes(tokens)
        engine.save(tokens, [0, 1, 2])
        engine.hashes = lambda _: hashes[:2 * PER] + hashes[:PER]
        engine.describe(tokens, 1, 2)
        for times in (1, 2):
            until(lambda: router.read() or (
                router.index(TOPIC).cleared >= times
                and len(router.index(TOPIC).blocks) == 2 * PER))
            assert router.ask(TOPIC, END) == []


def test_counted(node, router):
    """Events that went out, were sent again, and who has subscribed."""
    def events(outcome):
        return node.value("larder_events_total", outcome=outcome)

    until(lambda: node.value("larder_event_subscriptions") == 1)
    more = [Socket(SUB, node.given["events"], set=((SUBSCRIBE, b"kv@"),))
            for _ in range(2)]
    until(lambda: node.value("larder_event_subscriptions") == 3)
    tokens = prompt("counted", 3)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, [0, 1, 2])
        hashes = [number(h) for h in engine.hashes(tokens)]
        settle(router, lambda i: i.longest(hashes)[0] == 3 * PER)
    sent = [unpack(payload)[1] for _, payload in router.ask(TOPIC, 0)]
    assert sum(map(len, sent)) <= events("published")
    until(lambda: events("replayed") >= sum(map(len, sent)) > 0)
    assert events("dropped") == 0
    for one in more:
        one.close()
    until(lambda: node.value("larder_event_subscriptions") == 1)


def test_pods_that_come_and_go(serve):
    """More than there are topics: one that has nothing left gives way. Who
    asks for its events is told so."""
    node = serve(admin="127.0.0.1:0", query="on", describe_memory="1M",
                 **urls())
    router = Router(node.given["events"], node.given["events_replay"])
    first, last = "kv@pod-0@m", "kv@pod-299@m"
    tokens = prompt("pods", 4)
    with Engine(node.url()) as engine:
        engine.save(tokens, range(4))
        hashes = [number(h) for h in engine.hashes(tokens)]

        def begin(i):
            engine.pod = f"pod-{i}"
            until(lambda: engine.describe(tokens) == capi.OK)
            router.read(1)

        begin(0)
        whole = settle(router, lambda i: i.longest(hashes)[0] == 4 * PER and i,
                       first)
        for i in range(1, 300):
            begin(i)
        settle(router, lambda i: i.longest(hashes)[0] == 4 * PER, last)
        assert not any(whole.blocks.values())
        [(cleared, payload)] = router.ask(first, whole.next)
        assert [e["type"] for e in unpack(payload)[1]] == ["AllBlocksCleared"]
        assert cleared > whole.next
        begin(0)
        settle(router, lambda i: i.longest(hashes)[0] == 4 * PER, first)
        assert whole.cleared == 2 and whole.next > cleared
        assert node.value("larder_events_total", outcome="dropped") == 0
    router.close()


@pytest.fixture
def keys(tmp_path):
    """Of the node, of one who may read, of one who may not; and the options
    that say so."""
    server, friend, stranger = (keypair() for _ in range(3))
    key, clients = tmp_path / "events.key", tmp_path / "events.clients"
    key.write_bytes(server[1] + b"\n")
    key.chmod(0o600)
    clients.write_bytes(b"# who may read\n\n" + friend[0] + b"\n")
    return server, friend, stranger, {"events_key": key,
                                      "events_clients": clients}


def test_keys(serve, keys):
    """Who is in the list reads; who is not, or has no key, or another key of
    the node, does not, and is counted. The other sockets go on."""
    server, friend, stranger, options = keys
    at = urls()
    at["events"] = at["events"].replace("127.0.0.1", "0.0.0.0")
    node = serve(admin="127.0.0.1:0", query="on", **at, **options)
    here = at["events"].replace("0.0.0.0", "127.0.0.1")
    replay = at["events_replay"]
    wrong = [Router(here, replay, keys=(*one, (SNDTIMEO, 300))) for one in (
        curve(server[0], stranger), curve(stranger[0], friend), ())]
    good = Router(here, replay, keys=curve(server[0], friend))
    until(lambda: node.value("larder_event_subscriptions") == 1)
    tokens = prompt("keys", 2)
    with Engine(node.url()) as engine:
        engine.describe(tokens)
        engine.save(tokens, [0, 1])
        hashes = [number(h) for h in engine.hashes(tokens)]
        settle(good, lambda i: i.longest(hashes)[0] == 2 * PER)
    assert good.ask(TOPIC, 0)
    for one in wrong:
        assert one.sub.receive(300) is None
        with contextlib.suppress(AssertionError):  # it has no connection
            one.dealer.send(b"", bytes(8), TOPIC.encode())
        assert one.dealer.receive(300) is None
    assert node.value("larder_event_subscriptions") == 1
    assert node.value("larder_auth_failures_total", reason="certificate") > 0
    for one in (good, *wrong):
        one.close()
    node.alive()


def test_keys_that_are_wrong(serve, keys, tmp_path):
    server, friend, _, options = keys
    daemon = serve(start=False, **urls())
    bad = tmp_path / "bad"
    bad.write_bytes(friend[0] + b"x\n")
    empty = tmp_path / "empty"
    empty.write_bytes(b"# nobody\n")
    short = tmp_path / "short"
    short.write_bytes(server[1][:39] + b"\n")
    short.chmod(0o600)
    for given, text in (
            ({"events_key": options["events_key"]}, "set both"),
            ({"events_clients": bad}, "set both"),
            (dict(options, events_clients=bad), "line 1: not a public"),
            (dict(options, events_clients=empty), "no key in it"),
            (dict(options, events_key=empty), "everybody may read"),
            (dict(options, events_key=short), "40 characters"),
            (dict(options, events_key=tmp_path / "none"), "none")):
        flags = [word for name, value in given.items()
                 for word in (f"--{name}", value)]
        said = refused(daemon, *flags)
        assert text in said, said
        assert server[1].decode() not in said


def test_refused(serve, tmp_path):
    """Prompts are shown to nobody beyond this host unless that was asked."""
    daemon = serve(start=False)
    for name in ("events", "events_replay"):
        text = refused(daemon, f"--{name}", "tcp://0.0.0.0:5557")
        assert f"option {name}: " in text and "events_open" in text
    assert "tcp://HOST:PORT" in refused(daemon, "--events", "udp://x")
    text = refused(daemon, "--events", "ipc:///tmp/x",
                   "--events_tenant", "nobody")
    assert "no tenant 'nobody'" in text


def test_other_tenants_are_not_published(serve, tmp_path):
    from tenants import config
    daemon = serve(config=config(tmp_path), admin="127.0.0.1:0", **urls())
    router = Router(daemon.given["events"], daemon.given["events_replay"])
    tokens = prompt("secret", 1)
    with Engine(daemon.url(tenant="a", token_file=tmp_path / "a"), "of-a",
                tenant="a") as a, Engine(daemon.url(), "mine") as mine:
        for engine in (a, mine):
            assert engine.describe(tokens) == capi.OK
            engine.save(tokens, [0])
        settle(router, lambda i: i.blocks, "kv@mine@m")
        assert list(router.indexes) == ["kv@mine@m"]
    router.close()


def test_a_subscriber_that_does_not_read(serve):
    """It costs others nothing; what is not kept any more it asks for again."""
    daemon = serve(admin="127.0.0.1:0", query="on", dram="256M",
                   describe_memory="1M", **urls())
    dead = Socket(SUB, daemon.given["events"], set=((SUBSCRIBE, b""),
                                                    (24, 1)))
    with Engine(daemon.url()) as engine:
        first = prompt("first", 1)
        engine.describe(first)
        engine.save(first, [0])
        for i in range(30):
            tokens = prompt(f"more {i}", 32)
            engine.describe(tokens)
            engine.save(tokens, range(32))
        hashes = [number(h) for h in engine.hashes(tokens)]
        late = Router(daemon.given["events"], daemon.given["events_replay"])

        def same():
            late.read()
            late.sync(TOPIC)
            [match] = ask(daemon, block_hashes=hashes)
            return (late.index(TOPIC).longest(hashes)[0]
                    == match["blocks"]["CPU"] == 32 * PER)
        until(same)
        assert late.resets >= 1
        # The oldest description is gone, and so is what was published of it.
        old = [number(h) for h in engine.hashes(first)]
        assert late.index(TOPIC).longest(old)[2] == 0
        late.close()
    dead.close()
    assert daemon.status("VmRSS") < 600 * 1024


# ---- an index against the node's own answers -------------------------------

class World:
    """Random saves, removals, resets, evictions and restarts, of prompts that
    share prefixes down to the middle of a chunk."""

    def __init__(self, node, seed):
        self.rng = random.Random(seed)
        self.node = node
        self.prompts = [prompt(f"{seed} {i % 3}/{i % 7}/{i}", 4,
                               parts=self.rng.randrange(1, 2 * PER))
                        for i in range(14)]
        self.engine = self.differs = None
        self.connect()

    def connect(self):
        if self.engine is not None:
            self.engine.node.close()
        self.engine = Engine(self.node.url())

    def step(self):
        tokens = self.rng.choice(self.prompts)
        chunk = self.rng.randrange(4)
        what = self.rng.random()
        if what < 0.55:
            self.engine.describe(tokens, 0, chunk + 1)
            self.engine.save(tokens, range(chunk + 1))
        elif what < 0.7:
            self.engine.drop(tokens, chunk)
        elif what < 0.8:
            self.engine.node.flush()
        elif what < 0.85:
            # More than dram holds: evictions.
            self.engine.node.put_many([
                (f"other {self.rng.random()}", self.rng.randbytes(400000))
                for _ in range(30)])
        elif what < 0.88:
            capi.library().larder_space_reset(self.engine.node.space, 5000)
        elif what < 0.90:
            self.engine.node.close()
            if self.rng.random() < 0.5:
                self.node.stop()
            else:
                self.node.kill()
            self.node.start()
            self.engine = None
            self.connect()

    def same(self, router):
        """Whether the index has what the node answers, for every prompt."""
        router.read(20)
        index = router.index(TOPIC)
        assert not index.late, "a child before its parent"
        for tokens in self.prompts:
            hashes = [number(h) for h in self.engine.hashes(tokens)]
            found = ask(self.node, model="m", pod="pod-a", block_hashes=hashes)
            found = found[0]["blocks"] if found else {
                "CPU": 0, "STORAGE": 0, "any": 0}
            if index.longest(hashes) != (found["CPU"], found["STORAGE"],
                                         found["any"]):
                self.differs = (self.prompts.index(tokens), found,
                                index.longest(hashes), [
                                    sorted(index.blocks.get(h, ()))
                                    for h in hashes])
                return False
        return True


@pytest.mark.parametrize("seed", range(12 if LONG else 2))
def test_index_is_what_the_node_answers(serve, seed):
    """After every few steps; a fifth of the messages is lost on the way."""
    node = serve(admin="127.0.0.1:0", query="on", dirs=1, dram="8M",
                 ssd="16M", **urls())
    rng = random.Random(f"loss {seed}")
    router = Router(node.given["events"], node.given["events_replay"],
                    lose=lambda number: rng.random() < 0.2)
    world = World(node, seed)
    checked = 0
    for round_ in range(25):
        for _ in range(world.rng.randrange(1, 8)):
            world.step()

        def look():
            router.read(20)
            if TOPIC in router.indexes:
                router.sync(TOPIC, 5000)
            return world.same(router)
        until(look, text=lambda: f"seed {seed}, round {round_}: the index "
              f"and the node differ: {world.differs}")
        checked += any(router.index(TOPIC).blocks.values())
    world.engine.node.close()
    router.close()
    assert checked >= 10 and router.replays > 10
