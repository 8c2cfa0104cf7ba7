"""KV that vLLM shares with SGLang (pages=shared): that both connectors give the
same space to the same model and another one to what changes the bytes, and that
what vLLM's pages held is found by SGLang's page hashes (test_surface.py)."""
import hashlib
import json
import shutil
import struct
import sys
from array import array
from types import SimpleNamespace

import pytest
import rig
import torch
from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.sglang import shared as sglang
from larder_kv.vllm import model
from larder_kv.vllm.request import Prompt

import surface_cuda
from surface import config_of, dense, full_of, window_of
from surface_cuda import HEADS, LAYERS, SIZE, describe, kv_of

sys.path.insert(0, str(rig.ROOT / "tests/python"))
import vllm_pages

__all__ = ["dense"]  # a fixture

PAGE, CHUNK = 16, 256
SETTINGS = dict(quantization=None, kv_cache_dtype="auto", load_format="auto",
                lora_paths=None, speculative_algorithm=None,
                json_model_override_args="{}", revision=None)


def of_vllm(path, block=16, options=None, kv=None, heads=HEADS, **given):
    config = config_of(path, **given)
    spec = full_of(config, block_size=block, num_kv_heads=heads)
    one = describe(config, kv or kv_of(spec), together=Options(
        {"pages": "shared", "page_tokens": PAGE} | (options or {})))
    return one


def of_sglang(path, dtype=torch.bfloat16, page=PAGE, chunk=0, weights="",
              **given):
    """As its connector names its space."""
    inside = SimpleNamespace(pool=SimpleNamespace(dtype=dtype), heads=HEADS,
                             layers=LAYERS, page_tokens=page,
                             row=SIZE * dtype.itemsize)
    args = SimpleNamespace(model_path=str(path), **SETTINGS | given)
    return (sglang._name(args, weights, inside),
            sglang.shared.chunk_of(page, chunk))


def name_of(one):
    return one.descriptor, one.chunk_tokens


@pytest.fixture(scope="module")
def plain(dense):
    return of_vllm(dense)


def copied(dense, folder, change):
    """The model elsewhere, with another config.json or other weights."""
    shutil.copytree(dense, folder)
    change(folder)
    return folder


def rope(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text())
                               | {"rope_theta": 5e5}))


def weights(folder):
    path = next(folder.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-64:] = bytes(64)
    path.write_bytes(data)


# What changes the bytes: in vLLM's words, and in SGLang's.
CHANGING = {
    "dtype": (dict(dtype="float16"), dict(dtype=torch.float16)),
    "override": (dict(hf_overrides={"rope_theta": 5e5}),
                 dict(json_model_override_args='{"rope_theta": 500000.0}')),
    "page": (dict(options={"page_tokens": 64}), dict(page=64)),
    "chunk": (dict(options={"chunk": 512}), dict(chunk=512)),
    "weights' name": (dict(options={"weights": "w"}), dict(weights="w")),
}


def test_one_name(dense, plain, tmp_path):
    """The same files elsewhere are the same model."""
    assert name_of(plain) == of_sglang(dense)
    other = copied(dense, tmp_path / "elsewhere", lambda folder: None)
    assert of_sglang(other) == name_of(plain)
    assert plain.shards == HEADS * 4 and plain.page_tokens == PAGE


@pytest.mark.parametrize("name", CHANGING)
def test_setting_that_changes_bytes(dense, plain, name):
    ours, theirs = CHANGING[name]
    assert name_of(of_vllm(dense, **ours)) == of_sglang(dense, **theirs)
    assert name_of(of_vllm(dense, **ours)) != name_of(plain)


@pytest.mark.parametrize("change", [rope, weights])
def test_model_that_is_another(dense, plain, tmp_path, change):
    other = copied(dense, tmp_path / "other", change)
    assert name_of(of_vllm(other)) == of_sglang(other) != name_of(plain)


