"""What the tests with real vLLM share: a node, engines that use it, prompts,
and a hand in the store.

    with rig.node(folder) as node:
        with rig.engine("0.32.0", "dense", node.url()) as engine:
            cold = engine.ask_one(rig.prompt(1, 2000))
            store = rig.Store(node.url(), engine)
        with rig.engine("0.32.0", "dense", node.url("tcp")) as engine:
            warm = rig.hit(engine, rig.prompt(1, 2000), rig.whole(1999, 256))
            rig.check_same(warm, cold)

Run by any Python that has pytest; the engines are child processes that run
with the Python of build/vllm-VERSION (scripts/vllm-env). $LARDER_BUILD says
which build of the library and the program is tested (build/release).
"""
import contextlib
import ctypes
import functools
import os
import pathlib
import random
import sys
import tempfile
from array import array
from ctypes import (POINTER, Structure, byref, c_char_p, c_int, c_size_t,
                    c_uint16, c_uint32, c_uint64, c_void_p)

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build/release"))
PROGRAM = BUILD / "bin/larder"
LIBRARY = BUILD / "lib/liblarder.so"
# Before larder_kv is imported: it opens the library that this names.
os.environ["LARDER_LIBRARY"] = str(LIBRARY)
os.environ["LARDER_PROGRAM"] = str(PROGRAM)
for _folder in (ROOT / "python", ROOT / "tests/e2e", HERE):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import daemon
import models
from engine_run import EXACT, EXACT_NEXT, Engine, EngineDied, EngineError
from larder_kv import _lib

__all__ = ["Engine", "EngineDied", "EngineError", "Store", "Counted", "node",
           "engine", "prompt", "check_same", "same", "fresh", "hit", "whole"]

VERSIONS = ("0.32.0", "0.29.0", "0.24.0")
LENGTH = 16384  # max_model_len of every engine here
# What a proof must not depend on: how fast this machine is just now.
PATIENT = dict(lookup_ms=20000, save_ms=20000, load_ms=60000, load="always")


def python_of(version):
    path = ROOT / f"build/vllm-{version}/bin/python"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: run scripts/vllm-env {version}")
    return path


@functools.cache
def model(version, kind, seed=1):
    """The path of a model with generated weights, made at its first use."""
    folder = ROOT / f"build/vllm-models/{version}"
    folder.mkdir(parents=True, exist_ok=True)
    return models.make_with(python_of(version), folder, kind, seed=seed)[0]


# ---- the node ----


@contextlib.contextmanager
def node(folder=None, *, clean=True, **options):
    """A `larder serve` on a socket and on a loopback port; see
    tests/e2e/daemon.py for what it can do: url("unix"|"tcp"), stop(), start(),
    kill(), signal(), log(). It ends here, or when the tests' process does.
    dirs=1 gives it an SSD tier. clean: it must end with nothing held and with
    exit code 0."""
    given = dict(dram="512M", ssd="1G")
    given.update(options)
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(
                prefix="larder-vllm-"))
        one = daemon.Daemon(str(PROGRAM), folder, **given)
        one.clean = clean
        one.start()
        try:
            yield one
        finally:
            one.end()


# ---- engines ----


