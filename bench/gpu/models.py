"""The models of the proof: configurations, and weights where they matter.

    PYTHON models.py FOLDER NAME...     makes them, prints one path per line

Small ones have generated weights (safetensors) that depend on their name
only: with dummy weights every prompt gives the same answer, whatever the cache
holds. Large ones are shapes for timing, a config.json and no weights
(load_format dummy). None has a tokenizer: prompts are token ids. Tensors are
named as in the published checkpoints; nothing but torch and safetensors is
needed to make them.
"""
import hashlib
import json
import math
import os
import shutil
import sys

COMMON = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2,
              torch_dtype="bfloat16", attention_dropout=0.0,
              attention_bias=False, rms_norm_eps=1e-6, hidden_act="silu",
              initializer_range=0.02, use_cache=True)
QWEN3 = dict(COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3",
             head_dim=128, rope_theta=1000000.0, tie_word_embeddings=False,
             max_position_embeddings=65536, use_sliding_window=False)
SMALL = dict(vocab_size=4096, hidden_size=512, intermediate_size=1024)

GENERATED = {
    # Full attention everywhere.
    "qwen3": dict(QWEN3, **SMALL, num_hidden_layers=6, num_attention_heads=8,
                  num_key_value_heads=2),
    # Five layers with a window to one without.
    "gemma3": dict(
        COMMON, **SMALL, architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text", num_hidden_layers=12,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128,
        query_pre_attn_scalar=128, sliding_window=512,
        max_position_embeddings=65536, tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh", rope_theta=1000000.0,
        rope_local_base_freq=10000.0, layer_types=(
            ["sliding_attention"] * 5 + ["full_attention"]) * 2),
    # A latent in place of heads; all layers dense, so that no expert's choice
    # hangs on a rounding.
    "deepseek-v2": dict(
        COMMON, **SMALL, architectures=["DeepseekV2ForCausalLM"],
        model_type="deepseek_v2", num_hidden_layers=6,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None,
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128,
        v_head_dim=128, head_dim=64, rope_theta=10000.0,
        max_position_embeddings=65536, tie_word_embeddings=False,
        first_k_dense_replace=6, moe_layer_freq=1, n_routed_experts=4,
        n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=128,
        n_group=1, topk_group=1, topk_method="greedy", norm_topk_prob=False,
        routed_scaling_factor=1.0, aux_loss_alpha=0.0, seq_aux=False),
}
SHAPES = {
    "qwen3-8b": dict(QWEN3, vocab_size=151936, hidden_size=4096,
                     intermediate_size=12288, num_hidden_layers=36,
                     num_attention_heads=32, num_key_value_heads=8),
    "qwen3-32b": dict(QWEN3, vocab_size=151936, hidden_size=5120,
                      intermediate_size=25600, num_hidden_layers=64,
                      num_attention_heads=64, num_key_value_heads=8),
    # For trying the script out where there is no GPU.
    "tiny": dict(QWEN3, vocab_size=4096, hidden_size=256,
                 intermediate_size=512, num_hidden_layers=4,
                 num_attention_heads=4, num_key_value_heads=2),
}
KINDS = dict(GENERATED, **SHAPES)


def token_bytes(name):
    """KV bytes of one token, of a model with full attention in bf16."""
    c = KINDS[name]
    return (2 * 2 * c["num_hidden_layers"] * c["num_key_value_heads"]
            * c["head_dim"])


# ---- weights ----


def _attention(c, at):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    if c["model_type"] == "deepseek_v2":
        nope, rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        rank, wide = c["kv_lora_rank"], c["v_head_dim"]
        yield f"{at}.q_proj", (heads * (nope + rope), hidden)
        yield f"{at}.kv_a_proj_with_mqa", (rank + rope, hidden)
        yield f"{at}.kv_a_layernorm", (rank,)
        yield f"{at}.kv_b_proj", (heads * (nope + wide), rank)
        yield f"{at}.o_proj", (hidden, heads * wide)
        return
    size, own = c["head_dim"], c["num_key_value_heads"]
    yield f"{at}.q_proj", (heads * size, hidden)
    yield f"{at}.k_proj", (own * size, hidden)
    yield f"{at}.v_proj", (own * size, hidden)
    yield f"{at}.o_proj", (hidden, heads * size)
    yield f"{at}.q_norm", (size,)
    yield f"{at}.k_norm", (size,)


def _layer(c, at):
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    yield from _attention(c, f"{at}.self_attn")
    for part in ("gate_proj", "up_proj"):
        yield f"{at}.mlp.{part}", (inner, hidden)
    yield f"{at}.mlp.down_proj", (hidden, inner)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if c["model_type"] == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for norm in norms:
        yield f"{at}.{norm}", (hidden,)


def tensors(c):
    """(name, shape) of each of a checkpoint's tensors."""
    yield "model.embed_tokens", (c["vocab_size"], c["hidden_size"])
    for i in range(c["num_hidden_layers"]):
        yield from _layer(c, f"model.layers.{i}")
    yield "model.norm", (c["hidden_size"],)
    if not c["tie_word_embeddings"]:
        yield "lm_head", (c["vocab_size"], c["hidden_size"])


def _draw(model, name, shape, c):
    """Wide enough that one sign bit of one page is seen in the logprobs."""
    import torch

    seed = hashlib.sha256(f"{model}/{name}".encode()).digest()[:6]
    random = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    draw = torch.empty(shape, dtype=torch.float32)
    if len(shape) == 1:  # a norm; Gemma adds 1 to its own
        mean = 0.0 if c["model_type"] == "gemma3_text" else 1.0
        draw.normal_(mean, 0.1, generator=random)
    elif name == "lm_head":
        draw.normal_(0, 0.08, generator=random)
    elif name == "model.embed_tokens":
        # Gemma scales it by the root of its width, and uses it as lm_head.
        width = 0.08 if c["tie_word_embeddings"] else 1.0
        draw.normal_(0, width, generator=random)
    else:
        draw.normal_(0, 1.28 / math.sqrt(shape[-1]), generator=random)
    return draw.bfloat16()


def make(folder, name):
    """Makes one, or finds it made. Gives its path."""
    config = KINDS[name]
    path = os.path.abspath(os.path.join(folder, name))
    with open(__file__, "rb") as file:
        stamp = hashlib.sha256(file.read()).hexdigest()
    mark = os.path.join(path, "made-of")
    if os.path.exists(mark) and open(mark).read() == stamp:
        return path
    part = f"{path}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    with open(os.path.join(part, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    if name in GENERATED:
        from safetensors.torch import save_file

        save_file({f"{n}.weight": _draw(name, n, shape, config)
                   for n, shape in tensors(config)},
                  os.path.join(part, "model.safetensors"),
                  metadata={"format": "pt"})
    with open(os.path.join(part, "made-of"), "w") as file:
        file.write(stamp)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(part, path)
    return path


def main(words):
    if len(words) < 2 or any(name not in KINDS for name in words[1:]):
        sys.exit(f"usage: models.py FOLDER {'|'.join(KINDS)}...")
    for name in words[1:]:
        print(make(words[0], name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