@pytest.mark.parametrize("given", [
    dict(tensor_parallel_size=2, heads=1), dict(block=64), dict(block=128),
    dict(max_model_len=2048), dict(kv_cache_dtype="bfloat16"),
    dict(served_model_name="somebody"), dict(load_format="safetensors")])
def test_setting_that_changes_nothing(dense, plain, given):
    assert name_of(of_vllm(dense, **given)) == name_of(plain)


@pytest.mark.parametrize("given, why", [
    (dict(kv_cache_dtype="fp8"), "KV of type fp8"),
    (dict(quantization="fp8"), "quantized"),
    (dict(load_format="dummy"), "dummy"),
    (dict(options={"page_tokens": 0}), "page_tokens is needed"),
    (dict(options={"chunk": 264}), "SGLang's page"),
    (dict(options={"page_tokens": 24}), "no multiple of vLLM's block")])
def test_what_is_refused(dense, given, why):
    with pytest.raises(_lib.LarderError, match=why):
        of_vllm(dense, **given)


def test_other_layers_are_refused(dense):
    config = config_of(dense)
    with pytest.raises(_lib.LarderError, match="full attention"):
        of_vllm(dense, kv=kv_of(window_of(config, 100, block_size=16)))


def test_the_cpu_is_refused(dense):
    config = config_of(dense)
    with pytest.raises(_lib.LarderError, match="packed for its instr"):
        model.describe(config, kv_of(full_of(config)), 0, together=Options(
            {"pages": "shared", "page_tokens": PAGE}))


def page_hashes(tokens):
    found, before = [], b""
    for at in range(0, len(tokens), PAGE):
        before = hashlib.sha256(before + struct.pack(
            f"<{PAGE}I", *tokens[at:at + PAGE])).digest()
        found.append(before)
    return found


def request(tokens, salt=None):
    return SimpleNamespace(
        request_id="r", all_token_ids=tokens, prompt_token_ids=tokens,
        num_tokens=len(tokens), lora_request=None, mm_features=[],
        cache_salt=salt, prompt_embeds=None)


def keys_of(space, tokens, salt=None):
    prompt = Prompt(request(tokens, salt))
    prompt.extend(space, len(tokens))
    return prompt.keys.data(0, prompt.keys.count)


def test_bytes_by_page_hashes(dense, plain, monkeypatch):
    """vLLM's pages, its layout and its names; read by pages of another order,
    by SGLang's hashes of the last page of each chunk."""
    monkeypatch.setattr(surface_cuda, "describe", lambda *_: plain)
    config = config_of(dense)
    kinds = (surface_cuda.backends() if surface_cuda.SHAPES_OF_BACKENDS
             else [None])
    ours = surface_cuda.Engine(config, 16, False, backend=kinds[0])
    node = _lib.Node("embed:?dram=256M")
    space = node.space(plain.descriptor, plain.shards, CHUNK,
                       page_tokens=PAGE)
    tokens = list(range(100, 612))
    named = keys_of(space, tokens)
    hashes = page_hashes(tokens)
    assert named == hashes[15] + hashes[31]
    salted = keys_of(space, tokens, "a salt")
    assert len(salted) == 64 and not {salted[:32], salted[32:]} & {*hashes}
    keys = _lib.Keys()
    keys.extend(named)
    ours.run(space.save, keys)
    theirs = vllm_pages.Engine(node, plain.descriptor, CHUNK, PAGE, LAYERS,
                               HEADS, 2 * SIZE, 64, "HND", blocks=20)
    table = array("I", [3, 17, 5, 9, 1, 12, 8, 2])
    assert theirs.match(tokens) == 2
    assert theirs.load(tokens, table) == _lib.OK
    found = theirs.read(table, 512)
    for part in range(2):
        for layer in range(LAYERS):
            want = ours.tokens(part, layer).view(torch.int16).numpy()
            assert all(found[part, layer, t, h] == want[t, h].tobytes()
                       for t in range(512) for h in range(HEADS))
    theirs.close()
    space.close()
    node.close()
    ours.layout.close()