class LarderEngine(Engine):
    def ask_one(self, ids, **args):
        """One prompt, which must be answered."""
        [answer] = self.generate([ids], **args)
        assert answer["error"] is None, answer
        return answer

    def larder_lines(self):
        """What the connector logged."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return [line.rstrip() for line in file if "larder: " in line]


def transfer(url, role="kv_both", **options):
    """--kv-transfer-config, as a user writes it. Options are those of the
    connector (`larder options`); None leaves one of PATIENT at its default."""
    given = {k: v for k, v in dict(PATIENT, **options).items()
             if v is not None}
    if url is not None:
        given["url"] = url
    return {"kv_connector": "LarderConnector",
            "kv_connector_module_path": "larder_kv.vllm", "kv_role": role,
            "kv_connector_extra_config": given}


def settings(kind):
    """With these the logprobs of a kind are bit-equal, whatever part of the
    prompt came from a cache (see engine_run.EXACT)."""
    if kind == "mla":  # the CPU build does not chunk its prefill
        return dict(max_num_seqs=1, max_num_batched_tokens=LENGTH)
    return dict(EXACT_NEXT if kind == "next" else EXACT)


def engine(version, kind, url=None, *, role="kv_both", options=None, seed=1,
           larder=True, threads=1, **args):
    """A real vLLM engine with the connector (larder=False: without). options
    are the connector's; args go to Engine and to vllm.LLM. Its log is
    engine.log, its own words are in what EngineError says. threads: that
    compute, None: as many as vLLM takes. These wait for each other in a loop,
    many times a step: where others need the cores, two are a hundred times
    slower than one."""
    given = dict(settings(kind), max_model_len=LENGTH)
    given.update(args)
    if threads is not None:
        given["env"] = dict(given.get("env") or {},
                            OMP_NUM_THREADS=str(threads))
    if larder:
        given.setdefault("kv_transfer_config",
                         transfer(url, role, **(options or {})))
    return LarderEngine(python_of(version), model(version, kind, seed),
                        path=[ROOT / "python"], **given)


def fresh(one):
    """Nothing is left of what the engine computed: its prefix cache is empty
    and all its KV memory is overwritten."""
    assert one.reset_prefix_cache(), "blocks are still held"
    assert one.scribble() > 0


class Counted:
    """vLLM's own counters of what happened inside `with`: queries (tokens
    that the connector was asked for), external (of these: hits), local (hits
    of the engine's own cache), computed (prompt tokens that were prefilled),
    sources (of external, by tier; None: this vLLM does not count that)."""

    NAMES = {"queries": "vllm:external_prefix_cache_queries",
             "external": "vllm:external_prefix_cache_hits",
             "local": "vllm:prefix_cache_hits",
             "prompt": "vllm:prompt_tokens"}
    SOURCE = 'vllm:prompt_tokens_cached_by_source{"source": "%s"}'
    SOURCES = ("host", "disk", "p2p", "external_unspecified")

    def __init__(self, one):
        self._engine = one

    def _read(self):
        counters = self._engine.counters()
        self._tells = self.SOURCE % "host" in counters
        return {k: counters.get(v, 0) for k, v in [
            *self.NAMES.items(),
            *((source, self.SOURCE % source) for source in self.SOURCES)]}

    def __enter__(self):
        self._before = self._read()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            found = {name: int(value - self._before[name])
                     for name, value in self._read().items()}
            for name in self.NAMES:
                setattr(self, name, found[name])
            self.computed = self.prompt - self.external - self.local
            self.sources = {name: found[name] for name in self.SOURCES
                            if found[name]} if self._tells else None


def hit(one, ids, wanted, source=None, **args):
    """The answer to a prompt of which `wanted` tokens come from Larder, and
    none from what the engine itself had. Checked by vLLM's own counters.
    source: the tier that all of it comes from, in vLLM's words."""
    fresh(one)
    with Counted(one) as counted:
        answer = one.ask_one(ids, **args)
    assert counted.external == wanted, one.larder_lines()
    if source is not None and counted.sources is not None:
        assert counted.sources == {source: wanted}
    assert counted.local == 0
    assert counted.computed == len(ids) - wanted
    assert answer["cached"] == wanted
    return answer


# ---- prompts and answers ----


def prompt(seed, tokens):
    """Token ids that depend on the seed only; a shorter one is a prefix of a
    longer one."""
    draw = random.Random(f"prompt {seed}")
    return [draw.randrange(3, models.VOCABULARY) for _ in range(tokens)]


def whole(tokens, size):
    """The largest multiple of size that is not above tokens. What may be
    loaded of a prompt of n tokens is whole(n - 1, chunk)."""
    return tokens // size * size


def same(one, other):
    """Whether two answers are the same, bit by bit."""
    return (one["tokens"] == other["tokens"]
            and one["logprobs"] == other["logprobs"])


def check_same(one, other):
    assert one["tokens"] == other["tokens"]
    assert one["logprobs"] == other["logprobs"]


# ---- the store ----


class Iovec(Structure):
    _fields_ = [("base", c_void_p), ("bytes", c_size_t)]


class Item(Structure):
    _fields_ = [("key", c_char_p), ("parent", c_char_p), ("depth", c_uint32),
                ("group", c_uint16), ("shard", c_uint16),
                ("iov", POINTER(Iovec)), ("iov_count", c_uint32),
                ("flags", c_uint32), ("ttl_ms", c_uint32), ("status", c_int),
                ("cause", c_int), ("length", c_size_t)]


class OpParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("timeout_ms", c_uint32),
                ("flags", c_uint32), ("user", c_void_p)]


PUT, GET, EXISTS, REMOVE = 0, 1, 2, 3


