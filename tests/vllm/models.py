"""Small models with generated weights, for tests with real vLLM.

    PYTHON models.py FOLDER KIND...     makes them, prints one path per line

PYTHON is that of a vLLM environment (scripts/vllm-env). The weights depend on
the kind and the seed only. Dummy weights would not do: with them every prompt
gives the same answer, whatever the cache holds.
"""
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys

VOCABULARY = 2048
BOS, EOS, PAD = 0, 1, 2
HIDDEN = 256
LENGTH = 32768
LORAS = ("lora-a", "lora-b")
FEW = tuple(range(10, 18))  # tokens that the drafters of tests know

_COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, max_position_embeddings=LENGTH,
    bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
    tie_word_embeddings=False)

KINDS = {
    # Full attention everywhere.
    "dense": dict(
        _COMMON, model_type="qwen3", intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64),
    # One KV head: with tensor parallel 2 both ranks hold the same KV.
    "dense_gqa1": dict(
        _COMMON, model_type="qwen3", intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1,
        head_dim=64),
    # With a head that predicts the next token but one, as MiMo has it.
    "mtp": dict(
        _COMMON, model_type="qwen2", intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2),
    # Five layers with a window to one without.
    "gemma3": dict(
        _COMMON, model_type="gemma3_text", intermediate_size=512,
        num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, query_pre_attn_scalar=64, sliding_window=512,
        layer_types=["sliding_attention"] * 5 + ["full_attention"]),
    # Two kinds of layers, of which both halves and all quarters have some.
    "mixed": dict(
        _COMMON, model_type="gemma3_text", intermediate_size=512,
        num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, query_pre_attn_scalar=64, sliding_window=512,
        layer_types=["sliding_attention", "full_attention"] * 4),
    # A latent of 512 and 64 rotary: the CPU kernel takes no other size.
    "mla": dict(
        _COMMON, model_type="deepseek_v2", intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        q_lora_rank=None, kv_lora_rank=512, qk_rope_head_dim=64,
        qk_nope_head_dim=64, v_head_dim=64, first_k_dense_replace=4,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        moe_intermediate_size=128),
    # Three layers with a linear-attention state to one with attention.
    "next": dict(
        _COMMON, model_type="qwen3_next", intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=128, linear_value_head_dim=128, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=128,
        shared_expert_intermediate_size=128),
}


def seed_of(*words):
    text = "/".join(map(str, words)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "little")


def _spread(name, shape):
    """How wide a weight's values lie: measured so that one early token, and
    one sign bit of one page, is seen in the logprobs 8,000 tokens later."""
    if "embed_tokens" in name:
        return 1.0
    if "conv1d" in name:
        return 0.5
    if "lm_head" in name:
        return 0.08
    return 1.28 / math.sqrt(shape[-1])


def _weights(model, kind, seed):
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            random = torch.Generator().manual_seed(seed_of(kind, seed, name))
            draw = torch.empty(weight.shape, dtype=torch.float32)
            if weight.dim() >= 2:
                draw.normal_(0, _spread(name, weight.shape), generator=random)
            elif name.endswith("A_log"):
                # A state that forgets slowly: what a hit loads must still
                # be seen some hundred tokens later.
                draw.uniform_(math.log(1e-4), math.log(1e-2),
                              generator=random)
            elif name.endswith("dt_bias"):
                draw.normal_(-1, 0.5, generator=random)
            elif name.endswith("bias"):
                draw.normal_(0, 0.02, generator=random)
            elif weight.float().abs().max() == 0:
                draw.normal_(0, 0.1, generator=random)
            else:
                draw.normal_(1, 0.1, generator=random)
            weight.copy_(draw)


def _pieces():
    """A byte-level vocabulary: every byte, then syllables, then words of two
    syllables. Any text has tokens, and words made here have one each."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    syllables = [c + v for c in "bcdfghjklmnpqrstvwxz" for v in "aeiou"]
    merges = [(s[0], s[1]) for s in syllables]
    merges += [("\u0120", s) for s in syllables]
    pairs = [("\u0120" + a, b) for a in syllables for b in syllables]
    # 7919 is prime to the number of pairs: every word is taken once.
    room = VOCABULARY - 3 - len(letters) - len(merges)
    merges += [pairs[i * 7919 % len(pairs)] for i in range(room)]
    names = ["<s>", "</s>", "<pad>"] + letters + [a + b for a, b in merges]
    assert len(set(names)) == VOCABULARY
    return {name: i for i, name in enumerate(names)}, merges


CHAT = ("{% for m in messages %}{{ m['role'] + ':' + m['content'] + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")


def _tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges = _pieces()
    core = Tokenizer(models.BPE(vocabulary, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>",
        pad_token="<pad>", model_max_length=LENGTH,
        clean_up_tokenization_spaces=False)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)


def _lora(folder, config, name, seed):
    """An adapter in peft's format for the attention of every layer."""
    import torch
    from safetensors.torch import save_file

    rank = 8
    width = {"q_proj": config.num_attention_heads,
             "k_proj": config.num_key_value_heads,
             "v_proj": config.num_key_value_heads}
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for part, heads in width.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            random = torch.Generator().manual_seed(seed_of(name, seed, key))
            for half, shape in (("A", (rank, config.hidden_size)),
                                ("B", (heads * config.head_dim, rank))):
                draw = torch.empty(shape).normal_(0, 0.1, generator=random)
                tensors[f"{key}.lora_{half}.weight"] = draw.bfloat16()
    os.makedirs(folder)
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank,
                   "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
                   "target_modules": sorted(width), "inference_mode": True,
                   "base_model_name_or_path": None}, f, indent=1)


