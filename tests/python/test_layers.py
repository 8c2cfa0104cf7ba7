"""Loads layer by layer: when they are made so, and what becomes of them, on a
real node. The GPU is the stand-in for the driver that tests/gpu has, where the
build has one: it does everything as late as it may."""
import ctypes
import threading
from array import array
from types import SimpleNamespace

import pytest

from conftest import BUILD
from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import layers as loads
from larder_kv.vllm import layers
from test_lib import tokens_of

STANDIN = BUILD / "lib/liblarder_cuda_standin.so"
NVRTC = BUILD / "lib/liblarder_nvrtc_standin.so"
LAYERS, CHUNK, PAGE, CHUNKS = 6, 16, 4096, 70
BLOCKS = 2 * CHUNKS + 1

# ---- where ----


def config_of(**changed):
    given = dict(v2=False, ranks=1, ahead=False, drafts=None, full=False)
    given.update(changed)
    mode = SimpleNamespace(has_full_cudagraphs=lambda: given["full"])
    return SimpleNamespace(
        use_v2_model_runner=given["v2"],
        parallel_config=SimpleNamespace(world_size=given["ranks"]),
        scheduler_config=SimpleNamespace(async_scheduling=given["ahead"]),
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
        speculative_config=given["drafts"])


def refusal(rules=(_lib.RULE_ALL,), groups=None, url="unix:/s", cuda=True,
            **changed):
    described = SimpleNamespace(
        groups=[SimpleNamespace(rule=rule) for rule in rules])
    kv = SimpleNamespace(kv_cache_groups=[None] * (groups or len(rules)))
    return layers.refusal(config_of(**changed), kv, described, url, cuda)


@pytest.mark.parametrize("given, word", [
    ({}, ""),
    ({"cuda": False}, "not on a GPU"),
    ({"rules": (0, 0)}, "several"),
    ({"rules": (_lib.RULE_TRAILING,)}, "window"),
    ({"groups": 2}, "several"),
    ({"url": "tcp://a:1"}, "shared memory"),
    ({"v2": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ({"ahead": True}, "--no-async-scheduling"),
    ({"ranks": 2}, "ranks"),
    ({"drafts": object()}, "speculative"),
    ({"full": True}, "cudagraph_mode=PIECEWISE"),
])
def test_where(given, word, caplog):
    why = refusal(**given)
    assert word in why and bool(why) == bool(word)
    with caplog.at_level("WARNING", "larder"):
        assert loads.wanted(Options(), why, True) == 0
        assert not caplog.records  # it was not asked for
        asked = Options({"load_layers": 8})
        assert loads.wanted(asked, why, False) == (0 if why else 8)
        assert loads.wanted(asked, why, True) == (0 if why else 8)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == bool(why) and all(why in line for line in lines)


# ---- the scheduler's side ----


def step_of(*ids):
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(ids, 1))


class Pool:
    """vLLM's prefix cache."""

    def __init__(self):
        self.gone = set()

    def evict_blocks(self, blocks):
        self.gone |= blocks


def claim(claims, who, *blocks):
    move = SimpleNamespace(layered=False)
    claims.claim(who, move, [0, *blocks])
    assert move.layered and claims.alone() and not claims.wants("z")


@pytest.fixture
def claims():
    one = layers.Claims()
    one.pool = Pool()
    assert not one.wants("a")
    one.on = True
    return one


def test_claims(claims):
    who = object()
    assert claims.wants("a") and not claims.alone()
    claim(claims, who, 5, 6)
    assert not claims.unseen()
    claims.step(step_of("a"))
    assert claims.unseen() and not claims.alone()
    assert claims.over(None) == (who, False)
    assert not claims.unseen() and claims.over({5}) == (None, False)


def test_claims_only_alone(claims):
    claims.step(step_of("a"))
    assert not claims.wants("b") and claims.wants("a")
    claims.gone("a")
    assert claims.wants("b")
    claims.begins("c")  # in the same step, before it
    assert not claims.wants("b")
    claims.step(step_of("c"))
    assert not claims.wants("b")
    claims.step(step_of())
    assert claims.wants("b")


def test_claims_that_fail(claims):
    who = object()
    claim(claims, who, 5, 6, 8)
    claims.step(step_of("b"))
    assert claims.over({7}) == (who, False)  # another load's
    assert not claims.pool.gone
    claims.gone("b")
    claim(claims, who, 5, 6, 8)
    claims.step(step_of("b"))
    assert claims.over({6}) == (who, True)
    assert claims.pool.gone == {5, 6, 8}  # nobody takes them for a hit
    claims.gone("b")
    assert not claims.wants("c")  # for a while
    claims._pause = 0
    assert claims.wants("c")
    claims.pool = None
    assert not claims.wants("c")


# ---- a worker's side ----


class Cuda:
    """The stand-in, as an engine would use it."""

    def __init__(self):
        self.lib = lib = ctypes.CDLL(str(STANDIN))
        lib.standin_see.restype = ctypes.c_void_p
        lib.standin_see.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        lib.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        lib.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        self.context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert lib.cuInit(0) == 0
        assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(self.context),
                                            0) == 0
        self.run("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1,
                 0)

    def run(self, name, *args):
        was = ctypes.c_void_p()
        assert self.lib.cuCtxPushCurrent_v2(self.context) == 0
        assert getattr(self.lib, name)(*args) == 0, name
        assert self.lib.cuCtxPopCurrent_v2(ctypes.byref(was)) == 0

    def memory(self, size):
        at = ctypes.c_uint64()
        self.run("cuMemAlloc_v2", ctypes.byref(at), size)
        return at.value

    def end(self):
        self.run("cuStreamSynchronize", self.stream)
        self.run("cuStreamDestroy_v2", self.stream)
        assert self.lib.cuDevicePrimaryCtxRelease_v2(0) == 0


