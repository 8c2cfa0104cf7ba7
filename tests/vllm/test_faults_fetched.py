"""vLLM before 0.30 ends at a failed load of a model with several KV groups. A
worker that cannot map what was fetched for one waits until it can."""
import pytest

import rig

pytestmark = pytest.mark.versions("0.29.0", "0.24.0")

CHUNK = 256
TIMES = 6  # more than a load was ever tried


def test_no_descriptor_for_a_while(version, tmp_path):
    ids = rig.prompt("fetched", 2100)
    with rig.node(tmp_path) as node:
        with rig.engine(version, "gemma3", node.url()) as engine:
            engine.ask_one(ids)
            own = engine.ask_one(ids)
            wanted = rig.whole(len(ids) - 1, CHUNK)
            assert own["cached"] == wanted
            rig.check_same(rig.hit(engine, ids, wanted), own)
            engine.ask("inside", "few_descriptors", times=TIMES)
            rig.check_same(rig.hit(engine, ids, wanted), own)
            assert engine.ask("inside", "few_descriptors", times=0) == TIMES
            assert engine.counters().get("vllm:larder_load_failures", 0) == 0
            said = [line for line in engine.larder_lines()
                    if "tried again" in line]
            assert len(said) == 1 and "open files" in said[0]
            rig.check_same(rig.hit(engine, ids, wanted), own)
