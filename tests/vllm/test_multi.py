"""The package as a user installs it: the connector is known by its name, alone
and as a child of vLLM's MultiConnector.

The other child is vLLM's own ExampleConnector, which writes whole prompts to
files, and hits only a prompt that it has seen whole. Its files are deleted
before the hit: what is loaded then is ours. It does not take prompts that are
computed in parts, so none is here."""
import os
import pathlib
import shutil
import subprocess

import pytest

import rig

SETTINGS = dict(max_num_seqs=1, max_num_batched_tokens=rig.LENGTH)
SHARED, CHUNK = 2048, 256
NO_SAVE = {"larder": {"skip_save": True}}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """`pip install .` with the pinned back end, into a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("LARDER_", "PYTHON", "PIP_", "MAKE"))}
    env.update(PIP_DISABLE_PIP_VERSION_CHECK="1",
               CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count()))
    for command in (
            ["scripts/venv", "build/wheel-tools", "python/wheel-tools.txt"],
            ["build/wheel-tools/bin/pip", "install", "-q", "--no-deps",
             "--no-build-isolation", "--target", str(folder), "."]):
        done = subprocess.run(
            command, cwd=rig.ROOT, env=env, timeout=300, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with rig.node(tmp_path_factory.mktemp("node")) as one:
        yield one


def engine(version, installed, config):
    """An engine that has the installed package and nothing of this tree."""
    env = {"PYTHONPATH": str(installed), "LARDER_LIBRARY": "",
           "LARDER_PROGRAM": ""}
    return rig.LarderEngine(
        rig.python_of(version), rig.model(version, "dense"), env=env,
        max_model_len=rig.LENGTH, kv_transfer_config=config, **SETTINGS)


def by_name(url):
    """Without kv_connector_module_path."""
    found = rig.transfer(url)
    del found["kv_connector_module_path"]
    return found


def forget(folder):
    """Deletes what the other child has saved."""
    for path in folder.iterdir():
        shutil.rmtree(path)


def hit(one, ids, tokens):
    rig.fresh(one)
    with rig.Counted(one) as counted:
        answer = one.ask_one(ids, kv_transfer_params=NO_SAVE)
    assert (counted.external, counted.local) == (tokens, 0)
    return answer


@pytest.fixture(scope="module")
def space(version, installed, node):
    """What names the space; taken from an engine with the connector alone."""
    ids = rig.prompt("by name", 2100)
    with engine(version, installed, by_name(node.url())) as one:
        one.ask_one(ids)
        own = one.ask_one(ids)
        rig.check_same(hit(one, ids, SHARED), own)
        maps = pathlib.Path(f"/proc/{one.pid}/maps").read_text()
        assert str(installed / "larder_kv/_bin/liblarder.so") in maps
        return one.ask("inside", "space")


def test_by_name(space):
    """The entry point registers the connector, and it hits."""
    assert space["chunk_tokens"] == CHUNK


@pytest.mark.parametrize("place", ["first", "last"])
def test_multi_connector(version, installed, node, space, tmp_path, place):
    """MultiConnector saves to both children, and loads from ours."""
    other = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
             "kv_connector_extra_config": {
                 "shared_storage_path": str(tmp_path)}}
    children = [by_name(node.url()), other][::1 if place == "first" else -1]
    config = {"kv_connector": "MultiConnector", "kv_role": "kv_both",
              "kv_connector_extra_config": {"connectors": children}}
    first = rig.prompt(f"multi {place}", 2100)
    ids = first[:SHARED] + rig.prompt(f"more {place}", 300)
    with engine(version, installed, config) as one, \
            rig.Store(node.url(), space) as store:
        one.ask_one(first)
        assert list(tmp_path.iterdir()), "the other one saves too"
        own = one.ask_one(ids, kv_transfer_params=NO_SAVE)
        assert own["cached"] == SHARED
        forget(tmp_path)
        rig.check_same(hit(one, ids, SHARED), own)
        counters = one.counters()
        assert counters["vllm:larder_hits"] == 1
        assert counters["vllm:larder_hit_tokens"] == SHARED
        forget(tmp_path)
        with store.flipped(first, 3):  # the test of the test
            assert not rig.same(hit(one, ids, SHARED), own)
