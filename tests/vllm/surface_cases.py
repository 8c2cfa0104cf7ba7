"""What the connector makes of vLLM's own objects, without an engine: keys of
requests, names of models, pages of memory. tests/vllm/test_surface.py runs
this with the Python of each vLLM environment."""
import contextlib
import itertools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import rig
import torch
import vllm
from larder_kv import _lib
from larder_kv.vllm import lookup, model, plugin, request, stats, versions
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1 import kv_cache_interface as kvi
from vllm.v1.request import Request

import models

VERSION = vllm.__version__.split("+")[0]
MINOR = versions.minor()
SIZE = 64  # tokens in a chunk
MODELS = rig.ROOT / f"build/vllm-models/{VERSION}"


@pytest.fixture(scope="session")
def dense():
    MODELS.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(models.make(str(MODELS), "dense"))


@pytest.fixture(scope="session")
def gemma3():
    MODELS.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(models.make(str(MODELS), "gemma3"))


@pytest.fixture(scope="module")
def space():
    node = _lib.Node("embed:?dram=16M")
    one = node.space(b"surface", 1, SIZE)
    yield one
    one.close()
    node.close()


# ---- keys ----


def tokens_of(seed, count):
    return random.Random(seed).choices(range(3, 2048), k=count)


def request_of(tokens, **more):
    sampling = SamplingParams(max_tokens=10)
    return Request("r", tokens, sampling, None, **more)


def keys_of(space, asked, tokens=None):
    """The keys of a request's chunks, as bytes each."""
    prompt = request.Prompt(asked)
    prompt.extend(space, asked.num_tokens if tokens is None else tokens)
    return split(prompt)


def split(prompt):
    return [prompt.keys.data(i, i + 1) for i in range(prompt.keys.count)]


def image(identifier, offset, length=40):
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=identifier,
        mm_position=PlaceholderRange(offset=offset, length=length))


def lora(path, name="a", number=1):
    return LoRARequest(name, number, str(path))


def embeds(seed, count):
    torch.manual_seed(seed)
    return torch.randn(count, 8)


def embedded(seed, count):
    return request_of(None, prompt_embeds=embeds(seed, count))


TOKENS = tokens_of(1, 4 * SIZE + 3)


def test_equal_requests_share(space):
    one, two = (keys_of(space, request_of(list(TOKENS))) for _ in range(2))
    assert one == two and len(one) == 4 and len(set(one)) == 4


def test_one_early_token_changes_every_key(space):
    other = [TOKENS[0] ^ 1, *TOKENS[1:]]
    assert not set(keys_of(space, request_of(TOKENS))) & set(
        keys_of(space, request_of(other)))


def test_the_same_tokens_with_something_else_never_share(space, dense):
    """Salt, adapter, image, embeddings: no two have a key in common, also
    not where one's name is another's (before 0.32 vLLM's own keys are the
    same for a salt "x" and an adapter "x")."""
    several = {
        "plain": request_of(TOKENS),
        "salt x": request_of(TOKENS, cache_salt="x"),
        "salt y": request_of(TOKENS, cache_salt="y"),
        "salt a": request_of(TOKENS, cache_salt="a"),
        "salt ax": request_of(TOKENS, cache_salt="ax"),
        "adapter a": request_of(TOKENS, lora_request=lora(dense / "lora-a")),
        "adapter b": request_of(TOKENS, lora_request=lora(dense / "lora-b")),
        "adapter x": request_of(TOKENS, lora_request=lora(dense / "lora-a",
                                                          "x")),
        "both": request_of(TOKENS, lora_request=lora(dense / "lora-a"),
                           cache_salt="x"),
        "image x": request_of(TOKENS, mm_features=[image("x", 5)]),
        "image y": request_of(TOKENS, mm_features=[image("y", 5)]),
        "image moved": request_of(TOKENS, mm_features=[image("x", 6)]),
        "embeddings": embedded(1, len(TOKENS)),
        "other ones": embedded(2, len(TOKENS)),
        "zeros": request_of([0] * len(TOKENS)),
    }
    found = {name: keys_of(space, one) for name, one in several.items()}
    assert all(len(keys) == 4 for keys in found.values())
    for one, two in itertools.combinations(found, 2):
        assert not set(found[one]) & set(found[two]), (one, two)
    again = request_of(TOKENS, cache_salt="x")
    assert keys_of(space, again) == found["salt x"]
    assert keys_of(space, embedded(1, len(TOKENS))) == found["embeddings"]


