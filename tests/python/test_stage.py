"""Staging: how many round trips an engine's hit and its saves take, tokens, and
what is worth staging."""
import ctypes
import mmap
import os
import random
from array import array

import pytest

from daemon import Daemon, until
from larder_kv import _lib

_lib.library()
BLOCK, CHUNK, PAGE, LAYERS = 4, 8, 64, 2
PER = CHUNK // BLOCK
MS = 20000
HYBRID = ((_lib.RULE_ALL, 0), (_lib.RULE_TRAILING, 21), (_lib.RULE_LAST, 0))
GROUPS = {"dense": HYBRID[:1], "hybrid": HYBRID, "sliced": HYBRID[:1]}
HEADS, DEPTH, SLICES = 8, 4, 32  # of a model whose shards are slices
WIDTH = PAGE // BLOCK // HEADS  # bytes of a token in a head
MANY = 4096  # LARDER_BATCH_MAX
ROOMS = LEASES = 1024  # shards of one RESERVE and COMMIT, and of one LEASE


def pages_of(layers):
    """What is inside the pages of a sliced model; 0: for looking only."""
    made = [_lib.Page(i, 1, (_lib.Part * 1)(_lib.Part(
        i, 0, 0, WIDTH * BLOCK, WIDTH, WIDTH))) for i in range(layers)]
    return [_lib.Pages(HEADS, 0, HEADS if layers else 0, 1,
                       (ctypes.c_uint32 * DEPTH)(*range(DEPTH)), DEPTH, layers,
                       (_lib.Page * layers)(*made))]


class Rank:
    """A worker: its pages, its handle, its shard of so many. Each group has
    blocks of its own. slices: the only one, of a model that is sliced."""

    def __init__(self, url, groups, chunks, ranks, number, slices=0):
        blocks = chunks * PER + 1
        self.layers = DEPTH if slices else LAYERS
        self.map = mmap.mmap(-1, PAGE * self.layers * blocks * len(groups))
        self._view = (ctypes.c_char * len(self.map)).from_buffer(self.map)
        region = _lib.Region(b"kv", ctypes.addressof(self._view),
                             len(self.map))
        made = []
        for g, (rule, window) in enumerate(groups):
            layers = (_lib.Layer * self.layers)(*(
                (b"l", 0, (g * self.layers + i) * PAGE * blocks, PAGE, PAGE)
                for i in range(self.layers)))
            made.append(_lib.Group(rule, BLOCK, window, layers, self.layers))
        self.layout = _lib.Layout(
            CHUNK, made, [region], blocks, model_layers=DEPTH if slices else 0,
            pages=pages_of(DEPTH) if slices else ())
        self.node = _lib.Node(url)
        self.space = self.node.space(b"a model", slices or ranks, CHUNK)
        self.ids = array("I", range(1, blocks))
        self.groups, self.number = len(groups), number

    def move(self, keys, chunks, token=b""):
        tables = (_lib.Table * self.groups)(*(
            (self.ids.buffer_info()[0], 0, len(self.ids))
            for _ in range(self.groups)))
        move = _lib.Move(keys=keys.data(0, chunks), tables=tables,
                         end=chunks * CHUNK, writers=1, shard=self.number,
                         timeout_ms=MS, flags=_lib.PUT_ANNOUNCED)
        if token:
            move.token[:] = token
        return move

    def save(self, keys, chunks):
        """The node hears of it before it hears of this session's next request;
        those of others may come before."""
        move = self.move(keys, chunks)
        status, rooms = self.space.reserve(self.layout, move)
        assert status == _lib.OK
        assert rooms.fill(move, None) == _lib.OK
        assert move.failed == 0

    def settle(self, keys):
        self.space.match(self.layout, keys.data(0, 1), 1, MS)

    def load(self, keys, chunks, token):
        move = self.move(keys, chunks, token)
        status = self.space.load(self.layout, move)
        return status, move

    def fill(self, seed):
        self.map[:] = random.Random(seed).randbytes(len(self.map))

    def close(self):
        self.space.close()
        self.node.close()
        self.layout.close()
        del self._view
        self.map.close()


@pytest.fixture
def daemon(tmp_path, request):
    """Its memory has a page for each shard of the test's parameters."""
    given = getattr(request.node, "callspec", None)
    given = given.params if given else {}
    shards = (given.get("chunks", 1) * given.get("ranks", 1) * 3
              * (SLICES if given.get("kind") == "sliced" else 1))
    one = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "daemon",
                 dram="512M" if shards > 4500 else "256M",
                 dirs=given.get("dirs", 0), ssd="256M")
    yield one.start()
    one.end()


