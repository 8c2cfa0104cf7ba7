"""peer_mooncake.py BY WHERE OP SIZE BYTES BATCH SECONDS CONTENT

peer_bench for Mooncake's store, which has a Python interface: the same rounds,
contents and output. Its batch calls with registered buffers copy nothing in
Python.
"""
import ctypes
import json
import mmap
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore

ROUNDS_MIN = 3
LOCAL_BYTES = 64 << 20  # of its own, besides our buffer
SPOILT = 0xa5


def fail(text):
    print(f"peer_mooncake.py: {text}", file=sys.stderr, flush=True)
    os._exit(1)


class Bench:
    def __init__(self, by, where, size, total, batch, content):
        self.size, self.batch = size, batch
        self.count = total // size
        self.bytes = self.count * size
        self.generation = 0
        self.verified = 0
        self.content = content
        self.store = MooncakeDistributedStore()
        rpc, meta, port = where.split(",")
        if by == "shm":
            self.open_shm(port)
        else:
            self.open_tcp(rpc, meta)
        if self.store.register_buffer(self.pool, self.bytes) != 0:
            fail("register_buffer")
        ctypes.memset(self.pool, SPOILT, self.bytes)

    def open_tcp(self, rpc, meta):
        # No segment of its own, so that nothing is stored in this process.
        if self.store.setup("127.0.0.1", f"http://127.0.0.1:{meta}/metadata",
                            0, LOCAL_BYTES, "tcp", "",
                            f"127.0.0.1:{rpc}") != 0:
            fail("setup")
        self.map = mmap.mmap(-1, self.bytes)
        self.map.madvise(mmap.MADV_HUGEPAGE)
        self.pool = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def open_shm(self, port):
        if self.store.setup_dummy(self.bytes + LOCAL_BYTES, LOCAL_BYTES,
                                  f"127.0.0.1:{port}") != 0:
            fail("setup_dummy")
        self.pool = self.store.alloc_from_mem_pool(self.bytes)
        if not self.pool:
            fail("alloc_from_mem_pool")

    def batches(self):
        for at in range(0, self.count, self.batch):
            numbers = range(at, min(self.count, at + self.batch))
            yield ([f"v{self.generation}:{i}" for i in numbers],
                   [self.pool + i * self.size for i in numbers],
                   [self.size] * len(numbers))

    def walk(self, run, want):
        """Every batch; the seconds that took."""
        all_batches = list(self.batches())
        begin = time.perf_counter()
        for batch in all_batches:
            results = run(*batch)
            if any(r != want for r in results):
                fail(f"{run.__name__} answered {results}")
        return time.perf_counter() - begin

    def make(self):
        for i in range(self.count):
            self.content.content_make(self.pool + i * self.size, self.size, i,
                                      self.generation)

    def get(self):
        ctypes.memset(self.pool, SPOILT, self.bytes)
        seconds = self.walk(self.store.batch_get_into, self.size)
        for i in range(self.count):
            if not self.content.content_is(self.pool + i * self.size,
                                           self.size, i, self.generation):
                fail(f"other bytes for value {i}")
        self.verified += self.bytes
        return seconds

    def put(self):
        self.generation += 1
        self.make()
        seconds = self.walk(self.store.batch_put_from, 0)
        self.get()
        for keys, _, _ in self.batches():
            if any(r != 0 for r in self.store.batch_remove(keys, True)):
                fail("batch_remove")
        return seconds


def load_content(path):
    content = ctypes.CDLL(path)
    for name in ("content_make", "content_is"):
        getattr(content, name).argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32,
            ctypes.c_uint32]
    content.content_make.restype = None
    content.content_is.restype = ctypes.c_bool
    return content


def main():
    by, where, op, size, total, batch, seconds, content = sys.argv[1:]
    size, batch, seconds = int(size), int(batch), float(seconds)
    bench = Bench(by, where, size, int(total), batch, load_content(content))
    if op == "get":
        bench.make()
        bench.walk(bench.store.batch_put_from, 0)
    run = bench.get if op == "get" else bench.put
    run()  # does not count: memory of both sides becomes resident
    took = []
    while len(took) < ROUNDS_MIN or sum(took) < seconds:
        took.append(run())
    took.sort()
    print(json.dumps({
        "store": "mooncake", "op": op, "bytes": size, "batch": batch,
        "value": round(bench.bytes / took[len(took) // 2] * 1e-9, 3),
        "best": round(bench.bytes / took[0] * 1e-9, 3), "unit": "GB/s",
        "rounds": len(took), "verified": bench.verified}), flush=True)
    # Its threads do not end by themselves when the interpreter does.
    os._exit(0)


main()