class Store:
    """The space of an engine's model, opened beside the engine. about is what
    the engine says of it: Store(url, engine), or Store(url, about) with
    engine.ask("inside", "space") taken before the engine ended."""

    def __init__(self, url, about):
        if isinstance(about, Engine):
            about = about.ask("inside", "space")
        self.about = about
        self.chunk_tokens = about["chunk_tokens"]
        self.groups = len(about["groups"])
        self.shards = about["shards"]
        self._node = _lib.Node(url, lambda *_: None)
        self._space = self._node.space(about["descriptor"].encode(),
                                       self.shards, self.chunk_tokens,
                                       chunk_bytes=about["chunk_bytes"])
        self._run = _lib.library().larder_run
        self._run.argtypes = [c_void_p, c_int, POINTER(Item), c_size_t,
                              POINTER(OpParams)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._space.close()
        self._node.close()

    def stats(self):
        """The node's numbers for this tenant: larder_stats_t."""
        return self._node.stats()

    def flush(self):
        """Until all that was saved is on disk."""
        self._node.flush(1, 60000)

    def reset(self):
        self._space.reset()

    def seal(self, data):
        return self._space.seal(data)

    def keys(self, ids):
        """The keys of a plain prompt's chunks (no adapter, no salt)."""
        keys = _lib.Keys()
        self._space.chain(array("I", ids), keys)
        return [keys.data(i, i + 1) for i in range(keys.count)]

    def _one(self, op, keys, chunk, group, shard, buffer=None):
        item = Item(key=keys[chunk], parent=keys[chunk - 1] if chunk else None,
                    depth=chunk, group=group, shard=shard)
        if buffer is not None:
            iov = Iovec(ctypes.addressof(buffer), len(buffer))
            item.iov, item.iov_count = ctypes.pointer(iov), 1
        params = OpParams(1, 10000)
        _lib.check(self._run(self._space._handle, op, byref(item), 1,
                             byref(params)))
        if item.status < 0:
            raise _lib.LarderError(item.status,
                                   _lib.status_text(item.status))
        return item

    def has(self, ids, chunk, group=0, shard=0):
        """Bytes of a chunk's shard; 0: it is not there."""
        item = self._one(EXISTS, self.keys(ids), chunk, group, shard)
        return item.length if item.status == _lib.OK else 0

    def get(self, ids, chunk, group=0, shard=0):
        """The bytes of a chunk's shard; None: it is not there."""
        size = self.has(ids, chunk, group, shard)
        if size == 0:
            return None
        buffer = ctypes.create_string_buffer(size)
        item = self._one(GET, self.keys(ids), chunk, group, shard, buffer)
        return buffer.raw[:item.length] if item.status == _lib.OK else None

    def remove(self, ids, chunk, group=0):
        """All shards of it: on a disk each is for itself."""
        for shard in range(self.shards):
            self._one(REMOVE, self.keys(ids), chunk, group, shard)

    def put(self, ids, chunk, data, group=0, shard=0):
        """Stores it in the place of what is there; other shards stay."""
        held = {i: self.get(ids, chunk, group, i) for i in range(self.shards)}
        held[shard] = data
        self.remove(ids, chunk, group)
        for i, one in held.items():
            if one is not None:
                buffer = (ctypes.c_uint8 * len(one)).from_buffer_copy(one)
                item = self._one(PUT, self.keys(ids), chunk, group, i, buffer)
                assert item.status == _lib.OK, _lib.status_text(item.status)

    def flip(self, ids, chunk, group=0, shard=0, at=0.5):
        """Turns one sign bit in a chunk's shard: that of the number that lies
        `at` this part of it. Done twice, it is as it was."""
        data = bytearray(self.get(ids, chunk, group, shard))
        # The last byte of four has the sign of a float, and of a bfloat16.
        data[whole(int(at * len(data)), 4) + 3] ^= 0x80
        self.put(ids, chunk, bytes(data), group, shard)

    @contextlib.contextmanager
    def flipped(self, ids, chunk, group=0, shard=0, at=0.5):
        self.flip(ids, chunk, group, shard, at)
        try:
            yield
        finally:
            self.flip(ids, chunk, group, shard, at)

    def pages(self, ids):
        """{(chunk, group, shard): bytes} of all that is stored of a prompt."""
        found = {}
        for chunk in range(len(ids) // self.chunk_tokens):
            for group in range(self.groups):
                for shard in range(self.shards):
                    data = self.get(ids, chunk, group, shard)
                    if data is not None:
                        found[chunk, group, shard] = data
        return found
