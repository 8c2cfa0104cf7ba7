"""Two tensor-parallel ranks, each with a part of every page; and latent
attention, whose pages all ranks hold alike."""
import json

import rig

# SGLang has no other rotary embedding for latent attention on a CPU.
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=2.0,
            original_max_position_embeddings=2048,
            beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)
TOKENS = 600
PAGES = TOKENS // rig.PAGE
HIT = (TOKENS - 1) // rig.PAGE * rig.PAGE


def flushed_and_loaded(tmp_path, name, shards, **how):
    ids = rig.prompt(name, TOKENS)
    with rig.node(tmp_path) as node:
        with rig.server(tmp_path, node.url(), **how) as server:
            cold = server.ask(ids)
            assert cold.cached == 0
            rig.stored(node, PAGES * shards)
            server.flush()
            warm = server.ask(ids)
            assert warm.tokens("storage") == HIT
            assert warm == cold


def test_tensor_parallel(tmp_path):
    flushed_and_loaded(tmp_path, "ranks", 2, args=("--tp-size", 2),
                       env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"})


def test_latent_attention(tmp_path):
    flushed_and_loaded(tmp_path, "latent", 1, kind="mla", args=(
        "--json-model-override-args", json.dumps({"rope_parameters": YARN})))