class Rig:
    """A worker's loads, and the pages of an engine with one group."""

    def __init__(self, daemon, monkeypatch):
        self.cuda = Cuda()
        self.size = LAYERS * BLOCKS * PAGE
        self.at = self.cuda.memory(self.size)
        seen = self.cuda.lib.standin_see(self.at, self.size)
        self.seen = (ctypes.c_uint8 * self.size).from_address(seen)
        self.gpu = _lib.Gpu(0, str(NVRTC))
        self.node = _lib.Node(f"unix:{daemon.socket}")
        self.gpu.attach(self.node)
        self.space = self.node.space(b"layers", 1, CHUNK)
        own = [_lib.Layer(b"layer", 0, i * BLOCKS * PAGE, PAGE, PAGE)
               for i in range(LAYERS)]
        self.layout = _lib.Layout(
            CHUNK, [_lib.Group(_lib.RULE_ALL, CHUNK, 0,
                               (_lib.Layer * LAYERS)(*own), LAYERS)],
            [_lib.Region(b"memory", self.at, self.size)], BLOCKS, self.gpu)
        # Two of the layout's layers for each of the engine's, as K and V.
        self.names = [f"layer {i // 2}" for i in range(LAYERS)]
        self.keys = _lib.Keys()
        self.space.chain(tokens_of(1, CHUNKS * CHUNK), self.keys)
        monkeypatch.setattr(loads, "_stream",
                            lambda: self.cuda.stream.value)
        self.counted = {}
        counts = SimpleNamespace(add=self._add, time=lambda *_: None)
        self.hold = threading.Event()
        self.hold.set()
        self.loads = loads.Loads(Options(), counts, self.space, self.layout,
                                 self._request, 3, self.names)

    def _add(self, name, by=1):
        self.counted[name] = self.counted.get(name, 0) + by

    def _request(self, move, timeout_ms):
        if move.after is not None:
            raise move.after
        ids = move.tables[0][1]
        table = (_lib.Table * 1)((ids.buffer_info()[0], 0, len(ids)))
        self.kept = ids, table
        return _lib.Move(keys=self.keys.data(0, CHUNKS), tables=table,
                         begin=0, end=CHUNKS * CHUNK, timeout_ms=timeout_ms)

    def move(self, ids, after=None):
        return SimpleNamespace(request_id="r", tables=[(0, array("I", ids))],
                               after=after)

    def save(self):
        for i in range(0, self.size, 64):
            self.seen[i] = i // 64 % 251
        move = self._request(self.move(range(1, CHUNKS + 1)), 20000)
        assert self.space.save(self.layout, move) == _lib.OK
        assert move.shards == CHUNKS

    def page(self, layer, block):
        at = (layer * BLOCKS + block) * PAGE
        return bytes(self.seen[at:at + PAGE])

    def forward(self, names=None):
        for name in names or ["layer 0", "layer 1", "layer 2", "another"]:
            self.loads.wait(name)

    def close(self):
        assert self.loads.close(20)
        self.layout.close()
        self.space.close()
        self.node.close()
        self.gpu.close()
        self.cuda.end()


