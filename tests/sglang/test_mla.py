"""A model with latent attention: one row for all heads."""
import rig

TOKENS = 600
IDS = rig.prompt("mla", TOKENS)


def test_saved_and_loaded(tmp_path):
    with rig.node(tmp_path) as node, \
            rig.server(tmp_path, node.url(), kind="mla") as server:
        cold = server.ask(IDS)
        assert cold.cached == 0
        with rig.Store(node, server) as store:
            rig.daemon.until(lambda: all(store.exists(IDS)))
            assert store.about["tensor"] == 1
            assert len(store.about["sizes"]) == 1
        server.flush()
        warm = server.ask(IDS)
        assert warm.tokens("storage") == (TOKENS - 1) // rig.PAGE * rig.PAGE
        assert warm == cold
