"""Two tensor-parallel ranks, each with a part of every page."""
import rig

TOKENS = 600
PAGES = TOKENS // rig.PAGE
# A core for each rank, and no NCCL: with one SGLang looks for a GPU.
CPU = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "none"}


def test_tensor_parallel(tmp_path):
    ids = rig.prompt("ranks", TOKENS)
    with rig.node(tmp_path) as node:
        with rig.server(tmp_path, node.url(), args=("--tp-size", 2),
                        env=CPU) as server:
            cold = server.ask(ids)
            assert cold.cached == 0
            rig.stored(node, 2 * PAGES)
            server.flush()
            warm = server.ask(ids)
            assert warm.tokens("storage") == (
                TOKENS - 1) // rig.PAGE * rig.PAGE
            assert warm == cold
