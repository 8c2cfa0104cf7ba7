"""Run inside an engine's process by Engine.ask("inside", NAME): what only the
engine knows."""


def _scheduler(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler


def space(llm):
    """What names the connector's space, the rules of its groups; of each of
    the engine's, its rule and its first layer; and of each layer the group of
    the space that has it, and which part of that is its middle."""
    from larder_kv.engine import kv
    from larder_kv.vllm import pages

    scheduler = _scheduler(llm)
    model = scheduler.connector._scheduler.model
    engine = [(g.rule, [pages.index_of(name) for name in scheduler
                        .kv_cache_config.kv_cache_groups[g.index].layer_names])
              for g in model.groups]
    stored = (model.slices.layers if model.slices
              else [layers for _, layers in engine])
    return {"descriptor": model.descriptor.decode(), "shards": model.shards,
            "replicas": model.replicas, "chunk_tokens": model.chunk_tokens,
            "chunk_bytes": model.chunk_bytes,
            "groups": [[g.kind, g.rule, g.block_tokens, g.window_tokens]
                       for g in kv.stored(model)],
            "engine_groups": [[rule, layers[0]] for rule, layers in engine],
            "layers": sorted([layer, i, (at + 0.5) / len(layers)]
                             for i, layers in enumerate(stored)
                             for at, layer in enumerate(layers))}


def few_descriptors(llm, times):
    """The next so many times that a worker maps what was fetched, its process
    has no descriptor left. Answers how often that was so, at the next call."""
    import resource

    from larder_kv import _lib

    before = getattr(_lib.Space, "short_of", [0, 0])
    place = getattr(_lib.Space, "well", _lib.Space.place)
    left = [times, 0]

    def short(*args):
        if left[0] == 0:
            return place(*args)
        left[0] -= 1
        left[1] += 1
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            return place(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    _lib.Space.well = staticmethod(place)
    _lib.Space.place = staticmethod(short)
    _lib.Space.short_of = left
    return before[1]


def interrupted(llm, forward, layer=1):
    """The forward of that number from now on (0: the next one) does not come
    to its end, as if a signal had come before this layer."""
    left = [forward]

    def stop(*_):
        if left[0] == 0:
            raise KeyboardInterrupt("in the forward")
        left[0] -= 1

    def hook(model):
        model.model.layers[layer].register_forward_pre_hook(stop)

    llm.apply_model(hook)


def failing_loads(llm):
    """From now on loads fail after they were claimed."""
    from larder_kv import _lib

    _lib.Space.load = lambda *_: _lib.E_IO
