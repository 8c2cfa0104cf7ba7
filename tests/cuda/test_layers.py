"""Prefixes that are loaded layer by layer into a GPU's memory, while its
stream works on the layers that are there."""
import threading
from array import array

import pytest

from larder_kv import _lib
from test_store import CHUNK, attached, dense, keys_of, move_of, torch

LAYERS, CHUNKS, PARTS = 24, 24, 6
BLOCKS = 8 * CHUNKS + 1


@pytest.fixture
def world(daemon):
    """A prefix of many shards, saved, and pages to load it to."""
    class World:
        pass

    one = World()
    one.node = _lib.Node(daemon.url("unix"))
    one.pages = dense(LAYERS // 2, 16384, BLOCKS)
    one.space = attached(one.node, one.pages, b"layers")
    one.keys = keys_of(one.space, 1, CHUNKS)
    one.pages.fill(1)
    one.source = list(range(1, 4 * CHUNKS + 1))
    one.target = list(range(4 * CHUNKS + 1, 8 * CHUNKS + 1))
    save = move_of(one.keys, [array("I", one.source)], CHUNKS * CHUNK)
    assert one.space.save(one.pages.layout, save) == _lib.OK
    assert save.shards == CHUNKS
    one.layers = _lib.Layers(one.pages.layout, PARTS)
    yield one
    torch.cuda.synchronize()
    one.layers.close()
    one.space.close()
    one.node.close()
    one.pages.close()


def load(world, busy=0):
    """Loads, and meanwhile reads each layer in a stream as soon as it may.
    Gives the load's status, and what was read."""
    tensors = world.pages.groups[0][2]
    where = torch.tensor(world.target, device="cuda")
    for t in tensors:
        t[world.target[0]:].zero_()
    event = torch.cuda.Event()
    event.record()
    move = move_of(world.keys, [array("I", world.target)], CHUNKS * CHUNK,
                   event=event)
    stream, read, status = torch.cuda.Stream(), [], []
    world.layers.begin()
    thread = threading.Thread(target=lambda: status.append(
        world.layers.load(world.space, world.pages.layout, move)))
    thread.start()
    with torch.cuda.stream(stream):
        work = torch.ones((512, 512), device="cuda")
        for i, t in enumerate(tensors):
            if world.layers.wait(i, stream.cuda_stream, 20000) != _lib.OK:
                break
            read.append(t.index_select(0, where))
            for _ in range(busy):  # as a layer's computation
                work = work @ work
                work = work / work.norm()
    thread.join()
    stream.synchronize()
    return status[0], read


def right(world, read):
    tensors = world.pages.groups[0][2]
    where = torch.tensor(world.source, device="cuda")
    return len(read) == LAYERS and all(
        torch.equal(one, t.index_select(0, where))
        for one, t in zip(read, tensors))


def test_each_layer_is_there(world):
    for i in range(20):
        status, read = load(world, busy=i % 3 * 20)
        assert status == _lib.OK
        assert right(world, read)


def test_missing(world):
    world.keys = keys_of(world.space, 2, CHUNKS)
    status, read = load(world)
    assert status == _lib.MISS and read == []


def test_node_is_killed(world, daemon):
    """The load fails, or is right; the next one fails, and nothing hangs."""
    killer = threading.Timer(0.002, daemon.kill)
    killer.start()
    status, read = load(world)
    killer.join()
    assert status != _lib.OK or right(world, read)
    status, read = load(world)
    assert status != _lib.OK
    torch.cuda.synchronize()
