"""Weights that are replaced in the memory of a server that runs."""
import pathlib
import shutil
import subprocess
import urllib.error

import pytest

import rig

TOKENS = 500
WHOLE = (TOKENS - 1) // rig.PAGE * rig.PAGE
IDS = rig.prompt("weights", TOKENS)
OTHER = """
import pathlib, sys, safetensors.torch as files
for path in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
    held = files.load_file(path)
    held = {name: one.flip(0) if one.dim() == 2 and "_proj" in name else one
            for name, one in held.items()}
    files.save_file({name: one.contiguous() for name, one in held.items()},
                    path, {"format": "pt"})
"""


@pytest.fixture
def other(tmp_path):
    """The same model with other weights."""
    made = shutil.copytree(rig.model("dense"), tmp_path / "other")
    subprocess.run([rig.PYTHON, "-c", OTHER, made], check=True)
    return made


def replace(server, path):
    server._call("POST", "/update_weights_from_disk",
                 {"model_path": str(path), "flush_cache": True})


def attach(server, **extra):
    server.detach()
    server.attach(**extra)


def from_storage(server, cold):
    """Once it is saved, a flush and the store give the same answer."""
    def hit():
        server.flush()
        answer = server.ask(IDS)
        assert answer == cold
        return answer.tokens("storage") == WHOLE

    rig.daemon.until(hit, text="no hit of the store")


def test_replaced(tmp_path, other):
    with rig.node(tmp_path) as node, \
            rig.server(tmp_path, node.url()) as server:
        cold = server.ask(IDS)
        from_storage(server, cold)
        replace(server, other)
        fresh = server.ask(IDS)
        assert fresh.cached == 0 and fresh != cold
        server.flush()
        assert server.ask(IDS) == fresh
        assert server.ask(IDS).tokens("storage") == 0
        assert server.log().count("SGLang replaces its weights") == 1

        server.flush()
        server.detach()
        with pytest.raises(urllib.error.HTTPError):
            server.attach()
        server.attach(weights="other")
        assert server.ask(IDS).cached == 0
        from_storage(server, fresh)

        replace(server, pathlib.Path(rig.model("dense")))
        assert server.ask(IDS) == cold
        attach(server, weights="back again")
        from_storage(server, cold)
