"""What the cases of the connector's surface share: they run inside vLLM's
environment, on vLLM's own objects (test_surface.py)."""
import pathlib

import pytest
import rig
import torch
import vllm
from larder_kv.vllm import model, versions
from vllm.engine.arg_utils import EngineArgs
from vllm.v1 import kv_cache_interface as kvi

import models

VERSION = vllm.__version__.split("+")[0]
MODELS = rig.ROOT / f"build/vllm-models/{VERSION}"


@pytest.fixture(scope="session")
def dense():
    MODELS.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(models.make(str(MODELS), "dense"))


@pytest.fixture(scope="session")
def gemma3():
    MODELS.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(models.make(str(MODELS), "gemma3"))


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


def refused(call, *hints):
    with pytest.raises(versions.Unsupported) as caught:
        call()
    text = str(caught.value)
    assert text.startswith("larder: ") and "\n" not in text
    for hint in hints:
        assert hint in text, text
