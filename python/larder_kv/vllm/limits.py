"""What an engine's configuration allows the scheduler's side to do."""
from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING

from vllm.platforms import current_platform

from larder_kv._options import Options
from larder_kv.engine import hold
from larder_kv.vllm import versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.larder")

PR_GET_DUMPABLE = 3


def refuses_hits(config: VllmConfig, options: Options) -> str:
    """Why vLLM would end at a hit, though it asks for one, or answer otherwise
    than without; or ""."""
    of = config.model_config
    if (of.use_mla and current_platform.is_cpu() and options.load != "always"
            and versions.misplaces_tokens()):
        return ("this vLLM's CPU kernel mixes up the positions of models with "
                "MLA, so that a hit changes the answer; load=always loads all "
                "the same")
    if of.runner_type == "pooling" and not of.is_prefix_caching_supported:
        return "this model's way of pooling needs the whole prompt computed"
    if getattr(getattr(config, "aux_output_config", None), "enabled", False):
        return ("enable_return_routed_experts needs the whole prompt computed "
                "by this engine")
    return ""


def numbers_images(config: VllmConfig) -> bool:
    """Whether images are named by a number of the process: such names repeat
    after a restart."""
    if config.cache_config.enable_prefix_caching:
        return False
    multimodal = config.model_config.multimodal_config
    return multimodal is not None and not multimodal.mm_processor_cache_gb


def holds(config: VllmConfig, options: Options, gpu: bool) -> bool:
    """Whether saves are made beside the steps, and hold their blocks."""
    wanted = hold.threads(options, gpu) > 0
    if wanted and versions.counts_references(config):
        logger.warning("larder: with cascade attention this vLLM needs the "
                       "references that held saves would change: saves are "
                       "made in the step")
        return False
    return wanted


def unfit(config: VllmConfig) -> str:
    """Why workers cannot load what was fetched to this process's memory; empty:
    they can."""
    if spread(config):
        return "its workers are on several hosts"
    if (config.parallel_config.world_size > 1
            and ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1):
        return ("its workers may not open this process's memory (it may not "
                "be traced)")
    return ""


def spread(config: VllmConfig) -> bool:
    """Whether workers may run where this process's memory cannot be opened."""
    parallel = config.parallel_config
    return (getattr(parallel, "nnodes", 1) > 1
            or str(parallel.distributed_executor_backend) in
            ("ray", "external_launcher"))
