"""liblarder by ctypes: what Python uses of include/larder/larder.h.

Every call releases the GIL. Handles are plain objects with close(); who made
one ends it.
"""
from __future__ import annotations

import ctypes
import functools
import mmap
import os
from array import array
from collections.abc import Callable, Sequence
from ctypes import (POINTER, byref, c_char_p, c_int, c_size_t, c_uint8,
                    c_uint16, c_uint32, c_uint64, c_void_p)

from larder_kv._find import library_path
from larder_kv._status import LarderError, error_of
from larder_kv._structs import (LOG_FN, AnnounceParams, ChainParams,
                                Completion, DescribeParams, DiskStats,
                                Extra, GpuParams, GpuStats, Group, Item,
                                Layer, LayoutParams, Move, OpenParams,
                                OpParams, Page, Pages, Part, Region,
                                SharedStats, SpaceParams,
                                StageParams, Table, TOKEN_BYTES, constant,
                                match_type, stats_type)

OK, PRESENT, MISS, DECLINED = 0, 1, 2, 4
E_FULL, E_DEADLINE, E_OFFLINE, E_DENIED, E_VERSION = -5, -6, -68, -69, -64
E_NO_MEMORY, E_TIER_OFF, E_IO = -60, -61, -62
E_INVALID, E_SIZE, E_UNSUPPORTED = -1, -2, -12
KEY_BYTES = 32
VALUE_MAX = 60 << 20
SHORT_TOKENS = 8192  # chains that are hashed without letting go of the GIL
SHARDS_MAX = 128
MEMBER_MAX = 63  # bytes of a member's name
ABI = 3  # LARDER_ABI of the header that the structures below are from
RULE_ALL, RULE_TRAILING, RULE_LAST = 0, 1, 2
LIMIT_NONE, LIMIT_TIER, LIMIT_SLOWER, LIMIT_BYTES = 0, 1, 2, 3
NULL_BLOCK = 0  # vLLM's: a block id that stands for none
# Of a request: a class is 1 to 3.
HINT_CLASS, HINT_CLOSED, HINT_TEMPLATE, HINT_OVER = 3, 4, 8, 16
PUT_ANNOUNCED = 2  # flag of a Move: somebody has announced its request
PUT_PIN = 1
OP_PUT, OP_GET, OP_EXISTS, OP_REMOVE = range(4)
HANDOFF_ANSWERED, HANDOFF_RENEW, HANDOFF_FAILED, HANDOFF_OVER = range(1, 5)
BATCH_MAX = 4096
DRAIN_MAX = 64


def _read_sizes(lib: ctypes.CDLL) -> None:
    """What depends on how many tiers, causes and disks the library has."""
    global TIERS, CAUSES, Match, Stats
    TIERS = tuple(lib.larder_tier_text(i).decode()
                  for i in range(constant(lib, "TIER_COUNT")))
    CAUSES = tuple(lib.larder_cause_text(i).decode()
                   for i in range(constant(lib, "CAUSE_COUNT")))
    Match, Stats = match_type(lib), stats_type(lib)


def __getattr__(name: str):
    if name in ("TIERS", "CAUSES", "Match", "Stats"):
        library()
        return globals()[name]
    raise AttributeError(name)


