"""The class that vLLM loads: each member hands on to one of the two sides."""
from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata,
    KVConnectorRole, SupportsHMA)
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils

from larder_kv import _node
from larder_kv._options import Options
from larder_kv.engine.kv import Model
from larder_kv.engine.mover import say
from larder_kv.vllm import (describe, events, meta, model, pages, patches,
                            versions)
from larder_kv.vllm.scheduler import Scheduler
from larder_kv.vllm.stats import LarderProm, LarderStats
from larder_kv.vllm.worker import Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.larder")


def _check_model(config: VllmConfig, described: Model) -> None:
    if (described.has_state and config.cache_config.enable_prefix_caching
            and versions.mistakes_states()):
        raise versions.Unsupported(
            "larder: this vLLM computes wrong tokens for models with "
            "recurrent state when prefix caching and any KV connector are on; "
            "use vLLM 0.27 or later, or --no-enable-prefix-caching")


class LarderConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole,
                 kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, role, kv_cache_config)
        versions.check()
        if role == KVConnectorRole.SCHEDULER and not versions.tested():
            logger.warning(versions.warning())
        transfer = vllm_config.kv_transfer_config
        owners = patches.owners(self)
        if (role == KVConnectorRole.SCHEDULER  # the only one that vLLM asks
                and (policy := patches.recompute_failed(owners))):
            logger.warning("larder: %s", policy)
        options = Options(transfer.kv_connector_extra_config)
        if options.page_tokens and options.pages != "shared":
            raise versions.Unsupported("larder: page_tokens does nothing "
                                       "without pages=shared")
        self._alone = len(owners) == 1
        self._describe = functools.partial(
            model.describe, vllm_config, chunk=options.chunk,
            asked=patches.asked_layout(owners, kv_cache_config),
            weights=options.weights,
            together=options if options.pages == "shared" else None)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._make = functools.partial(self._made, vllm_config, role,
                                       kv_cache_config, options)
        self._make("the option pages asks for it"
                   if options.pages == "rank" else "")

    def _made(self, config: VllmConfig, role: KVConnectorRole,
              kv: KVCacheConfig, options: Options, by_rank: str) -> None:
        """Its side. by_rank: why pages are stored as they are."""
        described = self._describe(kv=kv, by_rank=by_rank)
        _check_model(config, described)
        if (role != KVConnectorRole.SCHEDULER and described.opaque
                and not by_rank and not self._describe(
                    kv=pages.shown(kv)).opaque):
            # Only workers see that the layers of a group differ.
            if not self._alone:
                raise pages.Unknown(described.opaque)
            self._unknown = described.opaque
        if role == KVConnectorRole.SCHEDULER and described.opaque:
            logger.info("larder: KV is stored by rank (%s): engines of other "
                        "tensor or pipeline parallel sizes do not share it",
                        described.opaque)
        url = _node.node_url(options, logger.info)
        # A GPU checks what it loads as fast as it loads it; a CPU that did so
        # before, when it is staged, would be slower than the link.
        later = (current_platform.is_cuda()
                 and role == KVConnectorRole.SCHEDULER)
        node = _node.open_node(url, say, logger.warning,
                               "get" if later else "", options.secret_file)
        if role != KVConnectorRole.SCHEDULER:
            self._worker = Worker(config, options, described, kv, node)
            return
        announced = (events.Events(config, kv, described, node.url,
                                   options.events_ownership == "on")
                     if events.enabled(config) else None)
        self._scheduler = Scheduler(config, options, described, node,
                                    announced, self._alone)
        _, self._scheduler.hash_tokens = (
            kv_cache_utils.resolve_kv_cache_block_sizes(kv, config))
        self._scheduler.describer = describe.make(
            config, kv, described, self._scheduler.space,
            self._scheduler.finder.later, options.pod)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is lost is a miss later, no more

    # ---- workers ----

    _unknown = ""  # why pages are stored as they are, against the plan

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        try:
            self._worker.register(kv_caches)
        except pages.Unknown as error:
            if not self._alone:  # the scheduler would not hear of it
                raise
            self._unknown = error.why
            self._again(self._unknown)
            self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> Any:
        return meta.Unknown(self._unknown) if self._unknown else None

    def _again(self, by_rank: str) -> None:
        """Before the first request: a side for other pages."""
        self.shutdown()
        self._make(by_rank)

    def unregister_kv_caches(self) -> None:
        self._worker.unregister()

    def restore_kv_caches(self) -> None:
        self._worker.restore()

    def bind_connector_metadata(
            self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata)
            # Behind the zeroing and the copies of blocks, and beside the
            # forward: since 0.29 what comes next is called after that.
            self._worker.start_loads(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return  # a load ends before its request is scheduled

    def save_kv_layer(self, layer_name: str, kv_layer: Any,
                      attn_metadata: Any, **kwargs: Any) -> None:
        return  # whole chunks are saved, after the forward

    def wait_for_save(self) -> None:
        self._worker.save(self._get_connector_metadata())

    def get_finished(
            self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        done, _, self._bad_blocks = self._worker.finished()
        return None, done or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        done, failed, _ = self._worker.finished()
        return base.KVConnectorTransferResults(finished_recving=set(done),
                                               failed_recving=set(failed))

    _bad_blocks: set[int] = set()

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def build_connector_worker_meta(self) -> events.Saved | None:
        return self._worker.reports.take()

    # ---- the scheduler ----

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        self._bind(gpu_block_pool)
        if self._scheduler.holds.wanted:
            patches.settle_resets(gpu_block_pool,
                                  lambda: self._scheduler is None
                                  or self._scheduler.holds.settle())

    def _bind(self, pool: BlockPool | None) -> None:
        if pool is not None:
            self._scheduler.holds.bind(pool)
            self._scheduler.pool = pool

    def set_xfer_handshake_metadata_pp_aware(
            self, metadata: dict[tuple[int, int], Any]) -> None:
        """Workers that have begun: what is inside their pages may not be known
        to them, which nobody knows before. vLLM asks again after a sleep: then
        it is settled."""
        found = [one for one in metadata.values()
                 if isinstance(one, meta.Unknown)]
        if not found or self._unknown:
            return
        if len(found) != self._vllm_config.parallel_config.world_size:
            raise pages.Unknown(f"of some workers only, {found[0].why}")
        self._unknown = found[0].why
        pool = self._scheduler.pool
        self._again(self._unknown)
        self._bind(pool)

    def has_pending_push_work(self) -> bool:
        """An engine that is idle goes on until nothing is held."""
        return bool(self._scheduler.holds)

    def has_pending_block_frees(self) -> bool:
        return self._scheduler.holds.has_young()

    def on_new_request(self, request: Request) -> None:
        self._scheduler.arrive(request)

    def get_num_new_matched_tokens(
            self, request: Request,
            num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request,
                                 blocks: KVCacheBlocks,
                                 num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(
            self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.build(scheduler_output)

    def update_connector_output(self,
                                connector_output: KVConnectorOutput) -> None:
        self._scheduler.finished_step(connector_output)

    def request_finished(
            self, request: Request,
            block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.finished(request)

    def request_finished_all_groups(
            self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.finished(request)

    def get_external_cache_hit_sources(
            self, request: Request,
            num_external_tokens: int) -> dict[Any, int]:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        found = self._scheduler.hit_sources(request, num_external_tokens)
        return {CacheHitSource(name): count for name, count in found.items()}

    def take_events(self) -> list[Any]:
        return self._scheduler.take_events()

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset()

    # ---- both ----

    def get_kv_connector_stats(self) -> LarderStats | None:
        data = (self._scheduler.stats() if self._worker is None
                else self._worker.counts.take())
        return LarderStats(data=data) if data is not None else None

    def shutdown(self) -> None:
        side = self._worker or self._scheduler
        if side is not None:
            side.close()
        self._worker = self._scheduler = None

    @classmethod
    def build_kv_connector_stats(
            cls, data: dict[str, Any] | None = None) -> LarderStats:
        return LarderStats(data=data if data is not None else {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames,
                           per_engine_labelvalues) -> LarderProm:
        return LarderProm(vllm_config, metric_types, labelnames,
                          per_engine_labelvalues)
