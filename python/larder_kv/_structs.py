"""The structures of include/larder/larder.h, as ctypes has them."""
from __future__ import annotations

import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_size_t,
                    c_uint16, c_uint32, c_uint64, c_void_p)

TOKEN_BYTES = 16
LOG_FN = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class _Sized:
    """Begins with its size: how much of it the library may fill or read."""

    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **fields)


class OpenParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("log", LOG_FN),
                ("log_arg", c_void_p)]


class SpaceParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("descriptor", c_char_p),
                ("descriptor_bytes", c_size_t), ("tenant", c_char_p),
                ("secret", c_char_p), ("secret_bytes", c_size_t),
                ("shards", c_uint32), ("chunk_tokens", c_uint32),
                ("label", c_char_p), ("chunk_bytes", c_uint64),
                ("page_tokens", c_uint32)]


class Extra(Structure):
    _fields_ = [("data", c_char_p), ("bytes", c_size_t)]


class ChainParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("parent", c_char_p),
                ("salt", c_char_p), ("salt_bytes", c_size_t),
                ("extra", POINTER(Extra))]


class Region(Structure):
    _fields_ = [("name", c_char_p), ("base", c_void_p), ("bytes", c_size_t)]


class Layer(Structure):
    _fields_ = [("name", c_char_p), ("region", c_uint32),
                ("offset", c_uint64), ("stride", c_uint64),
                ("bytes", c_uint64)]


class Group(Structure):
    _fields_ = [("rule", c_int), ("block_tokens", c_uint32),
                ("window_tokens", c_uint32), ("layers", POINTER(Layer)),
                ("layer_count", c_uint32)]


class Part(Structure):
    _fields_ = [("layer", c_uint32), ("reserved", c_uint32),
                ("offset", c_uint64), ("head_stride", c_uint64),
                ("row_stride", c_uint64), ("bytes", c_uint64)]


class Page(Structure):
    _fields_ = [("layer", c_uint32), ("part_count", c_uint32),
                ("parts", POINTER(Part))]


class Pages(Structure):
    _fields_ = [("heads", c_uint32), ("head_first", c_uint32),
                ("head_count", c_uint32), ("row_tokens", c_uint32),
                ("model_layers", POINTER(c_uint32)),
                ("model_layer_count", c_uint32), ("page_count", c_uint32),
                ("pages", POINTER(Page))]


class LayoutParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("chunk_tokens", c_uint32),
                ("block_count", c_uint32), ("regions", POINTER(Region)),
                ("region_count", c_uint32), ("groups", POINTER(Group)),
                ("group_count", c_uint32), ("null_block", c_uint32),
                ("gpu", c_void_p), ("pages", POINTER(Pages)),
                ("model_layers", c_uint32), ("table_count", c_uint32),
                ("layer_tables", POINTER(c_uint32))]


class GpuParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("device", c_int),
                ("nvrtc", c_char_p), ("log", LOG_FN),
                ("log_arg", c_void_p)]


class GpuStats(_Sized, Structure):
    _fields_ = [(name, c_uint64) for name in (
        "struct_bytes", "registered_bytes", "register_ns", "loaded_bytes",
        "saved_bytes", "staged", "direct", "bounced", "plain", "failures")]


class Table(Structure):
    _fields_ = [("ids", c_void_p), ("first", c_uint32), ("count", c_uint32)]


class Move(_Sized, Structure):
    _fields_ = [("struct_bytes", c_uint64), ("keys", c_char_p),
                ("tables", POINTER(Table)),
                ("first_key", c_uint32), ("begin", c_uint32),
                ("end", c_uint32), ("shard", c_uint16),
                ("writers", c_uint16), ("writer", c_uint16),
                ("timeout_ms", c_uint32), ("flags", c_uint32),
                ("ttl_ms", c_uint32), ("after", c_void_p),
                ("shards", c_uint32), ("present", c_uint32),
                ("skipped", c_uint32),
                ("failed", c_uint32), ("bytes", c_uint64), ("item", c_int),
                ("cause", c_int), ("token", ctypes.c_uint8 * TOKEN_BYTES)]


class Item(Structure):
    """iov: the address of pairs of an address and a number of bytes."""

    _fields_ = [("key", c_char_p), ("parent", c_char_p), ("depth", c_uint32),
                ("group", c_uint16), ("shard", c_uint16), ("iov", c_void_p),
                ("iov_count", c_uint32), ("flags", c_uint32),
                ("ttl_ms", c_uint32), ("status", c_int), ("cause", c_int),
                ("length", c_size_t)]


class OpParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("timeout_ms", c_uint32),
                ("flags", c_uint32), ("user", c_void_p)]


class Completion(Structure):
    _fields_ = [("ticket", c_uint64), ("status", c_int),
                ("reserved", c_uint32), ("user", c_void_p)]


class StageParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("tiers", c_uint32),
                ("below_percent", c_uint32), ("bytes_max", c_uint64),
                ("chunk_ns", c_uint64), ("dram_speed", c_uint64),
                ("member", c_char_p)]

    PROMISED = 1 << 6  # has no field

    def __init__(self, promised: bool = False, **fields: int | bytes):
        """promised: waits for chunks that are promised."""
        names = [name for name, _ in self._fields_[1:]]
        mask = sum(1 << names.index(n) for n in fields)
        super().__init__(field_mask=mask | (self.PROMISED if promised else 0),
                         **fields)


class AnnounceParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("id", c_uint64),
                ("tokens", c_uint32), ("hint", c_uint32)]


class DescribeParams(Structure):
    _fields_ = [("field_mask", c_uint64), ("pod", c_char_p),
                ("model", c_char_p), ("block_tokens", c_uint32),
                ("hash_bytes", c_uint32), ("group", c_uint16),
                ("reserved", c_uint16), ("group_idx", c_uint32),
                ("kind", c_char_p), ("window", c_uint32),
                ("is_numbers", c_uint32)]


class DiskStats(Structure):
    _fields_ = ([("path", ctypes.c_char * 256), ("on", c_uint32),
                 ("reason", ctypes.c_char * 128)] +
                [(name, c_uint64) for name in (
                    "bytes_max", "bytes_used", "segments", "segments_lost",
                    "written_bytes", "carried_bytes", "read_bytes",
                    "write_errors", "read_errors")] +
                [("reserved", c_uint64 * 8)])


class SharedStats(Structure):
    _fields_ = ([("url", ctypes.c_char * 256), ("on", c_uint32),
                 ("writable", c_uint32), ("reason", ctypes.c_char * 160)] +
                [(name, c_uint64) for name in (
                    "objects", "shards", "bytes", "dead_bytes", "map_bytes",
                    "waiting_shards", "read_bytes", "written_bytes",
                    "read_errors", "write_errors", "gone", "corrupt",
                    "cleaner", "cleaned_objects", "cleaned_bytes")] +
                [("reserved", c_uint64 * 8)])


def constant(lib: ctypes.CDLL, name: str) -> int:
    lib.larder_constant.argtypes = [c_char_p]
    lib.larder_constant.restype = c_uint64
    return lib.larder_constant(b"LARDER_" + name.encode())


def match_type(lib: ctypes.CDLL) -> type[Structure]:
    tiers_max = constant(lib, "TIERS_MAX")

    class Match(_Sized, Structure):
        _fields_ = [("struct_bytes", c_uint64), ("chunks", c_uint32),
                    ("cause", c_int), ("load_us", c_uint64),
                    ("tier_chunks", c_uint32 * tiers_max),
                    ("tier_bytes", c_uint64 * tiers_max),
                    ("found", c_uint32), ("tried", c_uint32),
                    ("limit", c_int), ("reserved", c_uint32),
                    ("tried_us", c_uint64), ("tried_bytes", c_uint64),
                    ("tried_below_bytes", c_uint64)]

        @property
        def below(self) -> int:
            """Bytes that are not in DRAM yet."""
            return sum(self.tier_bytes[1:])

    return Match


def stats_type(lib: ctypes.CDLL) -> type[Structure]:
    causes_max = constant(lib, "CAUSES_MAX")
    disks_max = constant(lib, "STATS_DISKS_MAX")

    class Stats(_Sized, Structure):
        _fields_ = ([(name, c_uint64) for name in (
            "struct_bytes", "saves_stored", "saves_present", "saves_mismatch",
            "saves_full", "saves_canceled", "saves_failed", "saves_stale",
            "saves_dropped_evicted", "saves_dropped_size", "saves_dropped_io",
            "loads_dram", "loads_ssd")] +
            [("misses", c_uint64 * causes_max)] +
            [(name, c_uint64) for name in (
                "evicted_chunks", "evicted_bytes", "saved_bytes",
                "loaded_bytes", "entries", "entry_bytes", "dram_bytes",
                "dram_resident_bytes", "dram_used_bytes",
                "dram_leased_chunks", "pinned_bytes", "removes", "resets",
                "io_uring", "disks")] +
            [("disk", DiskStats * disks_max)] +
            [(name, c_uint64) for name in (
                "client_calls", "client_offline", "client_breaker",
                "client_connects", "client_late_replies",
                "client_crc_failures", "dram_max_bytes", "ssd_max_bytes",
                "loads_shared", "offers_written", "offers_present",
                "offers_evicted", "offers_failed", "shared")] +
            [("shared_tier", SharedStats)] +
            [(name, c_uint64) for name in (
                "client_denied", "client_version", "asked_chunks",
                "found_chunks", "loads_peer")])

    return Stats
