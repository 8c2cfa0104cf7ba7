"""What the connector makes of a model: the names of its spaces, of its weights,
and what is refused (test_surface.py)."""
import contextlib
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from array import array
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
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1 import (KVConnectorRole,
                                                          base)
from vllm.v1 import kv_cache_interface as kvi

import models
from surface import (MODELS, config_of, dense, described, full_of, gemma3,
                     kv_of, refused, state_of, window_of)

__all__ = ["dense", "gemma3"]  # fixtures


def longrope(length):
    factors = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    return {"max_model_len": length, "hf_overrides": {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4,
        "original_max_position_embeddings": 2048, **factors}}}


# Settings that change the bytes of KV, or what they mean.
CHANGING = {
    "dtype": dict(dtype="float32"),
    "kv cache dtype": dict(kv_cache_dtype="fp8"),
    "tensor parallel": dict(tensor_parallel_size=2),
    "pipeline parallel": dict(pipeline_parallel_size=2),
    "block size": dict(block_size=64),
    "load format": dict(load_format="dummy"),
    "files": dict(load_format="pt"),
    "rope": dict(hf_overrides={"rope_parameters": {
        "rope_type": "default", "rope_theta": 5e5}}),
    "epsilon": dict(hf_overrides={"rms_norm_eps": 1e-3}),
    "state dtype": dict(mamba_cache_dtype="float16"),
}
HARMLESS = {
    "length": dict(max_model_len=2048),
    "sequences": dict(max_num_seqs=3),
    "batch": dict(max_num_batched_tokens=128),
    "served name": dict(served_model_name="somebody"),
    "own prefix cache": dict(enable_prefix_caching=False),
    "seed": dict(seed=7),
    "graphs": dict(enforce_eager=False),
    "load format by name": dict(load_format="safetensors"),
    "kv cache dtype by name": dict(kv_cache_dtype="bfloat16"),
    "log": dict(disable_log_stats=True),
    "n-gram": dict(speculative_config={
        "method": "ngram", "num_speculative_tokens": 2,
        "prompt_lookup_max": 3}),
    "connector": dict(kv_transfer_config={
        "kv_connector": "LarderConnector", "kv_role": "kv_consumer",
        "kv_connector_module_path": "larder_kv.vllm",
        "kv_connector_extra_config": {"lookup_ms": 7}}),
}


@pytest.fixture(scope="module")
def plain(dense):
    return described(config_of(dense))


def space_of(one):
    """All that makes a space another: what Node.space() is given."""
    return one.descriptor, one.shards, one.chunk_tokens


@pytest.mark.parametrize("name", CHANGING)
def test_setting_that_changes_bytes(dense, plain, name):
    other = described(config_of(dense, **CHANGING[name]))
    assert other.descriptor != plain.descriptor
    assert other.name != plain.name


def test_type_of_recurrent_states(dense):
    """Set as it is after vLLM has looked at the CPU: on some 0.32 takes
    float32, whatever was asked for."""
    config = config_of(dense)
    names = set()
    for value in ("auto", "float32", "float16", "bfloat16"):
        config.cache_config.mamba_ssm_cache_dtype = value
        names.add(described(config).name)
    assert len(names) == 4


def test_layers_whose_kv_is_not_quantized(dense, plain):
    """Pages of the same size, of other types: only these names tell them
    apart. In any order."""
    found = []
    for layers in (["0"], ["1"], ["0", "1"], ["1", "0"]):
        config = config_of(dense)
        config.cache_config.kv_cache_dtype_skip_layers = layers
        found.append(described(config).descriptor)
    assert len({plain.descriptor, *found}) == 4 and found[2] == found[3]


def test_how_weights_are_quantized(dense, plain):
    from vllm.config import quantization

    found = []
    for ignored in (["a"], ["b"], ["a"]):
        config = config_of(dense)
        config.model_config.quantization_config = (
            quantization.QuantizationConfigArgs(
                linear={"weight": "fp8_per_tensor_static"}, ignore=ignored))
        found.append(described(config).descriptor)
    assert found[0] == found[2] != found[1] != plain.descriptor


@pytest.mark.parametrize("name", HARMLESS)
def test_setting_that_does_not(dense, plain, name):
    other = described(config_of(dense, **HARMLESS[name]))
    assert space_of(other) == space_of(plain)


def test_number_of_blocks_does_not(dense, plain):
    config = config_of(dense)
    other = described(config, kv_of(full_of(config), blocks=999))
    assert space_of(other) == space_of(plain)


