"""Every order that vLLM has for its KV memory (VLLM_KV_CACHE_LAYOUT): what one
engine saved, the others load (test_surface.py). The tensors are vLLM's own
views; the platform is only said to be CUDA, as in surface_cuda.py."""
import math
import random
from array import array

import pytest
import rig
import torch
from larder_kv import _lib
from larder_kv.engine.mover import Rank
from larder_kv.vllm import LarderConnector, model, pages, worker
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1 import kv_cache_interface as kvi
from vllm.v1.kv_cache_layout import KVCacheLayout

from surface import config_of, dense, full_of, gemma3, window_of
from surface_cuda import BLOCKS, describe, names_of
from surface_names import space_of

__all__ = ["dense", "gemma3"]  # fixtures

BLOCK, TOKENS = 16, 512
ORDERS = [one.name for one in KVCacheLayout]
APART = "LHBNC"  # a block's heads are in several places


def views(kv, order):
    """As vLLM allocates them: all groups from the first byte on."""
    layout = KVCacheLayout[order]
    page = kv.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    most = max(len(g.layer_names) for g in kv.kv_cache_groups)
    raw = torch.randint(-128, 127, (page * most * kv.num_blocks,),
                        dtype=torch.int8)
    found = {}
    for group in kv.kv_cache_groups:
        fixed = page * most if layout.is_block_outermost else None
        count = len(group.layer_names)
        layer, block, *_ = kvi.compute_layout_strides(
            group.kv_cache_spec, kv.num_blocks, count, layout,
            fixed_strides=(None, fixed, None, None, None))
        tensor = kvi.KVCacheTensor(
            size=raw.numel(), layers=group.layer_names, layer_stride=layer,
            block_stride=block, offset=0)
        found |= zip(group.layer_names, kvi.create_kv_cache_views(
            raw, group.kv_cache_spec, kv.num_blocks, layout, tensor))
    return found


class Engine:
    """One rank, in one order. tokens(): of each layer, [token, head, C]."""

    def __init__(self, config, order, groups, by_rank="", seed=0):
        self.kv = kvi.KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[
                kvi.KVCacheGroupSpec(names, spec) for names, spec in groups],
            kv_cache_layout=order)
        self.model = describe(config, self.kv, by_rank=by_rank)
        self.caches = views(self.kv, order)
        self.layout = model.layout(self.model, self.kv, self.caches)
        blocks = random.Random(seed).sample(range(1, BLOCKS),
                                            TOKENS // BLOCK)
        self.ids = [array("I", blocks)] * len(groups)

    def run(self, call, keys):
        tables = (_lib.Table * len(self.ids))(
            *((ids.buffer_info()[0], 0, len(ids)) for ids in self.ids))
        move = _lib.Move(keys=keys.data(0, keys.count), tables=tables,
                         end=TOKENS, writers=1, timeout_ms=20000)
        assert call(self.layout, move) == _lib.OK and move.failed == 0

    def tokens(self):
        at = torch.tensor(self.ids[0]).long()
        return {name: cache[at].transpose(1, 2).contiguous().view(torch.uint8)
                for name, cache in self.caches.items()}


def same(one, other):
    found, wanted = other.tokens(), one.tokens()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def through(writer, *readers):
    """One saves; the others load it."""
    with_space = space_of(writer.model)
    node = _lib.Node("embed:?dram=256M")
    space = node.space(*with_space)
    keys = _lib.Keys()
    space.chain(array("I", range(TOKENS)), keys)
    writer.run(space.save, keys)
    for reader in readers:
        assert space_of(reader.model) == with_space
        reader.run(space.load, keys)
        same(writer, reader)
    space.close()
    node.close()
    for one in (writer, *readers):
        one.layout.close()


def one_group(config):
    return [(names_of(), full_of(config, block_size=BLOCK))]


@pytest.mark.parametrize("order", [n for n in ORDERS if n != APART])
def test_any_order_reads_any(dense, order):
    config = config_of(dense)
    groups = one_group(config)
    through(Engine(config, order, groups), *(
        Engine(config, other, groups, seed=i) for i, other in enumerate(ORDERS)
        if other not in (APART, order)))


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_by_rank(dense, order):
    """Its own bytes, under a name of its own."""
    config = config_of(dense)
    groups = one_group(config)
    writer, reader = (Engine(config, order, groups, "asked", seed)
                      for seed in range(2))
    assert writer.model.opaque == "asked"
    assert writer.layout.bytes(0) == math.prod(
        (4, 2, 256, 2 * 64)) * 2  # layers, heads, tokens, K and V: bfloat16
    through(writer, reader)


@pytest.mark.parametrize("by_rank", ["", "asked"])
@pytest.mark.parametrize("order", [n for n in ORDERS if n != APART])
def test_several_groups(gemma3, order, by_rank):
    """They lie over each other, and a block is one group's."""
    config = config_of(gemma3)
    names = [f"model.layers.{i}.self_attn.attn" for i in range(6)]
    groups = [(names[i:i + 2], window_of(config, block_size=BLOCK))
              for i in (0, 2)]
    groups.append((names[4:5], window_of(config, block_size=BLOCK)))
    groups.append((names[5:], full_of(config, block_size=BLOCK)))
    one = Engine(config, order, groups, by_rank)
    assert bool(one.model.opaque) == bool(by_rank)
    one.layout.close()


def test_heads_between_those_of_another_group(gemma3):
    """Without its hybrid manager, an engine's one group is stored as two."""
    config = config_of(gemma3)
    window = config.model_config.hf_text_config.sliding_window
    groups = [([f"model.layers.{i}.self_attn.attn" for i in range(6)],
               full_of(config, block_size=BLOCK, sliding_window=window))]
    with pytest.raises(pages.Unknown, match="another group"):
        Engine(config, "BHLNC", groups)
    Engine(config, "BHLNC", groups, "asked").layout.close()


def test_blocks_in_several_places(dense, tmp_path, monkeypatch):
    """An engine stores them by rank, of its own accord."""
    monkeypatch.setattr(worker, "_rank", lambda *_: Rank(0, 0, 0))
    with rig.node(tmp_path) as node:
        config = config_of(dense, kv_transfer_config=rig.transfer(node.url()))
        kv = kvi.KVCacheConfig(
            num_blocks=16, kv_cache_tensors=[], kv_cache_groups=[
                kvi.KVCacheGroupSpec(names_of(), full_of(config))])
        one = LarderConnector(config, KVConnectorRole.WORKER, kv)
        assert not one._worker.model.opaque
        one.register_kv_caches(views(kv, APART))
        assert "blocks in 2 places" in one._worker.model.opaque
        one.shutdown()
