"""What the connector makes of CUDA's pages, whose rows are known: what the
space's name depends on, and that engines with pages of other orders and sizes
read each other's KV (test_surface.py). The specs, the backends' shapes and the
tensors are vLLM's own; the platform is only said to be CUDA, and the tensors
are in the host's memory."""
import importlib
import random
from array import array
from types import SimpleNamespace

import pytest
import torch
import vllm.platforms
from larder_kv import _lib
from larder_kv.vllm import model
from vllm.v1 import kv_cache_interface as kvi
from vllm.v1.attention.backend import AttentionBackend

from surface import config_of, dense, full_of, refused, window_of
from surface_names import CHANGING, space_of

__all__ = ["dense"]  # a fixture

LAYERS, HEADS, SIZE, BLOCKS = 4, 2, 64, 40
SHAPES_OF_BACKENDS = hasattr(AttentionBackend, "get_kv_cache_shape")


def describe(config, kv, **more):
    """As on a machine with a GPU."""
    platform = SimpleNamespace(device_type="cuda", is_cpu=lambda: False,
                               is_cuda=lambda: True,
                               get_device_capability=lambda: (9, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_PP_LAYER_PARTITION", raising=False)
        patch.setattr(vllm.platforms, "current_platform", platform)
        return model.describe(config, kv, 0, **more)


@pytest.fixture(scope="module")
def plain_config(dense):
    return config_of(dense)


def names_of(first=0, end=LAYERS):
    return [f"model.layers.{i}.self_attn.attn" for i in range(first, end)]


def kv_of(spec, first=0, end=LAYERS, blocks=BLOCKS):
    return kvi.KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[],
        kv_cache_groups=[kvi.KVCacheGroupSpec(names_of(first, end), spec)])


def sliced(config, block=16, first=0, end=LAYERS, by_rank="", **more):
    tp = config.parallel_config.tensor_parallel_size
    spec = full_of(config, block_size=block, num_kv_heads=max(1, HEADS // tp),
                   **more)
    return describe(config, kv_of(spec, first, end), by_rank=by_rank)


# ---- names ----

SHAPES = {
    "tensor parallel": (dict(tensor_parallel_size=2), {}),
    "more ranks than heads": (dict(tensor_parallel_size=4), {}),
    "pipeline parallel": (dict(pipeline_parallel_size=2), dict(end=2)),
    "the pipeline's other rank": (dict(pipeline_parallel_size=2),
                                  dict(first=2)),
    "block size": ({}, dict(block=64)),
    "a large block": ({}, dict(block=128)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_share_a_space(dense, plain_config, name):
    given, more = SHAPES[name]
    one, other = sliced(plain_config), sliced(config_of(dense, **given), **more)
    assert one.opaque == other.opaque == ""
    assert space_of(one) == space_of(other)
    assert one.shards == HEADS * 4 and one.slices.rows == ((128, 128),)


@pytest.mark.parametrize("name,value", [
    ("VLLM_KV_CACHE_LAYOUT", "HND"), ("VLLM_ATTENTION_BACKEND", "TRITON_ATTN"),
    ("VLLM_BATCH_INVARIANT", "1")])
def test_order_and_backend_do_not(plain_config, monkeypatch, name, value):
    one = space_of(sliced(plain_config))
    monkeypatch.setenv(name, value)
    assert space_of(sliced(plain_config)) == one


@pytest.mark.parametrize("name", [n for n in CHANGING if n not in (
    "tensor parallel", "pipeline parallel", "block size")])
def test_setting_that_changes_bytes(dense, plain_config, name):
    other = sliced(config_of(dense, **CHANGING[name]))
    assert other.descriptor != sliced(plain_config).descriptor
    assert other.opaque == ""


def test_logical_types_differ(dense):
    found = {sliced(config_of(dense, kv_cache_dtype=one),
                    dtype=torch.uint8).descriptor
             for one in ("fp8_e4m3", "fp8_e5m2", "fp8")}
    assert len(found) == 2  # "fp8" is the first of them


def test_windows(plain_config):
    window = describe(plain_config, kv_of(window_of(
        plain_config, 100, block_size=16)))
    assert window.opaque == "" and window.slices.rows == ((128, 128),)
    assert window.descriptor != sliced(plain_config).descriptor


def test_mla_is_one_head(plain_config, monkeypatch):
    monkeypatch.setattr(type(plain_config.model_config), "use_mla", True)
    spec = kvi.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576,
                                dtype=torch.bfloat16)
    one = describe(plain_config, kv_of(spec))
    assert one.opaque == "" and one.slices.heads == 1
    assert one.slices.rows == ((spec.page_size_bytes // 64,),)


# ---- what is not described ----


def test_by_rank_if_it_is_asked_for(plain_config):
    one = sliced(plain_config, by_rank="asked")
    assert one.opaque == "asked" and b"tensor_parallel" in one.descriptor


@pytest.mark.parametrize("more,why", [
    (dict(kv_quant_mode=kvi.KVQuantMode.INT8_PER_TOKEN_HEAD), "scales"),
    (dict(kv_quant_mode=kvi.KVQuantMode.NVFP4), "scales"),
    (dict(page_size_padded=1 << 20), "padding")])
def test_pages_that_stay_a_rank_s(plain_config, more, why):
    one = sliced(plain_config, **more)
    assert why in one.opaque and b"tensor_parallel" in one.descriptor


# ---- bytes ----


def backends():
    found = []
    for name, of in (("flash_attn", "FlashAttentionBackend"),
                     ("triton_attn", "TritonAttentionBackend"),
                     ("flashinfer", "FlashInferBackend")):
        try:
            module = importlib.import_module(
                f"vllm.v1.attention.backends.{name}")
        except ImportError:
            continue
        found.append(getattr(module, of))
    return found


class Engine:
    """One rank: K and V of every layer, in pages of an order. part(i) is
    [layer, block, token, head, size]."""

    def __init__(self, config, block, heads_outer, tp=1, rank=0, backend=None,
                 seed=0):
        here = max(1, HEADS // tp)
        self.block, self.tp, self.rank = block, tp, rank
        spec = full_of(config, block_size=block, num_kv_heads=here)
        blocks = BLOCKS * 16 // block + 3
        self.kv = kv_of(spec, blocks=blocks)
        self.model = describe(config, self.kv)
        self.caches, self.parts = {}, [[], []]
        for name in names_of():
            if SHAPES_OF_BACKENDS:
                shape = backend.get_kv_cache_shape(blocks, block, here, SIZE)
                order = (0, 1, 3, 2, 4) if heads_outer else range(5)
                raw = torch.randn([shape[i] for i in order]).bfloat16()
                t = raw.permute(*(list(order).index(i) for i in range(5)))
                parts = t.unbind(1)  # as every backend of theirs does
            else:
                order = (0, 1, 2, 3) if heads_outer else (0, 2, 1, 3)
                shape = (blocks, here, block, 2 * SIZE)
                raw = torch.randn([shape[i] for i in order]).bfloat16()
                t = raw.permute(*order)
                parts = [p.transpose(1, 2)
                         for p in t.split(SIZE, dim=-1)]
            self.caches[name] = t
            for i in range(2):
                self.parts[i].append(parts[i])
        context = {name: SimpleNamespace(get_attn_backend=lambda: backend)
                   for name in self.caches}
        known = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=context),
            cache_config=config.cache_config)
        self.layout = model.layout(self.model, self.kv, self.caches, None,
                                   None, tp, rank, known)
        self.ids = array("I", random.Random(seed).sample(
            range(1, blocks), 512 // block))

    def tokens(self, i, layer):
        """[token, head, size] of what the prompt has."""
        t = self.parts[i][layer][torch.tensor(self.ids).long()]
        return t.reshape(512, -1, SIZE)

    def run(self, call, keys):
        tables = (_lib.Table * 1)((self.ids.buffer_info()[0], 0,
                                   len(self.ids)))
        move = _lib.Move(keys=keys.data(0, keys.count), tables=tables, end=512,
                         writers=1, timeout_ms=20000)
        assert call(self.layout, move) == _lib.OK and move.failed == 0
        return move


@pytest.mark.parametrize("reader", [(64, True, 1), (32, False, 2),
                                    (128, True, 2)])
def test_any_order_reads_any(dense, plain_config, reader):
    kinds = backends() if SHAPES_OF_BACKENDS else [None]
    assert kinds, "none of vLLM's CUDA backends can be imported"
    block, outer, tp = reader
    writer = Engine(plain_config, 16, not outer, backend=kinds[0])
    node = _lib.Node("embed:?dram=256M")
    space = node.space(*space_of(writer.model))
    keys = _lib.Keys()
    space.chain(array("I", range(512)), keys)
    move = writer.run(space.save, keys)
    assert move.shards == 2 * writer.model.shards
    config = config_of(dense, tensor_parallel_size=tp)
    for rank in range(tp):
        one = Engine(config, block, outer, tp, rank, kinds[-1], seed=1)
        one.run(space.load, keys)
        here = max(1, HEADS // tp)
        for i in range(2):
            for layer in range(LAYERS):
                want = writer.tokens(i, layer)[:, rank * here:][:, :here]
                assert torch.equal(one.tokens(i, layer), want)
        one.layout.close()
    space.close()
    node.close()
    writer.layout.close()


def test_an_order_that_is_not_known(plain_config):
    one = Engine(plain_config, 16, False,
                 backend=(backends() or [None])[0])
    caches = {name: t.flip(0).unflatten(0, (-1, 1))
              for name, t in one.caches.items()}
    refused(lambda: model.layout(one.model, one.kv, caches), "layers.0",
            '"pages": "rank"')
    one.layout.close()
