"""vLLM's side of KV that it shares with SGLang, without vLLM: pages as it has
them on a GPU, and the space and the layouts as its connector makes them."""
import ctypes
from array import array

from larder_kv import _lib
from larder_kv.engine import kv


class Engine:
    """Pages of any block size, with heads inside or outside of tokens, for a
    model of full attention. Block 0 is none, as in vLLM."""

    def __init__(self, node, descriptor, chunk, page_tokens, layers, heads,
                 width, block=2, order="NHD", blocks=40, tp=(0, 1)):
        """width: bytes of a token in a head. tp: this rank, of how many."""
        self.block, self.order, self.blocks = block, order, blocks
        self.chunk, self.layers, self.width = chunk, layers, width
        self.here = heads // tp[1]
        self.first = self.here * tp[0]
        self.page = 2 * block * self.here * width
        self.memory = ctypes.create_string_buffer(layers * blocks * self.page)
        where = [_lib.Layer(b"layer", 0, i * blocks * self.page, self.page,
                            self.page) for i in range(layers)]
        pages = [_lib.Page(i, 2, (_lib.Part * 2)(*(
            _lib.Part(i, 0, self._at(0, part, 0, 0), self._at(0, 0, 0, 1),
                      self._at(0, 0, 1, 0), width) for part in range(2))))
            for i in range(layers)]
        self.layout = _lib.Layout(
            chunk, [_lib.Group(_lib.RULE_ALL, block, 0,
                               (_lib.Layer * layers)(*where), layers)],
            [_lib.Region(b"kv", ctypes.addressof(self.memory),
                         len(self.memory))], blocks,
            pages=[_lib.Pages(heads, self.first, self.here, 1,
                              (_lib.c_uint32 * layers)(*range(layers)), layers,
                              layers, (_lib.Page * layers)(*pages))],
            model_layers=layers)
        group = kv.GroupInfo(0, "full", _lib.RULE_ALL, block, 0)
        self.rules = kv.lookup_layout(chunk, (group,), kv.Slices(
            heads, layers, (group,), (tuple(range(layers)),), (0,),
            ((width, width),)))
        self.space = node.space(descriptor, self.rules.slices(), chunk,
                                page_tokens=page_tokens)

    def _at(self, block, part, token, head):
        rows = self.block * self.here
        row = {"NHD": part * rows + token * self.here + head,
               "HND": part * rows + head * self.block + token,
               "interleaved": (token * self.here + head) * 2 + part,
               }[self.order]
        return block * self.page + row * self.width

    def _rows(self, table, count):
        for layer in range(self.layers):
            for token in range(count):
                block = table[token // self.block]
                for part in range(2):
                    for head in range(self.here):
                        yield (part, layer, token, self.first + head), (
                            layer * self.blocks * self.page
                            + self._at(block, part, token % self.block, head))

    def write(self, table, rows, count):
        """rows: {(part, layer, token, head): bytes}."""
        for name, at in self._rows(table, count):
            self.memory[at:at + self.width] = rows[name]

    def read(self, table, count):
        raw = self.memory.raw
        return {name: raw[at:at + self.width]
                for name, at in self._rows(table, count)}

    def _keys(self, tokens, extra):
        keys = _lib.Keys()
        self.space.chain(array("I", tokens), keys, extra)
        return keys

    def _move(self, tokens, table, extra):
        keys, ids = self._keys(tokens, extra), array("I", table)
        return _lib.Move(
            keys=keys.data(0, keys.count), tables=(_lib.Table * 1)(
                _lib.Table(ids.buffer_info()[0], 0, len(ids))), first_key=0,
            begin=0, end=keys.count * self.chunk, writers=1,
            timeout_ms=30000), ids

    def save(self, tokens, table, extra=None):
        """The prompt's whole chunks. extra: of each, what vLLM adds."""
        move, _ids = self._move(tokens, table, extra)
        assert self.space.save(self.layout, move) == _lib.OK
        assert not (move.failed or move.skipped)

    def load(self, tokens, table, extra=None):
        move, _ids = self._move(tokens, table, extra)
        return self.space.load(self.layout, move)

    def match(self, tokens, extra=None):
        keys = self._keys(tokens, extra)
        return self.space.match(self.rules, keys.data(0, keys.count),
                                keys.count, 30000).chunks

    def close(self):
        """A second time it does nothing."""
        self.space.close()
        self.layout.close()
        self.rules.close()
