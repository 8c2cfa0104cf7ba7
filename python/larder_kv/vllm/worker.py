"""A worker's side, as vLLM has it: its memory, its rank, its forward."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine.kv import Model
from larder_kv.engine.mover import Mover, Rank, say
from larder_kv.vllm import events, meta, model, patches, trial, versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_here: dict[str, Worker] = {}  # of this process, by engine


def here(engine: str) -> Worker | None:
    """The only worker of the engine, if it is in this process."""
    return _here.get(engine)


class Worker(Mover):
    _tensor = (1, 0)
    _config: VllmConfig | None = None

    def __init__(self, config: VllmConfig, options: Options,
                 described: Model, kv: KVCacheConfig,
                 node: _lib.Node):
        super().__init__(options, described, node, _rank(config, described),
                         config.model_config.max_model_len, events.Saved)
        self._kv = kv
        self._config = config
        self._tensor = self._rank.tensor
        self._registered: dict[str, Any] = {}
        # What somebody handles who calls vLLM: no error of the forward's.
        self._handled: BaseException | None = None
        self._engine = config.kv_transfer_config.engine_id
        if config.parallel_config.world_size == 1:
            _here[self._engine] = self

    def register(self, caches: dict[str, Any]) -> None:
        self._registered = caches
        if not versions.tested():
            trial.run(self.model, self._kv, caches, self.layout_of)
        self.restore()

    def unregister(self) -> None:
        """The pages are taken from under their addresses. Nobody but this
        process has those: what is registered with the GPU is the node's
        memory, which stays. If they cannot be, the engine goes on."""
        if not self.stop():
            self.resume()
            raise RuntimeError("larder: a copy of KV is still under way")

    def restore(self) -> None:
        """They are back, at the same addresses."""
        caches = self._registered
        if self._layout is None:
            self.start(self.layout_of(self.model), caches,
                       getattr(self._kv, "needs_kv_cache_zeroing", True))

    def layout_of(self, described: Model) -> _lib.Layout:
        return model.layout(described, self._kv, self._registered, say,
                            self._gpu, *self._tensor, self._config)

    def hurry(self) -> None:
        if here(self._engine) is self:
            patches.watch(self)

    def begin(self, step: meta.Step) -> None:
        if step.saves:
            self._handled = patches.handled()
        super().begin(step)

    def save(self, step: meta.Step, whole: bool = True) -> None:
        if not step.saves and not self._unsaved:
            return
        before, self._handled = self._handled, None
        super().save(step, whole and patches.handled() is before)

    def close(self) -> None:
        if _here.get(self._engine) is self:
            del _here[self._engine]
        patches.leave(self)
        super().close()


def _rank(config: VllmConfig, described: Model) -> Rank:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp = config.parallel_config.tensor_parallel_size
    rank = get_tp_group().rank_in_group
    pp_rank = get_pp_group().rank_in_group
    shard = (pp_rank * (tp // described.replicas) + rank // described.replicas
             if described.slices is None else 0)
    return Rank(pp_rank * tp + rank, shard, rank % described.replicas,
                (tp, rank))
