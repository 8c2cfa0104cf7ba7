"""liblarder by ctypes: $LARDER_BUILD/lib/liblarder.so, as an engine in Python
would use it. Only what the tests need."""
import ctypes
import hashlib
import os
import pathlib
import random
from ctypes import (POINTER, Structure, byref, c_char_p, c_int, c_size_t,
                    c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)

OK, PRESENT, MISS, PENDING = 0, 1, 2, 3
DECLINED = 4
E_FULL, E_DEADLINE, E_CANCELED, E_BUSY, E_STALE = -5, -6, -7, -8, -10
E_MISMATCH, E_UNSUPPORTED, E_VERSION = -9, -12, -64
E_FORKED, E_SECRET, E_OFFLINE, E_DENIED = -41, -67, -68, -69
CAUSES = ("none", "absent", "evicted", "corrupt", "stale", "deadline",
          "tier_off", "full", "io", "offline", "paused", "other")
PUT, GET, EXISTS, REMOVE = 0, 1, 2, 3
OP_TIMEOUT, OP_FLAGS = 1, 2
VERIFY_PUT = 1
KEY_BYTES = 32


class Iovec(Structure):
    _fields_ = [("base", c_void_p), ("bytes", c_size_t)]


class Key(Structure):
    _fields_ = [("hash", c_uint8 * KEY_BYTES)]


class Item(Structure):
    _fields_ = [("key", POINTER(Key)), ("parent", POINTER(Key)),
                ("depth", c_uint32), ("group", c_uint16), ("shard", c_uint16),
                ("iov", POINTER(Iovec)), ("iov_count", c_uint32),
                ("flags", c_uint32), ("ttl_ms", c_uint32), ("status", c_int),
                ("cause", c_int), ("length", c_size_t)]


class OpParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("timeout_ms", c_uint32),
                ("flags", c_uint32), ("user", c_void_p)]


class SpaceParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("descriptor", c_char_p),
                ("descriptor_bytes", c_size_t), ("tenant", c_char_p),
                ("secret", c_char_p), ("secret_bytes", c_size_t),
                ("shards", c_uint32), ("chunk_tokens", c_uint32)]


LOG_FN = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class OpenParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("log", LOG_FN),
                ("log_arg", c_void_p)]


class Match(Structure):
    _fields_ = [("struct_bytes", c_uint64), ("chunks", c_uint32),
                ("cause", c_int), ("load_us", c_uint64),
                ("tier_chunks", c_uint32 * 8), ("tier_bytes", c_uint64 * 8)]

    def __init__(self):
        super().__init__(struct_bytes=ctypes.sizeof(self))


