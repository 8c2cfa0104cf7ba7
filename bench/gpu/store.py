"""A hand in the store, beside the engines: what the test of the test needs."""
import ctypes
import pathlib
import random
import sys
from array import array
from ctypes import (POINTER, Structure, byref, c_char_p, c_int, c_size_t,
                    c_uint16, c_uint32, c_uint64, c_void_p)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] /
                       "python"))

from larder_kv import _lib

PUT, GET, EXISTS, REMOVE = 0, 1, 2, 3


class Iovec(Structure):
    _fields_ = [("base", c_void_p), ("bytes", c_size_t)]


class Item(Structure):
    _fields_ = [("key", c_char_p), ("parent", c_char_p), ("depth", c_uint32),
                ("group", c_uint16), ("shard", c_uint16),
                ("iov", POINTER(Iovec)), ("iov_count", c_uint32),
                ("flags", c_uint32), ("ttl_ms", c_uint32), ("status", c_int),
                ("cause", c_int), ("length", c_size_t)]


class OpParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("timeout_ms", c_uint32),
                ("flags", c_uint32), ("user", c_void_p)]


class Store:
    """The space of an engine's model; about is inside.Asked.larder_about."""

    def __init__(self, url, about):
        self._node = _lib.Node(url, lambda *_: None)
        self._count = about["shards"]
        self._space = self._node.space(about["descriptor"].encode(),
                                       about["shards"],
                                       about["chunk_tokens"],
                                       chunk_bytes=about["chunk_bytes"])
        self._run = _lib.library().larder_run
        self._run.argtypes = [c_void_p, c_int, POINTER(Item), c_size_t,
                              POINTER(OpParams)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._space.close()
        self._node.close()

    def keys(self, ids):
        keys = _lib.Keys()
        self._space.chain(array("I", ids), keys)
        return [keys.data(i, i + 1) for i in range(keys.count)]

    def _one(self, op, keys, chunk, group, shard=0, buffer=None):
        item = Item(key=keys[chunk], parent=keys[chunk - 1] if chunk else None,
                    depth=chunk, group=group, shard=shard)
        if buffer is not None:
            iov = Iovec(ctypes.addressof(buffer), ctypes.sizeof(buffer))
            item.iov, item.iov_count = ctypes.pointer(iov), 1
        params = OpParams(1, 10000)
        _lib.check(self._run(self._space._handle, op, byref(item), 1,
                             byref(params)))
        if item.status < 0:
            raise _lib.LarderError(item.status, _lib.status_text(item.status))
        return item

    def _shards(self, keys, chunk, group):
        """A chunk's shards, by number."""
        found = {}
        for shard in range(self._count):
            item = self._one(EXISTS, keys, chunk, group, shard)
            if item.status != _lib.OK or item.length == 0:
                continue
            buffer = (ctypes.c_uint8 * item.length)()
            if self._one(GET, keys, chunk, group, shard,
                         buffer).status == _lib.OK:
                found[shard] = buffer
        return found

    def flip(self, ids, chunk, group, at):
        """Turns one sign bit in a chunk: that of the number that lies `at`
        this part of its middle shard. Done twice, it is as it was. False: the
        chunk is not there."""
        keys = self.keys(ids)
        shards = self._shards(keys, chunk, group)
        if not shards:
            return False
        one = shards[sorted(shards)[len(shards) // 2]]
        # The last byte of four has the sign of a float, of a bfloat16, and of
        # an fp8 number.
        one[int(at * len(one)) // 4 * 4 + 3] ^= 0x80
        # Removing takes all shards of a chunk: each is put again.
        self._one(REMOVE, keys, chunk, group)
        return all(self._one(PUT, keys, chunk, group, shard,
                             buffer).status == _lib.OK
                   for shard, buffer in shards.items())


def prompt(parts, words):
    """As engine.Session.prompt draws it."""
    ids = []
    for seed, tokens in parts:
        draw = random.Random(f"prompt {seed}")
        ids += draw.choices(range(3, words), k=tokens)
    return ids
