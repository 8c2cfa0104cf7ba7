"""KV that vLLM and SGLang share (pages=shared), without either: chunks that are
written through layouts of pages as vLLM has them on a GPU, read through
SGLang's backend, and the reverse, byte for byte."""
import contextlib
import ctypes
import hashlib
import json
import os
import random
import struct

import pytest

import test_sglang
from daemon import Daemon
from larder_kv import _lib
from larder_kv.engine import shared as naming
from sglang_parts import LAYERS, WIDTH, HostPool, Indices
from test_sglang import LAYOUTS, flip
from vllm_pages import Engine

# Fixtures of that file.
args, sglang = test_sglang.args, test_sglang.sglang
shared, make = test_sglang.shared, test_sglang.make

PAGE, EACH = 4, 4  # tokens in a page of SGLang's, and pages in a chunk
CHUNK = PAGE * EACH


@pytest.fixture
def rnd(request):
    return random.Random(request.node.name)


def tokens_of(count, seed=0):
    return random.Random(f"{seed}").choices(range(50000), k=count)


def hashes(tokens, seed=b"", page=PAGE):
    """SGLang's page hashes. seed: of a namespace."""
    found = []
    for at in range(0, len(tokens) - page + 1, page):
        seed = hashlib.sha256(
            seed + struct.pack(f"<{page}I", *tokens[at:at + page])).digest()
        found.append(seed.hex())
    return found


def content(rnd, tokens, heads, layers=LAYERS, width=WIDTH):
    """{(part, layer, token, head): bytes}"""
    return {(part, layer, token, head): rnd.randbytes(width)
            for part in range(2) for layer in range(layers)
            for token in range(tokens) for head in range(heads)}


@pytest.fixture
def engine(shared):
    made = []

    def one(backend, block=2, order="NHD", **how):
        made.append(Engine(backend.node, backend._pools["kv"].descriptor,
                           CHUNK, PAGE, LAYERS, 2, WIDTH, block, order, **how))
        return made[-1]

    yield one
    for each in made:
        each.close()


def together(make, pool=None, **how):
    return make(pool or HostPool(64),
                **dict(pages="shared", chunk=CHUNK) | how)


def at(*pages):
    return Indices(page * PAGE + i for page in pages for i in range(PAGE))


def put(pool, pages, rows, heads=2, first=0):
    """Into pages of SGLang's host memory, from this page of rows on."""
    for i, page in enumerate(pages):
        for part in range(2):
            for layer in range(LAYERS):
                for token in range(PAGE):
                    row = b"".join(
                        rows[part, layer, (first + i) * PAGE + token, head]
                        for head in range(heads))
                    where = pool._row(part, page * PAGE + token, layer)
                    pool.kv_buffer[where:where + len(row)] = row


def got(pool, pages, heads=2, first=0):
    """The reverse."""
    found = {}
    for i, page in enumerate(pages):
        for (part, layer, token), row in pool.read(page * PAGE).items():
            for head in range(heads):
                found[part, layer, (first + i) * PAGE + token, head] = (
                    row[head * WIDTH:(head + 1) * WIDTH])
    return found


def about(sglang, keys):
    return sglang.HiCacheStorageExtraInfo(prefix_keys=keys)


def saved(backend, pool, keys, rows, pages, info):
    put(pool, pages, rows, first=len(info.prefix_keys))
    assert backend.batch_set_v1(keys, at(*pages), info) == [True] * len(keys)
    # A save by shared memory waits for no answer. With the next request of its
    # session the node knows of it, and others see it.
    backend.batch_exists(keys[:1])


def loads(backend, pool, rows, keys, pages, info):
    """All of them, and right."""
    ctypes.memset(pool.kv_buffer, 0, len(pool.kv_buffer))
    good = backend.batch_get_v1(keys, at(*pages), info)
    first = len(info.prefix_keys)
    count = good.index(False) if False in good else len(good)
    found = got(pool, pages[:count], first=first)
    assert found == {name: rows[name] for name in found}
    return count


