"""What the connector makes of an engine's memory: pages, and the layout that
the library is given (test_surface.py)."""
import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import kv as shape
from larder_kv.engine import mover
from larder_kv.vllm import model
from vllm.v1 import kv_cache_interface as kvi

from surface import refused

BLOCKS = 12


def test_page():
    """Stride and bytes, by the tensors that vLLM really has."""
    plain = torch.zeros(BLOCKS, 2, 16, 32, dtype=torch.bfloat16)
    assert model._page("l", plain, BLOCKS) == (2048, 2048)
    # Kernel blocks: four to each of the scheduler's.
    assert model._page("l", torch.zeros(4 * BLOCKS, 2, 4, 32), BLOCKS) == (
        4096, 4096)
    # A state's page, in the place of a larger one.
    padded = torch.zeros(BLOCKS, 400, dtype=torch.int8)[:, :300]
    assert model._page("l", padded, BLOCKS) == (400, 300)
    # All bytes of the page, in another order.
    turned = torch.zeros(BLOCKS, 8, 4).transpose(1, 2)
    assert model._page("l", turned, BLOCKS) == (128, 128)


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(BLOCKS + 1, 8),
    lambda: torch.zeros(BLOCKS - 1, 8),
    lambda: torch.zeros(BLOCKS, 8, 8)[:, :, :4],  # holes
    lambda: torch.zeros(BLOCKS, 8, 1).expand(BLOCKS, 8, 4),
    lambda: torch.zeros(2 * BLOCKS, 10)[:, :8],  # parts with holes between
    lambda: torch.zeros(8, BLOCKS).t()[:, :8],  # blocks inside
], ids=range(6))
def test_odd_pages_name_their_layer(make):
    tensor = make()
    refused(lambda: model._page("model.layers.7.attn", tensor, BLOCKS),
            "model.layers.7.attn", str(tuple(tensor.shape)))


def test_pieces():
    both = torch.zeros(2, BLOCKS, 4)  # keys and values apart
    found = model.pieces("l", both, BLOCKS)
    assert [p.shape for p in found] == [(BLOCKS, 4)] * 2
    assert found[1].data_ptr() - found[0].data_ptr() == BLOCKS * 16
    pair = [torch.zeros(BLOCKS, 3), torch.zeros(BLOCKS, 5)]
    assert len(model.pieces("l", pair, BLOCKS)) == 2
    two = torch.zeros(2, 4)  # two blocks, not two halves
    assert len(model.pieces("l", two, 2)) == 1
    refused(lambda: model.pieces("l", torch.zeros(4, device="meta"), 4),
            "meta", "CPU")


def info(index, rule=_lib.RULE_ALL, block=64, window=0):
    return shape.GroupInfo(index, "k", rule, block, window)


def model_of(*groups):
    return shape.Model(tuple(groups), 64, b"d", 1, 1)


def register(kv, caches, *groups):
    return model.layout(model_of(*(groups or [info(0)])), kv, caches)


@contextlib.contextmanager
def seen(monkeypatch):
    """What the library is given."""
    given = []
    real = _lib.Layout

    def layout(chunk, groups, regions=(), *more, **named):
        given.append((groups, regions))
        return real(chunk, groups, regions, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(_lib, "Layout", layout)
        yield given


def group_of(names, spec=None):
    return kvi.KVCacheGroupSpec(names, spec or SimpleNamespace(block_size=64))


def config_with(*groups):
    return SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=list(groups))


def test_all_groups_in_one_place(monkeypatch):
    """As Gemma 3 has it: six layers, six groups, one address."""
    memory = torch.zeros(BLOCKS, 2, 16, 32)
    names = [f"layers.{i}" for i in range(6)]
    kv = config_with(*(group_of([n]) for n in names))
    with seen(monkeypatch) as given:
        layout = model.layout(model_of(*(info(i) for i in range(6))), kv,
                              {n: memory.view_as(memory) for n in names})
    [(groups, regions)] = given
    assert len(regions) == 1, "each allocation once"
    assert regions[0].bytes == memory.untyped_storage().nbytes()
    assert {g.layers[0].offset for g in groups} == {0}
    assert [layout.bytes(i) for i in range(6)] == [2 * 16 * 32 * 4] * 6
    layout.close()


def test_layers_side_by_side(monkeypatch):
    """One storage for all layers of a group, or one for each; a layer that
    only shares another's KV is in no group, and skipped."""
    whole = torch.zeros(3, BLOCKS, 8)
    names = ["a", "b", "c"]
    kv = config_with(group_of(names))
    shared = dict(zip(names, whole), alias=whole[1])
    apart = {n: torch.zeros(BLOCKS, 8) for n in names}
    for caches, count in ((shared, 1), (apart, 3)):
        with seen(monkeypatch) as given:
            register(kv, caches).close()
        [(groups, regions)] = given
        assert len(regions) == count
        assert groups[0].layer_count == 3
        layers = [groups[0].layers[i] for i in range(3)]
        assert [x.stride for x in layers] == [32] * 3
        starts = [x.offset for x in layers]
        assert starts == ([0, BLOCKS * 32, 2 * BLOCKS * 32] if count == 1
                          else [0] * 3)


def test_layers_that_use_anothers_kv(monkeypatch):
    """vLLM's runner enters them in its own copy of the groups, and registers
    them with the other layer's memory: they are neither saved nor loaded, and
    the others are as without them."""
    from vllm.v1.worker import utils

    names = ["a", "b", "c"]
    kv = config_with(group_of(names))
    theirs = copy.deepcopy(kv)
    utils.add_kv_sharing_layers_to_kv_cache_groups(
        {"last": "c", "one more": "b"}, theirs.kv_cache_groups)
    assert theirs.kv_cache_groups[0].layer_names == [*names, "last",
                                                     "one more"]
    caches = {n: torch.zeros(BLOCKS, 8) for n in names}
    caches.update(last=caches["c"])
    caches["one more"] = caches["b"]
    found = []
    for one in (caches, {n: caches[n] for n in names}):
        with seen(monkeypatch) as given:
            layout = register(kv, one)
        assert layout.bytes(0) == 3 * 8 * 4
        layout.close()
        [(groups, regions)] = given
        found.append([[r.base for r in regions], [
            (x.name, x.region, x.offset, x.stride)
            for x in groups[0].layers[:groups[0].layer_count]]])
        assert [name for name, *_ in found[-1][1]] == [
            name.encode() for name in names]
        assert len(mover._memory(one)) == 3
    assert found[0] == found[1]


def test_layers_of_a_group_that_overlap():
    """A block would be written twice: refused, with the layers' names."""
    memory = torch.zeros(BLOCKS, 8)
    kv = config_with(group_of(["one", "two"]))
    with pytest.raises(_lib.LarderError, match="one|two"):
        register(kv, {"one": memory, "two": memory})


def test_state_and_attention_pages(monkeypatch):
    """As Qwen3-Next has it: a state's page is shorter than the place."""
    memory = torch.zeros(BLOCKS, 400, dtype=torch.int8)
    kv = config_with(group_of(["state"]), group_of(["attention"]))
    caches = {"state": memory[:, :300], "attention": memory}
    with seen(monkeypatch) as given:
        layout = register(kv, caches, info(0, _lib.RULE_LAST), info(1))
    [(groups, regions)] = given
    assert len(regions) == 1
    assert [layout.bytes(i) for i in range(2)] == [300, 400]
    assert {g.layers[0].stride for g in groups} == {400}
    layout.close()
