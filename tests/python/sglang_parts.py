"""SGLang's storage interface without SGLang: its classes and signatures, made
from the list that tests/sglang/interface.py recorded, and host pools in plain
memory. tests/sglang has the real ones."""
import ctypes
import dataclasses
import enum
import json
import sys
import types

from conftest import ROOT

RECORDED = json.loads(
    (ROOT / "tests/sglang/interface-0.5.23.json").read_text())
PAGE, LAYERS, HEADS, WIDTH = 4, 3, 2, 32  # a page has 2 * 3 * 4 * 2 * 32 bytes


class Indices(list):
    """As much of a tensor of indices as is used."""

    def tolist(self):
        return list(self)

    def numel(self):
        return len(self)

    def __getitem__(self, index):
        found = super().__getitem__(index)
        return Indices(found) if isinstance(index, slice) else found


class Tensor:
    """A flat page on the CPU."""

    device = types.SimpleNamespace(type="cpu")

    def __init__(self, data):
        self.memory = ctypes.create_string_buffer(bytes(data), len(data))

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def numel(self):
        return len(self.memory)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True

    def contiguous(self):
        return self

    def bytes(self):
        return self.memory.raw


def _base(abstract, methods):
    import abc

    def made(name):
        def method(self, *_args, **_kwargs):
            raise NotImplementedError(name)
        return abc.abstractmethod(method) if name in abstract else method

    def first(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def second(self, host_pool, host_pool_name):
        self.__dict__.setdefault("registered_pools", {})[
            host_pool_name] = host_pool

    body = {name: made(name) for name in methods}
    body |= {"register_mem_pool_host": first,
             "register_mem_host_pool_v2": second}
    return abc.ABCMeta("HiCacheStorage", (), body)


def install(server_args):
    """Makes them importable. Gives the storage module."""
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    storage.HiCacheStorage = _base(RECORDED["abstract"], RECORDED["methods"])
    for name, members in RECORDED["words"].items():
        made = enum.Enum(name, members, type=str)
        made.__str__ = lambda self: self.value
        setattr(storage, name, made)
    for name, fields in RECORDED["data"].items():
        setattr(storage, name, dataclasses.make_dataclass(name, [
            (field, object, dataclasses.field(default=None))
            if default else (field, object) for field, default in fields]))
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_server_args = lambda: server_args
    torch = types.ModuleType("torch")
    torch.arange = lambda *bounds: Indices(range(*bounds))
    runner = "sglang.srt.model_executor"
    updater = types.ModuleType(f"{runner}.model_runner_components."
                               "weight_updater")
    updater.WeightUpdater = type("WeightUpdater", (), {
        name: (lambda self, name=name: (True, name))
        for name in RECORDED["updates"]})
    found = {"torch": torch, storage.__name__: storage,
             context.__name__: context, updater.__name__: updater}
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", runner,
                 f"{runner}.model_runner_components"):
        found[name] = types.ModuleType(name)
        found[name].__path__ = []
    sys.modules.update(found)
    return storage


class HostPool:
    """K and V of some pages in host memory, as SGLang's MHA pool lays them
    out: page_first has [K V][token][layer][head], page_first_direct has
    [K V][page][layer][token][head], layer_first [K V][layer][token][head]."""

    dtype, head_dim = "torch.bfloat16", WIDTH

    def __init__(self, pages, layout="page_first", page=PAGE, layers=LAYERS,
                 heads=HEADS):
        self.page_size, self.layout, self.layers = page, layout, layers
        self.pages, self.size, self.layer_num = pages, pages * page, layers
        self.head_num, self.row = heads, heads * WIDTH
        self.half = pages * page * layers * self.row
        self.kv_buffer = ctypes.create_string_buffer(2 * self.half)

    def _row(self, part, index, layer):
        """Where a token's row of a layer begins."""
        page, token = divmod(index, self.page_size)
        at = {"page_first": index * self.layers + layer,
              "page_first_direct": (page * self.layers + layer)
              * self.page_size + token,
              "layer_first": layer * self.pages * self.page_size + index,
              }[self.layout]
        return part * self.half + at * self.row

    def fill(self, index, value_of):
        """One page: value_of(part, layer, token) is the byte of a row."""
        for part in range(2):
            for layer in range(self.layers):
                for token in range(self.page_size):
                    at = self._row(part, index + token, layer)
                    row = bytes([value_of(part, layer, token)])
                    ctypes.memmove(ctypes.addressof(self.kv_buffer) + at,
                                   row * self.row, self.row)

    def read(self, index):
        """One page: {(part, layer, token): its row}."""
        return {(part, layer, token): self.kv_buffer.raw[
            (at := self._row(part, index + token, layer)):
            at + self.row]
            for part in range(2) for layer in range(self.layers)
            for token in range(self.page_size)}

    def get_page_buffer_meta(self, indices):
        base, row = ctypes.addressof(self.kv_buffer), self.row
        starts = indices.tolist()[::self.page_size]
        if self.layout == "layer_first":
            found = [base + self._row(part, at, layer) for at in starts
                     for layer in range(self.layers) for part in range(2)]
            return found, [self.page_size * row] * len(found)
        found = [base + self._row(part, at, 0) for at in starts
                 for part in range(2)]
        return found, [self.page_size * self.layers * row] * len(found)

    def get_data_page(self, index, flat=True):
        assert flat
        addresses, sizes = self.get_page_buffer_meta(
            Indices(range(index, index + self.page_size)))
        return Tensor(b"".join(map(ctypes.string_at, addresses, sizes)))

    def get_dummy_flat_data_page(self):
        return Tensor(bytes(2 * self.page_size * self.layers * self.row))

    def set_from_flat_data_page(self, index, data_page):
        addresses, sizes = self.get_page_buffer_meta(
            Indices(range(index, index + self.page_size)))
        data, at = data_page.bytes(), 0
        for address, size in zip(addresses, sizes):
            ctypes.memmove(address, data[at:at + size], size)
            at += size


class States(HostPool):
    """A pool without addresses of its pages: one state of two bytes."""

    layout = "layer_first"

    def __init__(self, pages):
        self.page_size, self.held = 1, [b"\0\0"] * pages

    def get_page_buffer_meta(self, indices):
        raise ValueError("Mamba storage zero-copy requires page_first layout")

    def get_data_page(self, index, flat=True):
        return Tensor(self.held[index])

    def get_dummy_flat_data_page(self):
        return Tensor(b"\0\0")

    def set_from_flat_data_page(self, index, data_page):
        self.held[index] = data_page.bytes()
