"""Described pages: one server saves, another one with another order of bytes in
its host memory loads."""
import rig

TOKENS = 600
IDS = rig.prompt("slices", TOKENS)
SLICES = dict(extra=dict(pages="slices"))


def name_of(node, server):
    with rig.Store(node, server) as store:
        return store.about


def test_between_layouts(tmp_path):
    with rig.node(tmp_path) as node:
        with rig.server(tmp_path, node.url(), layout="page_first",
                        io="kernel", **SLICES) as server:
            cold = server.ask(IDS)
            assert cold.cached == 0
            rig.stored(node, TOKENS // rig.PAGE)
            # Saved whole: a lookup finds all of it.
            server.flush()
            assert server.ask(IDS) == cold
            first = name_of(node, server)
        with rig.server(tmp_path, node.url(), layout="layer_first",
                        io="direct", **SLICES) as server:
            warm = server.ask(IDS)
            assert warm.tokens("storage") == (
                TOKENS - 1) // rig.PAGE * rig.PAGE
            assert warm == cold
            assert name_of(node, server) == first