def test_text_before_an_image_is_shared(space):
    """Only what comes after it depends on it."""
    plain = keys_of(space, request_of(TOKENS))
    late = keys_of(space, request_of(
        TOKENS, mm_features=[image("x", 2 * SIZE + 5)]))
    assert late[:2] == plain[:2]
    assert not set(late[2:]) & set(plain)


def test_adapters_by_content(space, dense, tmp_path):
    """The same adapter elsewhere, and another in the same place. vLLM names
    adapters too: by name, since 0.32 also by path. So a copy is shared only
    before 0.32, and only under its name."""
    original = dense / "lora-a"
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    keys = {path: keys_of(space, request_of(
        TOKENS, lora_request=lora(path)))[0] for path in (original, copy)}
    same = keys[original] == keys[copy]
    assert same == (MINOR in ("0.24", "0.29"))
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        changed = tmp_path / f"changed-{name}"
        shutil.copytree(original, changed)
        with open(changed / name, "r+b") as file:
            data = file.read()
            at = data.rindex(b'"r": 8') + 5 if name.endswith("json") else -1
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            file.write(b"9" if at > 0 else bytes([data[-1] ^ 1]))
        assert keys_of(space, request_of(
            TOKENS, lora_request=lora(changed)))[0] not in keys.values()


def test_adapter_that_is_replaced(space, dense, tmp_path, monkeypatch):
    """Under the same name and path, with a date that is not newer. vLLM keeps
    what it loaded under a number: only a new number has the new keys."""
    monkeypatch.setattr(request, "ADAPTER_SECONDS", 0, raising=False)
    place = tmp_path / "adapter"
    shutil.copytree(dense / "lora-a", place)
    first = keys_of(space, request_of(TOKENS, lora_request=lora(place)))
    weights = place / "adapter_model.safetensors"
    then = weights.stat().st_mtime_ns
    shutil.copyfile(dense / "lora-b/adapter_model.safetensors", weights)
    os.utime(weights, ns=(then, then))
    with pytest.raises(ValueError, match="load it again"):
        keys_of(space, request_of(TOKENS, lora_request=lora(place)))
    again = LoRARequest("a", 2, str(place))
    second = keys_of(space, request_of(TOKENS, lora_request=again))
    assert not set(first) & set(second)


def test_adapter_that_is_not_here(space):
    """Known by a name only: no two names share."""
    found = [keys_of(space, request_of(
        TOKENS, lora_request=LoRARequest("a", 1, path)))[0]
        for path in ("nobody/one", "nobody/two")]
    assert found[0] != found[1]


@pytest.mark.parametrize("more", [
    {}, {"cache_salt": "x"}, {"mm_features": "images"}, {"adapter": True}],
    ids=str)
def test_generated_tokens_go_on(space, dense, more):
    """A prompt and its answer, chunk by chunk as they are computed, have the
    names that they have as the next turn's prompt."""
    more = dict(more)
    if more.get("mm_features"):
        more["mm_features"] = [image("x", 10), image("y", 70, 100),
                               image("z", 180, 5)]
    if more.pop("adapter", False):
        more["lora_request"] = lora(dense / "lora-a")
    tokens = tokens_of(3, 5 * SIZE + 7)
    asked = request_of(tokens[:SIZE + 9], **more)
    prompt = request.Prompt(asked)
    prompt.extend(space, asked.num_tokens)
    assert prompt.keys.count == 1
    for token in tokens[SIZE + 9:]:
        asked.append_output_token_ids(token)
        prompt.extend(space, asked.num_tokens)
        assert prompt.keys.count == asked.num_tokens // SIZE
    assert split(prompt) == keys_of(space, request_of(tokens, **more))


