"""What the connector refuses, what it tries first, and what it takes for
another setting (test_surface.py)."""
import os
import pathlib
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import rig
import torch
import vllm.platforms
from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import mover
from larder_kv.vllm import (LarderConnector, connector, limits, model, pages,
                            patches, plugin, selfcheck, versions, worker)
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1 import kv_cache_interface as kvi

from surface import (config_of, dense, described, full_of, kv_of, refused,
                     state_of, window_of)
from surface_names import HARMLESS

__all__ = ["dense"]  # fixtures


@pytest.mark.parametrize("name, tested", [
    ("0.24.0", True), ("0.25.1", True), ("0.29.7", True), ("0.32.0+cpu", True),
    ("0.32.1.dev3", True), ("0.33.0", False), ("0.33.0rc1", False),
    ("1.0.0", False), ("dev", False), ("0.1.dev1+gabc", False),
    ("0.12.dev7", False)])
def test_versions(monkeypatch, name, tested):
    """A release from the first on is not refused for its number. One that no
    engine ran with is told; and refused, if that is wanted."""
    monkeypatch.setattr(vllm, "__version__", name)
    versions.check()
    assert versions.tested() == tested
    monkeypatch.setenv("VLLM_LARDER_STRICT", "1")
    if tested:
        versions.check()
    else:
        assert name in versions.warning()
        refused(versions.check, f"{name} was not tested",
                "VLLM_LARDER_STRICT=1", "0.24.x")
    monkeypatch.setenv("VLLM_LARDER_STRICT", "0")
    versions.check()


@pytest.mark.parametrize("name, tested", [
    ("0.24.0", True), ("0.29.0", False), ("0.32.0", True)])
def test_versions_on_a_gpu(monkeypatch, name, tested):
    """What ran on the CPU has not run there."""
    monkeypatch.setattr(vllm.platforms, "current_platform",
                        SimpleNamespace(is_cuda=lambda: True))
    monkeypatch.setattr(vllm, "__version__", name)
    assert versions.tested() == tested
    assert "0.29.x" not in versions.advice()


@pytest.mark.parametrize("name", ["0.20.2", "0.23.9"])
def test_old_versions(monkeypatch, name):
    monkeypatch.setattr(vllm, "__version__", name)
    refused(versions.check, name, "too old", "0.24.x")


@pytest.mark.parametrize("name", ["0.32.0", "0.99.0"])
def test_what_is_missing_is_named(monkeypatch, name):
    """Whatever it is called."""
    monkeypatch.setattr(vllm, "__version__", name)
    versions.check()
    monkeypatch.setattr(versions, "missing", lambda: [
        "a.b is not there", "c takes (self)", "d is gone", "e", "f"])
    refused(versions.check, name, "a.b is not there; c takes (self)",
            "and 2 more", "0.24.x")


def test_the_vllm_that_runs_is_looked_at(monkeypatch, tmp_path):
    """By its files: in its place one with another parameter."""
    shutil.copytree(pathlib.Path(vllm.__file__).parent, tmp_path / "vllm",
                    copy_function=os.symlink)
    base_py = (tmp_path / "vllm").joinpath(
        *selfcheck.BASE.split(".")[1:]).with_suffix(".py")
    for path in (base_py, tmp_path / "vllm/__init__.py"):
        text = path.read_text()
        path.unlink()
        path.write_text(text.replace("num_computed_tokens: int,",
                                     "num_computed_tokens: int, more: int,"))
    monkeypatch.setattr(vllm, "__file__", str(tmp_path / "vllm/__init__.py"))
    versions.missing.cache_clear()
    try:
        refused(versions.check, "get_num_new_matched_tokens takes (self, ")
    finally:
        versions.missing.cache_clear()


def untested_worker(config, kv, monkeypatch):
    """A worker with such a release, that has not got its memory yet."""
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    one = worker.Worker.__new__(worker.Worker)
    one.model, one._kv = described(config, kv), kv
    one._layout, one._gpu, one._closing = None, None, False
    monkeypatch.setattr(one, "start", lambda *_: None)
    return one


