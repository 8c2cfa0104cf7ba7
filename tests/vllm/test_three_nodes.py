"""Three real engines at three nodes: what is computed how often, and whether
any answer is wrong or missing, when the nodes are one cluster, when they have a
shared tier on Redis, and when all three engines use one node.

Engines stay; the node behind an engine's socket changes. Prompts are a prefix
of whole chunks and a question of its own; prefixes come again after they had
time to spread (the lag of write-behind), and are routed in turns, or each to
its own engine. Reference answers are made by the same engines without the
store."""
import contextlib
import threading
import time

import pytest

import rig
from capi import Node
from daemon import Daemon, free_port, secret_file, until
from larder_kv import _lib
from test_shared_servers import Redis, has_redis

CHUNK, CHUNKS, QUESTION = 256, 3, 40
PREFIXES, ROUNDS = 3, 3
LOAD_MAX = 90  # requests of one engine under load
NOTHING = {"larder": {"skip_load": True, "skip_save": True}}
SHARED, PEER = 2, 3


def ask(name, round_):
    return (rig.prompt(name, CHUNK * CHUNKS)
            + rig.prompt((name, round_), QUESTION))


class World:
    def __init__(self, engines, folders, figure):
        self.engines, self.folders, self.figure = engines, folders, figure
        self.nodes = []

    @contextlib.contextmanager
    def behind(self, given):
        """Nodes with these options, one for each engine that has its own."""
        self.nodes = [start(self.folders[i], **one)
                      for i, one in enumerate(given)]
        for i in range(len(given), len(self.engines)):
            path = self.folders[i] / "sock"
            path.unlink(missing_ok=True)  # that of the node before
            path.symlink_to(self.nodes[0].socket)
        try:
            yield
        finally:
            for node in self.nodes:
                node.end()
            for folder in self.folders:
                (folder / "sock").unlink(missing_ok=True)

    def node_of(self, i):
        return self.nodes[min(i, len(self.nodes) - 1)]

    def connected(self):
        """Every engine has found its node: one prompt comes from there."""
        for i, engine in enumerate(self.engines):
            ids = rig.prompt(("connect", time.time_ns(), i), CHUNK + 1)

            def hits(engine=engine, ids=ids):
                rig.fresh(engine)
                return engine.ask_one(ids)["cached"] == CHUNK
            until(hits, 300)

    @contextlib.contextmanager
    def working(self, work):
        """Prompts for each engine, all engines at once, while the caller does
        what it wants. Gives answers, by engine and prompt; every one must have
        come."""
        found, errors, asked = {}, [], [0] * len(self.engines)

        def run(i):
            try:
                for ids in work[i]:
                    asked[i] += 1
                    found[self.engines[i], tuple(ids)] = (
                        self.engines[i].ask_one(ids))
            except Exception as e:  # it fails the test below
                errors.append(e)
        threads = [threading.Thread(target=run, args=(i,))
                   for i in range(len(work))]
        for one in threads:
            one.start()
        yield found
        for one in threads:
            one.join()
        assert not errors, errors
        assert len(found) == sum(asked)

    def together(self, work):
        with self.working(work) as found:
            pass
        return found

    def right(self, found):
        """Each answer is that of its engine without the store."""
        for engine in self.engines:
            rig.fresh(engine)
        for (engine, ids), answer in sorted(found.items(),
                                            key=lambda one: one[0][1]):
            rig.check_same(answer, engine.ask_one(
                list(ids), kv_transfer_params=NOTHING))

    def spread(self, prefixes, tier):
        """Returns once every node finds these prefixes; gives the seconds."""
        began = time.monotonic()
        about = self.engines[0].ask("inside", "space")
        for node in self.nodes:
            with rig.Store(node.url(), about) as store:
                until(lambda store=store: all(
                    store.has(ids, chunk) for ids in prefixes
                    for chunk in range(CHUNKS)), 300)
            if tier is not None:
                with Node(node.url()) as one:
                    assert one.flush(tier, 60000) == _lib.OK
        return time.monotonic() - began


def start(folder, **options):
    made = Daemon(str(rig.PROGRAM), folder, dirs=1,
                  **dict(dict(dram="256M", ssd="1G"), **options))
    made.clean = False  # it may be killed
    return made.start()


def cluster(folder, count=3):
    ports = [free_port() for _ in range(count)]
    return [dict(
        member_name=f"n{i}", cluster="static:" + ",".join(
            f"n{k}=127.0.0.{k + 1}:{port}" for k, port in enumerate(ports)),
        cluster_secret=secret_file(folder / "secret"), cluster_ramp_s=0,
        peer_match_ms=5000, peer_timeout_ms=5000, admin="127.0.0.1:0")
        for i in range(count)]


@pytest.fixture(scope="module")
def world(version, tmp_path_factory, figure):
    folders = [tmp_path_factory.mktemp(f"n{i}") for i in range(3)]
    with contextlib.ExitStack() as stack:
        nodes = [start(folder) for folder in folders]
        engines = [stack.enter_context(rig.engine(version, "dense", node.url()))
                   for node in nodes]
        for engine in engines:  # a space is opened while its node is there
            engine.ask_one(rig.prompt("first", 300))
        for node in nodes:
            node.end()
        yield World(engines, folders, figure)