class Error(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


def library():
    """The library, opened once."""
    global _lib
    if _lib is None:
        path = pathlib.Path(os.environ["LARDER_BUILD"]) / "lib/liblarder.so"
        lib = ctypes.CDLL(str(path))
        lib.larder_last_error.restype = c_char_p
        lib.larder_open.argtypes = [c_char_p, POINTER(OpenParams),
                                    POINTER(c_void_p)]
        lib.larder_close.argtypes = [POINTER(c_void_p), c_uint32]
        lib.larder_space_open.argtypes = [c_void_p, POINTER(SpaceParams),
                                          POINTER(c_void_p)]
        lib.larder_space_close.argtypes = [POINTER(c_void_p)]
        lib.larder_space_close.restype = None
        lib.larder_space_reset.argtypes = [c_void_p, c_uint32]
        lib.larder_run.argtypes = [c_void_p, c_int, POINTER(Item), c_size_t,
                                   POINTER(OpParams)]
        lib.larder_match.argtypes = [c_void_p, POINTER(Key), c_size_t,
                                     c_uint16, POINTER(Match)]
        lib.larder_stage.argtypes = [c_void_p, POINTER(Key), c_size_t,
                                     c_uint16, c_uint32, POINTER(c_void_p),
                                     POINTER(Match)]
        lib.larder_lease_segments.argtypes = [
            c_void_p, c_uint32, c_uint16, POINTER(Iovec), c_uint32,
            POINTER(c_uint32)]
        lib.larder_release.argtypes = [POINTER(c_void_p)]
        lib.larder_release.restype = None
        lib.larder_reserve.argtypes = [c_void_p, POINTER(Item),
                                       POINTER(c_size_t), c_size_t, c_uint32,
                                       POINTER(c_void_p)]
        lib.larder_reserve_segments.argtypes = [
            c_void_p, c_size_t, POINTER(Iovec), c_uint32, POINTER(c_uint32)]
        lib.larder_commit.argtypes = [POINTER(c_void_p), c_char_p,
                                      POINTER(c_uint32), POINTER(c_int),
                                      c_uint32]
        lib.larder_crc32c.argtypes = [c_uint32, c_char_p, c_size_t]
        lib.larder_crc32c.restype = c_uint32
        lib.larder_flush.argtypes = [c_void_p, c_int, c_uint32]
        lib.larder_shared_create.argtypes = [c_char_p, c_char_p, c_uint32]
        lib.larder_announce.argtypes = [c_void_p, POINTER(Key), c_size_t,
                                        c_void_p, c_uint32]
        lib.larder_stats.argtypes = [c_void_p, c_void_p]
        lib.larder_metrics.argtypes = [c_void_p, c_char_p, c_size_t,
                                       POINTER(c_size_t)]
        _lib = lib
    return _lib


_lib = None
SEGS = 1024


@LOG_FN
def _quiet(_arg, _level, _line):
    pass


def key_of(name):
    return Key.from_buffer_copy(hashlib.sha256(name.encode()).digest())


def value_of(name, low=1, high=300000):
    """The bytes that belong to a name: every one of them can be checked."""
    rng = random.Random(name)
    return rng.randbytes(rng.randrange(low, high))


class Node:
    """A handle with one space. Calls give statuses; nothing is raised but by
    open."""

    def __init__(self, url, descriptor=b"tests", shards=1, tenant=None,
                 quiet=True, secret=None, log=None):
        """log(level, line): who hears of what the library says."""
        self.lib = library()
        self.node, self.space = c_void_p(), c_void_p()
        self.crcs = {}  # of what was filled in, by lease
        self.log = _quiet if log is None else LOG_FN(
            lambda _arg, level, line: log(level, line.decode()))
        params = OpenParams(1 if quiet else 0, self.log, None)
        self._check(self.lib.larder_open(url.encode(), byref(params),
                                         byref(self.node)))
        space = SpaceParams(4 | (1 if tenant else 0) | (2 if secret else 0),
                            descriptor, len(descriptor),
                            tenant.encode() if tenant else None,
                            secret, len(secret or b""), shards, 0)
        status = self.lib.larder_space_open(self.node, byref(space),
                                            byref(self.space))
        if status != OK:
            text = self.error()
            self.lib.larder_close(byref(self.node), 1000)
            raise Error(status, text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def error(self):
        return self.lib.larder_last_error().decode(errors="replace")

    def _check(self, status):
        if status != OK:
            raise Error(status, self.error())

    def _run(self, op, items, timeout_ms, flags=0):
        params = OpParams(OP_FLAGS | (OP_TIMEOUT if timeout_ms else 0),
                          timeout_ms or 0, flags)
        return self.lib.larder_run(self.space, op, items, len(items),
                                   byref(params))

    def put_many(self, pairs, timeout_ms=0, flags=0, parents=None):
        """pairs: (name, bytes). The status of each, or that of the batch.
        parents: (name, depth) of each chunk's own."""
        items = (Item * len(pairs))()
        keep = []
        for item, (name, value) in zip(items, pairs):
            key, buffer = key_of(name), (c_uint8 * len(value)
                                         ).from_buffer_copy(value)
            iov = Iovec(ctypes.addressof(buffer), len(value))
            keep += [key, buffer, iov]
            item.key, item.iov, item.iov_count = (ctypes.pointer(key),
                                                  ctypes.pointer(iov), 1)
        for item, (name, depth) in zip(items, parents or ()):
            item.depth = depth
            if name is not None:
                keep.append(key_of(name))
                item.parent = ctypes.pointer(keep[-1])
        status = self._run(PUT, items, timeout_ms, flags)
        return [status if status < 0 else item.status for item in items]

    def put(self, name, value, timeout_ms=0):
        return self.put_many([(name, value)], timeout_ms)[0]

    def get_many(self, names, size, timeout_ms=0):
        """(status, cause, bytes or None) of each."""
        items = (Item * len(names))()
        keep, buffers = [], []
        for item, name in zip(items, names):
            key, buffer = key_of(name), ctypes.create_string_buffer(size)
            iov = Iovec(ctypes.addressof(buffer), size)
            keep += [key, iov]
            buffers.append(buffer)
            item.key, item.iov, item.iov_count = (ctypes.pointer(key),
                                                  ctypes.pointer(iov), 1)
        status = self._run(GET, items, timeout_ms)
        out = []
        for item, buffer in zip(items, buffers):
            if status < 0:
                out.append((status, "none", None))
            else:
                out.append((item.status, CAUSES[item.cause],
                            buffer.raw[:item.length]
                            if item.status == OK else None))
        return out

    def get(self, name, size=300000, timeout_ms=0):
        return self.get_many([name], size, timeout_ms)[0]

    def _plain(self, op, name, timeout_ms):
        items = (Item * 1)()
        key = key_of(name)
        items[0].key = ctypes.pointer(key)
        status = self._run(op, items, timeout_ms)
        return status if status < 0 else items[0].status

    def remove(self, name, timeout_ms=0):
        return self._plain(REMOVE, name, timeout_ms)

    def exists(self, name, timeout_ms=0):
        return self._plain(EXISTS, name, timeout_ms)

    def match(self, names):
        keys = (Key * len(names))(*map(key_of, names))
        out = Match()
        status = self.lib.larder_match(self.space, keys, len(names), 0,
                                       byref(out))
        return status, out.chunks

    def tiers(self, names):
        """Chunks that match, by the slowest tier that is needed for each."""
        keys = (Key * len(names))(*map(key_of, names))
        out = Match()
        self._check(self.lib.larder_match(self.space, keys, len(names), 0,
                                          byref(out)))
        return tuple(out.tier_chunks[:3])

    def reset(self, timeout_ms=10000):
        return self.lib.larder_space_reset(self.space, timeout_ms)

    def stage(self, names, timeout_ms=0):
        """(status, bytes of each staged chunk, the lease still held or
        None)."""
        keys = (Key * len(names))(*map(key_of, names))
        lease, match = c_void_p(), Match()
        status = self.lib.larder_stage(self.space, keys, len(names), 0,
                                       timeout_ms, byref(lease), byref(match))
        if status != OK:
            return status, [], None
        out = []
        for chunk in range(match.chunks):
            segs, count = (Iovec * SEGS)(), c_uint32()
            got = self.lib.larder_lease_segments(lease, chunk, 0, segs, SEGS,
                                                 byref(count))
            if got != OK:
                out.append(None)
                continue
            out.append(b"".join(ctypes.string_at(s.base, s.bytes)
                                for s in segs[:count.value]))
        return status, out, lease

    def segments(self, lease, reserved=False):
        """(address, bytes) of what is held under the lease's first chunk."""
        segs, count = (Iovec * SEGS)(), c_uint32()
        if reserved:
            self._check(self.lib.larder_reserve_segments(
                lease, 0, segs, SEGS, byref(count)))
        else:
            self._check(self.lib.larder_lease_segments(
                lease, 0, 0, segs, SEGS, byref(count)))
        return [(s.base, s.bytes) for s in segs[:count.value]]

    def release(self, lease):
        self.lib.larder_release(byref(lease))

    def reserve(self, name, size, timeout_ms=0):
        """(status, lease or None)"""
        items, lease = (Item * 1)(), c_void_p()
        key = key_of(name)
        items[0].key = ctypes.pointer(key)
        lengths = (c_size_t * 1)(size)
        status = self.lib.larder_reserve(self.space, items, lengths, 1,
                                         timeout_ms, byref(lease))
        if status < 0:
            return status, None
        return items[0].status, lease if lease else None

    def fill(self, lease, value):
        segs, count = (Iovec * SEGS)(), c_uint32()
        status = self.lib.larder_reserve_segments(lease, 0, segs, SEGS,
                                                  byref(count))
        at = 0
        for seg in segs[:count.value if status == OK else 0]:
            ctypes.memmove(seg.base, value[at:at + seg.bytes], seg.bytes)
            at += seg.bytes
        self.crcs[lease.value] = self.lib.larder_crc32c(0, value, len(value))
        return status

    def commit(self, lease, timeout_ms=0):
        """With the checksum of what was filled in, 0 if nothing was."""
        statuses = (c_int * 1)()
        crcs = (c_uint32 * 1)(self.crcs.pop(lease.value, 0))
        status = self.lib.larder_commit(byref(lease), None, crcs, statuses,
                                        timeout_ms)
        return status if status < 0 else statuses[0]

    def flush(self, tier=1, timeout_ms=10000):
        return self.lib.larder_flush(self.node, tier, timeout_ms)

    def close(self, timeout_ms=5000):
        if self.space:
            self.lib.larder_space_close(byref(self.space))
        return self.lib.larder_close(byref(self.node), timeout_ms)


def make_tier(path):
    """Makes the directory a shared tier."""
    status = library().larder_shared_create(f"dir:{path}".encode(), None, 60000)
    assert status == OK, library().larder_last_error().decode()


# ---- many keys --------------------------------------------------------------

def put_some(node, count, size=60000, name="k"):
    for i in range(count):
        status = node.put(f"{name} {i}", value_of(f"{name} {i}", 1, size))
        assert status == OK, f"put {i}: {status}: {node.error()}"


def found(node, count, size=60000, name="k"):
    """How many of them are there, all right."""
    there = 0
    for i in range(count):
        status, _, value = node.get(f"{name} {i}")
        assert status in (OK, MISS)
        if status == OK:
            assert value == value_of(f"{name} {i}", 1, size)
            there += 1
    return there
