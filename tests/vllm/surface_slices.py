"""What the connector makes of a model whose pages are described (the CPU's,
head by head): what its space's name depends on (test_surface.py)."""
import json
import pickle
import time
from array import array
from types import SimpleNamespace

import pytest
import rig
import torch
from larder_kv import _lib
from larder_kv.engine import kv as engine_kv
from larder_kv.engine.mover import Rank
from larder_kv.engine.moves import Move
from larder_kv.vllm import LarderConnector, meta, model, pages, worker
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1 import kv_cache_interface as kvi

from surface import (config_of, dense, described, full_of, gemma3, kv_of,
                     refused, state_of, window_of)
from surface_names import CHANGING, HARMLESS, space_of
from surface_refused import untested_worker

__all__ = ["dense", "gemma3"]  # fixtures


def sliced(path, chunk=0, first=0, end=4, heads=2, **more):
    """The model as the rank with these layers sees it; dense has 4 layers, and
    2 KV heads."""
    config = config_of(path, **more)
    return model.describe(config, kv_with(config, first, end, heads), chunk)


def kv_with(config, first=0, end=4, heads=2):
    tp = config.parallel_config.tensor_parallel_size
    return kvi.KVCacheConfig(
        num_blocks=16, kv_cache_tensors=[],
        kv_cache_groups=[kvi.KVCacheGroupSpec(
            [f"model.layers.{i}.self_attn.attn" for i in range(first, end)],
            full_of(config, num_kv_heads=max(1, heads // tp)))])


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


def test_state_of_other_ranks_is_another_space(dense):
    """As Qwen3-Next has it, with chunks of the same length: only the
    tensor-parallel size keeps the names apart."""
    found = []
    for tp in (1, 2):
        config = config_of(dense, tensor_parallel_size=tp)
        found.append(described(config, kv_of(
            full_of(config, num_kv_heads=2 // tp),
            state_of(config, shapes=((3, 64 // tp), (4 // tp, 8, 8)))), 1024))
    one, two = found
    assert one.chunk_tokens == two.chunk_tokens == 1024
    assert "recurrent state is one rank's" in one.opaque == two.opaque
    assert space_of(one) != space_of(two)
    names = [json.loads(each.descriptor) for each in found]
    assert [name.pop("tensor_parallel") for name in names] == [1, 2]
    assert names[0] == names[1]


@pytest.mark.parametrize("other", [
    {"swa_num_key_value_heads": 4}, {"num_global_key_value_heads": 1},
    {"block_configs": [{"attention": {}}]},
    {"attention_other_setting": {"num_attention_groups": 8}}])
def test_more_ranks_than_some_layers_have_heads(dense, other):
    """At four ranks every page has one head. Two ranks hold the same one of
    two heads, but not of four."""
    assert sliced(dense, tensor_parallel_size=4).opaque == ""
    found = sliced(dense, tensor_parallel_size=4, hf_overrides=other)
    assert "KV heads" in found.opaque
    assert (found.shards, found.replicas) == (4, 1)


@pytest.mark.parametrize("heads,tp,whole", [
    (40, 2, True), (40, 4, False), (24, 8, False), (32, 8, True),
    (32, 32, False), (20, 4, False)])
def test_ranks_that_cut_slices_apart(dense, heads, tp, whole):
    """Of a slice that no rank has whole nobody would save anything, and every
    lookup would miss."""
    found = sliced(dense, heads=heads, tensor_parallel_size=tp, hf_overrides={
        "num_key_value_heads": heads, "num_attention_heads": heads})
    assert ("cut slices" in found.opaque) == (not whole)
    assert (b"tensor_parallel" in found.descriptor) == (not whole)


# ---- a worker whose pages are not what they are taken to be ----


@pytest.fixture
def sides(dense, tmp_path, monkeypatch):
    """Both sides of an engine, and a worker's tensors: tokens before heads."""
    monkeypatch.setattr(worker, "_rank", lambda *_: Rank(0, 0, 0))
    with rig.node(tmp_path) as node:
        found = []

        def make(mixed=False, **more):
            config = config_of(dense, kv_transfer_config=rig.transfer(
                node.url()), **more)
            kv = kv_with(config)
            [group] = kv.kv_cache_groups
            if mixed:
                specs = dict.fromkeys(group.layer_names, group.kv_cache_spec)
                specs[group.layer_names[-1]] = full_of(
                    config, dtype=torch.float32)
                group.kv_cache_spec = kvi.UniformTypeKVCacheSpecs(
                    block_size=config.cache_config.block_size,
                    kv_cache_specs=specs)
            found.extend(LarderConnector(config, role, each) for role, each in (
                (KVConnectorRole.SCHEDULER, pages.shown(kv)),
                (KVConnectorRole.WORKER, kv)))
            block = config.cache_config.block_size
            caches = {name: torch.randn(16, block, 2, 128).bfloat16()
                      for name in kv.kv_cache_groups[0].layer_names}
            return SimpleNamespace(scheduler=found[-2], worker=found[-1],
                                   caches=caches, block=block)

        yield make
        for one in found:
            one.shutdown()


def test_pages_that_are_not_known_are_stored_by_rank(sides):
    """By both sides, before the first request, under a name that says so."""
    one = sides()
    pool = SimpleNamespace(num_gpu_blocks=16,
                           reset_prefix_cache=lambda: True)
    one.scheduler.bind_gpu_block_pool(pool)
    plan = one.scheduler._scheduler.model
    assert not plan.opaque and one.worker.get_handshake_metadata() is None
    one.worker.register_kv_caches(one.caches)
    said = pickle.loads(pickle.dumps(one.worker.get_handshake_metadata()))
    one.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): said})
    side, mover = one.scheduler._scheduler, one.worker._worker
    assert "which is not" in side.model.opaque and side.pool is pool
    assert side.model.descriptor == mover.model.descriptor != plan.descriptor
    # After a sleep vLLM asks the workers, and tells the scheduler, once more.
    one.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): said})
    assert one.scheduler._scheduler is side

    def step(**moves):
        one.worker.bind_connector_metadata(meta.Step(**moves))
        one.worker.start_load_kv(None)
        one.worker.wait_for_save()

    chunk = side.model.chunk_tokens
    keys = _lib.Keys()
    side.space.chain(array("I", range(chunk)), keys)
    count = chunk // one.block
    saved, loaded = (Move("r", keys.data(0, 1), 0, 0, chunk,
                          [(0, array("I", range(first, first + count)))])
                     for first in (1, 9))
    step(saves=[saved])
    step(loads=[loaded])
    end, done = time.monotonic() + 60, (set(), set(), set())
    while not done[0] and time.monotonic() < end:
        time.sleep(0.001)
        done = mover.finished()
    assert done[:2] == ({"r"}, set())
    for memory in one.caches.values():
        assert torch.equal(memory[9:9 + count], memory[1:1 + count])


def test_layers_that_differ_are_stored_by_rank(sides):
    """As only workers see: the scheduler is shown one layer's spec for all."""
    one = sides(mixed=True)
    plan = one.scheduler._scheduler.model
    assert not plan.opaque
    said = one.worker.get_handshake_metadata()
    one.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): said})
    side, mover = one.scheduler._scheduler.model, one.worker._worker.model
    assert "differ" in side.opaque and "differ" in mover.opaque
    assert ((side.descriptor, side.shards, side.replicas)
            == (mover.descriptor, mover.shards, mover.replicas))


def test_pages_of_which_not_all_can_be_told(sides):
    """By name: the scheduler does not hear of a MultiConnector's child, and
    workers that store otherwise would not find each other's."""
    one = sides(tensor_parallel_size=2)
    refused(lambda: one.scheduler.set_xfer_handshake_metadata_pp_aware(
        {(0, 0): meta.Unknown("it is odd")}), "some workers", "it is odd",
        '"pages": "rank"')
    one.scheduler.set_xfer_handshake_metadata_pp_aware({(1, 0): object()})
    one.worker._alone = False
    refused(lambda: one.worker.register_kv_caches(one.caches),
            "which is not", '"pages": "rank"')


def test_slices_are_tried(dense, monkeypatch):
    """With a release that was not tested: not only pages as they are."""
    config = config_of(dense)
    kv = kv_with(config)
    block = config.cache_config.block_size
    caches = {name: torch.randn(16, 2, block, 128).bfloat16()
              for name in kv.kv_cache_groups[0].layer_names}
    was = {name: memory.clone() for name, memory in caches.items()}
    one = untested_worker(config, kv, monkeypatch)
    assert one.model.slices is not None
    urls, made = [], _lib.Node
    monkeypatch.setattr(_lib, "Node", lambda url: urls.append(url) or made(url))
    one.register(caches)
    assert {*urls} == {"embed:?dram=67108864"}  # however many slices
    parts = pages._opaque_parts

    def half(*given):
        [part] = parts(*given)
        part.bytes //= 2
        return [part]

    monkeypatch.setattr(pages, "_opaque_parts", half)
    refused(lambda: one.register(caches), "0.99.0 was not tested",
            "is not loaded as it was saved")
    assert all(torch.equal(caches[name], was[name]) for name in caches)


# ---- an engine's own groups ----


def grouped(path, *groups, chunk=0, **more):
    """Gemma 3 as an engine with these groups has it: "w", "f" or "all" (what
    its hybrid manager would keep apart), each with its layers."""
    config = config_of(path, **more)
    heads = max(1, 2 // config.parallel_config.tensor_parallel_size)
    window = config.model_config.hf_text_config.sliding_window
    specs = {"w": window_of(config, num_kv_heads=heads),
             "f": full_of(config, num_kv_heads=heads),
             "all": full_of(config, num_kv_heads=heads, sliding_window=window)}
    return model.describe(config, kvi.KVCacheConfig(
        num_blocks=16, kv_cache_tensors=[], kv_cache_groups=[
            kvi.KVCacheGroupSpec([f"model.layers.{i}.self_attn.attn"
                                  for i in layers], specs[kind])
            for kind, layers in groups]), chunk)


TWO = (("w", range(5)), ("f", [5]))
GROUPINGS = {
    "vLLM's": [("f", [5]), *(("w", [i]) for i in range(5))],
    "others": [("w", [0, 2, 4]), ("f", [5]), ("w", [1, 3])],
    "manager off": [("all", range(6))],
}


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize("tp", [1, 2])
def test_groups_of_the_engine_do_not(gemma3, name, tp):
    one = grouped(gemma3, *TWO)
    other = grouped(gemma3, *GROUPINGS[name], tensor_parallel_size=tp)
    assert one.opaque == other.opaque == ""
    assert space_of(one) == space_of(other)
    assert one.chunk_bytes == other.chunk_bytes
    assert other.slices.layers == ((0, 1, 2, 3, 4), (5,))
    off = name == "manager off"
    # What this engine needs of each.
    assert [g.rule for g in other.slices.groups] == [
        _lib.RULE_ALL if off else _lib.RULE_TRAILING, _lib.RULE_ALL]
    # A number in the space for each of the engine's groups.
    assert [other.slices.layers[engine_kv.stored_in(other, i)]
            for i in range(len(other.groups))] == [
        (5,) if off or kind == "f" else (0, 1, 2, 3, 4)
        for kind, _ in GROUPINGS[name]]


def test_a_window_no_longer_than_a_chunk(gemma3):
    """Then less is stored of its layers than an engine without the hybrid
    manager needs: it has a space of its own."""
    on, off = (grouped(gemma3, *groups, chunk=512)
               for groups in (TWO, GROUPINGS["manager off"]))
    assert on.opaque == off.opaque == ""
    assert on.descriptor != off.descriptor
    assert off.slices.layers == (tuple(range(6)),)


def test_which_layers_have_a_window_does(gemma3):
    found = {grouped(gemma3, *groups).descriptor for groups in (
        TWO, [("w", range(4)), ("f", [4, 5])],
        [("w", [0, 1, 2, 3, 5]), ("f", [4])])}
    assert len(found) == 3


EIGHT = {"num_hidden_layers": 8, "layer_types": [
    "sliding_attention", "full_attention"] * 4}


@pytest.mark.parametrize("layers", [range(4), range(4, 8)])
def test_pipelines_with_several_groups(gemma3, layers):
    """A rank knows the names of its own layers only."""
    whole = grouped(gemma3, ("w", range(0, 8, 2)), ("f", range(1, 8, 2)),
                    hf_overrides=EIGHT)
    part = grouped(
        gemma3, *((kind, [i for i in layers if (i % 2 == 1) == (kind == "f")])
                  for kind in "wf"),
        hf_overrides=EIGHT, pipeline_parallel_size=2)
    off = grouped(gemma3, ("all", layers), hf_overrides=EIGHT,
                  pipeline_parallel_size=2)
    assert space_of(whole) == space_of(part) == space_of(off)
    assert part.shards == 2 * 4 and part.ranks == 2


def test_pipelines_that_cannot_be_cut_are_refused(gemma3):
    """By name: the first rank has no layer without a window."""
    refused(lambda: grouped(gemma3, ("w", range(3)), ("f", []),
                            pipeline_parallel_size=2),
            "pipeline parallelism", "parts of slices")
    wrong = dict(EIGHT, layer_types=["full_attention"] * 8)
    refused(lambda: grouped(gemma3, ("w", [0, 2]), ("f", [1, 3]),
                            hf_overrides=wrong, pipeline_parallel_size=2),
            "other ranks' layers")
