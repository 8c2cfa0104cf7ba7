"""Labels of spaces, as the connector gives them."""
from array import array
from types import SimpleNamespace

import pytest

from larder_kv import _lib
from larder_kv.vllm.label import label_of


def config(name, dtype="torch.bfloat16", kv="auto", model="org/model"):
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name=name, model=model,
                                     dtype=dtype),
        cache_config=SimpleNamespace(cache_dtype=kv))


@pytest.mark.parametrize("given, label", [
    (config("Qwen/Qwen3-8B"), "Qwen3-8B bf16"),
    (config(None), "model bf16"),
    (config(["first", "second"]), "first bf16"),
    (config("/models/Qwen3-8B/"), "Qwen3-8B bf16"),
    (config("m", "torch.float16", "fp8_e4m3"), "m fp16 kv fp8_e4m3"),
    (config("m", "torch.float32", "float32"), "m fp32"),
    (config("m", "torch.float32", "bfloat16"), "m fp32 kv bf16"),
])
def test_label_of_a_model(given, label):
    assert label_of(given) == label


def test_a_label_is_given_and_names_nothing():
    """Two handles with other labels have the same keys: it is one space."""
    node = _lib.Node("embed:?dram=8M")
    keys = []
    for label in ("Qwen3-8B bf16", "x" * 300, "\N{SNOWMAN}", ""):
        space = node.space(b"model", 1, 4, label)
        mine = _lib.Keys()
        space.chain(array("I", range(8)), mine)
        keys.append(mine.data(0, 2))
        space.close()
    assert len(set(keys)) == 1
    node.close()
