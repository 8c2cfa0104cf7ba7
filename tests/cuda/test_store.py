"""Pages in a GPU's memory, saved to a node and loaded again, without an
engine."""
import ctypes
import mmap
import os
import pathlib
import random
import signal
import threading
import time
from array import array

import pytest

from larder_kv import _lib
from larder_kv._find import nvrtc_path

torch = pytest.importorskip(
    "torch", reason="GPU tests: PyTorch is not installed; run `make test-gpu` "
    "where there is a GPU")

BLOCK, CHUNK = 16, 64
MARK = b"\x5aLARDER\xa5MARK\x77\x01\x02\x03"


class Pages:
    """An engine's KV: tensors with blocks in their first dimension. Those of
    one group after another; several groups may share one memory."""

    def __init__(self, groups, blocks=64):
        """groups: (rule, window, [tensor, ...])"""
        self.blocks = blocks
        self.groups = groups
        self.gpu = _lib.Gpu(0, nvrtc_path())
        regions, index = [], {}
        made = []
        for rule, window, tensors in groups:
            layers = []
            for t in tensors:
                base = t.untyped_storage().data_ptr()
                if base not in index:
                    index[base] = len(regions)
                    regions.append(_lib.Region(
                        b"kv", base, t.untyped_storage().nbytes()))
                layers.append(_lib.Layer(
                    b"layer", index[base], t.data_ptr() - base,
                    t.stride(0) * t.element_size(),
                    t[0].numel() * t.element_size()))
            made.append(_lib.Group(rule, BLOCK, window,
                                   (_lib.Layer * len(layers))(*layers),
                                   len(layers)))
        self.layout = _lib.Layout(CHUNK, made, regions, blocks, self.gpu)

    def block(self, group, number):
        return torch.cat([t[number].flatten().view(torch.uint8)
                          for t in self.groups[group][2]]).cpu()

    def fill(self, seed):
        torch.manual_seed(seed)
        for _, _, tensors in self.groups:
            for t in tensors:
                t.copy_(torch.randint(0, 255, t.shape, dtype=torch.uint8,
                                      device="cuda"))
        torch.cuda.synchronize()

    def close(self):
        self.layout.close()
        self.gpu.close()


def dense(layers=6, page=32768, blocks=64):
    """K and V apart, as FlashAttention has them."""
    tensors = []
    for _ in range(layers):
        both = torch.empty((2, blocks, page), dtype=torch.uint8,
                           device="cuda")
        tensors += [both[0], both[1]]
    return Pages([(_lib.RULE_ALL, 0, tensors)], blocks)


def hybrid(blocks=64):
    """Two groups on the same memory, one of them with a window."""
    tensors = [torch.empty((blocks, 4096), dtype=torch.uint8, device="cuda")
               for _ in range(4)]
    return Pages([(_lib.RULE_ALL, 0, tensors),
                  (_lib.RULE_TRAILING, 40, tensors)], blocks)


def odd(blocks=64):
    """Pages that are not aligned: copied page by page."""
    whole = torch.empty(blocks * 1001 + 3, dtype=torch.uint8, device="cuda")
    return Pages([(_lib.RULE_ALL, 0, [whole[3:].view(blocks, 1001)])], blocks)