_SIGNATURES = {
    "larder_open": [c_char_p, POINTER(OpenParams), POINTER(c_void_p)],
    "larder_close": [POINTER(c_void_p), c_uint32],
    "larder_space_open": [c_void_p, POINTER(SpaceParams), POINTER(c_void_p)],
    "larder_space_close": [POINTER(c_void_p)],
    "larder_space_reset": [c_void_p, c_uint32],
    "larder_chain": [c_void_p, c_void_p, c_size_t, POINTER(ChainParams),
                     c_void_p, c_size_t, POINTER(c_size_t)],
    "larder_run": [c_void_p, c_int, POINTER(Item), c_size_t,
                   POINTER(OpParams)],
    "larder_submit": [c_void_p, c_int, POINTER(Item), c_size_t,
                      POINTER(OpParams), POINTER(c_uint64)],
    "larder_event_fd": [c_void_p],
    "larder_drain": [c_void_p, POINTER(Completion), c_size_t, c_uint32,
                     POINTER(c_size_t)],
    "larder_stage": [c_void_p, c_void_p, c_size_t, c_uint16, c_uint32,
                     POINTER(c_void_p), c_void_p],
    "larder_lease_segments": [c_void_p, c_uint32, c_uint16, c_void_p, c_uint32,
                              POINTER(c_uint32)],
    "larder_flush": [c_void_p, c_int, c_uint32],
    "larder_shared_create": [c_char_p, c_char_p, c_uint32],
    "larder_layout_create": [POINTER(LayoutParams), POINTER(c_void_p)],
    "larder_layout_destroy": [POINTER(c_void_p)],
    "larder_layout_bytes": [c_void_p, c_uint16],
    "larder_layout_first_block": [c_void_p, c_uint16],
    "larder_layout_slices": [c_void_p],
    "larder_layout_saves": [c_void_p, c_uint16],
    "larder_layout_loads": [c_void_p, c_uint16],
    "larder_match": [c_void_p, c_void_p, c_size_t, c_uint16, c_void_p],
    "larder_announce": [c_void_p, c_void_p, c_size_t, POINTER(AnnounceParams),
                        c_uint32],
    "larder_describe": [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p,
                        c_void_p, c_void_p, POINTER(DescribeParams), c_uint32],
    "larder_prefix_match": [c_void_p, c_void_p, c_void_p, c_size_t, c_uint32,
                            c_void_p],
    "larder_prefix_stage": [c_void_p, c_void_p, c_void_p, c_size_t,
                            POINTER(StageParams), c_uint32, POINTER(c_void_p),
                            c_void_p],
    "larder_promise": [c_void_p, c_void_p, c_void_p, c_size_t, c_char_p,
                       c_uint32, c_void_p],
    "larder_handoff": [c_void_p, c_char_p, c_int, c_char_p, c_uint32],
    "larder_seal": [c_void_p, c_char_p, c_size_t, c_void_p],
    "larder_lease_token": [c_void_p, c_void_p],
    "larder_release": [POINTER(c_void_p)],
    "larder_prefix_save": [c_void_p, c_void_p, POINTER(Move)],
    "larder_prefix_reserve": [c_void_p, c_void_p, POINTER(Move),
                              POINTER(c_void_p)],
    "larder_prefix_fill_by": [POINTER(c_void_p), POINTER(Move), c_void_p],
    "larder_rooms_release": [POINTER(c_void_p)],
    "larder_prefix_load": [c_void_p, c_void_p, POINTER(Move)],
    "larder_prefix_load_early": [c_void_p, c_void_p, POINTER(Move),
                                 POINTER(c_uint32), c_uint32],
    "larder_gate_open": [POINTER(c_uint32)],
    "larder_gate_close": [POINTER(c_uint32)],
    "larder_prefix_fetch": [c_void_p, c_void_p, c_void_p, c_void_p, c_uint32,
                            c_void_p, c_size_t, c_uint32,
                            POINTER(c_size_t)],
    "larder_prefix_place": [c_void_p, POINTER(Move), c_void_p, c_size_t],
    "larder_gpu_open": [POINTER(GpuParams), POINTER(c_void_p)],
    "larder_gpu_close": [POINTER(c_void_p)],
    "larder_gpu_attach": [c_void_p, c_void_p],
    "larder_gpu_stats": [c_void_p, POINTER(GpuStats)],
    "larder_stats": [c_void_p, c_void_p],
    "larder_connector_option_name": [c_size_t],
    "larder_connector_option": [c_char_p, c_char_p, POINTER(c_uint64),
                                c_char_p, c_size_t],
    "larder_default_socket": [c_char_p, c_size_t],
    "larder_status_text": [c_int],
    "larder_cause_text": [c_int],
    "larder_tier_text": [c_int],
    "larder_constant": [c_char_p],
    "larder_last_error": [],
    "larder_version": [],
    "larder_abi": [],
}
_TEXTS = ("larder_status_text", "larder_cause_text", "larder_tier_text",
          "larder_last_error", "larder_version",
          "larder_connector_option_name")