def _mtp_shapes(config):
    width, inner = config.hidden_size, config.intermediate_size
    key = width // config.num_attention_heads * config.num_key_value_heads
    return {
        "token_layernorm.weight": (width,),
        "hidden_layernorm.weight": (width,),
        "input_proj.weight": (width, 2 * width),
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (width, width),
        "self_attn.q_proj.bias": (width,),
        "self_attn.k_proj.weight": (key, width),
        "self_attn.k_proj.bias": (key,),
        "self_attn.v_proj.weight": (key, width),
        "self_attn.v_proj.bias": (key,),
        "self_attn.o_proj.weight": (width, width),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "final_layernorm.weight": (width,),
    }


def _mtp(folder, config, seed):
    """Adds the head. It has the model's own output, of which only a few tokens
    are made to count: an answer of these has some drafts accepted and others
    not, though nothing was ever trained."""
    import torch
    from safetensors.torch import load_file, save_file

    file = os.path.join(folder, "model.safetensors")
    tensors = load_file(file)
    for name, shape in _mtp_shapes(config).items():
        random = torch.Generator().manual_seed(seed_of("mtp", seed, name))
        draw = torch.empty(shape)
        if len(shape) == 2:
            # So wide that what it attends to decides its drafts.
            wide = 4 if "self_attn" in name else 1
            draw.normal_(0, wide * _spread(name, shape), generator=random)
        else:
            draw.normal_(0 if name.endswith("bias") else 1, 0.1,
                         generator=random)
        tensors[f"model.mtp_layers.0.{name}"] = draw.bfloat16()
    count = torch.full((VOCABULARY, 1), 0.05)
    count[list(FEW)] = 1
    tensors["lm_head.weight"] = (tensors["lm_head.weight"] * count).bfloat16()
    save_file(tensors, file, metadata={"format": "pt"})
    file = os.path.join(folder, "config.json")
    with open(file) as f:
        known = json.load(f)
    known.update(architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1)
    with open(file, "w") as f:
        json.dump(known, f, indent=1)


def _stamp(seed):
    import transformers

    with open(__file__, "rb") as f:
        source = f.read()
    words = f"{seed} {transformers.__version__} ".encode()
    return hashlib.sha256(words + source).hexdigest()


def make(folder, kind, seed=1):
    """Makes one model, or finds it made. Returns its path. Adapters lie in
    it as lora-a and lora-b (kind dense)."""
    path = os.path.join(folder, f"{kind}-{seed}")
    stamp = _stamp(seed)
    mark = os.path.join(path, "made-of")
    if os.path.exists(mark) and open(mark).read() == stamp:
        return path
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    part = f"{path}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    torch.manual_seed(seed_of(kind, seed))
    shape = dict(KINDS[kind])
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _weights(model, kind, seed)
    model.save_pretrained(part)
    _tokenizer(part)
    if kind == "dense":
        for name in LORAS:
            _lora(os.path.join(part, name), config, name, seed)
    if kind == "mtp":
        _mtp(part, config, seed)
    with open(os.path.join(part, "made-of"), "w") as f:
        f.write(stamp)
    # Two runs may make it at once: the last one's stays, both are the same.
    shutil.rmtree(path, ignore_errors=True)
    os.rename(part, path)
    return path


def make_with(python, folder, *kinds, seed=1):
    """The same from a process that has no transformers of its own."""
    done = subprocess.run(
        [python, "-B", __file__, "--seed", str(seed), folder, *kinds],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"models.py failed:\n{done.stderr.decode()[-3000:]}")
    return done.stdout.decode().splitlines()[-len(kinds):]


def main(words):
    seed = 1
    if words[:1] == ["--seed"]:
        seed = int(words[1])
        words = words[2:]
    if len(words) < 2 or any(kind not in KINDS for kind in words[1:]):
        sys.exit(f"usage: models.py [--seed N] FOLDER {'|'.join(KINDS)}...")
    for kind in words[1:]:
        print(os.path.abspath(make(words[0], kind, seed)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