def test_longrope_depends_on_the_length(dense):
    """vLLM takes the long factors as soon as max_model_len is larger than
    the original length: other KV. On one side of it, it is the same."""
    found = [described(config_of(dense, **longrope(length))).descriptor
             for length in (1024, 2048, 2049, 4096)]
    assert found[0] == found[1] != found[2] == found[3]


def test_window_and_groups_change_it(gemma3):
    config = config_of(gemma3)
    kvs = {"full": kv_of(full_of(config)),
           "one window": kv_of(window_of(config), full_of(config)),
           "swapped": kv_of(full_of(config), window_of(config)),
           "narrow": kv_of(window_of(config, 256), full_of(config)),
           "two": kv_of(window_of(config), window_of(config),
                        full_of(config))}
    found = {name: described(config, kv).descriptor
             for name, kv in kvs.items()}
    assert len(set(found.values())) == len(kvs), found.keys()
    other = config_of(gemma3, hf_overrides={"sliding_window": 256})
    assert (described(other, kvs["full"]).descriptor
            != found["full"]), "the config's own window"


def test_packing_changes_it(dense, plain, monkeypatch):
    """Who orders the bytes in a page: instructions, layouts, versions."""
    amx = torch.cpu._is_amx_tile_supported()

    def changed(*patches):
        with monkeypatch.context() as patch:
            for target, name, value in patches:
                patch.setattr(target, name, value)
            return described(config_of(dense)).descriptor

    found = {
        "capability": changed((torch.backends.cpu, "get_cpu_capability",
                               lambda: "OTHER")),
        "amx": changed((torch.cpu, "_is_amx_tile_supported",
                        lambda: not amx)),
        "version": changed((versions, "minor", lambda: "0.99")),
        "format": changed((model, "FORMAT", model.FORMAT + 1)),
    }
    for layout in ("HND", "NHD"):
        with monkeypatch.context() as patch:
            patch.setenv("VLLM_KV_CACHE_LAYOUT", layout)
            found[layout] = described(config_of(dense)).descriptor
    if hasattr(kvi.KVCacheConfig, "kv_cache_layout"):
        config = config_of(dense)
        kv = kv_of(full_of(config))
        kv.kv_cache_layout = "BLHNC"
        found["kv layout"] = described(config, kv).descriptor
    assert plain.descriptor not in found.values()
    assert len(set(found.values())) == len(found)


def test_quantization_and_drafts_change_it(dense, plain):
    """As vLLM has them in its configuration."""
    config = config_of(dense)
    config.model_config.quantization = "fp8"
    assert described(config).descriptor != plain.descriptor
    found = []
    for epsilon in (1e-6, 1e-3):
        config = config_of(dense)
        draft = config_of(dense, hf_overrides={"rms_norm_eps": epsilon})
        config.speculative_config = SimpleNamespace(
            method="eagle", draft_model_config=draft.model_config)
        found.append(described(config).descriptor)
    assert len({plain.descriptor, *found}) == 3


def test_pipeline_partition_changes_it(dense, monkeypatch):
    """Which layers a rank has is what its shard holds."""
    monkeypatch.delenv("VLLM_PP_LAYER_PARTITION", raising=False)
    found = []
    for partition in (None, "1,3", "3,1"):
        if partition:
            monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", partition)
        found.append(described(
            config_of(dense, pipeline_parallel_size=2)).descriptor)
    assert len(set(found)) == 3


def test_shards_and_replicas(dense):
    """Two KV heads: four ranks hold each twice."""
    for ranks, stages, shards, replicas in (
            (1, 1, 1, 1), (2, 1, 2, 1), (4, 1, 2, 2), (2, 2, 4, 1)):
        one = described(config_of(dense, tensor_parallel_size=ranks,
                                  pipeline_parallel_size=stages))
        assert (one.shards, one.replicas) == (shards, replicas)


def test_layers_with_other_heads_are_no_replicas(dense):
    """At four ranks two heads are held twice, but four are not."""
    config = config_of(dense, tensor_parallel_size=4,
                       hf_overrides={"swa_num_key_value_heads": 4})
    one = described(config, kv_of(full_of(config, num_kv_heads=1)))
    assert (one.shards, one.replicas) == (4, 1)


def test_order_that_a_sibling_asks_for(dense, plain):
    """By the connector beside it, vLLM may order pages otherwise."""
    config = config_of(dense)
    found = {model.describe(config, kv_of(full_of(config)), 0, asked).descriptor
             for asked in (None, "HND", "NHD")}
    assert len(found) == 3 and plain.descriptor in found


