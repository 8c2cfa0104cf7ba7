"""Who copies: the engine's own threads, and those beside it
(test_surface.py)."""
import ctypes
import os
import random
import subprocess
import sys
import threading
from array import array

import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import cores
from larder_kv.vllm import plugin

CHUNK, CHUNKS, PAGE = 16, 24, 1 << 16


@pytest.fixture
def threads():
    """Torch computes with three."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_team(threads):
    """It is that of torch: all of its threads, and the caller is one."""
    found = []
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda _: found.append(threading.get_native_id()))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p,
                           ctypes.c_uint, ctypes.c_uint)(cores.team().value)
    run(ctypes.cast(work, ctypes.c_void_p), None, 0, 0)
    assert len(set(found)) == len(found) == 3
    assert threading.get_native_id() in found


def test_no_team():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert cores.team() is None
    finally:
        torch.set_num_threads(before)


def test_saved_by_the_team(threads):
    """What it saves is what is loaded, block by block."""
    blocks = 4 * CHUNKS
    memory = torch.zeros(blocks * PAGE, dtype=torch.uint8)
    layers = (_lib.Layer * 1)((b"layer", 0, 0, PAGE, PAGE))
    layout = _lib.Layout(
        CHUNK, [_lib.Group(_lib.RULE_ALL, CHUNK, 0, layers, 1)],
        [_lib.Region(b"kv", memory.data_ptr(), memory.numel())], blocks)
    node = _lib.Node("embed:?dram=64M")
    space = node.space(b"team", 1, CHUNK)
    keys, draw = _lib.Keys(), random.Random(1)
    space.chain(array("I", range(CHUNK * CHUNKS)), keys)
    pages = memory.view(blocks, PAGE)
    pages.copy_(torch.randint(256, pages.shape, dtype=torch.uint8))
    chosen = draw.sample(range(1, blocks), 2 * CHUNKS)
    source, target = chosen[:CHUNKS], chosen[CHUNKS:]

    def move(ids):
        table = array("I", ids)
        tables = (_lib.Table * 1)((table.buffer_info()[0], 0, len(ids)))
        one = _lib.Move(keys=keys.data(0, CHUNKS), tables=tables, writers=1,
                        end=CHUNK * CHUNKS, timeout_ms=20000)
        one.ids = table  # stays as long as it does
        return one

    save, load = move(source), move(target)
    _, rooms = space.reserve(layout, save)
    assert rooms.fill(save, cores.team()) == _lib.OK
    assert (save.shards, save.bytes) == (CHUNKS, CHUNKS * PAGE)
    assert not torch.equal(pages[source], pages[target])
    assert space.load(layout, load) == _lib.OK
    assert torch.equal(pages[source], pages[target])
    space.close()
    node.close()
    layout.close()


SPREAD = """
import os, sys, threading
from larder_kv.engine import cores
end = threading.Event()
if sys.argv[1] == "thread":
    threading.Thread(target=end.wait).start()  # not bound
elif sys.argv[1] == "before":
    cores.remember()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
found = []
def run():
    found.append(len(os.sched_getaffinity(0)))
    cores.spread()
    found.append(len(os.sched_getaffinity(0)))
thread = threading.Thread(target=run)
thread.start()
thread.join()
end.set()
print(*found, len(os.sched_getaffinity(0)))
"""


@pytest.mark.parametrize("most", [1, None])
@pytest.mark.parametrize("seen_by", ["thread", "before", "nobody"])
def test_spread(most, seen_by):
    """A thread of a bound one may run where others of its process may, or where
    the process could before it was bound, and not on more, though the parent
    may; its maker stays where it is."""
    allowed = sorted(os.sched_getaffinity(0))[:most]
    done = subprocess.run(
        [sys.executable, "-B", "-c", SPREAD, seen_by], stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        check=True, timeout=60)
    free = 1 if seen_by == "nobody" else len(allowed)
    assert list(map(int, done.stdout.split()[-3:])) == [1, free, 1]


def test_plugin_remembers(monkeypatch):
    monkeypatch.setattr(cores, "_started", set())
    plugin.register()
    assert cores._started == os.sched_getaffinity(0)