_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library, opened once."""
    global _library
    if _library is None:
        lib = ctypes.CDLL(library_path())
        abi = getattr(lib, "larder_abi", lambda: ABI)()  # else it lacks that
        if abi != ABI:
            raise LarderError(
                E_VERSION, f"{library_path()} is of another version: its "
                f"interface is {abi}, and larder-kv needs {ABI}; "
                f"install larder-kv again, or correct LARDER_LIBRARY")
        for name, arguments in _SIGNATURES.items():
            try:
                function = getattr(lib, name)
            except AttributeError:
                raise LarderError(
                    E_VERSION, f"{library_path()} is of another version: it "
                    f"has no {name}; install larder-kv again") from None
            function.argtypes = arguments
            function.restype = c_char_p if name in _TEXTS else c_int
        # It waits for nothing, and takes microseconds: who let go of the GIL
        # for it would wait longer to have it back.
        lib.chain_short = ctypes.PyDLL(library_path()).larder_chain
        lib.chain_short.argtypes = _SIGNATURES["larder_chain"]
        lib.chain_short.restype = c_int
        lib.larder_abi.restype = c_uint32
        lib.larder_layout_bytes.restype = c_size_t
        for name in ("first_block", "slices", "saves", "loads"):
            getattr(lib, f"larder_layout_{name}").restype = c_uint32
        lib.larder_space_close.restype = None
        lib.larder_gpu_close.restype = None
        lib.larder_layout_destroy.restype = None
        lib.larder_release.restype = None
        lib.larder_rooms_release.restype = None
        lib.larder_gate_close.restype = None
        _read_sizes(lib)
        _library = lib
    return _library


def status_text(status: int) -> str:
    return library().larder_status_text(status).decode()


def fail(status: int) -> LarderError:
    """What to raise after a call of this thread failed."""
    text = library().larder_last_error().decode(errors="replace")
    return error_of(status, text or status_text(status))


def check(status: int) -> int:
    if status < 0:
        raise fail(status)
    return status


def default_socket() -> str:
    text = ctypes.create_string_buffer(128)
    check(library().larder_default_socket(text, len(text)))
    return text.value.decode()


class Keys:
    """The keys of a prompt's chunks, 32 bytes each. What data gives is never
    changed: a thread may keep it."""

    __slots__ = ("_data", "count")

    def __init__(self) -> None:
        self._data = b""
        self.count = 0

    def extend(self, data: bytes) -> None:
        self._data += data
        self.count = len(self._data) // KEY_BYTES

    def data(self, first: int, end: int) -> bytes:
        return self._data[first * KEY_BYTES:end * KEY_BYTES]


class Node:
    """A handle on a node."""

    def __init__(self, url: str, log=None):
        handle = c_void_p()
        params = OpenParams()
        if log is not None:
            self._log = LOG_FN(
                lambda _arg, level, line: log(level, line.decode(
                    errors="replace")))
            params.field_mask, params.log = 1, self._log
        check(library().larder_open(url.encode(), byref(params),
                                    byref(handle)))
        self.url = url
        self._handle = handle

    def space(self, descriptor: bytes, shards: int, chunk_tokens: int,
              label: str = "", tenant: str = "",
              secret: bytes = b"", chunk_bytes: int = 0,
              page_tokens: int = 0) -> Space:
        """label: what people call it. tenant, secret: if not the default.
        chunk_bytes: of all shards and groups, where all who use it agree.
        page_tokens: of SGLang's pages, whose hashes are its keys."""
        params = SpaceParams(field_mask=4 | 8 | 16, descriptor=descriptor,
                             descriptor_bytes=len(descriptor), shards=shards,
                             chunk_tokens=chunk_tokens, label=label.encode())
        if chunk_bytes:
            params.field_mask |= 32
            params.chunk_bytes = chunk_bytes
        if page_tokens:
            params.field_mask |= 64
            params.page_tokens = page_tokens
        if tenant:
            params.field_mask |= 1
            params.tenant = tenant.encode()
        if secret:
            params.field_mask |= 2
            params.secret, params.secret_bytes = secret, len(secret)
        handle = c_void_p()
        check(library().larder_space_open(self._handle, byref(params),
                                          byref(handle)))
        return Space(self, handle, chunk_tokens)

    def stats(self) -> Stats:
        stats = Stats()
        check(library().larder_stats(self._handle, byref(stats)))
        return stats

    def flush(self, tier: int, timeout_ms: int) -> None:
        check(library().larder_flush(self._handle, tier, timeout_ms))

    def event_fd(self) -> int:
        """Readable while drain() has something. It is the node's."""
        return library().larder_event_fd(self._handle)

    def drain(self) -> list[tuple[int, int]]:
        """What Space.submit() was given as user, and the status, of tickets
        that are done. Each is given once; it does not wait."""
        out = (Completion * DRAIN_MAX)()
        count = c_size_t(DRAIN_MAX)
        done: list[tuple[int, int]] = []
        while count.value == DRAIN_MAX:
            check(library().larder_drain(self._handle, out, DRAIN_MAX, 0,
                                         byref(count)))
            done += [(one.user, one.status) for one in out[:count.value]]
        return done

    def close(self, timeout_ms: int = 1000) -> None:
        if self._handle:
            library().larder_close(byref(self._handle), timeout_ms)


