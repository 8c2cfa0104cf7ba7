"""A forward that does not come to its end: a signal, no memory, an error of the
model. vLLM asks for the step's saves all the same, and layers behind the one
that raised have what their blocks had before. Nothing of it may be stored: it
would be found, whole and with a right checksum, after the restart."""
import pytest

import rig
from engine_run import EngineError

CHUNK = 256


@pytest.mark.parametrize("threads", [
    pytest.param(0, marks=pytest.mark.core, id="in the step"),
    pytest.param(1, id="beside it")])
def test_nothing_is_saved(version, tmp_path, threads):
    ids = rig.prompt("interrupted", 1100)
    with rig.node(tmp_path) as node, rig.engine(
            version, "dense", node.url(), options=dict(save_threads=threads),
            max_num_batched_tokens=CHUNK) as engine:
        engine.ask("inside", "interrupted", forward=2)
        with pytest.raises(EngineError, match="in the forward"):
            engine.ask_one(ids)
        with rig.Store(node.url(), engine) as store:
            engine.close()  # what is queued to be saved is
            assert store.has(ids, 0)  # of a forward that came to its end
            assert not store.has(ids, 2) and not store.has(ids, 3)