@pytest.mark.parametrize("kind", ["dense", "window", "states"])
def test_a_block_is_tried(dense, monkeypatch, kind):
    """With a release that was not tested, and what the memory had before is
    there afterwards."""
    config = config_of(dense)
    specs = [full_of(config)]
    specs += {"dense": [], "window": [window_of(config, 512)],
              "states": [state_of(config)]}[kind]
    kv = kv_of(*specs, blocks=8)
    shape = (8, 2, config.cache_config.block_size, 128)
    memory = torch.randn(shape).to(torch.bfloat16)
    caches = {f"layers.{i}": memory for i in range(len(specs))}
    if kind == "states":  # two tensors a layer, in one page
        raw = torch.randint(0, 99, (8, 4096), dtype=torch.int8)
        caches["layers.1"] = [raw[:, :128].view(torch.float32),
                              raw[:, 128:160].view(torch.float32)]
    was = memory.clone()
    one = untested_worker(config, kv, monkeypatch)
    one.register(caches)
    assert torch.equal(memory, was)

    page = model._page
    monkeypatch.setattr(model, "_page", lambda *given: (
        page(*given)[0], page(*given)[1] // 2))
    refused(lambda: one.register(caches), "0.99.0 was not tested",
            "layer layers.0 is not loaded as it was saved")
    assert torch.equal(memory, was)


@pytest.mark.parametrize("old, caches, fits", [
    (True, True, False), (True, False, True), (False, True, True)])
def test_states_of_an_old_version(dense, monkeypatch, old, caches, fits):
    """vLLM up to 0.26 computes wrong tokens with them and any connector."""
    number = tuple(int(n) for n in vllm.__version__.split(".")[:2])
    assert versions.mistakes_states() == (number < (0, 27))
    config = config_of(dense, enable_prefix_caching=caches,
                       kv_transfer_config={
        "kv_connector": "LarderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "larder_kv.vllm",
        "kv_connector_extra_config": {"url": "unix:/nowhere/sock"}})
    kv = kv_of(full_of(config), state_of(config))
    monkeypatch.setattr(versions, "mistakes_states", lambda: old)

    def make():
        return LarderConnector(config, KVConnectorRole.SCHEDULER, kv)

    if fits:
        make().shutdown()
    else:
        refused(make, "wrong tokens", "use vLLM 0.27 or later")


@pytest.mark.parametrize("policy, keeps, becomes, word", [
    ("fail", "", "recompute", "taken for recompute"),
    ("fail", "1", "fail", "is kept"), ("recompute", "", "recompute", None),
    ("recompute", "1", "recompute", None)])
def test_a_failed_load_is_computed(dense, monkeypatch, policy, keeps, becomes,
                                   word):
    """Unless the operator says that vLLM's policy shall stay. Whatever is not
    as it was written is said."""
    monkeypatch.setenv("VLLM_LARDER_KEEP_POLICY", keeps)
    config = config_of(dense, kv_transfer_config={
        "kv_connector": "LarderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "larder_kv.vllm",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"url": "unix:/nowhere/sock"}})
    said = []
    monkeypatch.setattr(connector.logger, "warning",
                        lambda line, *of: said.append(line % of))
    monkeypatch.setattr(worker, "_rank", lambda *_: mover.Rank(0, 0, 0))
    for role in (KVConnectorRole.WORKER, KVConnectorRole.SCHEDULER):
        LarderConnector(config, role, kv_of(full_of(config))).shutdown()
    assert config.kv_transfer_config.kv_load_failure_policy == becomes
    assert [word in line for line in said if "failure_policy" in line] == (
        [True] if word else [])


def test_the_layout_that_connectors_ask_for(dense):
    """Only where the KV cache does not say what it became."""
    config = config_of(dense)

    class Asks:
        _vllm_config = config

        @staticmethod
        def get_required_kvcache_layout(of):
            assert of is config
            return "HND"

    kv = kv_of(full_of(config))
    number = tuple(int(n) for n in vllm.__version__.split(".")[:2])
    assert hasattr(kv, "kv_cache_layout") == (number >= (0, 29))
    assert patches.asked_layout([None, Asks], kv) == "HND"
    kv.kv_cache_layout = "LBHNC"
    assert patches.asked_layout([None, Asks], kv) is None


@pytest.mark.parametrize("load, misplaces, mla, refused", [
    ("auto", True, True, True), ("always", True, True, False),
    ("auto", False, True, False), ("auto", True, False, False)])
def test_mla_on_the_cpu(dense, monkeypatch, load, misplaces, mla, refused):
    """Its KV depends on the step that computes it, in vLLM itself: nothing is
    loaded, unless that is wanted by name."""
    assert versions.misplaces_tokens()  # if not: vLLM has mended it
    monkeypatch.setattr(versions, "misplaces_tokens", lambda: misplaces)
    config = config_of(dense)
    monkeypatch.setattr(type(config.model_config), "use_mla", mla)
    why = limits.refuses_hits(config, Options({"load": load}))
    assert ("positions" in why and "load=always" in why) == refused
    assert bool(why) == refused


def run_alone(text):
    return subprocess.run(
        [sys.executable, "-B", "-c", text], text=True, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(rig.ROOT / "python")))


def test_unsupported_version_is_told_first():
    """Before anything is imported that such a version may not have."""
    done = run_alone(
        "import sys, vllm\nvllm.__version__ = '0.20.2'\n"
        "import larder_kv.vllm.plugin\n"
        "assert 'larder_kv.vllm.connector' not in sys.modules\n"
        "sys.modules['vllm.distributed.kv_transfer.kv_connector.v1.base'] "
        "= None\n"
        "from larder_kv.vllm import LarderConnector\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "larder: vLLM 0.20.2 is too old; use one of" in last, (
        done.stderr[-2000:])


def test_registered_by_name():
    from vllm.distributed.kv_transfer.kv_connector.factory import (
        KVConnectorFactory)

    plugin.register()
    plugin.register()
    found = KVConnectorFactory.get_connector_class_by_name("LarderConnector")
    assert found.__module__.startswith("larder_kv.vllm")
    assert found.__name__ == "LarderConnector"


IMPORTED = "import vllm\nimport larder_kv.vllm\n"
FRONT_END = """
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorLogging)
from vllm.engine.arg_utils import EngineArgs
config = EngineArgs(model=%r, skip_tokenizer_init=True, kv_transfer_config={
    "kv_connector": "MultiConnector", "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [{
        "kv_connector": "LarderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "larder_kv.vllm"}]}}
    ).create_engine_config().kv_transfer_config
KVConnectorLogging(config).observe({"LarderConnector": {"hits": 3}})
"""


@pytest.mark.parametrize("first", [IMPORTED, FRONT_END],
                         ids=["imported", "front end"])
def test_a_child_of_a_multi_connector_without_a_plug_in(dense, first):
    """What its front end gets from the engine's process is put together by the
    child's name; the child was found by its module's path."""
    if "%r" in first:
        first %= str(dense)
    done = run_alone(
        first + "from vllm.distributed.kv_transfer.kv_connector.v1."
        "multi_connector import MultiConnector\n"
        "found = MultiConnector.build_kv_connector_stats("
        "{'LarderConnector': {'hits': 3}})\n"
        "assert found['LarderConnector'].reduce() == {'hits': 3}, found\n")
    assert done.returncode == 0, done.stderr[-2000:]


def test_kinds_of_groups(dense):
    config = config_of(dense)
    common = dict(block_size=128, num_kv_heads=2, head_size=64,
                  dtype=torch.bfloat16)
    full, window, state = (full_of(config), window_of(config, 512),
                           state_of(config))
    one = described(config, kv_of(full, window, state))
    assert [g.rule for g in one.groups] == [
        _lib.RULE_ALL, _lib.RULE_TRAILING, _lib.RULE_LAST]
    assert one.has_state and one.groups[1].window_tokens >= 512
    for name, more in (("ChunkedLocalAttentionSpec",
                        {"attention_chunk_size": 512}),
                       ("CrossAttentionSpec", {}),
                       ("EncoderOnlyAttentionSpec", {}),
                       ("RSWASpec", {"rswa_window": 64}),
                       ("SinkFullAttentionSpec", {"sink_len": 128})):
        kind = getattr(kvi, name, None)
        if kind is None:
            continue
        try:
            spec = kind(**common, **more)
        except TypeError:  # other fields in this version
            spec = kind.__new__(kind)
        refused(lambda: described(config, kv_of(spec)), name)


def test_groups_in_the_hosts_memory(dense):
    """HiSparse's: they have blocks of their own."""
    config = config_of(dense)
    kv = kv_of(full_of(config), full_of(config))
    kv.kv_cache_groups[1].host_resident = True
    refused(lambda: described(config, kv), "HiSparse")


def test_uniform_groups(dense):
    """Layers of one kind with pages of their own; never of several kinds."""
    config = config_of(dense)

    def uniform(**specs):
        return kv_of(kvi.UniformTypeKVCacheSpecs(
            block_size=config.cache_config.block_size, kv_cache_specs=specs))

    alike = uniform(a=full_of(config), b=full_of(config, head_size=128))
    one = described(config, alike)
    assert one.groups[0].rule == _lib.RULE_ALL
    assert one.descriptor == described(config).descriptor, (
        "the scheduler sees one layer's spec in its place")
    refused(lambda: described(config, uniform(
        a=full_of(config), b=window_of(config, 512))), "mixes")


def test_uniform_groups_of_latent_attention(dense, monkeypatch):
    """DeepSeek V3.2's have an indexer's KV beside each layer's. Every rank
    holds the same, as both sides know."""
    config = config_of(dense, tensor_parallel_size=2)
    monkeypatch.setattr(type(config.model_config), "use_mla", True)
    common = dict(block_size=64, num_kv_heads=1, dtype=torch.bfloat16)
    kv = kv_of(kvi.UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs={
        name: kvi.MLAAttentionSpec(head_size=size, **common)
        for name, size in (("layers.0.attn", 576), ("layers.0.indexer", 128))}))
    kv.kv_cache_groups[0].layer_names = ["layers.0.attn", "layers.0.indexer"]
    one, other = described(config, kv), described(config, pages.shown(kv))
    assert one.opaque and other.opaque
    assert (one.shards, one.replicas) == (1, 2)
    assert (other.shards, other.replicas) == (1, 2)
    assert one.descriptor == other.descriptor


def test_refused_settings(dense):
    config = config_of(dense, pipeline_parallel_size=2)
    refused(lambda: described(config, kv_of(full_of(config),
                                            window_of(config, 512))),
            "pipeline parallelism")
    config = config_of(dense, pipeline_parallel_size=2)
    config.speculative_config = config_of(
        dense, **HARMLESS["n-gram"]).speculative_config
    refused(lambda: described(config), "speculative decoding")
    config = config_of(dense)
    refused(lambda: described(config, kv_of()), "no KV cache")
    refused(lambda: described(config, chunk=100), "chunk=100", "128", "use ")
    config.parallel_config.decode_context_parallel_size = 2
    refused(lambda: described(config), "decode_context_parallel_size")


def test_chunk(dense):
    config = config_of(dense)
    assert described(config).chunk_tokens == 256
    assert described(config, chunk=384).chunk_tokens == 384
    small = config_of(dense, block_size=16)
    assert described(small).chunk_tokens == 256
    both = kv_of(full_of(config, block_size=640),
                 window_of(config, 512, block_size=128))
    assert described(config, both).chunk_tokens == 640
    odd = kv_of(full_of(config, block_size=48),
                window_of(config, 512, block_size=32))
    assert described(config, odd).chunk_tokens == 288