def test_connector_asks_its_owner(dense, tmp_path, monkeypatch):
    """A child sees only its own settings: the outermost is asked."""
    class Outer(base.KVConnectorBase_V1):
        def __init__(self, config, role, kv):
            super().__init__(config, role, kv)
            self.child = LarderConnector(config, role, kv)

        @classmethod
        def get_required_kvcache_layout(cls, vllm_config):
            return "HND"

    Outer.__abstractmethods__ = frozenset()
    seen = []
    told = model.describe

    def describe(*given, **more):
        seen.append(told(*given, **more))
        return seen[-1]

    monkeypatch.setattr(model, "describe", describe)
    config = config_of(dense, kv_transfer_config={
        "kv_connector": "LarderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "larder_kv.vllm",
        "kv_connector_extra_config": {"url": "embed:?dram=64M"}})
    for made in (LarderConnector, Outer):
        with pytest.raises(Exception, match="embed"):
            made(config, KVConnectorRole.SCHEDULER, kv_of(full_of(config)))
    assert seen[0].descriptor != seen[1].descriptor


# ---- weights ----


def copy_of(path, folder):
    shutil.copytree(path, folder)
    return folder


def fingerprint_of(path, **more):
    return model.fingerprint(config_of(path, **more).model_config)


def test_fingerprint_is_of_content(dense, tmp_path):
    print_of = fingerprint_of(dense)
    assert fingerprint_of(copy_of(dense, tmp_path / "elsewhere")) == print_of
    assert fingerprint_of(dense, served_model_name="x") == print_of


def test_fingerprint_does_not_see_what_no_kv_is_made_of(dense, gemma3):
    """Releases of transformers differ in such defaults, and rename them."""
    print_of = fingerprint_of(dense)
    for more in (dict(id2label={"0": "x"}), dict(transformers_version="9"),
                 dict(num_beams=1), dict(torchscript=False)):
        assert fingerprint_of(dense, hf_overrides=more) == print_of
    config = config_of(dense).model_config
    said = json.loads(config.hf_config.to_json_string(use_diff=False))
    found = {}
    for name, text in {
            "": {}, "default": {"top_k": 50}, "type": {"dtype": "float16"},
            "its own": {"top_k": 2}, "rope": {"scaling": 4}}.items():
        config.hf_config = SimpleNamespace(
            to_json_string=lambda use_diff, text=text: json.dumps(
                dict(said, text_config=dict(text, model_type="x"))))
        found[name] = model.fingerprint(config)
    assert found[""] == found["default"] == found["type"] != print_of
    assert len({found[""], found["its own"], found["rope"]}) == 3
    # Not of a configuration, but inside one.
    config.hf_config = SimpleNamespace(to_json_string=lambda use_diff:
                                       json.dumps(dict(said, parts={
                                           "top_k": 50})))
    assert model.fingerprint(config) != print_of


def test_names_of_one_loader(dense, tmp_path):
    """They load the same files, unless Mistral's are among them."""
    def loaded(path, name):
        return described(config_of(path, load_format=name)).descriptor

    mixed = copy_of(dense, tmp_path / "mixed")
    assert loaded(mixed, "auto") == loaded(mixed, "safetensors")
    [file] = mixed.glob("*.safetensors")
    shutil.copy(file, mixed / "consolidated.safetensors")
    assert loaded(mixed, "auto") != loaded(mixed, "safetensors")


def test_type_of_a_checkpoint_that_has_its_own(dense):
    """It says what "auto" is: then that is not the model's."""
    found = []
    for name in ("auto", "bfloat16"):
        config = config_of(dense)
        config.cache_config.cache_dtype = name
        config.model_config.quantization = "fp8"
        found.append(described(config).descriptor)
    assert found[0] != found[1]