def met(world):
    for node in world.nodes:
        until(lambda node=node: node.value("larder_peer_well") == 2)


def rounds(world, name, tier, routed):
    """Prefixes that come again. Gives (computed, loaded, own hits, lag)."""
    for engine in world.engines:
        rig.fresh(engine)
    found, lag = {}, 0
    with contextlib.ExitStack() as stack:
        counted = [stack.enter_context(rig.Counted(one))
                   for one in world.engines]
        for r in range(ROUNDS):
            work = [[], [], []]
            for p in range(PREFIXES):
                work[routed(p, r)].append(ask((name, p), r))
            found.update(world.together(work))
            lag = max(lag, world.spread(
                [rig.prompt((name, p), CHUNK * CHUNKS)
                 for p in range(PREFIXES)], tier))
    world.right(found)
    computed, external, local = (sum(getattr(one, what) for one in counted)
                                 for what in ("computed", "external", "local"))
    return computed, external, local, lag


ROUTES = {"in turns": lambda p, r: (p + r) % 3, "by prefix": lambda p, r: p}
ONCE = PREFIXES * (CHUNKS * CHUNK + ROUNDS * QUESTION)


def once(world, what, tier):
    """Each prefix is computed once, wherever it comes again."""
    for way, routed in ROUTES.items():
        computed, external, local, lag = rounds(world, (what, way), tier,
                                                routed)
        world.figure(f"three engines, {what}, {way}: {computed} tokens "
                     f"computed ({ONCE} if each prefix is computed once), "
                     f"{external} loaded, {local} in the engine's own cache; "
                     f"everywhere after {lag:.1f} s")
        assert computed == ONCE


def at_once(world, what, tier):
    """One new prefix at all engines in the same moment: counted."""
    for engine in world.engines:
        rig.fresh(engine)
    name = (what, "at once")
    with contextlib.ExitStack() as stack:
        counted = [stack.enter_context(rig.Counted(one))
                   for one in world.engines]
        found = world.together([[ask(name, r)] for r in range(3)])
    world.right(found)
    computed = sum(one.computed for one in counted)
    world.figure(f"three engines, {what}, one new prefix at all three at once: "
                 f"{(computed - 3 * QUESTION) / (CHUNKS * CHUNK):.2f} times "
                 "computed")
    assert computed <= 3 * (CHUNKS * CHUNK + QUESTION)


def test_one_node(world):
    with world.behind([{}]):
        world.connected()
        once(world, "one node", None)
        at_once(world, "one node", None)


def test_cluster(world, tmp_path):
    with world.behind(cluster(tmp_path)):
        met(world)
        world.connected()
        once(world, "a cluster", PEER)
        at_once(world, "a cluster", PEER)


def test_redis(world, tmp_path):
    if not has_redis():
        pytest.skip("no redis-server: scripts/install-deps test")
    server = Redis(tmp_path / "server", tls=False).up()
    try:
        shared = server.options["shared"]
        with world.behind([dict(server.options, shared_poll_ms=50)] * 3):
            world.figure(f"shared tier: {shared.partition(':')[0]}")
            world.connected()
            once(world, "Redis", SHARED)
            at_once(world, "Redis", SHARED)
    finally:
        server.kill()


def test_a_node_is_killed_under_load(world, tmp_path):
    """kill -9 of one of three, and it comes back: every answer comes, and is
    right; then prefixes are loaded again at its engine."""
    with world.behind(cluster(tmp_path)):
        met(world)
        world.connected()
        names = [("killed", p) for p in range(PREFIXES)]
        world.together([[ask(name, "before")] for name in names])
        world.spread([rig.prompt(name, CHUNK * CHUNKS) for name in names],
                     PEER)
        done = threading.Event()

        def load(i):
            """One in three is new; the others were saved before, and nothing
            of them is left in the engine."""
            for r in range(LOAD_MAX):
                if done.is_set():
                    return
                if r % 3 == 0:
                    yield ask(("new", i, r), r)
                else:
                    rig.fresh(world.engines[i])
                    yield ask(names[(i + r) % PREFIXES], (i, r))
        with contextlib.ExitStack() as stack:
            counted = [stack.enter_context(rig.Counted(one))
                       for one in world.engines]
            with world.working([load(i) for i in range(3)]) as found:
                try:
                    time.sleep(3)
                    before = len(found)
                    world.nodes[1].kill()
                    time.sleep(5)
                    without = len(found) - before
                    world.nodes[1].start()
                    time.sleep(3)
                finally:
                    done.set()
        assert before > 0 and without > 0, "there was no load"
        world.right(found)
        world.figure(
            f"three engines, a cluster, one node killed under load: "
            f"{before} answers before, {without} while it was away, "
            f"{len(found)} in all, and all right; "
            f"{sum(one.computed for one in counted)} tokens computed, "
            f"{sum(one.external for one in counted)} loaded, "
            f"{sum(one.local for one in counted)} in the engine's own cache")
        met(world)

        def back():
            rig.fresh(world.engines[1])
            return world.engines[1].ask_one(
                ask(names[0], "after"))["cached"] == CHUNKS * CHUNK
        until(back, 300)