class Gpu:
    """A GPU whose memory an engine has, opened once in a process."""

    def __init__(self, device: int, nvrtc: str = "", log=None):
        params = GpuParams(field_mask=1 | 2, device=device,
                           nvrtc=nvrtc.encode() or None)
        if log is not None:
            self._log = LOG_FN(
                lambda _arg, level, line: log(level, line.decode(
                    errors="replace")))
            params.field_mask |= 4
            params.log = self._log
        self._handle = c_void_p()
        check(library().larder_gpu_open(byref(params), byref(self._handle)))

    def attach(self, node: Node) -> None:
        """What the node shares is registered with it, in the background."""
        check(library().larder_gpu_attach(node._handle, self._handle))

    def stats(self) -> GpuStats:
        stats = GpuStats()
        check(library().larder_gpu_stats(self._handle, byref(stats)))
        return stats

    def close(self) -> None:
        """After every node and layout that has it."""
        library().larder_gpu_close(byref(self._handle))


class Layout:
    """How an engine keeps KV: see larder_layout_create()."""

    def __init__(self, chunk_tokens: int, groups: Sequence[Group],
                 regions: Sequence[Region] = (), block_count: int = 0,
                 gpu: Gpu | None = None, pages: Sequence[Pages] = (),
                 model_layers: int = 0,
                 null_block: int | None = NULL_BLOCK,
                 tables: Sequence[int] = (), table_count: int = 0):
        """null_block: an id that stands for no block; None: there is none.
        tables: of all groups' layers, if groups do not have their own."""
        params = LayoutParams(
            field_mask=((1 if null_block is not None else 0)
                        | (2 if gpu is not None else 0)
                        | (4 if pages else 0) | (8 if tables else 0)),
            gpu=gpu._handle if gpu is not None else None,
            chunk_tokens=chunk_tokens, block_count=block_count,
            regions=(Region * len(regions))(*regions),
            region_count=len(regions), groups=(Group * len(groups))(*groups),
            group_count=len(groups), null_block=null_block or 0,
            pages=(Pages * len(pages))(*pages), model_layers=model_layers,
            table_count=table_count,
            layer_tables=(c_uint32 * len(tables))(*tables))
        self._handle = c_void_p()
        check(library().larder_layout_create(byref(params),
                                             byref(self._handle)))
        self.chunk_tokens = chunk_tokens
        self.group_count = len(groups)
        self.gpu = gpu

    def bytes(self, group: int) -> int:
        return library().larder_layout_bytes(self._handle, group)

    def slices(self) -> int:
        """Shards of a chunk."""
        return library().larder_layout_slices(self._handle)

    def saves(self, group: int) -> int:
        """Of those that this rank loads, how many it saves."""
        return library().larder_layout_saves(self._handle, group)

    def loads(self, group: int) -> int:
        return library().larder_layout_loads(self._handle, group)

    def first_block(self, group: int) -> int:
        return library().larder_layout_first_block(self._handle, group)

    def close(self) -> None:
        library().larder_layout_destroy(byref(self._handle))


