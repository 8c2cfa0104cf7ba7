"""What the proof asks of a worker, in the worker's own process: the class is
given to vLLM as worker_extension_cls, its methods are called by
collective_rpc."""
import re
import resource
import time

LINK_BYTES = 256 << 20  # of the memory that larder_link copies


class Asked:
    def larder_about(self):
        """What names the connector's space."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        model = get_kv_transfer_group()._worker.model
        return {"descriptor": model.descriptor.decode(),
                "shards": model.shards, "chunk_tokens": model.chunk_tokens,
                "chunk_bytes": model.chunk_bytes,
                "groups": [[g.kind, g.rule, g.block_tokens, g.window_tokens]
                           for g in model.groups]}

    def larder_digest(self):
        """Notes from now on what is saved and loaded, head by head, by a walk
        of its own over vLLM's tensors: see larder_digests. It shares nothing
        with the layout that the connector made of them."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        worker = get_kv_transfer_group()._worker
        self.larder_seen = {"saved": {}, "loaded": {}}
        save, over = worker._save, worker._over

        def saves(move, *more):
            _digest(worker, move, self.larder_seen["saved"])
            return save(move, *more)

        def loads(move, status, *more):
            if status == 0:
                _digest(worker, move, self.larder_seen["loaded"])
            return over(move, status, *more)

        worker._save, worker._over = saves, loads

    def larder_digests(self):
        """Of chunks: {"saved", "loaded"}, each {"key layer part head":
        digest} of all tokens of a head in a chunk, in their order."""
        return self.larder_seen

    def larder_runner(self):
        """Which model runner and attention this is, for the record."""
        runner = type(self.model_runner)
        return {"runner": f"{runner.__module__}.{runner.__name__}"}

    def larder_watch(self):
        """Notes from now on what steps that compute take the engine's thread,
        see larder_steps."""
        runner, steps = self.model_runner, []
        self.larder_noted = steps

        def noted(name, call):
            def timed(*args, **more):
                before = _spent()
                try:
                    return call(*args, **more)
                finally:
                    work = getattr(args[0], "total_num_scheduled_tokens",
                                   1) if args else 1
                    if work:
                        steps.append([name, *(
                            round(now - was, 6) for now, was
                            in zip(_spent(), before))])
            return timed

        for name in ("execute_model", "sample_tokens"):
            setattr(runner, name, noted(name, getattr(runner, name)))

    def larder_steps(self):
        """[what, seconds, of these on a CPU, times it was made to wait, times
        it was put aside] of each since the last call."""
        found = list(self.larder_noted)
        self.larder_noted.clear()
        return found

    def larder_link(self, size):
        """Seconds of the driver's own copy of so many bytes to the GPU, from
        registered memory, contiguous. 0: there is no GPU."""
        import torch

        if not torch.cuda.is_available():
            return 0.0
        if not hasattr(self, "larder_slices"):
            self.larder_slices = (
                torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True),
                torch.empty(LINK_BYTES, dtype=torch.uint8, device="cuda"))
            self.larder_link(LINK_BYTES)  # the first one is slower
        here, there = self.larder_slices
        torch.cuda.synchronize()
        begin = time.perf_counter()
        while size > 0:
            part = min(size, LINK_BYTES)
            there[:part].copy_(here[:part], non_blocking=True)
            size -= part
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def larder_scribble(self, pattern):
        """Overwrites all KV memory: nothing of what it held is used by
        accident. Gives the bytes."""
        import torch

        found = {}

        def gather(thing):
            if isinstance(thing, (list, tuple)):
                for part in thing:
                    gather(part)
            elif isinstance(thing, dict):
                gather(list(thing.values()))
            elif hasattr(thing, "untyped_storage"):
                storage = thing.untyped_storage()
                found[storage.data_ptr()] = storage

        gather(self.model_runner.kv_caches)
        for storage in found.values():
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
            flat.set_(storage).fill_(pattern)
        if any(s.device.type == "cuda" for s in found.values()):
            torch.cuda.synchronize()
        return sum(storage.nbytes() for storage in found.values())


def _digest(worker, move, into):
    import hashlib
    import torch

    model = worker.model
    for g, info in enumerate(model.groups):
        if info.rule != 0:
            continue  # of a window not every token is there
        first, ids = move.tables[g]
        per = model.chunk_tokens // info.block_tokens
        for chunk in range(-(-move.begin // model.chunk_tokens),
                           move.end // model.chunk_tokens):
            here = ids[chunk * per - first:(chunk + 1) * per - first]
            at = chunk - move.first_key
            key = bytes(move.keys[32 * at:32 * at + 32]).hex()
            for name in worker._kv.kv_cache_groups[info.index].layer_names:
                parts = _parts(worker._registered[name], worker._kv.num_blocks)
                for p, part in enumerate(parts):
                    t = part[torch.tensor(here, device=part.device).long()]
                    t = t.flatten(0, 1).transpose(0, 1).contiguous()
                    data = t.view(torch.uint8).cpu().numpy()
                    for head, one in enumerate(data):
                        layer = re.search(r"layers\.(\d+)\.", name)[1]
                        into[f"{key} {layer} {p} {head}"] = hashlib.sha256(
                            one.tobytes()).hexdigest()


def _parts(cache, blocks):
    """K and V as [block, token, head, number], of a tensor as vLLM has it."""
    if cache.dim() == 5:  # before 0.29: [block, K and V, token, head, number]
        return cache.unbind(1)
    if cache.dim() == 4:  # [block, head, token, K and V]
        return [cache.transpose(1, 2)]
    return [cache.unsqueeze(2)]  # MLA: [block, token, number]


def _spent():
    """Of this thread: seconds, seconds on a CPU, switches of both kinds."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return (time.perf_counter(), time.thread_time(), used.ru_nvcsw,
            used.ru_nivcsw)
