"""What the connector makes of a model: the names of its spaces and of its
weights, and what it says at its start (test_surface.py)."""
import contextlib
import json
import logging
import re
import shutil
import time
import urllib.parse
from array import array
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv.vllm import (LarderConnector, connector, model, patches,
                            versions, worker)
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole, base
from vllm.v1 import kv_cache_interface as kvi

import models
from surface import (MODELS, config_of, dense, described, full_of, gemma3,
                     kv_of, refused, window_of)

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
