"""Two tensor-parallel ranks, each with a part of every page; and latent
attention, whose pages all ranks hold alike."""
import rig

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
    flushed_and_loaded(tmp_path, "ranks", 2, args=("--tp-size", 2))


def test_latent_attention(tmp_path):
    flushed_and_loaded(tmp_path, "latent", 1, kind="mla")