@pytest.fixture
def engine(daemon, request):
    """ranks workers, and the scheduler's handle."""
    made = []

    def make(groups, chunks, ranks, transport="unix", slices=0):
        url = daemon.url(transport)
        made.extend(Rank(url, groups, chunks, ranks, i, slices)
                    for i in range(ranks))
        node = _lib.Node(url)
        space = node.space(b"a model", slices or ranks, CHUNK)
        rules = _lib.Layout(CHUNK, [_lib.Group(rule, BLOCK, window)
                                    for rule, window in groups],
                            model_layers=DEPTH if slices else 0,
                            pages=pages_of(0) if slices else ())
        assert rules.slices() == (slices or 1)
        keys = _lib.Keys()
        space.chain(array("I", random.Random(1).choices(
            range(2048), k=chunks * CHUNK)), keys)
        made.extend((rules, space, node))
        return made[:ranks], space, rules, keys

    yield make
    for one in made:
        one.close()


def requests(daemon):
    """Answered so far, by operation; those of PING are nobody's."""
    found = {}
    for name, value in daemon.metrics().items():
        if name.startswith("larder_requests_total{"):
            op = name.split('op="')[1].split('"')[0]
            found[op] = found.get(op, 0) + int(value)
    return {k: v for k, v in found.items() if k not in ("metrics", "admin",
                                                        "hello", "ping")}


def more(daemon, before):
    """What was asked since."""
    now = requests(daemon)
    return {k: v - before.get(k, 0) for k, v in now.items()
            if v != before.get(k, 0)}


def greet(workers, space, rules, data):
    """The spaces are known from here on."""
    for w in workers:
        space.match(rules, data, 1, MS)
        w.space.match(w.layout, data, 1, MS)


@pytest.mark.parametrize("kind, ranks, chunks, dirs", [
    ("dense", 1, 1, 0), ("dense", 1, 700, 0), ("dense", 2, 60, 0),
    ("hybrid", 1, 100, 0), ("hybrid", 2, 100, 0), ("dense", 1, MANY, 0),
    ("sliced", 1, 60, 0), ("dense", 1, 60, 1)])