def test_generated_after_embeddings(space):
    """One step at a time, or all at once."""
    found = []
    for step in (1, 1000):
        asked = embedded(3, 2 * SIZE)
        prompt = request.Prompt(asked)
        for i, token in enumerate(tokens_of(4, 2 * SIZE)):
            asked.append_output_token_ids(token)
            if i % step == 0:
                prompt.extend(space, asked.num_tokens)
        prompt.extend(space, asked.num_tokens)
        found.append(split(prompt))
    assert found[0] == found[1] and len(found[0]) == 4


def test_not_more_than_is_asked_for(space):
    asked = request_of(TOKENS)
    assert len(keys_of(space, asked, SIZE - 1)) == 0
    assert len(keys_of(space, asked, 2 * SIZE)) == 2


# ---- switches ----


def test_switches():
    assert request.Switches(None).skip_save is False
    assert request.Switches({"other": {"x": 1}}).tiers is None
    one = request.Switches({"larder": {
        "skip_save": True, "skip_load": True, "ttl_ms": 5,
        "tiers": ["dram"]}})
    assert (one.skip_save, one.skip_load, one.ttl_ms) == (True, True, 5)
    assert one.tiers == {"dram"} and one.hint == 0
    one = request.Switches({"larder": {"class": 2, "closed": True}})
    assert one.hint == 2 | 4
    one = request.Switches({"larder": {"template": True, "closed": False}})
    assert one.hint == 8


@pytest.mark.parametrize("given, hint", [
    ({"skip": True}, "skip_save, skip_load, ttl_ms, tiers"),
    ({"skip_save": "no"}, "skip_save"),
    ({"ttl_ms": -1}, "ttl_ms"),
    ({"ttl_ms": 1 << 40}, "ttl_ms"),
    ({"ttl_ms": "soon"}, "ttl_ms"),
    ({"tiers": []}, "tiers"),
    ({"tiers": "dram"}, "tiers"),
    ({"tiers": ["dram", "tape"]}, "tape"),
    ({"class": 4}, "class"),
    ({"class": True}, "class"),
    ({"closed": 1}, "closed"),
    ({"template": "yes"}, "template"),
])
def test_switches_that_are_wrong(given, hint):
    with pytest.raises(ValueError) as caught:
        request.Switches({"larder": given})
    assert hint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [5, "skip_save", [1], True,
                                   {"tiers": [["dram"]]}], ids=str)
def test_switches_that_are_none(given):
    """Whatever a request has there: refused, as arrive() expects it."""
    with pytest.raises((TypeError, ValueError)):
        request.Switches({"larder": given})


# ---- names of models ----


def config_of(path, **more):
    given = dict(model=str(path), dtype="bfloat16", enforce_eager=True,
                 skip_tokenizer_init=True, max_model_len=4096)
    given.update(more)
    return EngineArgs(**given).create_engine_config()


def full_of(config, **more):
    given = dict(block_size=config.cache_config.block_size, num_kv_heads=2,
                 head_size=64, dtype=config.model_config.dtype)
    given.update(more)
    return kvi.FullAttentionSpec(**given)


def window_of(config, window=None, **more):
    full = full_of(config)
    given = dict(block_size=full.block_size, num_kv_heads=2, head_size=64,
                 dtype=full.dtype, sliding_window=window
                 or config.model_config.hf_text_config.sliding_window)
    given.update(more)
    return kvi.SlidingWindowSpec(**given)


def state_of(config, **more):
    given = dict(block_size=config.cache_config.block_size,
                 shapes=((4, 8), (2, 2)),
                 dtypes=(torch.float32, torch.float32))
    given.update(more)
    return kvi.MambaSpec(**given)