def move_of(keys, tables, end, begin=0, event=None):
    made = (_lib.Table * len(tables))(
        *((ids.buffer_info()[0], begin // BLOCK, len(ids))
          for ids in tables))
    move = _lib.Move(keys=keys.data(0, keys.count), tables=made, begin=begin,
                     end=end, writers=1, timeout_ms=20000,
                     after=event.cuda_event if event is not None else None)
    move.keep = tables, event
    return move


def keys_of(space, seed, chunks):
    keys = _lib.Keys()
    space.chain(array("I", random.Random(seed).choices(range(9999),
                                                       k=chunks * CHUNK)),
                keys)
    return keys


@pytest.fixture(params=["embed", "unix", "tcp"])
def node(request):
    if request.param == "embed":
        one = _lib.Node("embed:?dram=512M")
    else:
        one = _lib.Node(request.getfixturevalue("daemon").url(request.param))
    yield one
    one.close()


def attached(node, pages, what=b"a model"):
    pages.gpu.attach(node)
    return node.space(what, 1, CHUNK)


@pytest.mark.parametrize("kind", [dense, odd])
def test_there_and_back(node, kind):
    pages = kind()
    space = attached(node, pages)
    keys = keys_of(space, 1, 4)
    pages.fill(1)
    order = list(range(1, 64))
    random.Random(1).shuffle(order)
    source, target = order[:16], order[16:32]
    saved = [pages.block(0, b) for b in source]
    save = move_of(keys, [array("I", source)], 4 * CHUNK)
    assert space.save(pages.layout, save) == _lib.OK, _lib.fail(-1)
    assert (save.shards, save.present, save.failed) == (4, 0, 0)
    again = move_of(keys, [array("I", source)], 4 * CHUNK)
    assert space.save(pages.layout, again) == _lib.OK
    assert (again.shards, again.present) == (0, 4)
    pages.fill(2)
    before = {b: pages.block(0, b) for b in range(64)}
    load = move_of(keys, [array("I", target)], 4 * CHUNK)
    assert space.load(pages.layout, load) == _lib.OK, _lib.fail(-1)
    torch.cuda.synchronize()
    for b, was in zip(target, saved):
        assert torch.equal(pages.block(0, b), was)
    for b in set(range(64)) - set(target):
        assert torch.equal(pages.block(0, b), before[b]), "another block"
    # From the middle on: the blocks before are not touched.
    pages.fill(3)
    before = {b: pages.block(0, b) for b in range(64)}
    part = move_of(keys, [array("I", target[6:])], 4 * CHUNK, begin=6 * BLOCK)
    assert space.load(pages.layout, part) == _lib.OK, _lib.fail(-1)
    torch.cuda.synchronize()
    for i, b in enumerate(target):
        want = saved[i] if i >= 6 else before[b]
        assert torch.equal(pages.block(0, b), want), i
    stats = pages.gpu.stats()
    print({name: getattr(stats, name) for name, _ in stats._fields_})
    assert stats.failures == 0
    space.close()
    node.close()
    pages.close()


def test_groups_on_one_memory(node):
    pages = hybrid()
    space = attached(node, pages)
    keys = keys_of(space, 2, 3)
    pages.fill(1)
    full, window = list(range(1, 13)), list(range(20, 32))
    want = ([pages.block(0, b) for b in full],
            [pages.block(1, b) for b in window])
    save = move_of(keys, [array("I", full), array("I", window)], 3 * CHUNK)
    assert space.save(pages.layout, save) == _lib.OK, _lib.fail(-1)
    assert save.failed == 0 and save.skipped == 0
    pages.fill(2)
    gone = [_lib.NULL_BLOCK] * 9 + window[9:]
    to = list(range(40, 52))
    load = move_of(keys, [array("I", to), array("I", gone)], 3 * CHUNK)
    assert space.load(pages.layout, load) == _lib.OK, _lib.fail(-1)
    torch.cuda.synchronize()
    assert all(torch.equal(pages.block(0, b), was)
               for b, was in zip(to, want[0]))
    assert all(torch.equal(pages.block(1, b), was)
               for b, was in zip(window[9:], want[1][9:]))
    # By way of fetched memory, as where a load must not fail.
    lease, match = space.stage(pages.layout, keys.data(0, 3), 3, 20000)
    assert match.chunks == 3
    memory = space.fetch(pages.layout, lease, keys.data(0, 3), 3, 20000,
                         1 << 30)
    lease.release()
    pages.fill(3)
    place = move_of(keys, [array("I", to), array("I", gone)], 3 * CHUNK)
    assert space.place(pages.layout, place, memory.path) == _lib.OK
    torch.cuda.synchronize()
    assert all(torch.equal(pages.block(0, b), was)
               for b, was in zip(to, want[0]))
    memory.close()
    space.close()
    node.close()
    pages.close()


def test_after_the_event(daemon):
    """A save reads what the stream wrote before the event, a load writes over
    what it wrote."""
    pages, node = dense(), _lib.Node(daemon.url("unix"))
    space = attached(node, pages)
    ids = array("I", range(1, 17))
    pages.fill(1)
    for t in pages.groups[0][2]:  # makes what the next steps need
        t[1:17].fill_(1)
        t[1:17].zero_()
    torch.cuda.synchronize()
    for turn in range(3):
        keys = keys_of(space, 100 + turn, 4)
        torch.cuda._sleep(600_000_000)  # cycles: about 0.3 s
        for t in pages.groups[0][2]:
            t[1:17].fill_(turn + 7)
        event = torch.cuda.Event()
        event.record()
        assert not event.query(), "it was done too soon to show anything"
        save = move_of(keys, [ids], 4 * CHUNK, event=event)
        assert space.save(pages.layout, save) == _lib.OK, _lib.fail(-1)
        assert all(bool((pages.block(0, b) == turn + 7).all()) for b in ids)
        torch.cuda._sleep(600_000_000)
        for t in pages.groups[0][2]:
            t[1:17].zero_()
        event = torch.cuda.Event()
        event.record()
        load = move_of(keys, [ids], 4 * CHUNK, event=event)
        assert space.load(pages.layout, load) == _lib.OK, _lib.fail(-1)
        torch.cuda.synchronize()
        assert all(bool((pages.block(0, b) == turn + 7).all()) for b in ids)
    space.close()
    node.close()
    pages.close()


def test_beside_a_graph(daemon):
    """Loads and saves go on while another thread captures graphs, and harm
    none."""
    pages, node = dense(), _lib.Node(daemon.url("unix"))
    space = attached(node, pages)
    pages.fill(1)
    ids = array("I", range(1, 17))
    stop, statuses = threading.Event(), []

    def work():
        turn = 0
        while not stop.is_set():
            keys = keys_of(space, 1000 + turn, 4)
            turn += 1
            statuses.append(space.save(
                pages.layout, move_of(keys, [ids], 4 * CHUNK)))
            statuses.append(space.load(
                pages.layout, move_of(keys, [ids], 4 * CHUNK)))

    thread = threading.Thread(target=work)
    thread.start()
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(50):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x
            for _ in range(20):
                y = y * 1.0 + 1.0
        graph.replay()
        torch.cuda.synchronize()
        assert float(y[0]) == 21.0
    stop.set()
    thread.join()
    assert statuses and set(statuses) == {_lib.OK}
    print(len(statuses), "moves")
    space.close()
    node.close()
    pages.close()


def flip_in_memory(pid):
    """A bit of the byte after each mark that the process's memfds have."""
    count = 0
    for name in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:" not in os.readlink(name):
                continue
            with open(name, "r+b") as file, mmap.mmap(file.fileno(), 0) as m:
                at = m.find(MARK)
                while at >= 0:
                    m[at + len(MARK)] ^= 0x80
                    count += 1
                    at = m.find(MARK, at + 1)
        except (OSError, ValueError):
            continue
    return count


def test_a_flipped_bit_is_seen(daemon):
    pages, node = dense(), _lib.Node(daemon.url("unix"))
    space = attached(node, pages)
    keys = keys_of(space, 5, 4)
    pages.fill(1)
    first = pages.groups[0][2][0]
    first[3, 1000:1000 + len(MARK)] = torch.tensor(list(MARK),
                                                   dtype=torch.uint8)
    ids = array("I", range(1, 17))
    save = move_of(keys, [ids], 4 * CHUNK)
    assert space.save(pages.layout, save) == _lib.OK, _lib.fail(-1)
    load = move_of(keys, [ids], 4 * CHUNK)
    assert space.load(pages.layout, load) == _lib.OK
    assert flip_in_memory(daemon.pid) == 1
    load = move_of(keys, [ids], 4 * CHUNK)
    assert space.load(pages.layout, load) == _lib.MISS
    assert _lib.CAUSES[load.cause] == "corrupt"
    space.close()
    node.close()
    pages.close()


def test_the_node_dies(daemon):
    """In the middle of saves and loads: each ends with a status, in time, and
    a new node is used."""
    pages, node = dense(), _lib.Node(daemon.url("unix"))
    space = attached(node, pages)
    pages.fill(1)
    ids = array("I", range(1, 17))
    seen, stop = [], threading.Event()

    def work(seed):
        turn = 0
        while not stop.is_set():
            keys = keys_of(space, seed + turn, 4)
            turn += 1
            began = time.monotonic()
            move = move_of(keys, [ids], 4 * CHUNK)
            move.timeout_ms = 1000
            saved = space.save(pages.layout, move)
            move = move_of(keys, [ids], 4 * CHUNK)
            move.timeout_ms = 1000
            seen.append((saved, space.load(pages.layout, move),
                         time.monotonic() - began))

    threads = [threading.Thread(target=work, args=(seed,))
               for seed in (10_000, 20_000)]
    for thread in threads:
        thread.start()
    daemon.clean = False
    for _ in range(3):
        time.sleep(0.5)
        daemon.signal(signal.SIGKILL)
        daemon.process.wait()
        daemon.start()
    time.sleep(1.0)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert max(took for _, _, took in seen) < 8
    assert any(load != _lib.OK for _, load, _ in seen)
    assert seen[-1][1] == _lib.OK
    space.close()
    node.close()
    pages.close()


def test_speed(daemon):
    """No assertion: figures, for who reads them."""
    layers, blocks = 36, 1024
    pages = dense(layers, 32768, blocks)  # 2.4 GB: an 8B model's shape
    node = _lib.Node(daemon.url("unix") + "?timeout_ms=60000")
    pages.gpu.attach(node)
    space = node.space(b"speed", 1, CHUNK)
    pages.fill(1)
    chunks = 192  # 1.8 GB
    count = chunks * CHUNK // BLOCK
    order = list(range(1, blocks))
    random.Random(3).shuffle(order)
    ids = array("I", order[:count])
    keys = keys_of(space, 9, chunks)
    for name in ("save", "load", "load", "load"):
        move = move_of(keys, [ids], chunks * CHUNK)
        began = time.monotonic()
        status = getattr(space, name)(pages.layout, move)
        took = time.monotonic() - began
        assert status == _lib.OK, _lib.fail(status)
        print(f"{name} {move.bytes / took / 1e9:.1f} GB/s ({move.bytes} "
              f"bytes, {move.failed} failed)")
    stats = pages.gpu.stats()
    print({name: getattr(stats, name) for name, _ in stats._fields_})
    space.close()
    node.close()
    # A second process's view: everything is registered ahead.
    node = _lib.Node(daemon.url("unix") + "?timeout_ms=60000")
    gpu = _lib.Gpu(0, nvrtc_path())
    gpu.attach(node)
    end = time.monotonic() + 20
    while (gpu.stats().registered_bytes < 18 << 26
           and time.monotonic() < end):
        time.sleep(0.01)
    stats = gpu.stats()
    print(f"registered {stats.registered_bytes / 1e9:.1f} GB in "
          f"{stats.register_ns / 1e9:.2f} s")
    node.close()
    gpu.close()
    assert ctypes.sizeof(stats) == stats.struct_bytes
    pages.close()