def test_round_trips(engine, daemon, kind, ranks, chunks, dirs):
    """A save is RESERVE and COMMIT, a hit is STAGE, and a LEASE of each worker;
    RELEASE and COMMIT wait for no answer. dirs: it is all on a disk when it is
    staged."""
    slices = SLICES if kind == "sliced" else 0
    workers, space, rules, keys = engine(GROUPS[kind], chunks, ranks,
                                         slices=slices)
    data = keys.data(0, chunks)
    for w in workers:
        w.fill(1 + w.number)
    greet(workers, space, rules, data)
    saved = [bytes(w.map) for w in workers]
    shards = chunks * len(GROUPS[kind]) * (slices or 1)
    before = requests(daemon)
    for w in workers:
        w.save(keys, chunks)
    for w in workers:
        w.settle(keys)
    asked = more(daemon, before)
    asked.pop("extent", 0)  # an extent is mapped once
    assert asked.pop("match") == ranks  # settle()
    rooms = -(-shards // ROOMS)
    assert asked == {"reserve": ranks * rooms, "commit": ranks * rooms}

    if dirs:
        workers[0].node.flush(1, MS)
        daemon.stop()
        daemon.start()
        greet(workers, space, rules, data)
    before = requests(daemon)
    lease, match = space.stage(rules, data, chunks, MS)
    asked = more(daemon, before)
    asked.pop("announce", 0)  # of who does not announce requests itself
    assert asked == {"stage": 1}
    assert (match.chunks, match.found, match.tried) == (chunks,) * 3
    assert match.tried_below_bytes == (match.tried_bytes if dirs else 0)
    before = requests(daemon)
    for w in workers:
        w.fill(9)
        status, move = w.load(keys, chunks, lease.token)
        assert (status, move.failed) == (_lib.OK, 0)
        w.settle(keys)
    asked = more(daemon, before)
    asked.pop("extent", 0)
    assert asked.pop("match") == ranks
    most = -(-shards // LEASES)
    assert asked.pop("lease") <= ranks * most
    assert asked.pop("release") <= ranks * max(most, shards)
    assert asked == {}
    for w, was in zip(workers, saved):
        check_loaded(w, was, kind, chunks)
    before = requests(daemon)
    lease.release()
    until(lambda: more(daemon, before) == {"release": 1})


def check_loaded(rank, was, kind, chunks):
    """The blocks that the prefix needs have what was saved."""
    blocks = chunks * PER + 1
    for g, (rule, window) in enumerate(GROUPS[kind]):
        first = {_lib.RULE_ALL: 0, _lib.RULE_LAST: chunks * PER - 1,
                 _lib.RULE_TRAILING: max(0, chunks * CHUNK - window + 1)
                 // BLOCK}[rule]
        for layer in range(rank.layers):
            at = (g * rank.layers + layer) * PAGE * blocks
            begin, end = at + (1 + first) * PAGE, at + blocks * PAGE
            assert rank.map[begin:end] == was[begin:end]


def test_token_of_a_lease_that_is_over(engine, daemon):
    """Then what it stood for is looked for by its keys."""
    (worker,), space, rules, keys = engine(HYBRID, 6, 1)
    worker.fill(1)
    was = bytes(worker.map)
    worker.save(keys, 6)
    worker.settle(keys)
    lease, _ = space.stage(rules, keys.data(0, 6), 6, MS)
    token = lease.token
    assert len(token) == 16
    lease.release()
    for wrong in (token, bytes(range(16))):
        worker.fill(2)
        assert worker.load(keys, 6, wrong)[0] == _lib.OK
        check_loaded(worker, was, "hybrid", 6)
    space.reset(MS)
    status, move = worker.load(keys, 6, token)
    assert status == _lib.MISS and move.failed > 0


def test_a_reset_ends_what_a_token_gives(engine):
    (worker,), space, rules, keys = engine(HYBRID[:1], 4, 1)
    worker.save(keys, 4)
    worker.settle(keys)
    lease, _ = space.stage(rules, keys.data(0, 4), 4, MS)
    space.reset(MS)
    status, move = worker.load(keys, 4, lease.token)
    assert status == _lib.MISS and move.failed > 0
    lease.release()


@pytest.mark.parametrize("transport", ("unix", "tcp"))
@pytest.mark.parametrize("kind", GROUPS)
def test_what_is_worth_it(engine, transport, kind):
    (worker,), space, rules, keys = engine(GROUPS[kind], 8, 1, transport)
    worker.save(keys, 8)
    worker.settle(keys)
    data = keys.data(0, 8)

    def stage(**worth):
        lease, m = space.stage(rules, data, 8, MS, _lib.StageParams(**worth))
        if lease is not None:
            lease.release()
        return m

    m = stage(chunk_ns=10**12)
    assert (m.chunks, m.found, m.limit) == (8, 8, _lib.LIMIT_NONE)
    size = sum(m.tier_bytes)
    assert m.tried_bytes == size and m.tried_below_bytes == 0
    m = stage(chunk_ns=1, dram_speed=1)  # a byte a second
    assert (m.chunks, m.found, m.tried) == (0, 8, 0)
    assert m.limit == _lib.LIMIT_SLOWER
    # Half of it is worth it where all of it is not: a state is loaded once.
    m = stage(chunk_ns=10**12, dram_speed=1, bytes_max=1 << 40)
    assert m.found == 8 and m.limit in (_lib.LIMIT_NONE, _lib.LIMIT_SLOWER)
    m = stage(bytes_max=size - 1)
    assert (m.chunks, m.found, m.tried) == (0, 8, 8)
    assert m.limit == _lib.LIMIT_BYTES and m.tried_bytes == size
    assert stage(bytes_max=size).chunks == 8
    m = stage(tiers=2)  # of the disk only
    assert (m.chunks, m.found, m.limit) == (0, 8, _lib.LIMIT_TIER)
    assert stage(tiers=1).chunks == 8
    assert stage(member=b"of no cluster").chunks == 8
    for name in (b"", b"x" * 64):
        with pytest.raises(_lib.LarderError) as caught:
            stage(member=name)
        assert caught.value.status == _lib.E_INVALID
    with pytest.raises(_lib.LarderError) as caught:
        params = _lib.StageParams(tiers=1)
        params.field_mask = 128
        space.stage(rules, data, 8, MS, params)
    assert caught.value.status == _lib.E_UNSUPPORTED
