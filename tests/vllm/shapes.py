"""Run in every rank of an engine, by Engine.ask("watch", "ranks", of="shapes"):
hashes what is saved and what is loaded, head by head.

Heads are found by this file's own walk over vLLM's tensors, [blocks, heads,
tokens, bytes] in its CPU build, which shares nothing with the layout that the
connector made of them. A digest is named by the chunk's key, the layer, the
head in the model, and the block in the chunk: so ranks of engines of different
shapes can be compared, however they group layers."""
import hashlib
import re

from larder_kv.engine.handoff import tail_model

from watch import _worker


class Heads:
    def __init__(self, rank, worker):
        from vllm.distributed.parallel_state import get_tp_group

        self.worker, self.tp = worker, get_tp_group()
        self.saved, self.loaded = {}, {}
        self.run, self.save = worker._run, worker._save
        worker._run, worker._save = self._loads, self._saves

    def _digest(self, move, into, loads):
        import torch

        worker, model = self.worker, self.worker.model
        size = tail_model(model, 1).chunk_tokens if move.in_tail else (
            model.chunk_tokens)
        for g, info in enumerate(model.groups):
            first, ids = move.tables[g]
            per = size // info.block_tokens
            places = range(move.begin // info.block_tokens,
                           move.end // info.block_tokens)
            if loads and info.rule != 0:  # of a window, the last is needed
                places = places[-1:]
            for place in places:
                if (not first <= place < first + len(ids)
                        or ids[place - first] == 0):
                    continue
                chunk = place // per - move.first_key
                key = bytes(move.keys[32 * chunk:32 * chunk + 32]).hex()
                for name in worker._kv.kv_cache_groups[info.index].layer_names:
                    cache = worker._caches[name]
                    page = cache[ids[place - first]]
                    page = page if page.dim() == 3 else page[None]
                    layer = int(re.search(r"layers\.(\d+)\.", name)[1])
                    total = model.slices.heads
                    here = self.tp.rank_in_group * total // (
                        self.tp.world_size)
                    for h in range(page.shape[0]):
                        data = page[h].contiguous().view(torch.uint8)
                        into[f"{key} {layer} {here + h} {place % per}"] = (
                            hashlib.sha256(data.numpy().tobytes()).hexdigest())

    def _saves(self, move, *args):
        self._digest(move, self.saved, False)
        return self.save(move, *args)

    def _loads(self, move, timeout_ms, load):
        found = self.run(move, timeout_ms, load)
        if load:
            self._digest(move, self.loaded, True)
        return found


def heads(worker):
    """Begins to look; later: what was seen since, saved and loaded."""
    mover = _worker(None)
    if not hasattr(mover, "heads"):
        mover.heads = Heads(worker.rank, mover)
    seen = mover.heads.saved, mover.heads.loaded
    mover.heads.saved, mover.heads.loaded = {}, {}
    return seen
