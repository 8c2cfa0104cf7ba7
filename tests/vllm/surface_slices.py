"""What the connector makes of a model whose pages are described (the CPU's,
head by head): what its space's name depends on (test_surface.py)."""
import pytest
import torch
from larder_kv.vllm import model
from vllm.v1 import kv_cache_interface as kvi

from surface import (config_of, dense, described, full_of, kv_of, state_of)
from surface_names import CHANGING, HARMLESS, space_of

__all__ = ["dense"]  # a fixture


def sliced(path, chunk=0, first=0, end=4, heads=2, **more):
    """The model as the rank with these layers sees it; dense has 4 layers, and
    2 KV heads."""
    config = config_of(path, **more)
    tp = config.parallel_config.tensor_parallel_size
    kv = kvi.KVCacheConfig(
        num_blocks=16, kv_cache_tensors=[],
        kv_cache_groups=[kvi.KVCacheGroupSpec(
            [f"model.layers.{i}.self_attn.attn" for i in range(first, end)],
            full_of(config, num_kv_heads=max(1, heads // tp)))])
    return model.describe(config, kv, chunk)


SHAPES = {
    "tensor parallel": dict(tensor_parallel_size=2),
    "more ranks than heads": dict(tensor_parallel_size=4),
    "pipeline parallel": dict(pipeline_parallel_size=2, end=2),
    "the pipeline's other rank": dict(pipeline_parallel_size=2, first=2),
    "both": dict(tensor_parallel_size=2, pipeline_parallel_size=2, end=2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_share_a_space(dense, name, monkeypatch):
    monkeypatch.delenv("VLLM_PP_LAYER_PARTITION", raising=False)
    one, other = sliced(dense), sliced(dense, **SHAPES[name])
    assert one.opaque == other.opaque == ""
    assert space_of(one) == space_of(other)
    assert one.shards == 2 * 4  # heads, and ranges of layers
    # Or they would make other keys: a head has 256 bytes a token.
    assert one.chunk_bytes == other.chunk_bytes == 2 * 4 * 256 * (
        one.chunk_tokens)
    assert other.replicas == (2 if "more" in name else 1)


@pytest.mark.parametrize("name", HARMLESS)
def test_setting_that_does_not_of_slices(dense, name):
    assert space_of(sliced(dense)) == space_of(
        sliced(dense, **HARMLESS[name]))


def test_page_layout_does_not(dense, monkeypatch):
    one = sliced(dense)
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert space_of(sliced(dense)) == space_of(one)


@pytest.mark.parametrize("name", [n for n in CHANGING if n not in (
    "tensor parallel", "pipeline parallel")])
def test_setting_that_changes_bytes_of_slices(dense, name):
    one, other = sliced(dense), sliced(dense, **CHANGING[name])
    assert other.descriptor != one.descriptor and other.opaque == ""


def test_what_packs_heads_changes_it(dense, monkeypatch):
    found = {"plain": sliced(dense).descriptor,
             "chunk": space_of(sliced(dense, chunk=512))}
    for target, name, value in (
            (torch.backends.cpu, "get_cpu_capability", lambda: "OTHER"),
            (torch.cpu, "_is_amx_tile_supported",
             lambda amx=torch.cpu._is_amx_tile_supported(): not amx),
            (model, "SLICED", model.SLICED + 1)):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            found[name] = sliced(dense).descriptor
    assert len(set(found.values())) == len(found)
    assert space_of(sliced(dense)) != found["chunk"]


def test_pipelines_whose_ranks_hold_parts_of_slices(dense, monkeypatch):
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,3")
    assert "pipeline" in sliced(dense, pipeline_parallel_size=2).opaque
    assert sliced(dense).opaque == ""


@pytest.mark.parametrize("why,more", [
    ("recurrent", None), ("every layer", dict(end=3)),
    ("KV heads", dict(heads=4))])
def test_pages_that_stay_a_rank_s(dense, why, more):
    """By name, and with the tensor-parallel size in the space's."""
    found = (described(config_of(dense), kv_of(state_of(config_of(dense))))
             if more is None else sliced(dense, **more))
    assert why in found.opaque
    assert b"tensor_parallel" in found.descriptor
