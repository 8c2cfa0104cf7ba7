"""The Python API: docs/reference/python.md is its manual.

Every call may be made from any thread and lets other threads run meanwhile;
nothing may run beside close() of the same node. A failed call raises a
LarderError: RequestError, HandleError or NodeError, by its status.
"""
from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, overload

from larder_kv import _lib
from larder_kv._buffers import Buffer, Pinned
from larder_kv._status import (HandleError, LarderError, NodeError,
                               RequestError, Status, error_of)
from larder_kv._structs import Item

__all__ = ["Buffer", "Chain", "Got", "HandleError", "LarderError", "Lease",
           "Match", "Node", "NodeError", "RequestError", "Space", "Status",
           "open"]

Log = Callable[[int, str], None]  # 0 error, 1 warning, 2 info, 3 debug


class Chain(Sequence[bytes]):
    """The keys of a prompt's chunks, 32 bytes each. A slice of it is a chain
    that knows what comes before it. It never changes."""

    __slots__ = ("_data", "_first", "_end")

    def __init__(self, data: bytes, first: int = 0, end: int | None = None):
        self._data = data
        self._first = first
        self._end = len(data) // _lib.KEY_BYTES if end is None else end

    def __len__(self) -> int:
        return self._end - self._first

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Chain: ...

    def __getitem__(self, index: int | slice) -> bytes | Chain:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a chain has no gaps")
            return Chain(self._data, self._first + begin,
                         self._first + max(begin, end))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._key(self._first + index % len(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self._keys() == other._keys()

    def __hash__(self) -> int:
        return hash(self._keys())

    def __repr__(self) -> str:
        return f"<Chain of {len(self)} chunks from {self._first}>"

    @property
    def first(self) -> int:
        """Chunks that come before it."""
        return self._first

    def _key(self, chunk: int) -> bytes:
        return self._data[chunk * _lib.KEY_BYTES:(chunk + 1) * _lib.KEY_BYTES]

    def _keys(self) -> bytes:
        return self._data[self._first * _lib.KEY_BYTES:
                          self._end * _lib.KEY_BYTES]


class Match(NamedTuple):
    """The longest prefix of a chain that could be loaded."""

    chunks: int
    cause: str  # why the chunk behind it did not match; "none": all did
    load_seconds: float  # that loading it is expected to take
    tier_chunks: dict[str, int]  # by the slowest tier that a chunk needs
    tier_bytes: dict[str, int]


class Got(NamedTuple):
    """What became of one chunk of a get."""

    status: Status  # OK or MISS
    cause: str  # of a miss: "absent", "evicted", "corrupt"...
    length: int  # bytes that the shard has

    @property
    def hit(self) -> bool:
        return self.status == Status.OK


class _Closes:
    """Closed by `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


class _Held:
    """Ends with the last that refers to it: a lease, or memory of it."""

    def __init__(self, lease: _lib.Lease):
        self.lease = lease

    def __del__(self) -> None:
        self.lease.release()


class Lease(_Closes):
    """Chunks that stay in memory until release(). False if it holds none."""

    def __init__(self, lease: _lib.Lease | None, match: Match):
        self._held = _Held(lease) if lease is not None else None
        self.match = match

    def __enter__(self) -> Lease:
        return self

    def __bool__(self) -> bool:
        return self._held is not None

    def views(self, chunk: int, shard: int = 0) -> list[memoryview]:
        """Where the shard lies, one piece behind the other, to be read in
        place. The chunks stay until the last view of them is gone, and what
        was made of it; but not beyond close() of the node."""
        if self._held is None:
            raise HandleError(Status.E_CLOSED, "the lease holds nothing")
        found = []
        for at, size in self._held.lease.segments(chunk, shard):
            memory = (ctypes.c_char * size).from_address(at)
            memory.held = self._held  # type: ignore[attr-defined]
            found.append(memoryview(memory).cast("B").toreadonly())
        return found

    def release(self) -> None:
        """Ends it; a view that is in use keeps the chunks."""
        self._held = None

    close = release


class Space(_Closes):
    """One tenant's use of one model, opened on a node."""

    def __init__(self, space: _lib.Space):
        self._space = space

    def __enter__(self) -> Space:
        return self

    @property
    def chunk_tokens(self) -> int:
        return self._space.chunk_tokens

    def chain(self, tokens: Iterable[int], *, after: Chain | None = None,
              salt: bytes = b"",
              extra: Sequence[bytes] | None = None) -> Chain:
        """The keys of the full chunks of these tokens; a rest is ignored.
        after: the tokens follow those of that chain, and its keys come first.
        salt: makes other keys of the same tokens. extra: for each chunk, what
        besides its tokens changes its KV (an adapter, an image)."""
        keys = _lib.Keys()
        if after is not None:
            keys.extend(after._data[:after._end * _lib.KEY_BYTES])
        if extra is not None:
            extra = [bytes(one) for one in extra]
        words = _words(tokens)
        if extra is not None and len(extra) != len(words) // self.chunk_tokens:
            raise ValueError(f"extra has {len(extra)} entries, for "
                             f"{len(words) // self.chunk_tokens} chunks")
        self._space.chain(words, keys, extra, salt)
        return Chain(keys.data(0, keys.count))

    def match(self, chain: Chain, *, group: int = 0) -> Match:
        """What could be loaded now. Nothing is read or held."""
        return _match(self._space.match_group(chain._keys(), len(chain),
                                              group))

    def stage(self, chain: Chain, *, group: int = 0,
              timeout_ms: int = 0) -> Lease:
        """Brings the longest prefix into memory, checks it and holds it. 0 ms:
        the node's own timeout, here and elsewhere."""
        lease, match = self._space.stage_group(chain._keys(), len(chain),
                                               group, timeout_ms)
        return Lease(lease, _match(match))

    def put(self, chain: Chain, buffers: Sequence[Buffer | Sequence[Buffer]],
            *, group: int = 0, shard: int = 0, pin: bool = False,
            ttl_ms: int = 0, timeout_ms: int = 0) -> list[Status]:
        """Saves one buffer, or list of buffers, for each chunk of the chain. A
        chunk is OK, PRESENT (the first put counts) or DECLINED (what is there
        is worth more). If one failed the first failure is raised, after all
        were tried."""
        items = self._run(_lib.OP_PUT, chain, buffers, group, shard,
                          timeout_ms, _lib.PUT_PIN if pin else 0, ttl_ms)
        return [Status(item.status) for item in items]

    def get(self, chain: Chain, buffers: Sequence[Buffer | Sequence[Buffer]],
            *, group: int = 0, shard: int = 0,
            timeout_ms: int = 0) -> list[Got]:
        """Loads each chunk of the chain into its buffer, or list of buffers.
        A miss is no error; what its buffer holds then is undefined."""
        items = self._run(_lib.OP_GET, chain, buffers, group, shard,
                          timeout_ms)
        return [Got(Status(item.status), _cause(item.cause), item.length)
                for item in items]

    def exists(self, chain: Chain, *, group: int = 0, shard: int = 0,
               timeout_ms: int = 0) -> list[bool]:
        """Of each chunk. Nothing is read."""
        items = self._run(_lib.OP_EXISTS, chain, None, group, shard,
                          timeout_ms)
        return [item.status == Status.OK for item in items]

    def remove(self, chain: Chain, *, group: int = 0, shard: int = 0,
               timeout_ms: int = 0) -> int:
        """How many were there. They do not come back, not even after a loss of
        power; in a cluster only once the members that could not be reached
        have heard of it."""
        items = self._run(_lib.OP_REMOVE, chain, None, group, shard,
                          timeout_ms)
        return sum(item.status in (Status.OK, Status.PARTIAL)
                   for item in items)

    def reset(self, timeout_ms: int = 10000) -> Status:
        """Drops everything in the space. PARTIAL: some members of the cluster
        could not be reached, and may give old bytes until they are."""
        return Status(self._space.reset(timeout_ms))

    def close(self) -> None:
        """Frees the handle, never the data."""
        self._space.close()

    def _run(self, op: int, chain: Chain,
             buffers: Sequence[Any] | None, group: int, shard: int,
             timeout_ms: int, flags: int = 0,
             ttl_ms: int = 0) -> list[Item]:
        if buffers is not None and len(buffers) != len(chain):
            raise ValueError(f"{len(buffers)} buffers for {len(chain)} chunks")
        done: list[Item] = []
        pinned = Pinned(op == _lib.OP_GET)
        try:
            for first in range(0, len(chain), _lib.BATCH_MAX):
                batch = chain[first:first + _lib.BATCH_MAX]
                items = (Item * len(batch))()
                for i, item in enumerate(items):
                    item.key, item.depth = batch[i], batch.first + i
                    if item.depth > 0:
                        item.parent = batch._key(item.depth - 1)
                    item.group, item.shard = group, shard
                    item.flags, item.ttl_ms = flags, ttl_ms
                    if buffers is not None:
                        item.iov, item.iov_count = pinned.vector(
                            buffers[first + i])
                self._space.run(op, items, timeout_ms)
                done += items
        finally:
            pinned.close()
        for i, item in enumerate(done):
            if item.status < 0:
                raise error_of(item.status, f"chunk {chain.first + i}: "
                               f"{_lib.status_text(item.status)}")
        return done


class Node(_Closes):
    """An open node: embedded in this process, or a daemon."""

    def __init__(self, url: str, log: Log | None = None):
        self._node = _lib.Node(url, log)
        self._open = True

    def __enter__(self) -> Node:
        return self

    @property
    def url(self) -> str:
        return self._node.url

    def space(self, descriptor: bytes | str, *, chunk_tokens: int = 256,
              shards: int = 1, label: str = "", tenant: str = "",
              secret: bytes = b"", chunk_bytes: int = 0) -> Space:
        """Opens a space. descriptor: all that changes what the bytes mean
        (model, dtype, layout); equal ones are the same space on every node.
        label: what people call it. chunk_bytes: of all shards and groups, the
        same for all who use the space: a cluster then places small chunks in
        runs."""
        self._check()
        if isinstance(descriptor, str):
            descriptor = descriptor.encode()
        return Space(self._node.space(descriptor, shards, chunk_tokens, label,
                                      tenant, secret, chunk_bytes))

    def stats(self) -> dict[str, int]:
        """The node's figures, by their names in larder_stats_t; of a daemon,
        those of this tenant."""
        self._check()
        stats = self._node.stats()
        return {name: getattr(stats, name) for name, kind, *_ in stats._fields_
                if kind is ctypes.c_uint64 and name != "struct_bytes"}

    def flush(self, tier: str = "ssd", timeout_ms: int = 0) -> None:
        """Returns when every save before it has reached the tier."""
        self._check()
        self._node.flush(_lib.TIERS.index(tier), timeout_ms)

    def close(self, timeout_ms: int = 1000) -> None:
        """Writes down what it can in that time. Spaces and leases of the node
        cannot be used any more."""
        self._open = False
        self._node.close(timeout_ms)

    def _check(self) -> None:
        if not self._open:
            raise HandleError(Status.E_CLOSED, f"{self.url} is closed")


def open(url: str, *, log: Log | None = None) -> Node:
    """Opens a node: "embed:DIR?dram=4G" in this process, "unix:PATH" a daemon
    on this host, "tcp://HOST:PORT" one elsewhere. log: is called with a level
    and a line, from any thread, and must not call Larder; else warnings go to
    stderr."""
    return Node(url, log)


def _words(tokens: Iterable[int]) -> array[int]:
    """As the library wants them: 32 bits each."""
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]
    except TypeError:
        return array("I", tokens)
    if view.format in ("I", "<I"):
        words = array("I")
        words.frombytes(view.tobytes())
        return words
    return array("I", view.tolist())


def _cause(number: int) -> str:
    return str(_lib.CAUSES[min(number, len(_lib.CAUSES) - 1)])


def _match(found: Any) -> Match:
    tiers = range(len(_lib.TIERS))
    return Match(found.chunks, _cause(found.cause), found.load_us * 1e-6,
                 {_lib.TIERS[i]: found.tier_chunks[i] for i in tiers},
                 {_lib.TIERS[i]: found.tier_bytes[i] for i in tiers})