@pytest.mark.parametrize("where", ["first", "middle", "last tensor"])
def test_fingerprint_sees_a_weight(dense, tmp_path, where):
    """One byte, where samples are taken: of the first tensor, of one in the
    middle, of the last."""
    folder = copy_of(dense, tmp_path / "changed")
    [file] = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    tensors = sorted(8 + length + t["data_offsets"][0]
                     for n, t in json.loads(data[8:8 + length]).items()
                     if n != "__metadata__")
    at = {"first": tensors[0], "middle": tensors[len(tensors) // 2],
          "last tensor": tensors[-1]}[where]
    data[at] ^= 1
    file.write_bytes(data)
    assert fingerprint_of(folder) != fingerprint_of(dense)


def test_fingerprint_sees_size_name_and_config(dense, tmp_path):
    found = [fingerprint_of(dense)]
    longer = copy_of(dense, tmp_path / "longer")
    [file] = longer.glob("*.safetensors")
    with open(file, "ab") as out:
        out.write(b"\0")
    found.append(fingerprint_of(longer))
    renamed = copy_of(dense, tmp_path / "renamed")
    [file] = renamed.glob("*.safetensors")
    file.rename(renamed / "other.safetensors")
    found.append(fingerprint_of(renamed))
    config = copy_of(dense, tmp_path / "config")
    text = (config / "config.json").read_text()
    assert '"head_dim": 64' in text
    (config / "config.json").write_text(
        text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    found.append(fingerprint_of(config))
    assert len(set(found)) == 4


def test_fingerprint_of_other_weights(dense):
    other = models.make(str(MODELS), "dense", seed=2)
    assert fingerprint_of(other) != fingerprint_of(dense)


def test_fingerprint_of_a_file(dense, tmp_path):
    """As GGUF has it: the file's content counts, not its path."""
    [file] = dense.glob("*.safetensors")
    config = config_of(dense).model_config

    def print_of(path):
        config.model_weights = str(path)
        return model.fingerprint(config)

    other = tmp_path / file.name
    shutil.copy(file, other)
    assert print_of(other) == print_of(file)
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    data[8] ^= 1
    other.write_bytes(data)
    assert print_of(other) != print_of(file)


def test_weights_that_cannot_be_looked_at(dense, tmp_path):
    """Streamed from elsewhere: only who gives them a name may share them."""
    def told(weights=""):
        return model.describe(config, kv_of(full_of(config)), 0, None,
                              weights).descriptor

    bare = tmp_path / "bare"
    shutil.copytree(dense, bare, ignore=shutil.ignore_patterns("*.safe*"))
    config = config_of(bare)
    refused(told, str(bare), '{"weights": "NAME"}')
    assert told("1") != told("2")
    config = config_of(dense)
    plain = told()
    config.model_config.model_weights = "s3://bucket/model"
    refused(told, "s3://bucket/model")
    assert len({told("1"), told("2"), plain}) == 3
    told = described(config_of(bare, load_format="dummy"))
    assert told.descriptor != plain


# ---- refused ----


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


# ---- what a start says ----


@pytest.fixture
def said(dense):
    """said(url, length): the lines of a start on this node."""
    config = config_of(dense)
    kv = kv_of(full_of(config))
    caches = {"layers.0": torch.zeros(16, 2, full_of(config).block_size, 128,
                                      dtype=torch.bfloat16)}
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(
        (record.levelname, record.getMessage()))
    log = logging.getLogger("vllm.larder")
    level = log.level

    def said(url, length):
        one = worker.Worker.__new__(worker.Worker)
        one.model, one._max_tokens = described(config, kv), length
        one.node = _lib.Node(url)
        one.node.url = url
        one._layout = model.layout(one.model, kv, caches)
        end = time.monotonic() + 30
        while ("shared=" in url and not one.node.stats().shared_tier.on
               and time.monotonic() < end):
            time.sleep(0.01)  # a new node has not looked at it yet
        lines.clear()
        try:
            one._say_sizes()
        finally:
            one._layout.close()
            one.node.close()
        return lines

    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield said
    log.setLevel(level)
    log.removeHandler(handler)


PER_TOKEN = 2 * 128 * 2  # two heads, keys and values, bfloat16


def test_start_line(said, plain, tmp_path):
    url = "embed:?dram=64M"
    [(level, text)] = said(url, 4096)
    start = (f"larder: {url}, space {plain.name}, chunks of 256 tokens, "
             f"{PER_TOKEN} bytes per token; dram holds ")
    assert level == "INFO"
    assert text == f"{start}{(64 << 20) // PER_TOKEN} tokens, ssd 0"
    url = f"embed:{tmp_path}?dram=64M&ssd=256M"
    [(_, text)] = said(url, 4096)
    found = re.fullmatch(r".* dram holds (\d+) tokens, ssd (\d+)", text)
    assert int(found[1]) == (64 << 20) // PER_TOKEN
    assert 0 < int(found[2]) <= (256 << 20) // PER_TOKEN


def test_start_line_of_a_shared_tier(said, tmp_path):
    tier = tmp_path / "tier"
    tier.mkdir()
    _lib.check(_lib.library().larder_shared_create(
        f"dir:{tier}".encode(), None, 10000))
    [(_, text)] = said(f"embed:?dram=64M&shared=dir:{tier}", 4096)
    assert re.search(r"tokens, ssd 0, shared has 0$", text), text


def test_dram_smaller_than_a_request(said):
    """Told at the start, with what to do."""
    fits = (64 << 20) // PER_TOKEN
    assert len(said("embed:?dram=64M", fits)) == 1
    [_, (level, text)] = said("embed:?dram=64M", fits + 1)
    assert level == "ERROR" and "\n" not in text
    for hint in ("larder: ", str(64 << 20), f"max_model_len={fits + 1}",
                 str((fits + 1) * PER_TOKEN), "raise dram", "node_dram"):
        assert hint in text, text


def test_another_models_space(dense):
    """It cannot be opened by mistake: another model has another name, under
    which nothing of the first is found."""
    tokens = array("I", range(3, 3 + 512))
    with contextlib.ExitStack() as stack:
        node = _lib.Node("embed:?dram=64M")
        stack.callback(node.close)
        found = []
        for seed in (1, 2):
            config = config_of(models.make(str(MODELS), "dense", seed=seed))
            one = described(config)
            space = node.space(*space_of(one))
            stack.callback(space.close)
            layout = model.layout(one, kv_of(full_of(config)), {
                "layers.0": torch.zeros(16, 2, 128, 128,
                                        dtype=torch.bfloat16)})
            stack.callback(layout.close)
            keys = _lib.Keys()
            space.chain(tokens, keys)
            data = keys.data(0, 2)
            assert space.match(layout, data, 2, 20000).chunks == 0
            ids = array("I", [1, 2, 3, 4])
            assert space.save(layout, _lib.Move(
                keys=data, end=512, writers=1, timeout_ms=20000,
                tables=(_lib.Table * 1)((ids.buffer_info()[0], 0,
                                         4)))) == _lib.OK
            assert space.match(layout, data, 2, 20000).chunks == 2
            found.append((one.name, data))
    assert found[0][0] != found[1][0] and found[0][1] != found[1][1]


# ---- the tenant's secret ----


def keys_in(space):
    keys = _lib.Keys()
    space.chain(array("I", range(2 * space.chunk_tokens)), keys)
    assert keys.count == 2
    return keys.data(0, 2)


def embedded_keys(one, more=""):
    node = _lib.Node(f"embed:?dram=16M{more}")
    space = node.space(one.descriptor, one.shards, one.chunk_tokens)
    try:
        return keys_in(space)
    finally:
        space.close()
        node.close()


def connector_of(dense, folder, role, secret_file):
    """A whole one, whose node is not there."""
    config = config_of(dense, kv_transfer_config={
        "kv_connector": "LarderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "larder_kv.vllm",
        "kv_connector_extra_config": {"url": f"unix:{folder}/none",
                                      "secret_file": str(secret_file)}})
    return LarderConnector(config, role, kv_of(full_of(config)))


@pytest.mark.parametrize("role", KVConnectorRole)
def test_secret_reaches_the_space(dense, plain, tmp_path, role, monkeypatch):
    """The scheduler's and the workers' keys are rooted in the file's secret:
    the same as those of anybody else who has it."""
    file = tmp_path / "a secret & more"
    file.write_text("the same on all hosts\n")
    file.chmod(0o600)
    alone = SimpleNamespace(rank_in_group=0, world_size=1)
    for group in ("get_tp_group", "get_pp_group"):
        monkeypatch.setattr(parallel_state, group, lambda: alone)
    connector = connector_of(dense, tmp_path, role, file)
    side = connector._scheduler or connector._worker
    found = keys_in(side.space)
    path = urllib.parse.quote(str(file))
    assert found == embedded_keys(plain, f"&secret_file={path}")
    assert found != embedded_keys(plain)
    connector.shutdown()


@pytest.mark.parametrize("role", KVConnectorRole)
@pytest.mark.parametrize("text, why", [(None, "cannot read"),
                                       ("", "no secret in it")])
def test_secret_of_no_use(dense, tmp_path, role, text, why):
    """An engine does not start without the secret it was told to use."""
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
        file.chmod(0o600)
    with pytest.raises(_lib.LarderError) as caught:
        connector_of(dense, tmp_path, role, file)
    assert str(file) in str(caught.value) and why in str(caught.value)
