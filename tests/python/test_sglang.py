"""SGLang's storage backend on real nodes, against SGLang's recorded
interface."""
import contextlib
import hashlib
import inspect
import json
import mmap
import os
import pathlib
import signal
import sys
import threading
import types

import pytest

import larder_kv
import sglang_parts as parts
from daemon import Daemon, until
from larder_kv import _lib
from sglang_parts import PAGE, HostPool, Indices, RECORDED, States, Tensor


@pytest.fixture
def args(tmp_path):
    """Of a server, with a model in its place."""
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"hidden_size": 8, "num_key_value_heads": 2}')
    (folder / "model.safetensors").write_bytes(os.urandom(4096))
    return types.SimpleNamespace(
        model_path=str(folder), revision=None, dtype="bfloat16",
        kv_cache_dtype="auto", load_format="auto", served_model_name=None)


@pytest.fixture
def sglang(args, monkeypatch):
    """SGLang's storage module; what stands in is gone after the test."""
    before = set(sys.modules)
    storage = parts.install(args)
    from larder_kv.sglang import name

    monkeypatch.setattr(name, "version", lambda: "0.5.23")
    yield storage
    for one in set(sys.modules) - before:
        if one.split(".")[0] in ("sglang", "torch") or (
                one.startswith("larder_kv.sglang")):
            del sys.modules[one]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A node for all tests: each has a model, and so spaces, of its own."""
    one = Daemon(os.environ["LARDER_PROGRAM"],
                 tmp_path_factory.mktemp("shared"))
    with contextlib.ExitStack() as stack:
        stack.callback(one.end)
        yield one.start()


@pytest.fixture
def make(sglang, shared):
    """Backends, closed after the test."""
    from larder_kv.sglang import LarderStorage

    made = []

    def one(pool=None, v1=1, tp=(0, 1), mla=False, pools=(), url=None,
            pp=(0, 1), **extra):
        values = dict(
            tp_rank=tp[0], tp_size=tp[1], pp_rank=pp[0], pp_size=pp[1],
            attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla,
            enable_storage_metrics=False, is_page_first_layout=True,
            model_name="a model", dcp_size=1,
            extra_config={"backend_name": "larder", "interface_v1": v1,
                          "module_path": "x", "class_name": "y",
                          "prefetch_timeout_max": 30, "save_ms": 30000,
                          "lookup_ms": 30000, "load_ms": 30000,
                          "url": url or shared.url()} | extra)
        backend = LarderStorage(sglang.HiCacheStorageConfig(**values), {})
        made.append(backend)
        backend.register_mem_pool_host(pool or HostPool(8))
        backend.register_mem_host_pool_v2(backend.mem_pool_host, "kv")
        for name, other in pools:
            backend.register_mem_host_pool_v2(other, name)
        backend.on_host_pools_registered()
        return backend

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [backend.close() for backend in made])
        yield one


def keys_of(count, seed=0):
    return [hashlib.sha256(f"{seed} {i}".encode()).hexdigest()
            for i in range(count)]


def indices(*pages, size=PAGE):
    return Indices(page * size + i for page in pages for i in range(size))


def filled(pages, layout="page_first", seed=1, **shape):
    pool = HostPool(pages, layout, **shape)
    for page in range(pages):
        pool.fill(page * pool.page_size, lambda part, layer, token: (
            seed + 7 * page + 5 * part + 3 * layer + token) % 251 + 1)
    return pool


def save(backend, keys, *pages):
    """Saves them; others see them when this returns. (A put by shared memory
    waits for no answer.)"""
    assert backend.batch_set_v1(keys, indices(*pages)) == [True] * len(keys)
    assert all(backend._pools["kv"].exists(keys, 30000))


# ---- the interface ----


def test_every_method_is_as_it_was_recorded(sglang):
    from larder_kv.sglang import LarderStorage

    for name, wanted in RECORDED["methods"].items():
        if name not in vars(LarderStorage):
            assert name in ("get_stats",), f"{name} is SGLang's own"
            continue
        ours = [[one.name, one.default is not one.empty] for one in
                inspect.signature(getattr(LarderStorage, name))
                .parameters.values() if one.name != "self"]
        assert [one[0] for one in ours] == [one[0] for one in wanted], name
        for (arg, default), (_, theirs) in zip(ours, wanted):
            assert default or not theirs, f"{name}: {arg}"
    assert RECORDED["made_as"] and issubclass(
        LarderStorage, sglang.HiCacheStorage)
    assert not LarderStorage.__abstractmethods__


def test_pools_have_what_is_called():
    for kind, methods in RECORDED["pools"].items():
        for name, wanted in methods.items():
            if kind == "mha":
                ours = inspect.signature(getattr(HostPool, name)).parameters
                assert [one[0] for one in wanted] == list(ours)[1:], name
            assert [one[0] for one in wanted] == [
                one[0] for one in RECORDED["pools"]["mha"][name]], (kind, name)


# ---- pages ----


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct",
                                    "layer_first"])
def test_pages_come_back_in_place(make, layout):
    """More than one call's, in another order, in another process's memory."""
    count = RECORDED["batch"] + 9
    source = filled(count, layout)
    keys = keys_of(count)
    first = make(source)
    for at in range(0, count, RECORDED["batch"]):
        some = range(at, min(count, at + RECORDED["batch"]))
        save(first, [keys[i] for i in some], *some)
    assert first.batch_set_v1(keys[:2], indices(0, 1)) == [True] * 2

    target = HostPool(count, layout)
    second = make(target)
    assert second.batch_exists(keys) == count
    backwards = list(reversed(range(count)))
    for at in range(0, count, RECORDED["batch"]):
        some = keys[at:at + RECORDED["batch"]]
        to = backwards[at:at + RECORDED["batch"]]
        assert second.batch_get_v1(some, indices(*to)) == [True] * len(some)
    for i, to in enumerate(backwards):
        assert target.read(to * PAGE) == source.read(i * PAGE), i


def test_pages_come_back_as_tensors(make):
    keys = keys_of(4)
    pages = [Tensor(os.urandom(1536)) for _ in keys]
    first, second = make(v1=0), make(v1=0)
    assert first.batch_set(keys[:3], pages[:3]) is True
    assert first.set(keys[3], pages[3])
    assert first.exists(keys[3]) and first.batch_exists(keys) == 4
    into = [Tensor(bytes(1536)) for _ in keys]
    assert second.batch_get(keys, into) == into
    assert [one.bytes() for one in into] == [one.bytes() for one in pages]
    one = Tensor(bytes(1536))
    assert second.get(keys[1], one) is one and one.bytes() == pages[1].bytes()
    assert second.get(keys_of(1, "other")[0], one) is None


def test_a_page_that_is_gone(make):
    backend = make(filled(6))
    keys = keys_of(6)
    backend.batch_set_v1(keys[:3] + keys[4:], indices(0, 1, 2, 4, 5))
    assert backend.batch_exists(keys) == 3
    assert backend.batch_exists(keys[3:]) == 0
    assert backend.batch_get_v1(keys, indices(*range(6))) == [
        True, True, True, False, True, True]
    assert backend.batch_exists([]) == 0
    assert backend.batch_get_v1([], indices()) == []


def test_indices_that_do_not_fit(make, caplog):
    backend = make(filled(4))
    keys = keys_of(2)
    assert backend.batch_set_v1(keys, indices(0)) == [False] * 2
    assert backend.batch_get_v1(keys, None) == [False] * 2
    assert "2 pages of pool kv have 4 indices, not 8" in caplog.text


def test_other_keys_than_hashes(make):
    backend = make(filled(2))
    keys = [keys_of(1)[0] + ".draft", "x"]
    assert backend.batch_set_v1(keys, indices(0, 1)) == [True] * 2
    assert backend.batch_exists(keys) == 2
    assert backend.batch_exists(keys_of(1)) == 0


def test_a_whole_chain_in_one_round_trip(make):
    backend = make(tp=(1, 2), mla=True)  # this rank tells the node nothing
    writer = make(filled(128), tp=(0, 2), mla=True)
    keys = keys_of(4096)
    for at in range(0, 1024, 128):  # what the node has room for
        save(writer, keys[at:at + 128], *range(128))
    calls = backend.node.stats().client_calls
    assert backend.batch_exists(keys) == 1024
    asked = backend.node.stats().client_calls - calls
    assert asked == 2  # that of the statistics, and one


def test_a_flipped_byte_is_a_miss(make, shared):
    source, target = filled(3), HostPool(3)
    keys = keys_of(3)
    backend = make(source)
    source.kv_buffer[700:716] = needle = os.urandom(16)
    save(backend, keys, 0, 1, 2)
    reader = make(target)
    assert reader.batch_get_v1(keys, indices(0, 1, 2)) == [True] * 3
    at = 700 // (PAGE * 3 * 64)
    assert flip(shared.pid, needle) == 1
    assert reader.batch_get_v1(keys, indices(0, 1, 2)) == [
        i != at for i in range(3)]


def flip(pid, piece):
    count = 0
    for one in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(one).startswith("/memfd:"):
                with open(one, "r+b") as file, mmap.mmap(
                        file.fileno(), os.stat(one).st_size) as memory:
                    if (found := memory.find(piece)) >= 0:
                        memory[found + 5] ^= 1
                        count += 1
    return count


def test_many_threads_at_once(make):
    backend = make(filled(64))
    failed = []

    def run(number):
        keys = keys_of(16, number)
        where = indices(*range(number * 16, number * 16 + 16))
        for _ in range(20):
            good = backend.batch_set_v1(keys, where)
            if not all(good) or backend.batch_exists(keys) != 16 or not all(
                    backend.batch_get_v1(keys, where)):
                failed.append(number)

    before = [backend.mem_pool_host.read(i * PAGE) for i in range(64)]
    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert before == [backend.mem_pool_host.read(i * PAGE) for i in range(64)]


# ---- names ----


def test_two_layouts_under_one_key(make):
    """Their pages are equally large, and hold the same bytes in another
    order."""
    keys = keys_of(2)
    first = make(filled(2, "page_first"))
    save(first, keys, 0, 1)
    other = make(HostPool(2, "page_first_direct"))
    assert other.batch_exists(keys) == 0
    assert other.batch_get_v1(keys, indices(0, 1)) == [False] * 2
    sizes = [b.mem_pool_host.get_page_buffer_meta(indices(0))[1]
             for b in (first, other)]
    assert sizes[0] == sizes[1]
    source = filled(2, "page_first_direct")
    save(make(source), keys, 0, 1)
    assert other.batch_get_v1(keys, indices(0, 1)) == [True] * 2
    assert other.mem_pool_host.read(0) == source.read(0)
    assert source.kv_buffer.raw != filled(2, "page_first").kv_buffer.raw


def other_weights(args):
    (pathlib.Path(args.model_path) / "model.safetensors").write_bytes(
        os.urandom(4096))


def other_config(args):
    (pathlib.Path(args.model_path) / "config.json").write_text(
        '{"hidden_size": 8, "rope_theta": 2}')


@pytest.mark.parametrize("change", [
    other_weights, other_config,
    lambda args: setattr(args, "dtype", "float16"),
    lambda args: setattr(args, "kv_cache_dtype", "fp8_e4m3"),
    lambda args: setattr(args, "quantization", "fp8"),
    lambda args: setattr(args, "json_model_override_args", '{"a": 1}'),
    lambda args: setattr(args, "speculative_draft_model_path",
                         args.model_path)],
    ids=["weights", "config", "dtype", "kv dtype", "quantization", "override",
         "draft"])
def test_engines_that_differ_share_nothing(make, args, change):
    keys = keys_of(2)
    save(make(filled(2)), keys, 0, 1)
    assert make().batch_exists(keys) == 2
    change(args)
    assert make().batch_exists(keys) == 0


@pytest.mark.parametrize("other", [
    dict(pool=HostPool(8, page=8)), dict(pool=HostPool(8, layers=2)),
    dict(tp=(0, 2)), dict(pp=(0, 2)), dict(v1=0), dict(weights="b")],
    ids=["page", "layers", "tensor", "pipeline", "interface", "named"])
def test_pools_that_differ_share_nothing(make, other):
    keys = keys_of(2)
    save(make(filled(2)), keys, 0, 1)
    assert make(**other).batch_exists(keys) == 0
    assert make().batch_exists(keys) == 2


def test_what_people_call_the_model_is_no_part_of_the_name(make, args):
    keys = keys_of(2)
    save(make(filled(2)), keys, 0, 1)
    args.served_model_name = "something else"
    moved = pathlib.Path(args.model_path).rename(
        pathlib.Path(args.model_path).parent / "moved")
    args.model_path = str(moved)
    assert make().batch_exists(keys) == 2


def test_weights_that_cannot_be_looked_at(make, args):
    args.model_path = "somebody/something"
    with pytest.raises(_lib.LarderError, match='"weights": "NAME"'):
        make()
    make(weights="v1")


def updater():
    [found] = [module for name, module in sys.modules.items()
               if name.endswith(".weight_updater")]
    return found.WeightUpdater()


# Of those that SGLang has: neither changes what a model holds.
HARMLESS = {"init_weights_update_group", "destroy_weights_update_group",
            "receive_weights_from_distributed", "end_weight_update"}


@pytest.mark.parametrize("name", sorted(set(RECORDED["updates"]) - HARMLESS))
def test_weights_that_are_replaced_in_memory(make, name, caplog):
    """What was saved before is not loaded after it, and what is computed after
    it is not saved under the old name: until the weights have a new one."""
    old, new = keys_of(2), keys_of(2, "new")
    backend = make(filled(4))
    save(backend, old, 0, 1)
    assert getattr(updater(), name)() == (True, name)
    assert "SGLang replaces its weights" in caplog.text
    assert backend.batch_exists(old) == 0
    assert backend.batch_exists_v2(old, []).kv_hit_pages == 0
    assert backend.batch_get_v1(old, indices(0, 1)) == [False] * 2
    assert backend.batch_set_v1(new, indices(2, 3)) == [False] * 2
    for weights in ({}, {"weights": ""}):
        with pytest.raises(_lib.LarderError, match='"weights": "NAME"'):
            make(**weights)
    backend.close()

    after = make(filled(4, seed=2), weights="two")
    assert after.batch_exists(old) == after.batch_exists(new) == 0
    save(after, new, 2, 3)
    assert make(weights="two").batch_exists(new) == 2
    getattr(updater(), name)()
    assert after.batch_exists(new) == 0
    with pytest.raises(_lib.LarderError, match="not had yet"):
        make(weights="two")


def test_pages_may_be_dropped_after_an_update(make):
    keys = keys_of(2)
    backend = make(filled(2))
    save(backend, keys, 0, 1)
    updater().update_weights_from_disk()
    assert backend.clear() is True


def test_an_sglang_whose_updates_are_not_seen(make, caplog):
    [name] = [one for one in sys.modules if one.endswith(".weight_updater")]
    sys.modules[name] = None
    make()
    assert "updates of the weights in memory are not seen" in caplog.text


def test_tenants_are_apart(make, tmp_path):
    node = Daemon(os.environ["LARDER_PROGRAM"], tmp_path / "tenants",
                  config="[tenant b]\nuids = any\n")
    keys = keys_of(2)
    with contextlib.ExitStack() as stack:
        stack.callback(node.end)
        node.start()
        one = make(filled(2), url=node.url())
        other = make(url=node.url(tenant="b"))
        save(one, keys, 0, 1)
        assert other.batch_exists(keys) == 0 and one.batch_exists(keys) == 2
        one.close()
        other.close()


def test_salts_that_sglang_leaves_out_of_its_keys(make, monkeypatch, caplog):
    from larder_kv.sglang import name

    make()
    assert "extra_key" not in caplog.text
    monkeypatch.setattr(name, "version", lambda: "0.5.17")
    make()
    assert "leaves extra_key and cache_salt out" in caplog.text


def test_adapters_by_their_content(make, args, tmp_path):
    """SGLang's hashes hold an adapter's name and path only."""
    folder = tmp_path / "an adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"lora_alpha": 16}')
    (folder / "adapter_model.safetensors").write_bytes(os.urandom(4096))
    args.lora_paths = [types.SimpleNamespace(lora_name="a",
                                             lora_path=str(folder))]
    keys = keys_of(2)
    save(make(filled(2)), keys, 0, 1)
    assert make().batch_exists(keys) == 2
    (folder / "adapter_config.json").write_text('{"lora_alpha": 32}')
    assert make().batch_exists(keys) == 0
    (folder / "adapter_config.json").write_text('{"lora_alpha": 16}')
    (folder / "adapter_model.safetensors").write_bytes(os.urandom(4096))
    assert make().batch_exists(keys) == 0
    args.lora_paths = {"a": "somebody/something"}
    with pytest.raises(_lib.LarderError, match="the adapter somebody"):
        make()


@pytest.mark.parametrize("version", ["0.5.17", "0.5.2rc0", "0.5.19rc1",
                                     "unknown"])
def test_adapters_that_sglang_leaves_out_of_its_keys(make, args, monkeypatch,
                                                     version):
    from larder_kv.sglang import name

    monkeypatch.setattr(name, "version", lambda: version)
    args.enable_lora = True
    with pytest.raises(_lib.LarderError, match="use SGLang 0.5.20"):
        make()


# ---- ranks ----


def test_a_page_is_there_when_all_ranks_have_saved_it(make):
    keys = keys_of(2)
    ranks = [make(filled(2, seed=10 * r), tp=(r, 2)) for r in range(2)]
    save(ranks[1], keys, 0, 1)
    assert [rank.batch_exists(keys) for rank in ranks] == [0, 0]
    save(ranks[0], keys[:1], 0)
    assert [rank.batch_exists(keys) for rank in ranks] == [1, 1]
    for r in range(2):  # each its own
        reader = make(HostPool(2), tp=(r, 2))
        assert reader.batch_get_v1(keys[:1], indices(1)) == [True]
        assert reader.mem_pool_host.read(PAGE) == (
            ranks[r].mem_pool_host.read(0))


def test_what_all_ranks_hold_alike_is_saved_once(make):
    keys = keys_of(2)
    writer = make(filled(2), tp=(0, 4), mla=True)
    save(writer, keys, 0, 1)
    reader = make(HostPool(2), tp=(3, 4), mla=True)
    assert reader.batch_exists(keys) == 2
    assert reader.batch_get_v1(keys, indices(0, 1)) == [True] * 2
    assert reader.mem_pool_host.read(0) == writer.mem_pool_host.read(0)
    # Other numbers of ranks hold the same bytes.
    assert make(HostPool(2), mla=True).batch_exists(keys) == 2


# ---- described pages ----


LAYOUTS = ["page_first", "page_first_direct", "layer_first"]


def sliced(make, pool, **how):
    return make(pool, pages="slices", **how)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_slices_between_layouts(make, layout, other):
    """What lies in memory in one order is loaded in the other: every row of
    every layer, into pages 2 to 5, and nothing else is written."""
    source, target = filled(4, layout), HostPool(8, other)
    keys = keys_of(4)
    writer = sliced(make, source)
    assert writer.batch_set_v1(keys, indices(*range(4))) == [True] * 4
    assert writer.batch_exists(keys) == 4
    reader = sliced(make, target)
    assert reader.batch_exists(keys) == 4
    assert reader.batch_get_v1(keys, indices(2, 3, 4, 5)) == [True] * 4
    for i in range(4):
        assert target.read((i + 2) * PAGE) == source.read(i * PAGE)
    for page in (0, 1, 6, 7):
        assert not any(map(any, target.read(page * PAGE).values()))


def test_slices_between_tensor_parallel_sizes(make):
    """Two ranks with a head each, and one that has both."""
    keys = keys_of(3)
    halves = [filled(3, seed=1 + 50 * rank, heads=1) for rank in range(2)]
    ranks = [sliced(make, halves[r], tp=(r, 2)) for r in range(2)]
    assert all(ranks[0].batch_set_v1(keys, indices(0, 1, 2)))
    assert ranks[0].batch_exists(keys) == 0  # half of it
    assert all(ranks[1].batch_set_v1(keys, indices(0, 1, 2)))
    assert ranks[1].batch_exists(keys) == 3
    whole = HostPool(3, "page_first_direct")
    one = sliced(make, whole)
    assert one.batch_get_v1(keys, indices(0, 1, 2)) == [True] * 3
    for page in range(3):
        low, high = (half.read(page * PAGE) for half in halves)
        assert whole.read(page * PAGE) == {
            at: low[at] + high[at] for at in low}


def test_a_slice_that_is_gone(make, shared, sglang):
    source, target = filled(8), HostPool(8)
    needle = os.urandom(16)
    source.kv_buffer[5 * PAGE * 3 * 64:5 * PAGE * 3 * 64 + 16] = needle
    keys = keys_of(8)
    writer, reader = sliced(make, source), sliced(make, target)
    about = sglang.HiCacheStorageExtraInfo(prefix_keys=keys_of(3, "before"))
    assert all(writer.batch_set_v1(keys, indices(*range(8)), about))
    assert writer.batch_exists(keys) == 8
    assert all(reader.batch_get_v1(keys, indices(*range(8)), about))
    assert flip(shared.pid, needle) == 1
    got = reader.batch_get_v1(keys, indices(*range(8)), about)
    assert got == [True] * 4 + [False] * 4  # page 5 is damaged
    assert target.read(3 * PAGE) == source.read(3 * PAGE)
    assert reader.batch_get_v1(keys_of(2, "x"), indices(0, 1)) == [False] * 2


def test_slices_are_no_ranks_pages(make):
    keys = keys_of(2)
    save(make(filled(2)), keys, 0, 1)
    assert sliced(make, HostPool(2)).batch_exists(keys) == 0


@pytest.mark.parametrize("pool, how, text", [
    (HostPool(2), dict(tp=(0, 2)), "2 KV heads each do not divide"),
    (HostPool(2), dict(mla=True), "latent attention"),
    (HostPool(2), dict(pp=(0, 2)), "pipeline")])
def test_slices_that_cannot_be(make, pool, how, text):
    with pytest.raises(_lib.LarderError, match=text):
        sliced(make, pool, **how)


@pytest.mark.parametrize("heads", range(1, 97))
def test_slices_that_ranks_cut_apart(heads):
    """By first principles: a slice is saved by a rank that has all of it."""
    from larder_kv.engine.kv import whole_slices

    size = heads // max(n for n in range(1, 17) if heads % n == 0)
    slices = [set(range(at, at + size)) for at in range(0, heads, size)]
    for ranks in [n for n in range(1, 193)
                  if heads % n == 0 or n % heads == 0]:
        here = max(1, heads // ranks)
        of_ranks = [set(range(at, at + here)) for at in range(0, heads, here)]
        assert whole_slices(heads, ranks) == all(
            any(one <= other for other in of_ranks) for one in slices)


def test_slices_that_nobody_would_save_whole(make, args):
    """40 heads are 10 slices of 4, and a rank of 4 has 10 heads."""
    (pathlib.Path(args.model_path) / "config.json").write_text(
        '{"hidden_size": 8, "num_key_value_heads": 40}')
    with pytest.raises(_lib.LarderError, match="cut slices of 40 KV heads"):
        sliced(make, HostPool(2, heads=10), tp=(0, 4))
    assert sliced(make, HostPool(2, heads=20), tp=(0, 2))


# ---- several pools ----


def transfer(sglang, name, keys, policy="ALL_PAGES", pages=None, size=1):
    return sglang.PoolTransfer(
        name=sglang.PoolName[name], keys=keys,
        hit_policy=sglang.PoolHitPolicy[policy],
        host_indices=None if pages is None else indices(*pages, size=size))


def test_states_at_some_pages_only(make, sglang):
    """Every length that can be restored, and no other."""
    states = States(8)
    states.held = [bytes([i, i]) for i in range(8)]
    backend = make(filled(8), pools=[("mamba", states)])
    keys = keys_of(8)
    backend.batch_set_v1(keys[:7], indices(*range(7)))
    saved = backend.batch_set_v2([transfer(
        sglang, "MAMBA", [keys[1], keys[4], keys[7]], pages=[1, 4, 7])])
    assert saved == {"mamba": [True] * 3}
    asked = transfer(sglang, "MAMBA", [keys[7]], "TRAILING_PAGES")
    found = backend.batch_exists_v2(keys, [asked])
    assert found.restorable_prefix_pages == [2, 5] and found.kv_hit_pages == 5
    assert found.extra_pool_hit_pages == {"kv": 7, "mamba": 5}

    other = States(8)
    reader = make(HostPool(8), pools=[("mamba", other)])
    assert reader.batch_get_v2([transfer(
        sglang, "MAMBA", [keys[4]], pages=[3])]) == {"mamba": [True]}
    assert other.held[3] == bytes([4, 4])
    assert reader.batch_get_v2([transfer(
        sglang, "MAMBA", [keys[5]], pages=[3])]) == {"mamba": [False]}
    found = reader.batch_exists_v2(keys[:1], [asked])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])


def test_a_window_of_pages(make, sglang):
    """The last two pages of a prefix, or all of one that is shorter."""
    window = filled(8, seed=50)
    backend = make(filled(8), pools=[("swa", window)])
    keys = keys_of(8)
    backend.batch_set_v1(keys, indices(*range(8)))
    have = [0, 1, 4, 5, 7]
    backend.batch_set_v2([transfer(sglang, "SWA", [keys[i] for i in have],
                                   pages=have, size=PAGE)])
    asked = transfer(sglang, "SWA", keys[6:], "TRAILING_PAGES")
    found = backend.batch_exists_v2(keys, [asked])
    assert found.restorable_prefix_pages == [1, 2, 6]
    assert found.kv_hit_pages == 6
    reader = make(HostPool(8), pools=[("swa", HostPool(8))])
    assert reader.batch_get_v2([transfer(
        sglang, "SWA", keys[4:6], "TRAILING_PAGES", [2, 3], PAGE)]) == {
            "swa": [True] * 2}
    assert reader.registered_pools["swa"].read(3 * PAGE) == (
        window.read(5 * PAGE))


def test_a_pool_of_which_all_is_needed(make, sglang):
    backend = make(filled(4), pools=[("indexer", filled(4, seed=9))])
    keys = keys_of(4)
    backend.batch_set_v1(keys, indices(*range(4)))
    backend.batch_set_v2([transfer(sglang, "INDEXER", keys[:3],
                                   pages=range(3), size=PAGE)])
    found = backend.batch_exists_v2(
        keys, [transfer(sglang, "INDEXER", keys)])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (
        3, [1, 2, 3])
    # One that never decides gets no verdict, one that is not known all.
    groups = transfer(sglang, "DRAFT", keys, "BLOCK_GROUPS")
    assert backend.batch_exists_v2(keys, [groups]).kv_hit_pages == 4
    unknown = transfer(sglang, "DRAFT", keys)
    assert backend.batch_exists_v2(keys, [unknown]).kv_hit_pages == 0


def test_states_are_each_ranks_own_beside_kv_that_is_not(make, sglang):
    keys = keys_of(2)
    for rank in range(2):
        states = States(2)
        states.held = [bytes([rank, 9])] * 2
        backend = make(filled(2), tp=(rank, 2), mla=True,
                       pools=[("mamba", states)])
        if rank == 0:
            backend.batch_set_v1(keys, indices(0, 1))
        backend.batch_set_v2([transfer(sglang, "MAMBA", keys[1:], pages=[0])])
    asked = transfer(sglang, "MAMBA", keys[1:], "TRAILING_PAGES")
    assert backend.batch_exists_v2(keys, [asked]).kv_hit_pages == 2
    backend.batch_get_v2([transfer(sglang, "MAMBA", keys[1:], pages=[1])])
    assert states.held[1] == bytes([1, 9])


# ---- its life ----


def test_close_releases_and_what_comes_later_misses(make):
    before = len(os.listdir(f"/proc/{os.getpid()}/fd"))
    threads = threading.active_count()
    backend = make(filled(2))
    keys = keys_of(2)
    save(backend, keys, 0, 1)
    backend.close()
    backend.close()
    assert threading.active_count() == threads
    until(lambda: len(os.listdir(f"/proc/{os.getpid()}/fd")) <= before)
    assert backend.batch_exists(keys) == 0
    assert backend.batch_exists_v2(keys).kv_hit_pages == 0
    assert backend.batch_get_v1(keys, indices(0, 1)) == [False] * 2
    assert backend.batch_set_v1(keys, indices(0, 1)) == [False] * 2
    assert backend.batch_get(keys, [None] * 2) == [None] * 2
    assert backend.batch_set(keys, []) is False and not backend.clear()
    assert make(HostPool(2)).batch_exists(keys) == 2  # attached again


def test_close_waits_for_a_call(daemon, make):
    backend = make(filled(2), url=daemon.url(), load_ms=60000,
                   lookup_ms=60000)
    keys = keys_of(2)
    backend.batch_set_v1(keys, indices(0, 1))
    daemon.freeze()
    got = []
    asking = threading.Thread(
        target=lambda: got.append(backend.batch_get_v1(keys, indices(0, 1))))
    asking.start()
    until(lambda: backend._calls._count > 0)
    closing = threading.Thread(target=backend.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    daemon.signal(signal.SIGCONT)
    closing.join(30)
    asking.join(30)
    assert not closing.is_alive() and got == [[True, True]]


def test_a_node_that_is_killed_and_comes_back(daemon, make):
    backend = make(filled(2), url=daemon.url())
    keys = keys_of(2)
    assert all(backend.batch_set_v1(keys, indices(0, 1)))
    daemon.kill()
    assert backend.batch_exists(keys) == 0
    assert backend.batch_get_v1(keys, indices(0, 1)) == [False] * 2
    assert backend.batch_set_v1(keys, indices(0, 1)) == [False] * 2
    assert backend.batch_exists_v2(keys).restorable_prefix_pages == []
    assert not backend.clear()
    daemon.start()
    until(lambda: all(backend.batch_set_v1(keys, indices(0, 1))))
    assert backend.batch_exists(keys) == 2


def test_clear(make):
    keys = keys_of(2)
    backend = make(filled(2))
    assert all(backend.batch_set_v1(keys, indices(0, 1)))
    assert backend.clear() is True
    assert backend.batch_exists(keys) == 0
    assert all(backend.batch_set_v1(keys, indices(0, 1)))
    assert backend.batch_exists(keys) == 2


def test_the_node_hears_of_requests(make, sglang):
    backend = make(filled(4))
    keys = keys_of(4)
    heard = []
    backend._pools["kv"].tell, tell = (
        lambda *a: (heard.append(a[0]), tell(*a)),
        backend._pools["kv"].tell)
    about = sglang.HiCacheStorageExtraInfo(prefix_keys=keys[:1])
    backend.batch_exists(keys[1:], about)
    until(lambda: heard)
    assert heard == [bytes.fromhex("".join(keys))]


# ---- options ----


@pytest.mark.parametrize("extra, text", [
    ({"lookup": 1}, "did you mean lookup_ms?"),
    ({"load_threads": 2}, "option load_threads does nothing with SGLang"),
    ({"url": "embed:"}, "cannot share an embedded node")])
def test_options_that_cannot_be(make, extra, text):
    with pytest.raises(_lib.LarderError) as caught:
        make(**extra)
    assert text in str(caught.value)


def test_pools_that_cannot_be(make):
    pool = HostPool(1)
    pool.kv_buffer = None
    with pytest.raises(_lib.LarderError, match="no host pool of its own"):
        make(pool)
    large = HostPool(1)
    large.get_page_buffer_meta = lambda _: ([0], [_lib.VALUE_MAX + 1])
    with pytest.raises(_lib.LarderError, match="smaller --page-size"):
        make(large)


def test_descriptors_are_readable(make):
    [pool] = make()._pools.values()
    about = json.loads(pool.descriptor)
    assert about["layout"] == "page_first" and about["page_tokens"] == PAGE
    assert about["pool"] == "kv" and about["tensor"] == 1
    assert larder_kv._lib.VALUE_MAX > sum(about["sizes"]) == 1536