class Lease:
    """What larder_prefix_stage() or larder_stage() holds; released once."""

    def __init__(self, handle: c_void_p, match: Match):
        self._handle = handle
        self.match = match
        token = (c_uint8 * TOKEN_BYTES)()
        check(library().larder_lease_token(handle, token))
        # Workers load by it; b"": they look for what is held by its keys.
        self.token = bytes(token) if any(token) else b""

    def segments(self, chunk: int, shard: int) -> list[tuple[int, int]]:
        """Addresses and sizes, of what Space.stage_group() staged."""
        count = c_uint32(64)
        while True:
            room = (c_uint64 * (2 * count.value))()
            most = count.value
            status = library().larder_lease_segments(
                self._handle, chunk, shard, room, most, byref(count))
            if status == OK:
                return [(room[2 * i], room[2 * i + 1])
                        for i in range(count.value)]
            if status != E_SIZE or count.value <= most:
                raise fail(status)

    def release(self) -> None:
        library().larder_release(byref(self._handle))


GATE_OPEN = 1  # what larder_gate_open() makes of it


def gate_open(gate: c_uint32) -> bool:
    """False: it is closed."""
    return library().larder_gate_open(byref(gate)) == OK


def gate_close(gate: c_uint32) -> None:
    library().larder_gate_close(byref(gate))


class Rooms:
    """What larder_prefix_reserve() holds; filled or released once."""

    def __init__(self, handle: c_void_p):
        self._handle = handle

    def filler(self, move: Move,
               team: c_void_p | None = None) -> Callable[[], int]:
        """What fills it, with nothing left to be made. team: who helps, see
        larder_prefix_fill_by()."""
        return functools.partial(library().larder_prefix_fill_by,
                                 byref(self._handle), byref(move), team)

    def fill(self, move: Move, team: c_void_p | None = None) -> int:
        return self.filler(move, team)()

    def release(self) -> None:
        library().larder_rooms_release(byref(self._handle))


