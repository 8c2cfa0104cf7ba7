"""An engine that describes its chunks, and a router that asks for them, for the
tests of docs/guide/routing.md. Both are written from that page and share
nothing with the daemon."""
import ctypes
import hashlib
import json
import random
import urllib.error
import urllib.request
from ctypes import Structure, byref, c_char_p, c_uint16, c_uint32, c_uint64

import capi

CHUNK, BLOCK = 256, 64
PER = CHUNK // BLOCK
VALUE = 20000  # bytes of a chunk


class DescribeParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("pod", c_char_p),
                ("model", c_char_p), ("block_tokens", c_uint32),
                ("hash_bytes", c_uint32), ("group", c_uint16),
                ("reserved", c_uint16), ("group_idx", c_uint32),
                ("kind", c_char_p), ("window", c_uint32),
                ("is_numbers", c_uint32)]


def prompt(name, chunks, parts=1):
    """Tokens; prompts whose names begin alike, up to a '/', begin alike."""
    tokens = []
    for depth in range(1, name.count("/") + 2):
        rng = random.Random("/".join(name.split("/")[:depth]))
        tokens += [rng.randrange(1 << 17)
                   for _ in range(chunks * CHUNK if depth > name.count("/")
                                  else parts * BLOCK)]
    return tokens[:chunks * CHUNK]


class Engine:
    """One space, and one name for its blocks."""

    group_idx = 5

    def __init__(self, url, pod="pod-a", model="m", seed=b"", hash_bytes=8,
                 **more):
        self.node = capi.Node(url, **more)
        self.pod, self.model, self.seed = pod, model, seed
        self.hash_bytes = hash_bytes
        self.lib = self.node.lib
        self.lib.larder_describe.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p,
            ctypes.POINTER(DescribeParams), c_uint32]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.node.close()

    def hashes(self, tokens):
        """Of every whole block, each over its parent, as engines do."""
        found, parent = [], self.seed
        for i in range(len(tokens) // BLOCK):
            text = repr(tokens[i * BLOCK:(i + 1) * BLOCK]).encode()
            parent = hashlib.sha256(parent + text).digest()
            found.append(parent[:self.hash_bytes])
        return found

    def name(self, tokens, chunk):
        """Of a chunk's key: all tokens up to its end."""
        return repr(tokens[:(chunk + 1) * CHUNK])

    def describe(self, tokens, first=0, count=None):
        count = len(tokens) // CHUNK - first if count is None else count
        keys = b"".join(bytes(capi.key_of(self.name(tokens, i)).hash)
                        for i in range(first, first + count))
        hashes = self.hashes(tokens)
        numbers = 1 if self.hash_bytes == 8 else 0
        params = DescribeParams(7, self.pod.encode(), self.model.encode(),
                                BLOCK, self.hash_bytes, 0, 0,
                                self.group_idx,
                                b"full_attention", 0, numbers)
        return self.lib.larder_describe(
            self.node.space, keys, first, count,
            (c_uint32 * len(tokens))(*tokens),
            b"".join(hashes[first * PER:(first + count) * PER]),
            hashes[first * PER - 1] if first else None, byref(params), 0)

    def save(self, tokens, chunks):
        """Of these chunks of the prompt; done when others can see it."""
        statuses = self.node.put_many([
            (self.name(tokens, i), random.Random(i).randbytes(VALUE))
            for i in chunks])
        for i in chunks:
            self.node.exists(self.name(tokens, i))
        return statuses

    def drop(self, tokens, chunk):
        return self.node.remove(self.name(tokens, chunk))


def number(one):
    """A hash as events and questions have it."""
    return int.from_bytes(one, "big") if len(one) == 8 else one.hex()


def post(daemon, body, token=None, kind="application/json", path="/query",
         timeout=60):
    """(status, JSON or text)"""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": kind} if kind else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    asked = urllib.request.Request(daemon.admin + path, data, headers,
                                   method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(daemon, token=None, **question):
    status, answer = post(daemon, question, token)
    assert status == 200, answer
    return answer["matches"]