def kv_of(*specs, blocks=16):
    """A KVCacheConfig with one layer in each group."""
    return kvi.KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[],
        kv_cache_groups=[kvi.KVCacheGroupSpec([f"layers.{i}"], spec)
                         for i, spec in enumerate(specs)])


def described(config, kv=None, chunk=0):
    return model.describe(config, kv or kv_of(full_of(config)), chunk)


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
    "rope": dict(hf_overrides={"rope_parameters": {
        "rope_type": "default", "rope_theta": 5e5}}),
    "epsilon": dict(hf_overrides={"rms_norm_eps": 1e-3}),
}
HARMLESS = {
    "length": dict(max_model_len=2048),
    "sequences": dict(max_num_seqs=3),
    "batch": dict(max_num_batched_tokens=128),
    "served name": dict(served_model_name="somebody"),
    "own prefix cache": dict(enable_prefix_caching=False),
    "seed": dict(seed=7),
    "graphs": dict(enforce_eager=False),
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


@pytest.mark.parametrize("where", ["first", "middle", "last tensor"])
def test_fingerprint_sees_a_weight(dense, tmp_path, where):
    """One byte, where samples are taken: of the first tensor, of one in the
    middle, of the last."""
    import json

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


# ---- refused ----


def refused(call, *hints):
    with pytest.raises(versions.Unsupported) as caught:
        call()
    text = str(caught.value)
    assert text.startswith("larder: ") and "\n" not in text
    for hint in hints:
        assert hint in text, text


def test_unsupported_version(monkeypatch):
    for version in ("0.31.1", "0.20.2", "1.0.0", "dev"):
        monkeypatch.setattr(vllm, "__version__", version)
        refused(versions.check, version, "0.24.x", "0.29.x", "0.32.x")
    for version in ("0.32.0", "0.32.1.dev3+cpu", "0.29.7", "0.24.0"):
        monkeypatch.setattr(vllm, "__version__", version)
        versions.check()


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
    assert "larder: vLLM 0.20.2 is not supported; use one of" in last, (
        done.stderr[-2000:])


def test_registered_by_name():
    from vllm.distributed.kv_transfer.kv_connector.factory import (
        KVConnectorFactory)

    plugin.register()
    plugin.register()
    found = KVConnectorFactory.get_connector_class_by_name("LarderConnector")
    assert found.__module__.startswith("larder_kv.vllm")
    assert found.__name__ == "LarderConnector"


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


def test_refused_settings(dense):
    config = config_of(dense, pipeline_parallel_size=2)
    refused(lambda: described(config, kv_of(full_of(config),
                                            window_of(config, 512))),
            "pipeline parallelism")
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


# ---- is it worth it ----


def on_disk(tokens, load_us):
    return _lib.Match(chunks=tokens // 256, load_us=load_us,
                      tier_bytes=(0, tokens * 2048, 0))


def test_what_is_never_there_in_time_is_not_tried():
    """Prefill is slower than the time that a request may wait, the disk is
    faster than prefill and slower than that time: trying it would only cost
    that time, again and again."""
    rate, box = lookup.Rate(), 0.5
    rate.tokens_per_second = 2000.0
    match = on_disk(2560, 20000)
    assert rate.wins(2560, match, box)
    rate.staged(match, 2560, box, late=True)
    assert not rate.wins(2560, match, box)
    rate.staged(on_disk(512, 4000), 512, 0.01)  # it is fast again
    rate.staged(on_disk(512, 4000), 512, 0.01)
    assert rate.wins(2560, match, box)
    # From memory nothing is waited for.
    in_dram = _lib.Match(load_us=600000, tier_bytes=(1, 0, 0))
    assert rate.wins(2560, in_dram, box)
    assert not rate.wins(2560, on_disk(2560, 600000), box)


def test_a_load_that_was_slow_is_not_for_ever():
    """Loads are declined since one was held up. Nothing would measure them
    again, if not one were tried some time."""
    rate = lookup.Rate()
    rate.tokens_per_second = 2000.0
    match = _lib.Match(chunks=10, tier_bytes=(2560 * 8192, 0, 0))
    rate.loaded(match.tier_bytes[0], 100.0)
    assert not rate.wins(2560, match, 0.5)
    finder = lookup.Finder.__new__(lookup.Finder)
    finder.rate, finder.layout = rate, None
    finder._options = SimpleNamespace(lookup_ms=500)
    finder._space = SimpleNamespace(match=lambda *_: match)
    look = SimpleNamespace(matched=10, keys=b"")
    tries = 0
    while not rate.wins(2560, match, 0.5):
        finder._probed = float("-inf")
        finder._probe(look)
        finder._probe(look)  # not twice in a while
        tries += 1
    assert 4 < tries < 10
    rate.loaded(match.tier_bytes[0], 0.01)
    assert rate.wins(2560, match, 0.5)


@pytest.mark.parametrize("cause, staged, stored", [
    ("corrupt", 0, 0), ("corrupt", 3, 3), ("evicted", 1, 1),
    ("deadline", 0, 4), ("full", 2, 4), ("none", 4, 4)])
def test_what_is_lost_is_saved_again(cause, staged, stored):
    """A prefix that a match promised: what was lost when it was to be read is
    computed, and must not be taken for something that is stored."""
    finder = lookup.Finder.__new__(lookup.Finder)
    finder.rate, finder.layout, finder.fetches = lookup.Rate(), None, False
    finder.lock, finder._held, finder._hold_max = threading.Lock(), 0, 1 << 30
    finder._options = SimpleNamespace(lookup_ms=500, load="auto")
    finder._events, finder._eagle, finder._size = None, False, 256
    lease = object() if staged else None
    finder._space = SimpleNamespace(
        match=lambda *_: _lib.Match(chunks=4, tier_bytes=(4 << 20, 0, 0)),
        stage=lambda *_: (lease, _lib.Match(
            chunks=staged, cause=_lib.CAUSES.index(cause))))
    look = lookup.Lookup("r", b"", 4, None, 0.5)
    finder._find(look)
    assert (look.matched, look.chunks, look.stored) == (4, staged, stored)


def test_stats_of_a_child():
    """vLLM's MultiConnector reads them in an engine of one process, too."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import multi_connector

    seen = []
    child = SimpleNamespace(observe=lambda data, engine: seen.append(data))
    multi = SimpleNamespace(_prom_metrics={"LarderConnector": child})
    data = {"hits": 1}
    both = multi_connector.MultiKVConnectorStats(
        data={"LarderConnector": stats.LarderStats(data=data)})
    given = both.to_dict() if hasattr(both, "to_dict") else both.data
    multi_connector.MultiKVConnectorPromMetrics.observe(multi, given)
    assert seen == [data]


# ---- pages ----

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
    found = model._pieces("l", both, BLOCKS)
    assert [p.shape for p in found] == [(BLOCKS, 4)] * 2
    assert found[1].data_ptr() - found[0].data_ptr() == BLOCKS * 16
    pair = [torch.zeros(BLOCKS, 3), torch.zeros(BLOCKS, 5)]
    assert len(model._pieces("l", pair, BLOCKS)) == 2
    two = torch.zeros(2, 4)  # two blocks, not two halves
    assert len(model._pieces("l", two, 2)) == 1
    refused(lambda: model._pieces("l", torch.zeros(4, device="meta"), 4),
            "meta", "CPU")


def info(index, rule=_lib.RULE_ALL, block=64, window=0):
    return model.GroupInfo(index, "k", rule, block, window)


def model_of(*groups):
    return model.Model(tuple(groups), 64, b"d", 1, 1)


def register(kv, caches, *groups):
    return model.layout(model_of(*(groups or [info(0)])), kv, caches)


@contextlib.contextmanager
def seen(monkeypatch):
    """What the library is given."""
    given = []
    real = _lib.Layout

    def layout(chunk, groups, regions=(), blocks=0, gpu=None):
        given.append((groups, regions))
        return real(chunk, groups, regions, blocks, gpu)

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