TARGET = range(CHUNKS + 1, 2 * CHUNKS + 1)


@pytest.fixture
def rig(daemon, monkeypatch):
    if not STANDIN.exists() or not NVRTC.exists():
        pytest.skip(f"{BUILD} has no stand-in for CUDA: it has no tests")
    monkeypatch.setenv("LARDER_CUDA", str(STANDIN))
    monkeypatch.setenv("LARDER_NVRTC", str(NVRTC))
    one = Rig(daemon, monkeypatch)
    yield one
    one.close()


def test_loads(rig):
    rig.save()
    for _ in range(3):
        for block in TARGET:
            rig.seen[block * PAGE] = 255
        rig.loads.start(rig.move(TARGET))
        rig.forward()
        assert rig.loads.finish()
        for layer in range(LAYERS):
            for source, block in zip(range(1, CHUNKS + 1), TARGET):
                assert rig.page(layer, block) == rig.page(layer, source)
        assert rig.loads.bad_blocks() == set()
    rig.forward()  # a step without a load
    assert rig.loads.finish()
    assert rig.counted["loads_layered"] == rig.counted["loads"] == 3
    assert rig.counted["loaded_bytes"] == 3 * CHUNKS * LAYERS * PAGE


def failed(rig, word, caplog):
    """It is said once, with all of its blocks but the null block."""
    assert not rig.loads.finish()
    assert rig.loads.finish()
    assert rig.loads.bad_blocks() == set(TARGET)
    assert rig.loads.bad_blocks() == set()
    assert rig.counted.get("loads_layered") is None
    assert word in caplog.text
    caplog.clear()


def test_nothing_there(rig, caplog):
    rig.loads.start(rig.move(TARGET))
    rig.forward()
    failed(rig, "absent", caplog)


def test_no_request(rig, caplog):
    rig.loads.start(rig.move([*TARGET, _lib.NULL_BLOCK],
                             ValueError("no event")))
    rig.forward()
    failed(rig, "no event", caplog)


def test_node_is_killed(rig, daemon, caplog):
    rig.save()
    daemon.kill()
    rig.loads.start(rig.move(TARGET))
    rig.forward()
    failed(rig, "failed after", caplog)


def test_forward_does_not_wait(rig, caplog):
    """As with a full CUDA graph: nobody knows what it computed with."""
    rig.save()
    rig.loads.start(rig.move(TARGET))
    failed(rig, "did not wait", caplog)
    rig.loads.start(rig.move(TARGET))
    rig.forward(["layer 0", "layer 2"])
    failed(rig, "did not wait", caplog)
    rig.loads.start(rig.move(TARGET))
    rig.forward()
    assert rig.loads.finish() and rig.loads.bad_blocks() == set()


def test_driver_fails(rig, caplog):
    """Whichever call it is: a load that is well, or one that is told."""
    rig.save()
    wrong = 0
    for n in range(1, 90, 4):
        rig.cuda.lib.standin_fail_at(ctypes.c_uint64(n), 700, 0)
        rig.loads.start(rig.move(TARGET))
        rig.forward()
        done = rig.loads.finish()
        rig.cuda.lib.standin_fail_at(ctypes.c_uint64(0), 0, 0)
        assert rig.loads.bad_blocks() == (set() if done else set(TARGET))
        wrong += not done
        rig.loads.start(rig.move(TARGET))
        rig.forward()
        assert rig.loads.finish()
    assert wrong > 0
