"""Which vLLM this is, and what that release can do."""
from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import re
from typing import TYPE_CHECKING

import vllm

from larder_kv.vllm import selfcheck

if TYPE_CHECKING:
    from vllm.config import VllmConfig

FIRST = (0, 24)
# Real engines ran with these on the CPU, and with those on a GPU. Others run as
# well, if they have all that is used: then one block is tried, and a warning
# says so.
TESTED = ((0, 24), (0, 25), (0, 26), (0, 27), (0, 28), (0, 29), (0, 30),
          (0, 31), (0, 32))
TESTED_CUDA = ((0, 24), (0, 32))
NAMED = 3  # things that are missing, in a message


class Unsupported(RuntimeError):
    """Something that cannot work; the text says what to do instead."""


def minor() -> str:
    """The version's first two numbers: "0.32"."""
    found = re.match(r"\d+\.\d+", vllm.__version__)
    return found.group() if found else vllm.__version__


def _numbers() -> tuple[int, ...] | None:
    """None: of a source tree without tags, which calls itself 0.1.dev."""
    found = re.match(r"(\d+)\.(\d+)(?!\d|\.dev)", vllm.__version__)
    return tuple(map(int, found.groups())) if found else None


def _tested() -> tuple[tuple[int, int], ...]:
    from vllm.platforms import current_platform

    return TESTED_CUDA if current_platform.is_cuda() else TESTED


def tested() -> bool:
    return _numbers() in _tested()


def advice() -> str:
    return "use one of " + ", ".join(f"{a}.{b}.x" for a, b in _tested())


def check() -> None:
    """Raises Unsupported if this release cannot be used: it has to have all
    that is used. What it is called decides only if it is too old."""
    numbers = _numbers()
    if numbers is not None and numbers < FIRST:
        raise Unsupported(f"larder: vLLM {vllm.__version__} is too old; "
                          + advice())
    if not tested() and os.environ.get("VLLM_LARDER_STRICT") == "1":
        raise Unsupported(f"larder: vLLM {vllm.__version__} was not tested, "
                          "and VLLM_LARDER_STRICT=1 asks for one that was; "
                          + advice())
    if lacks := missing():
        more = len(lacks) - NAMED
        raise Unsupported(
            f"larder: vLLM {vllm.__version__} is not as the connector needs "
            f"it: {'; '.join(lacks[:NAMED])}"
            + (f"; and {more} more" if more > 0 else "") + f"; {advice()}")


@functools.cache
def missing() -> list[str]:
    root = pathlib.Path(vllm.__file__).resolve().parents[1]
    return selfcheck.missing(selfcheck.surroundings(root))


def warning() -> str:
    """What to say of a release that runs without having been tested."""
    return (f"larder: vLLM {vllm.__version__} was not tested with Larder: it "
            "has all that is used of it, and runs; set VLLM_LARDER_STRICT=1 "
            f"to refuse it, or {advice()}")


def reports_failed_requests() -> bool:
    """Whether a failed load can be reported by request, for any model. Before,
    it is reported by blocks, which ends the engine with more than one group."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1)

    return hasattr(KVConnectorBase_V1, "get_transfer_results")


def counts_references(config: VllmConfig) -> bool:
    """Whether vLLM takes the count of a block's references for the number of
    requests that share it, for cascade attention: until 0.31."""
    from vllm.v1.core import single_type_kv_cache_manager as managers

    return (hasattr(managers.FullAttentionManager,
                    "get_num_common_prefix_blocks")
            and not config.model_config.disable_cascade_attn)


def mistakes_states() -> bool:
    """Whether the scheduler takes the longest of all groups' hits for the hit:
    until 0.26. A model with recurrent state begins with a wrong one then."""
    spec = importlib.util.find_spec("vllm.v1.core.sched.scheduler")
    assert spec is not None and spec.origin is not None
    text = pathlib.Path(spec.origin).read_text(encoding="utf-8")
    return "num_new_local_computed_tokens = max(per_group_hits)" in text


def misplaces_tokens() -> bool:
    """Whether the CPU's rotary kernel takes heads for tokens where it is not
    given flat tensors, as for MLA: until 0.33 at least. What a token's KV
    becomes then depends on which others are computed in the same step."""
    import torch

    heads = torch.ones(2, 2, 2)  # two tokens', each to be turned by a quarter
    try:
        torch.ops._C.rotary_embedding(torch.tensor([1, 1]), heads, None, 2,
                                      torch.eye(2), False)
    except (AttributeError, RuntimeError):
        return True  # nobody knows
    return bool((heads[..., 0] != -1).any())