# ---- between the engines ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["NHD", "HND", "interleaved"])
def test_vllm_saves_and_sglang_loads(make, sglang, engine, rnd, layout, order):
    """All of it; and, of another prompt's place, parts of chunks."""
    pool = HostPool(32, layout)
    backend = together(make, pool)
    theirs = engine(backend, rnd.choice([1, 2, 4, 8, 16]), order, blocks=90)
    tokens = tokens_of(5 * CHUNK + 7, rnd.random())
    rows = content(rnd, len(tokens), 2)
    table = rnd.sample(range(1, 90), 5 * CHUNK // theirs.block)
    theirs.write(table, rows, 5 * CHUNK)
    theirs.save(tokens, table)
    keys = hashes(tokens)
    assert backend.batch_exists(keys) == 5 * EACH
    pages = rnd.sample(range(pool.pages), 5 * EACH)
    root = about(sglang, [])
    assert loads(backend, pool, rows, keys[:5 * EACH], pages, root) == 5 * EACH
    for first in range(1, 2 * EACH):
        info, rest = about(sglang, keys[:first]), keys[first:]
        assert backend.batch_exists(rest, info) == 5 * EACH - first
        for behind in range(first + 1, 5 * EACH):
            some = keys[first:behind]
            assert loads(backend, pool, rows, some, pages[:len(some)],
                         info) == len(some)
        # As a process that has looked nothing up: chunks whose end it sees.
        backend._pools["kv"]._known.clear()
        assert loads(backend, pool, rows, keys[first:4 * EACH + 1],
                     pages[:4 * EACH + 1 - first], info) == 4 * EACH - first


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["NHD", "HND", "interleaved"])
def test_sglang_saves_and_vllm_loads(make, sglang, engine, rnd, layout, order):
    """However the prompt is cut into calls."""
    pool = HostPool(64, layout)
    backend = together(make, pool)
    for _ in range(4):
        theirs = engine(backend, rnd.choice([1, 2, 4, 8, 16]), order,
                        blocks=200)
        tokens = tokens_of(4 * CHUNK + 3 * PAGE, rnd.random())
        rows, keys = content(rnd, len(tokens), 2), hashes(tokens)
        first = 0
        while first < len(keys):
            count = min(rnd.randint(1, 9), len(keys) - first)
            pages = rnd.sample(range(pool.pages), count)
            saved(backend, pool, keys[first:first + count], rows, pages,
                  about(sglang, keys[:first]))
            first += count
        # All that is behind the last chunk, too, for SGLang itself.
        assert backend.batch_exists(keys) == len(keys)
        assert loads(backend, pool, rows, keys, range(len(keys)),
                     about(sglang, [])) == len(keys)
        assert theirs.match(tokens) == 4
        table = rnd.sample(range(1, 200), 4 * CHUNK // theirs.block)
        assert theirs.load(tokens, table) == _lib.OK
        found = theirs.read(table, 4 * CHUNK)
        assert found == {name: rows[name] for name in found}


def test_prompts_that_part_inside_a_chunk(make, sglang, engine, rnd):
    """The second one's chunk has its first pages from the first one's."""
    pool = HostPool(64)
    backend = together(make, pool)
    theirs = engine(backend, blocks=100)
    first = tokens_of(2 * CHUNK, "first")
    for cut in range(1, EACH):
        part = EACH + cut  # page
        other = first[:part * PAGE] + tokens_of(2 * CHUNK, cut)
        other = other[:3 * CHUNK]
        rows, more = content(rnd, 2 * CHUNK, 2), content(rnd, 3 * CHUNK, 2)
        more |= {name: row for name, row in rows.items()
                 if name[2] < part * PAGE}
        if cut == 1:
            common = rows
            saved(backend, pool, hashes(first), rows, range(2 * EACH),
                  about(sglang, []))
        more |= {name: row for name, row in common.items()
                 if name[2] < part * PAGE}
        keys = hashes(other)
        saved(backend, pool, keys[part:], more,
              range(3 * EACH - part), about(sglang, keys[:part]))
        assert theirs.match(other) == 3
        table = rnd.sample(range(1, 100), 3 * CHUNK // 2)
        assert theirs.load(other, table) == _lib.OK
        found = theirs.read(table, 3 * CHUNK)
        assert found == {name: more[name] for name in found}


def test_what_cannot_be_read_back(make, sglang, engine, rnd):
    """A chunk whose first pages are nowhere is not saved, and what comes after
    it is: nothing wrong is found, and less."""
    pool = HostPool(16)
    backend = together(make, pool)
    theirs = engine(backend)
    tokens = tokens_of(3 * CHUNK)
    rows, keys = content(rnd, len(tokens), 2), hashes(tokens)
    saved(backend, pool, keys[2:], rows, range(len(keys) - 2),
          about(sglang, keys[:2]))
    assert theirs.match(tokens) == 0
    assert backend.batch_exists(keys) == 0
    # Its other pages lie by themselves.
    assert backend.batch_exists(keys[2:], about(sglang, keys[:2])) == (
        len(keys) - 2)
    assert loads(backend, pool, rows, keys[2:], range(len(keys) - 2),
                 about(sglang, keys[:2])) == len(keys) - 2


def test_between_tensor_parallel_sizes(make, sglang, engine, rnd):
    """Two ranks of SGLang, and two of vLLM, with a head each."""
    tokens = tokens_of(3 * CHUNK)
    rows, keys = content(rnd, len(tokens), 2), hashes(tokens)
    pools = [HostPool(16, heads=1) for _ in range(2)]
    ranks = [together(make, pools[i], tp=(i, 2)) for i in range(2)]
    info = about(sglang, [])
    for head, (pool, backend) in enumerate(zip(pools, ranks)):
        assert backend.batch_exists(keys) == 0
        put(pool, range(3 * EACH), {
            (*name[:3], 0): row for name, row in rows.items()
            if name[3] == head}, heads=1)
        assert all(backend.batch_set_v1(keys, at(*range(3 * EACH)), info))
        backend.batch_exists(keys)  # with this others see it
    assert ranks[0].batch_exists(keys) == 3 * EACH
    found = {}
    for rank in range(2):
        theirs = engine(ranks[0], tp=(rank, 2))
        assert theirs.match(tokens) == 3
        table = rnd.sample(range(1, 40), 3 * CHUNK // 2)
        assert theirs.load(tokens, table) == _lib.OK
        found |= theirs.read(table, 3 * CHUNK)
    assert found == rows


def test_a_flipped_byte(make, sglang, engine, rnd, shared):
    pool = HostPool(32)
    backend = together(make, pool)
    theirs = engine(backend)
    tokens = tokens_of(4 * CHUNK)
    rows, keys = content(rnd, len(tokens), 2), hashes(tokens)
    saved(backend, pool, keys, rows, range(len(keys)), about(sglang, []))
    assert theirs.match(tokens) == 4
    needle = rows[1, 1, 2 * CHUNK + 5, 1]
    pool.kv_buffer[:] = bytes(len(pool.kv_buffer))
    assert flip(shared.pid, needle) == 1
    assert loads(backend, pool, rows, keys, range(len(keys)),
                 about(sglang, [])) in (EACH, 2 * EACH)
    assert theirs.load(tokens, range(1, 33)) == _lib.MISS


def test_tenants_are_apart(make, sglang, engine, tmp_path, rnd):
    """Whose keys are equal."""
    node = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "tenants",
                  config="[tenant b]\nuids = any\n")
    with contextlib.ExitStack() as stack:
        stack.callback(node.end)
        node.start()
        pool = HostPool(8)
        one = together(make, pool, url=node.url())
        other = together(make, url=node.url(tenant="b"))
        tokens = tokens_of(CHUNK)
        keys = hashes(tokens)
        saved(one, pool, keys, content(rnd, CHUNK, 2), range(EACH),
              about(sglang, []))
        mine, theirs = engine(one), engine(other)
        assert one.batch_exists(keys) == EACH and mine.match(tokens) == 1
        assert other.batch_exists(keys) == 0 and theirs.match(tokens) == 0
        for each in mine, theirs, one, other:
            each.close()


def test_salts_and_adapters(make, sglang, engine, rnd):
    pool = HostPool(32)
    backend = together(make, pool)
    theirs = engine(backend)
    tokens = tokens_of(2 * CHUNK)
    rows = content(rnd, len(tokens), 2)
    table = range(1, 1 + CHUNK)
    theirs.write(table, rows, len(tokens))
    theirs.save(tokens, table, [b"a salt of vLLM's", b""])
    theirs.save(tokens, table, [b"an adapter", b"an adapter"])
    assert theirs.match(tokens) == 0
    assert theirs.match(tokens, [b"a salt of vLLM's", b""]) == 2
    assert theirs.match(tokens, [b"an adapter", b"another"]) == 1
    seed = hashlib.sha256(b"sglang-cache-namespace-v1\0\1" + struct.pack(
        "<Q", 16) + b"a salt of vLLM's").digest()
    for keys in hashes(tokens), hashes(tokens, seed):
        assert backend.batch_exists(keys) == 0
    salted = hashes(tokens, seed)
    saved(backend, pool, salted, rows, range(2 * EACH), about(sglang, []))
    assert backend.batch_exists(salted) == 2 * EACH
    assert backend.batch_exists(hashes(tokens)) == 0
    assert theirs.match(tokens) == 0


def test_what_a_restart_leaves(make, sglang, rnd):
    """Another process knows nothing of where pages lie."""
    pool = HostPool(64)
    backend = together(make, pool)
    tokens = tokens_of(10 * CHUNK + 3 * PAGE)
    rows, keys = content(rnd, len(tokens), 2), hashes(tokens)
    saved(backend, pool, keys[:30], rows, range(30), about(sglang, []))
    fresh = together(make, HostPool(64, "layer_first"))
    other = fresh.mem_pool_host
    assert fresh.batch_exists(keys) == 30
    assert loads(fresh, other, rows, keys[:30], range(30),
                 about(sglang, [])) == 30
    # It goes on where the first one ended, inside a chunk.
    saved(fresh, other, keys[30:], rows, range(13), about(sglang, keys[:30]))
    assert backend.batch_exists(keys) == 43
    assert loads(backend, pool, rows, keys, range(43), about(sglang, [])) == 43
    assert backend.clear() is True
    assert fresh.batch_exists(keys) == 0


# ---- names ----


def test_without_prefix_keys(make, sglang, caplog):
    backend = together(make)
    keys = hashes(tokens_of(CHUNK))
    assert backend.batch_set_v1(keys, at(*range(4))) == [False] * 4
    assert backend.batch_get_v1(keys, at(*range(4))) == [False] * 4
    assert "hicache_storage_pass_prefix_keys" in caplog.text


@pytest.mark.parametrize("change, text", [
    (dict(v1=0), "interface_v1"),
    (dict(chunk=18), "no multiple of SGLang's page"),
    (dict(pools=[("mamba", test_sglang.States(8))]), "a pool mamba"),
    (dict(mla=True), "latent attention")])
def test_what_is_refused(make, change, text):
    with pytest.raises(_lib.LarderError, match=text):
        make(HostPool(8), **dict(pages="shared", chunk=CHUNK) | change)


@pytest.mark.parametrize("name, value, text", [
    ("quantization", "fp8", "argument quantization"),
    ("torchao_config", "int8", "argument torchao_config"),
    ("speculative_algorithm", "EAGLE", "argument speculative"),
    ("enable_lora", True, "argument enable_lora"),
    ("kv_cache_dtype", "fp8_e4m3", "KV of type fp8_e4m3"),
    ("load_format", "dummy", "dummy"),
    ("config", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("config", {"vision_config": {"size": 4}}, "vision_config"),
    ("config", {"rope_scaling": {"type": "longrope"}}, "LongRoPE")])
def test_arguments_that_are_refused(make, args, name, value, text):
    if name == "config":
        change(args, **value)
    else:
        setattr(args, name, value)
    with pytest.raises(_lib.LarderError, match=text):
        together(make)


def change(args, **values):
    path = os.path.join(args.model_path, "config.json")
    with open(path) as file:
        found = json.load(file)
    with open(path, "w") as file:
        json.dump(found | values, file)


def name_of(make, pool=None, **how):
    backend = together(make, pool, **how)
    return (backend._pools["kv"].descriptor, backend._pools["kv"].shards,
            backend._pools["kv"].chunk_tokens)


def test_names(make, args):
    """What does not change the bytes is not in a name, and what does is."""
    first = name_of(make)
    args.attention_backend, args.served_model_name = "triton", "other"
    change(args, _name_or_path="elsewhere")
    assert name_of(make, HostPool(8, "layer_first")) == first
    assert name_of(make, HostPool(8, heads=1), tp=(1, 2)) == first
    found = {first}
    other = HostPool(8)
    other.dtype = "torch.float16"
    found.add(name_of(make, other))
    found.add(name_of(make, HostPool(8, page=2)))
    found.add(name_of(make, HostPool(8, layers=2)))
    found.add(name_of(make, chunk=2 * CHUNK))
    found.add(name_of(make, weights="others"))
    args.json_model_override_args = '{"rope_theta": 5}'
    found.add(name_of(make))
    args.json_model_override_args = "{}"
    assert name_of(make) == first
    change(args, rope_theta=5)
    assert name_of(make) in found  # the same, whoever says it
    change(args, rope_theta=10000)
    found.add(name_of(make))
    with open(os.path.join(args.model_path, "model.safetensors"),
              "r+b") as file:
        file.write(b"\xff" * 16)
    found.add(name_of(make))
    assert len(found) == 9


def test_chunks():
    for page in (1, 16, 64, 100, 256, 300):
        chunk = naming.chunk_of(page, 0)
        assert chunk % page == 0 and 256 <= chunk < 256 + page
    assert naming.chunk_of(16, 512) == 512
    with pytest.raises(_lib.LarderError, match="page_tokens is needed"):
        naming.chunk_of(0, 256)
