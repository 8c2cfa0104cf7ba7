"""Orders of bytes in SGLang's host memory, and both interfaces, on one node:
each engine loads what it saved, and nothing of the others, whose pages have
the same keys and in part the same sizes."""
import contextlib
import types

import pytest

import rig

TOKENS = 600
IDS = rig.prompt("layouts", TOKENS)
WHOLE = (TOKENS - 1) // rig.PAGE * rig.PAGE
LAYOUTS = [dict(layout="page_first", io="kernel"),
           dict(layout="page_first_direct", io="direct"),
           dict(layout="layer_first", io="direct"),
           dict(layout="layer_first", io="direct", v1=False)]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    with rig.node(folder) as node:
        yield types.SimpleNamespace(folder=folder, node=node, sizes={},
                                    cold=[])


@pytest.mark.parametrize("how", LAYOUTS, ids=lambda how: " ".join(
    map(str, how.values())))
def test_each_has_its_own(told, how):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            rig.server(told.folder, told.node.url(), **how))
        cold = server.ask(IDS)
        assert cold.cached == 0  # though another one has saved these keys
        store = stack.enter_context(rig.Store(told.node, server))
        rig.daemon.until(lambda: all(store.exists(IDS)))
        server.flush()
        warm = server.ask(IDS)
        assert warm.tokens("storage") == WHOLE and warm == cold
        told.cold.append(cold)
        assert cold == told.cold[0]  # the same model
        told.sizes[how["layout"]] = store.about["sizes"]
        other = store.page_bytes(IDS, 3)
    if how["layout"] == "page_first_direct":
        assert told.sizes["page_first"] == told.sizes["page_first_direct"]
        assert sorted(other) == sorted(told.bytes) and other != told.bytes
    told.bytes = other
