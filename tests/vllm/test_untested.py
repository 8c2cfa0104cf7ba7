"""A release that was not tested: it is looked at, one block is tried on the
engine's own memory, and it runs with one warning, or not at all."""
import pathlib

import pytest
import rig

IDS = rig.prompt("untested", 1300)


def engine(version, url, **env):
    """As many threads compute, and copy what is saved, as vLLM takes."""
    given = rig.transfer(url)
    given["kv_connector_module_path"] = "untested"
    return rig.engine(
        version, "gemma3", kv_transfer_config=given, threads=None, env={
            "PYTHONPATH": str(pathlib.Path(__file__).parent), **env})


@pytest.mark.core
def test_it_runs_with_one_warning(version, tmp_path):
    with rig.node(tmp_path) as node, engine(version, node.url()) as one:
        one.ask_one(IDS)
        own = one.ask_one(IDS)
        rig.check_same(rig.hit(one, IDS, 1280), own)
        said = [line for line in one.larder_lines() if "not tested" in line]
        assert len(said) == 1 and "WARNING" in said[0], said


def test_a_block_that_differs(version, tmp_path):
    with rig.node(tmp_path) as node:
        with pytest.raises(rig.EngineError) as caught:
            with engine(version, node.url(), LARDER_TEST_BAD="1"):
                pass
        assert "is not loaded as it was saved" in str(caught.value)
