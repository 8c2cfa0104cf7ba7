"""A small EAGLE-3 drafter with generated weights for models.py's kind dense.

    PYTHON drafts.py FOLDER     makes it, prints its path

It knows eight tokens only: an answer that has no others has some drafts
accepted and others not, though neither model was ever trained.
"""
import json
import os
import subprocess
import sys

import models

TOKENS = models.FEW  # that it knows
_SHAPE = dict(models.KINDS["dense"], num_hidden_layers=1, model_type="llama",
              architectures=["LlamaForCausalLMEagle3"], rms_norm_eps=1e-6,
              hidden_act="silu", draft_vocab_size=len(TOKENS),
              eagle_aux_hidden_state_layer_ids=[1, 2, 3],
              torch_dtype="bfloat16")


def _shapes():
    width, inner = models.HIDDEN, _SHAPE["intermediate_size"]
    head = _SHAPE["head_dim"]
    query = head * _SHAPE["num_attention_heads"]
    key = head * _SHAPE["num_key_value_heads"]
    return {
        "fc.weight": (width, 3 * width),
        "midlayer.self_attn.q_proj.weight": (query, 2 * width),
        "midlayer.self_attn.k_proj.weight": (key, 2 * width),
        "midlayer.self_attn.v_proj.weight": (key, 2 * width),
        "midlayer.self_attn.o_proj.weight": (width, query),
        "midlayer.mlp.gate_proj.weight": (inner, width),
        "midlayer.mlp.up_proj.weight": (inner, width),
        "midlayer.mlp.down_proj.weight": (width, inner),
        "midlayer.hidden_norm.weight": (width,),
        "midlayer.input_layernorm.weight": (width,),
        "midlayer.post_attention_layernorm.weight": (width,),
        "norm.weight": (width,),
        "lm_head.weight": (len(TOKENS), width),
    }


def _spread(name, shape):
    """So wide that what the drafter attends to decides its drafts: its KV
    must be seen in them."""
    wide = 4 if "self_attn" in name else 1
    return wide * 1.28 / shape[-1] ** 0.5


def make(folder):
    import torch
    from safetensors.torch import save_file

    path = os.path.join(folder, "eagle3")
    os.makedirs(path, exist_ok=True)
    tensors = {}
    for name, shape in _shapes().items():
        random = torch.Generator().manual_seed(models.seed_of("eagle3", name))
        mean, spread = (1, 0.1) if len(shape) == 1 else (
            0, _spread(name, shape))
        tensors[name] = torch.empty(shape).normal_(
            mean, spread, generator=random).bfloat16()
    # A token's number here and that of the target's are so far apart.
    tensors["d2t"] = torch.tensor([token - i
                                   for i, token in enumerate(TOKENS)])
    save_file(tensors, os.path.join(path, "model.safetensors"))
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(_SHAPE, file, indent=1)
    return path


def make_with(python, folder):
    """The same from a process that has no torch of its own."""
    done = subprocess.run([python, "-B", __file__, folder], check=True,
                          stdout=subprocess.PIPE, timeout=300, text=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    print(os.path.abspath(make(sys.argv[1])), flush=True)