class Memory:
    """A fetched prefix, in memory that other processes open by its path."""

    def __init__(self, size: int):
        self._fd = os.memfd_create("larder-prefix", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, size)
            self.map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        self.size = size
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Who has opened it keeps it."""
        self.map.close()
        os.close(self._fd)


class Space:
    """A space opened on a node."""

    def __init__(self, node: Node, handle: c_void_p, chunk_tokens: int):
        self.node = node
        self.chunk_tokens = chunk_tokens
        self._handle = handle

    def chain(self, tokens: array, keys: Keys,
              extra: Sequence[bytes] | None = None, salt: bytes = b"") -> None:
        """Appends the keys of the full chunks of tokens (array "I"), which
        follow those that keys has. salt: of a chain that begins here."""
        count = len(tokens) // self.chunk_tokens
        if count == 0:
            return
        out = array("B", bytes(count * KEY_BYTES))
        params = None
        if keys.count > 0 or extra is not None or salt:
            params = ChainParams()
        if keys.count > 0:
            params.field_mask |= 1
            params.parent = keys.data(keys.count - 1, keys.count)
        if salt:
            params.field_mask |= 2
            params.salt, params.salt_bytes = salt, len(salt)
        if extra is not None:
            params.field_mask |= 4
            params.extra = (Extra * count)(*((e, len(e)) for e in extra))
        done = c_size_t()
        lib = library()
        chain = (lib.chain_short if len(tokens) <= SHORT_TOKENS
                 else lib.larder_chain)
        check(chain(
            self._handle, tokens.buffer_info()[0], len(tokens), params,
            out.buffer_info()[0], count, byref(done)))
        keys.extend(out.tobytes())

    def match(self, layout: Layout, keys: bytes, chunks: int,
              timeout_ms: int) -> Match:
        """Of the first chunks of keys."""
        out = Match()
        check(library().larder_prefix_match(
            self._handle, layout._handle, keys, chunks, timeout_ms,
            byref(out)))
        return out

    def announce(self, keys: bytes, chunks: int, tokens: int = 0,
                 hint: int = 0, request: int = 0,
                 timeout_ms: int = 0) -> None:
        """A request is about to use these chunks, all of its prompt. hint: of
        HINT_*; request: the same number for the same request."""
        params = AnnounceParams(7, request, tokens, hint)
        check(library().larder_announce(self._handle, keys, chunks, params,
                                        timeout_ms))

    def describe(self, keys: bytes, first: int, count: int, tokens: array,
                 hashes: bytes, parent: bytes | None, pod: str, model: str,
                 group: int, group_idx: int, block_tokens: int,
                 hash_bytes: int, numbers: bool, timeout_ms: int) -> bool:
        """What an engine calls chunks from the first on: tokens (array "I", of
        all up to their end) and its own hashes of the blocks in them. False:
        the node does not want to know."""
        params = DescribeParams(
            5, pod.encode(), model.encode(), block_tokens, hash_bytes, group, 0,
            group_idx, b"full_attention", 0, numbers)
        return check(library().larder_describe(
            self._handle, keys, first, count, tokens.buffer_info()[0], hashes,
            parent, params, timeout_ms)) == OK

    def match_group(self, keys: bytes, chunks: int, group: int) -> Match:
        """Of the first chunks of keys, whatever a layout needs."""
        out = Match()
        check(library().larder_match(self._handle, keys, chunks, group,
                                     byref(out)))
        return out

    def stage_group(self, keys: bytes, chunks: int, group: int,
                    timeout_ms: int) -> tuple[Lease | None, Match]:
        """As stage(), of one group, whatever a layout needs."""
        handle = c_void_p()
        out = Match()
        st = check(library().larder_stage(
            self._handle, keys, chunks, group, timeout_ms, byref(handle),
            byref(out)))
        return (Lease(handle, out) if st == OK else None), out

    def run(self, op: int, items: ctypes.Array, timeout_ms: int) -> None:
        """Each item has its own status then."""
        params = OpParams(field_mask=1, timeout_ms=timeout_ms)
        check(library().larder_run(self._handle, op, items, len(items),
                                   byref(params)))

    def submit(self, op: int, items: ctypes.Array, timeout_ms: int,
               user: int) -> None:
        """As run(), without waiting: Node.drain() gives user (not 0) when it is
        done. Until then the items, and what they point to, stay as they
        are."""
        params = OpParams(field_mask=1 | 4, timeout_ms=timeout_ms, user=user)
        ticket = c_uint64()
        check(library().larder_submit(self._handle, op, items, len(items),
                                      byref(params), byref(ticket)))

    def stage(self, layout: Layout, keys: bytes, chunks: int,
              timeout_ms: int, worth: StageParams | None = None,
              ) -> tuple[Lease | None, Match]:
        """The longest prefix of the first chunks that is worth it, held; None:
        nothing."""
        handle = c_void_p()
        out = Match()
        st = check(library().larder_prefix_stage(
            self._handle, layout._handle, keys, chunks, worth, timeout_ms,
            byref(handle), byref(out)))
        return (Lease(handle, out) if st == OK else None), out

    def promise(self, layout: Layout, keys: bytes, chunks: int, token: bytes,
                timeout_ms: int) -> str:
        """These chunks will be saved: whoever stages them may wait for them.
        token: the caller's, of randomness. Gives the node's name among the
        members of its cluster; "": it is in none."""
        member = ctypes.create_string_buffer(MEMBER_MAX + 1)
        check(library().larder_promise(self._handle, layout._handle, keys,
                                       chunks, token, timeout_ms, member))
        return member.value.decode()

    def handoff(self, token: bytes, what: int, timeout_ms: int,
                member: str = "") -> bool:
        """Says something of a promise (HANDOFF_*). False: there is none.
        member: that it was promised to; "": to this node."""
        return check(library().larder_handoff(
            self._handle, token, what, member.encode(), timeout_ms)) == OK

    def seal(self, data: bytes) -> bytes:
        """What only somebody with the tenant's secret can make of the data."""
        out = ctypes.create_string_buffer(KEY_BYTES)
        check(library().larder_seal(self._handle, data, len(data), out))
        return out.raw

    def fetch(self, layout: Layout, lease: Lease, keys: bytes, chunks: int,
              timeout_ms: int, most: int) -> Memory:
        """What is staged, copied and checked, if it is not more than most
        bytes."""
        need = c_size_t()
        arguments = [self._handle, layout._handle, lease._handle, keys,
                     chunks]
        st = library().larder_prefix_fetch(*arguments, None, 0, timeout_ms,
                                           byref(need))
        if st != OK:  # a miss too
            raise fail(st)
        if need.value > most:
            raise LarderError(E_FULL, f"{need.value} bytes to fetch, of {most}")
        memory = Memory(need.value)
        view = c_uint8.from_buffer(memory.map)
        try:
            st = library().larder_prefix_fetch(
                *arguments, ctypes.addressof(view), memory.size, timeout_ms,
                byref(need))
            if st != OK:
                raise fail(st)
        except LarderError:
            del view
            memory.close()
            raise
        return memory

    def save(self, layout: Layout, move: Move) -> int:
        return library().larder_prefix_save(self._handle, layout._handle,
                                            byref(move))

    def reserve(self, layout: Layout,
                move: Move) -> tuple[int, Rooms | None]:
        """Room for what save() would save."""
        handle = c_void_p()
        status = library().larder_prefix_reserve(
            self._handle, layout._handle, byref(move), byref(handle))
        return status, Rooms(handle) if handle else None

    def load(self, layout: Layout, move: Move) -> int:
        return library().larder_prefix_load(self._handle, layout._handle,
                                            byref(move))

    def load_early(self, layout: Layout, move: Move, gate: c_uint32,
                   wait_ms: int) -> int:
        return library().larder_prefix_load_early(
            self._handle, layout._handle, byref(move), byref(gate), wait_ms)

    @staticmethod
    def place(layout: Layout, move: Move, path: str) -> int:
        """Loads from a Memory, of whichever process."""
        with open(path, "r+b") as file:
            with mmap.mmap(file.fileno(), 0) as memory:
                view = c_uint8.from_buffer(memory)
                try:
                    return library().larder_prefix_place(
                        layout._handle, byref(move), ctypes.addressof(view),
                        len(memory))
                finally:
                    del view

    def reset(self, timeout_ms: int = 10000) -> int:
        return check(library().larder_space_reset(self._handle, timeout_ms))

    def close(self) -> None:
        library().larder_space_close(byref(self._handle))
