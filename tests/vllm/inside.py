"""Run inside an engine's process by Engine.ask("inside", NAME): what only the
engine knows."""


def _scheduler(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler


def space(llm):
    """What names the connector's space, and the rules of its groups."""
    model = _scheduler(llm).connector._scheduler.model
    return {"descriptor": model.descriptor.decode(), "shards": model.shards,
            "replicas": model.replicas, "chunk_tokens": model.chunk_tokens,
            "groups": [[g.kind, g.rule, g.block_tokens, g.window_tokens]
                       for g in model.groups]}
