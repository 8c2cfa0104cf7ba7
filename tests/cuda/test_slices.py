"""Canonical shards on a GPU: a prefix that virtual ranks of one shape saved is
loaded by those of another, with other tensor and pipeline parallel sizes, block
sizes and orders of bytes in a page. What each reads is its part of a reference
tensor, and nothing else of its memory changes. All ranks are on one device."""
import ctypes
import random
from array import array

import pytest

from larder_kv import _lib
from larder_kv._find import nvrtc_path

torch = pytest.importorskip(
    "torch", reason="GPU tests: PyTorch is not installed; run `make test-gpu` "
    "where there is a GPU")

CHUNK, CHUNKS, LAYERS = 256, 3, 8
TOKENS = CHUNK * CHUNKS

# How a layer's KV lies: the tensor's axes from the outermost on (b: block, t:
# token, h: head, p: part), and whether each part is a tensor of its own.
ORDERS = {
    "NHD apart": ("pbth", True),     # FlashAttention, Triton
    "HND apart": ("pbht", True),
    "NHD": ("bpth", False),          # FlashInfer
    "HND": ("bpht", False),
    "interleaved": ("bthp", False),
    "by head": ("bhpt", False),
}


class Model:
    def __init__(self, heads, row, parts=2):
        self.heads, self.row, self.parts = heads, row, parts
        torch.manual_seed(heads * row)
        self.ref = torch.randint(0, 256, (LAYERS, parts, heads, TOKENS, row),
                                 dtype=torch.uint8)


class Rank:
    """A rank's tensors and their layout. gpu: None, where there is none."""

    def __init__(self, model, tp, pp, rank, block, order, seed, gpu):
        self.model, self.block = model, block
        r = random.Random(seed)
        here = max(1, model.heads // tp)
        head = rank % tp * model.heads // tp
        per = LAYERS // pp
        self.layers = range(rank // tp * per, (rank // tp + 1) * per)
        self.heads = range(head, head + here)
        self.writers = max(1, tp // model.heads)
        self.writer = rank % tp % self.writers
        count = TOKENS // block
        blocks = 2 * count + 3
        self.ids = array("I", r.sample(range(1, blocks), count))
        axes, apart = ORDERS[order]
        size = {"p": model.parts, "b": blocks, "t": block, "h": here}
        self.memory, regions, layers, pages = [], [], [], []
        for number, layer in enumerate(self.layers):
            t = torch.randint(0, 256, (*(size[a] for a in axes), model.row),
                              dtype=torch.uint8,
                              device="cuda" if gpu else "cpu")
            self.memory.append(
                t.permute(*(axes.index(a) for a in "pbth"), 4))
            regions.append(_lib.Region(b"kv", t.data_ptr(), t.numel()))
            page = t.numel() // blocks // (model.parts if apart else 1)
            parts = []
            for i, part in enumerate(self.memory[-1]):
                at = part.data_ptr() - t.data_ptr()
                if apart or i == 0:
                    layers.append(_lib.Layer(b"layer", number, at,
                                             part.stride(0), page))
                parts.append(_lib.Part(
                    layer=len(layers) - 1, offset=0 if apart else at,
                    head_stride=part.stride(2), row_stride=part.stride(1),
                    bytes=model.row))
            pages.append(_lib.Page(layer, len(parts),
                                   (_lib.Part * len(parts))(*parts)))
        group = _lib.Group(_lib.RULE_ALL, block, 0,
                           (_lib.Layer * len(layers))(*layers), len(layers))
        inside = _lib.Pages(
            heads=model.heads, head_first=head, head_count=here, row_tokens=1,
            model_layers=(ctypes.c_uint32 * LAYERS)(*range(LAYERS)),
            model_layer_count=LAYERS, page_count=len(pages),
            pages=(_lib.Page * len(pages))(*pages))
        self.layout = _lib.Layout(CHUNK, [group], regions, blocks, gpu,
                                  [inside], LAYERS)

    def of(self, number):
        """[part, head, token, row] of its tokens, one of its layers; a copy."""
        t = self.memory[number][:, torch.tensor(self.ids).long()]
        return t.permute(0, 3, 1, 2, 4).reshape(
            self.model.parts, len(self.heads), TOKENS, self.model.row)

    def want(self, layer):
        return self.model.ref[layer][:, self.heads[0]:self.heads[-1] + 1]

    def compute(self):
        for number, layer in enumerate(self.layers):
            want = self.want(layer).reshape(
                self.model.parts, len(self.heads), -1, self.block,
                self.model.row).permute(0, 2, 3, 1, 4)
            self.memory[number][:, torch.tensor(self.ids).long()] = want.to(
                self.memory[number].device)

    def move(self, keys, begin=0):
        table = (_lib.Table * 1)((self.ids.buffer_info()[0], 0, len(self.ids)))
        return _lib.Move(keys=keys.data(0, keys.count), tables=table,
                         begin=begin, end=TOKENS, writers=self.writers,
                         writer=self.writer, timeout_ms=20000)


SHAPES = {  # tp, pp, tokens in a block, order
    "a": (2, 1, 16, "NHD apart"),
    "b": (1, 1, 64, "HND apart"),
    "c": (2, 2, 32, "interleaved"),
    "d": (4, 1, 16, "NHD"),
    "e": (1, 4, 128, "HND"),
    "f": (8, 1, 16, "by head"),
}


@pytest.mark.parametrize("how", ["embed:?dram=512M", "unix"])
@pytest.mark.parametrize("pair", ["ab", "ba", "cd", "de", "ef", "fa", "ca"])
@pytest.mark.parametrize("heads,row,parts", [(8, 256, 2), (8, 128, 2),
                                             (8, 16, 2), (1, 656, 1)])
def test_any_to_any(request, how, pair, heads, row, parts):
    gpu = _lib.Gpu(0, nvrtc_path()) if torch.cuda.is_available() else None
    node = _lib.Node(how if ":" in how else
                     request.getfixturevalue("daemon").url(how))
    if gpu:
        gpu.attach(node)
    model = Model(heads, row, parts)
    space, keys, saved, slices = None, _lib.Keys(), 0, 0

    for side, name in enumerate(pair):
        tp, pp, block, order = SHAPES[name]
        for number in range(tp * pp):
            rank = Rank(model, tp, pp, number, block, order, number, gpu)
            if space is None:
                slices = rank.layout.slices()
                space = node.space(b"slices", slices, CHUNK)
                space.chain(array("I", range(TOKENS)), keys)
            if side == 0:
                rank.compute()
                move = rank.move(keys)
                assert space.save(rank.layout, move) == _lib.OK, _lib.fail(-1)
                assert move.failed == move.skipped == move.present == 0
                saved += move.shards
            else:
                was = [t.clone() for t in rank.memory]
                assert space.load(rank.layout, rank.move(keys)) == _lib.OK, (
                    _lib.fail(-1))
                used = torch.zeros(was[0].shape[1], dtype=torch.bool)
                used[torch.tensor(rank.ids).long()] = True
                for n, layer in enumerate(rank.layers):
                    assert torch.equal(rank.of(n).cpu(), rank.want(layer))
                    assert torch.equal(rank.memory[n][:, ~used].cpu(),
                                       was[n][:, ~used].cpu())
            rank.layout.close()
        if side == 0:
            assert saved == CHUNKS * slices
    if gpu:
        stats = gpu.stats()
        assert stats.failures == 0
        assert stats.plain == 0
        assert (stats.staged + stats.direct > 0) == (how == "unix")
    space.close()
    node.close()
    if gpu:
        gpu.close()
