#!/usr/bin/env python3
"""What copies between KV memory and a node make by themselves, without an
engine: the calls that the connector makes, on memory that torch allocated.

    build/vllm-0.32.0/bin/python bench/vllm/pieces.py [--small]

Shards of 512 KiB, once in pieces of 64 KiB that lie apart, as vLLM keeps them,
and once in one piece. --small: in pages of 4 KiB, not in huge ones. Counted is
the time of the copying thread: what else runs on the machine takes memory
bandwidth from it, and nothing else.
"""
import argparse
import pathlib
import random
import statistics
import sys
import time
from array import array

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/vllm"))

import rig
import torch
from larder_kv import _lib
from larder_kv.engine import pages

BYTES = 1 << 30  # of KV memory
CHUNK, CHUNKS = 256, 16  # tokens; chunks of a save
# name: layers, tokens in a block, bytes of a page
KINDS = {"64 KiB": (4, 128, 1 << 16), "512 KiB": (1, 256, 1 << 19)}
WARM, TIMES = 60, 90


class Memory:
    """An engine's, and where its chunks lie."""

    def __init__(self, kind, huge):
        count, block, page = KINDS[kind]
        self._kv = torch.zeros(BYTES, dtype=torch.uint8)
        numbers = self._kv.view(torch.int32)
        numbers.copy_(torch.arange(numbers.numel(), dtype=torch.int32))
        base, self._blocks = self._kv.data_ptr(), BYTES // (count * page)
        self._each = CHUNK // block
        layers = (_lib.Layer * count)(*(
            (b"layer.%d" % i, 0, i * page * self._blocks, page, page)
            for i in range(count)))
        self.layout = _lib.Layout(
            CHUNK, [_lib.Group(_lib.RULE_ALL, block, 0, layers, count)],
            [_lib.Region(b"kv", base, BYTES)], self._blocks)
        if huge:
            assert pages.Huge([(base, BYTES)]).wait(120)

    def move(self, keys, draw):
        ids = array("I", draw.sample(range(1, self._blocks),
                                     CHUNKS * self._each))
        tables = (_lib.Table * 1)((ids.buffer_info()[0], 0, len(ids)))
        move = _lib.Move(keys=keys.data(0, CHUNKS), tables=tables, writers=1,
                         end=CHUNKS * CHUNK, timeout_ms=20000)
        move.ids = ids  # stays as long as it does
        return move


def rate(move, call):
    """GB/s."""
    began = time.thread_time_ns()
    status = call(move)
    took = time.thread_time_ns() - began
    assert status == _lib.OK and move.shards == CHUNKS, (status, move.shards)
    return move.bytes / took


def measure(space, memory):
    draw = random.Random(1)
    saves, loads = [], []
    for _ in range(WARM + TIMES):
        keys = _lib.Keys()
        space.chain(array("I", [draw.randrange(2000)
                                for _ in range(CHUNKS * CHUNK)]), keys)
        save = memory.move(keys, draw)
        _, rooms = space.reserve(memory.layout, save)
        saves.append(rate(save, rooms.fill))
        loads.append(rate(memory.move(keys, draw),
                          lambda m: space.load(memory.layout, m)))
    return [statistics.median(found[WARM:]) for found in (saves, loads)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true",
                        help="pages of 4 KiB")
    small = parser.parse_args().small
    # So small that saves evict: the node's memory is in use.
    with rig.node(dram="256M", clean=False) as node:
        handle = _lib.Node(node.url(), lambda *_: None)
        space = handle.space(b"pieces", 1, CHUNK)
        for kind in KINDS:
            memory = Memory(kind, not small)
            save, load = measure(space, memory)
            print(f"pieces of {kind}, {'4 KiB' if small else 'huge'} pages: "
                  f"save {save:.1f} GB/s, load {load:.1f} GB/s", flush=True)
            memory.layout.close()
            del memory
        space.close()
        handle.close()


if __name__ == "__main__":
    main()
