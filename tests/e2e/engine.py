"""Something like an engine, on the library itself: prompts that share
prefixes, matched, loaded and saved through any URL."""
import ctypes
import hashlib
import os
import random
import subprocess
import sys
import threading

PUT, GET = 0, 1
OK, PRESENT, MISS = 0, 1, 2


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Key(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 32)]


class Item(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.POINTER(Key)), ("parent", ctypes.POINTER(Key)),
        ("depth", ctypes.c_uint32), ("group", ctypes.c_uint16),
        ("shard", ctypes.c_uint16), ("iov", ctypes.POINTER(IoVec)),
        ("iov_count", ctypes.c_uint32), ("flags", ctypes.c_uint32),
        ("ttl_ms", ctypes.c_uint32), ("status", ctypes.c_int),
        ("cause", ctypes.c_int), ("length", ctypes.c_size_t)]


class SpaceParams(ctypes.Structure):
    _fields_ = [
        ("field_mask", ctypes.c_uint64), ("descriptor", ctypes.c_char_p),
        ("descriptor_bytes", ctypes.c_size_t), ("tenant", ctypes.c_char_p),
        ("secret", ctypes.c_char_p), ("secret_bytes", ctypes.c_size_t),
        ("shards", ctypes.c_uint32), ("chunk_tokens", ctypes.c_uint32),
        ("label", ctypes.c_char_p)]


class Match(ctypes.Structure):
    """As much of larder_match_t as is needed here."""
    _fields_ = [("struct_bytes", ctypes.c_uint64), ("chunks", ctypes.c_uint32)]


def library(build):
    lib = ctypes.CDLL(os.path.join(build, "lib", "liblarder.so"))
    lib.larder_last_error.restype = ctypes.c_char_p
    return lib


class Engine:
    """A handle and a space. Not for two threads at once."""

    def __init__(self, lib, url, model="model", tenant=None, seed=1):
        self.lib = lib
        self.rand = random.Random(seed)
        self.model = model
        self.lar, self.space = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(lib.larder_open(url.encode(), None,
                                    ctypes.byref(self.lar)))
        descriptor = model.encode()
        # A name with blanks is what people call it.
        label = (b"" if b" " in descriptor else b"the label of ") + descriptor
        params = SpaceParams(16, descriptor, len(descriptor), label=label)
        if tenant:
            params.field_mask |= 1
            params.tenant = tenant.encode()
        self._check(lib.larder_space_open(self.lar, ctypes.byref(params),
                                          ctypes.byref(self.space)))

    def close(self):
        self.lib.larder_space_close(ctypes.byref(self.space))
        self.lib.larder_close(ctypes.byref(self.lar), 5000)

    def _check(self, status):
        assert status == 0, self.lib.larder_last_error().decode()

    def keys(self, prompt, count):
        """A chain: keys of the same prompt are the same."""
        out, last = (Key * count)(), f"{self.model}/{prompt}".encode()
        for i in range(count):
            last = hashlib.sha256(last).digest()
            ctypes.memmove(ctypes.byref(out[i]), last, 32)
        return out

    def match(self, keys):
        found = Match(struct_bytes=ctypes.sizeof(Match))
        self._check(self.lib.larder_match(
            self.space, keys, ctypes.c_size_t(len(keys)), ctypes.c_uint16(0),
            ctypes.byref(found)))
        return found.chunks

    def _run(self, op, keys, buffer, size, first, end):
        """Every chunk has its own part of the buffer."""
        count = end - first
        items, iov = (Item * count)(), (IoVec * count)()
        for i in range(count):
            iov[i].base = ctypes.addressof(buffer) + i * size
            iov[i].length = size
            items[i].key = ctypes.pointer(keys[first + i])
            if first + i > 0:
                items[i].parent = ctypes.pointer(keys[first + i - 1])
            items[i].depth = first + i
            items[i].iov = ctypes.pointer(iov[i])
            items[i].iov_count = 1
        self._check(self.lib.larder_run(self.space, op, items,
                                        ctypes.c_size_t(count), None))
        return [item.status for item in items]

    def prompt(self, prompts, chunks, size, buffer):
        """One prompt: what matches is loaded, the rest is saved. A few are
        asked for more than others."""
        number = min(int(self.rand.paretovariate(0.7)), prompts)
        keys = self.keys(number, self.rand.randint(1, chunks))
        found = min(self.match(keys), len(keys))
        if found:
            self._run(GET, keys, buffer, size, 0, found)
        if found < len(keys):
            self._run(PUT, keys, buffer, size, found, len(keys))
        elif self.rand.random() < 0.05:
            # An engine that did not ask first, for what nobody saved.
            self._run(GET, self.keys(f"gone {self.rand.random()}", 1), buffer,
                      size, 0, 1)


class Load:
    """Engines, each in a process of its own, that work until they are stopped
    or whoever started them is gone."""

    def __init__(self, build):
        self.build, self.processes = build, []

    def start(self, url, model="model", tenant="", pause_s=0.01, prompts=200,
              chunks=8, size=1 << 16):
        self.processes.append(subprocess.Popen(
            [sys.executable, "-B", __file__, self.build, url, model, tenant,
             *map(str, (len(self.processes) + 1, pause_s, prompts, chunks,
                        size))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True))
        return self

    def stop(self):
        """Gives how many prompts each has carried out."""
        counts = []
        for process in self.processes:
            out, err = process.communicate("", timeout=300)
            assert process.returncode == 0, err
            counts.append(int(out))
        self.processes = []
        return counts

    def kill(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes = []


def main(build, url, model, tenant, seed, pause_s, prompts, chunks, size):
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()),
                     daemon=True).start()
    engine = Engine(library(build), url, model, tenant or None, int(seed))
    prompts, chunks, size = int(prompts), int(chunks), int(size)
    buffer = ctypes.create_string_buffer(chunks * size)
    count = 0
    while not done.wait(float(pause_s)):
        engine.prompt(prompts, chunks, size, buffer)
        count += 1
    engine.close()
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
