"""What the proof asks of a worker, in the worker's own process: the class is
given to vLLM as worker_extension_cls, its methods are called by
collective_rpc."""


class Asked:
    def larder_about(self):
        """What names the connector's space."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        model = get_kv_transfer_group()._worker.model
        return {"descriptor": model.descriptor.decode(),
                "shards": model.shards, "chunk_tokens": model.chunk_tokens,
                "groups": [[g.kind, g.rule, g.block_tokens, g.window_tokens]
                           for g in model.groups]}

    def larder_runner(self):
        """Which model runner and attention this is, for the record."""
        runner = type(self.model_runner)
        return {"runner": f"{runner.__module__}.{runner.__name__}"}

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
