"""Whether a release of vLLM has what the connector uses.

Releases are told apart by what they have, not by their number. What is used is
listed here: members of the connector's base class with their parameters,
symbols, functions and how they are called, fields of vLLM's objects. It is read
from vLLM's source, of which nothing is run: so the installed release is looked
at when an engine starts, and any other from its archive (scripts/vllm-drift).

surroundings() makes lines of a release, and missing() says what is wrong with
such lines: tests/vllm/members-VERSION.txt are lines that were recorded.
"""
from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterable, Iterator

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
CLASSES = ("KVConnectorBase_V1", "SupportsHMA")

# What the connector imports when it runs (tests/python/test_selfcheck.py holds
# it against the code). A number: so many arguments it is called with.
SYMBOLS: dict[str, int | None] = {
    f"{BASE}.KVConnectorBase_V1": None,
    f"{BASE}.KVConnectorMetadata": None,
    f"{BASE}.KVConnectorRole": None,
    f"{BASE}.KVConnectorTransferResults": None,
    f"{BASE}.KVConnectorWorkerMetadata": None,
    f"{BASE}.SupportsHMA": None,
    "vllm.distributed.kv_events.BlockRemoved": None,
    "vllm.distributed.kv_events.BlockStored": None,
    "vllm.distributed.kv_transfer.kv_connector.factory"
    ".KVConnectorFactory": None,
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
    ".KVConnectorPromMetrics": None,
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
    ".KVConnectorStats": None,
    "vllm.distributed.parallel_state.get_pp_group": 0,
    "vllm.distributed.parallel_state.get_tp_group": 0,
    "vllm.distributed.utils.get_pp_indices": 3,
    "vllm.platforms.current_platform": None,
    "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": 4,
    "vllm.v1.core.kv_cache_utils.maybe_convert_block_hash": 1,
    "vllm.v1.core.kv_cache_utils.resolve_kv_cache_block_sizes": 2,
    "vllm.v1.kv_cache_interface.get_kv_cache_spec_kind": 1,
    "vllm.v1.kv_cache_interface.get_kv_cache_spec_sliding_window": 1,
    "vllm.v1.metrics.cache_hit_source.CacheHitSource": None,
}
# Needed only where the base class has the member that uses it.
USED_BY = {
    f"{BASE}.KVConnectorTransferResults": "get_transfer_results",
    "vllm.v1.metrics.cache_hit_source.CacheHitSource":
        "get_external_cache_hit_sources",
}
# Fields that are read, by the class that has them.
FIELDS = {
    "vllm.v1.request.Request": """request_id all_token_ids _all_token_ids
        prompt_token_ids num_tokens num_prompt_tokens num_preemptions max_tokens
        lora_request mm_features cache_salt kv_transfer_params block_hashes
        status""",
    "vllm.v1.core.sched.output.SchedulerOutput": """num_scheduled_tokens
        total_num_scheduled_tokens scheduled_new_reqs scheduled_cached_reqs
        scheduled_spec_decode_tokens""",
    "vllm.v1.core.sched.output.KVConnectorBlockState":
        "boundary_state_offloads",
    "vllm.v1.core.sched.output.NewRequestData": """req_id block_ids
        num_computed_tokens""",
    "vllm.v1.core.sched.output.CachedRequestData": """req_ids resumed_req_ids
        new_block_ids num_computed_tokens""",
    "vllm.v1.core.kv_cache_manager.KVCacheBlocks": "get_block_ids",
    "vllm.v1.core.block_pool.BlockPool": """blocks num_gpu_blocks touch
        free_blocks get_num_free_blocks get_cached_block evict_blocks
        reset_prefix_cache""",
    "vllm.v1.core.kv_cache_utils.KVCacheBlock": "block_id ref_cnt block_hash",
    "vllm.v1.outputs.KVConnectorOutput": """finished_recving invalid_block_ids
        kv_connector_worker_meta""",
    "vllm.v1.kv_cache_interface.KVCacheConfig": "num_blocks kv_cache_groups",
    "vllm.v1.kv_cache_interface.KVCacheGroupSpec": "layer_names kv_cache_spec",
    "vllm.v1.kv_cache_interface.SlidingWindowSpec": """sliding_window
        block_size page_size_bytes dtype head_size num_kv_heads""",
    "vllm.v1.kv_cache_interface.UniformTypeKVCacheSpecs": """kv_cache_specs
        block_size page_size_bytes""",
    "vllm.v1.kv_cache_interface.FullAttentionSpec": """block_size
        page_size_bytes dtype head_size num_kv_heads""",
    "vllm.v1.kv_cache_interface.MLAAttentionSpec": """block_size
        page_size_bytes num_kv_heads""",
    "vllm.v1.kv_cache_interface.MambaSpec": "block_size page_size_bytes",
    "vllm.config.VllmConfig": """kv_transfer_config model_config cache_config
        parallel_config load_config speculative_config scheduler_config
        compilation_config kv_events_config""",
    "vllm.config.KVTransferConfig": """kv_load_failure_policy is_kv_producer
        is_kv_consumer kv_connector_extra_config engine_id""",
    "vllm.config.KVEventsConfig": "enable_kv_cache_events topic",
    "vllm.config.ModelConfig": """model revision hf_config hf_text_config dtype
        quantization max_model_len use_mla multimodal_config runner_type
        is_prefix_caching_supported disable_cascade_attn served_model_name
        get_total_num_hidden_layers get_total_num_kv_heads""",
    "vllm.config.CacheConfig": "cache_dtype enable_prefix_caching",
    "vllm.config.CompilationConfig": "static_forward_context",
    "vllm.config.LoadConfig": "load_format",
    "vllm.config.MultiModalConfig": """mm_processor_cache_gb
        mm_processor_kwargs""",
    "vllm.config.ParallelConfig": """tensor_parallel_size world_size
        pipeline_parallel_size data_parallel_size
        distributed_executor_backend""",
    "vllm.config.SpeculativeConfig": "use_eagle method draft_model_config",
    "vllm.lora.request.LoRARequest": """lora_name lora_path lora_int_id
        adapter_id name""",
}
# Those that are read where a release has them, and it need not; also those of a
# module. The lists of releases say which has what, so that one that goes is
# noticed.
MAYBE = {
    "vllm.distributed.kv_events.BlockStored": "locality",
    "vllm.v1.request.Request":
        "prompt_embeds session_id skip_reading_prefix_cache",
    "vllm.v1.core.sched.output.SchedulerOutput": "kv_connector_block_state",
    "vllm.v1.core.sched.output.KVConnectorBlockState": "resolve_block_ids",
    "vllm.v1.core.kv_cache_utils": "to_event_extra_keys",
    "vllm.v1.core.single_type_kv_cache_manager.FullAttentionManager":
        "get_num_common_prefix_blocks",
    "vllm.v1.attention.backend.AttentionBackend": "get_kv_cache_shape",
    "vllm.v1.outputs.KVConnectorOutput": "failed_recving",
    "vllm.v1.kv_cache_interface.KVCacheConfig": """kv_cache_layout
        needs_kv_cache_zeroing prefix_cacheable_group_ids""",
    "vllm.v1.kv_cache_interface.KVCacheGroupSpec":
        "enable_kv_transfer host_resident",
    "vllm.v1.kv_cache_interface.SlidingWindowSpec": """extra_retained_tokens
        head_size_v kv_quant_mode num_head_slots page_size_padded
        state_content_bytes tokens_per_state""",
    "vllm.v1.kv_cache_interface.FullAttentionSpec": """sliding_window
        head_size_v kv_quant_mode num_head_slots page_size_padded
        state_content_bytes tokens_per_state""",
    "vllm.v1.kv_cache_interface.MLAAttentionSpec": """compress_ratio
        page_size_padded tokens_per_state""",
    "vllm.config.VllmConfig": """attention_config aux_output_config
        num_prefill_lookahead_tokens""",
    "vllm.config.AttentionConfig": "backend",
    "vllm.config.ModelConfig": """hf_config_path hf_overrides model_weights
        quantization_config""",
    "vllm.config.CacheConfig": """kv_cache_dtype_skip_layers mamba_cache_dtype
        mamba_ssm_cache_dtype use_replayssm use_kda_recoverssm
        replayssm_buffer_len calculate_kv_scales""",
    "vllm.config.MultiModalConfig": "video_pruning_rate media_io_kwargs",
    "vllm.config.ParallelConfig": """nnodes decode_context_parallel_size
        prefill_context_parallel_size""",
    "vllm.lora.request.LoRARequest": "load_inplace",
}
# Needed only where another class has the field that holds it.
HELD_BY = {
    "vllm.v1.core.sched.output.KVConnectorBlockState": (
        "vllm.v1.core.sched.output.SchedulerOutput",
        "kv_connector_block_state"),
}


class Source:
    """vLLM's modules, in a folder that has vllm/."""

    def __init__(self, root: pathlib.Path):
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}

    def path(self, module: str) -> pathlib.Path | None:
        base = self._root.joinpath(*module.split("."))
        return next((p for p in (base.with_suffix(".py"),
                                 base / "__init__.py") if p.is_file()), None)

    def tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            path = self.path(module)
            self._trees[module] = (
                ast.parse(path.read_text(encoding="utf-8"), str(path))
                if path is not None else None)
        return self._trees[module]

    def find(self, symbol: str, steps: int = 8) -> tuple[str, ast.AST] | None:
        """Where it is defined, whoever imports it from there."""
        module, _, name = symbol.rpartition(".")
        tree = self.tree(module) if module else None
        for node in _statements(tree.body) if tree is not None else ():
            if isinstance(node, ast.ImportFrom) and steps > 0:
                for one in node.names:
                    if name == (one.asname or one.name):
                        there = _absolute(node, module, self.path(module))
                        found = self.find(f"{there}.{one.name}", steps - 1)
                        if found is not None:
                            return found
            elif name in _names(node):
                return module, node
        return None

    def defined(self, module: str) -> set[str]:
        tree = self.tree(module)
        return {name for node in _statements(tree.body if tree else ())
                for name in _names(node)}

    def classes(self, symbol: str) -> Iterator[ast.ClassDef]:
        """It and its bases, as far as they are vLLM's."""
        found = self.find(symbol)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return
        yield found[1]
        for base in found[1].bases:
            if isinstance(base, ast.Name):
                yield from self.classes(f"{found[0]}.{base.id}")


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module, also those that depend on something."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)


def _names(node: ast.AST) -> list[str]:
    """That a statement defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    targets = (node.targets if isinstance(node, ast.Assign) else
               [node.target] if isinstance(node, ast.AnnAssign) else [])
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _absolute(node: ast.ImportFrom, module: str,
              path: pathlib.Path | None) -> str:
    if not node.level:
        return node.module or ""
    is_package = path is not None and path.name == "__init__.py"
    words = module.split(".")
    words = words[:len(words) - node.level + is_package]
    return ".".join(words + ([node.module] if node.module else []))


# ---- lines of a release ----


def _kind(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """property, classmethod, staticmethod or method, and abstract."""
    words = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
    kind = next((k for k in ("property", "classmethod", "staticmethod")
                 if k in words), "method")
    return ("abstract " if "abstractmethod" in words else "") + kind


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return re.sub(r"\s+", " ", f"({ast.unparse(node.args)}){gives}")


def _members(classes: list[ast.ClassDef]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in reversed(classes):
        for node in one.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[node.name] = f"{_kind(node)} {_signature(node)}"
            else:
                found.update((name, "attribute") for name in _names(node))
    return found


def _fields(classes: list[ast.ClassDef]) -> set[str]:
    """What an object has: in the class's body, or set by its methods."""
    found = set(_members(classes))
    for one in classes:
        for node in ast.walk(one):
            if isinstance(node, ast.Attribute) and isinstance(
                    node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                found.add(node.attr)
    return found


def surroundings(root: pathlib.Path) -> list[str]:
    """What the release in that folder has of all this."""
    source = Source(root)
    lines = []
    for name in CLASSES:
        members = _members(list(source.classes(f"{BASE}.{name}")))
        lines += [f"{name}.{one}: {members[one]}" for one in sorted(members)]
    for symbol in sorted(SYMBOLS):
        found = source.find(symbol)
        if found is not None:
            node = found[1]
            lines.append(f"{symbol}: " + (
                _signature(node) if isinstance(node, ast.FunctionDef)
                else "class" if isinstance(node, ast.ClassDef) else "value"))
    for name in dict.fromkeys([*FIELDS, *MAYBE]):
        has = _fields(list(source.classes(name))) | source.defined(name)
        wanted = f"{FIELDS.get(name, '')} {MAYBE.get(name, '')}"
        lines.append(" ".join([f"{name} has:", *(
            field for field in wanted.split() if field in has)]))
    return lines


# ---- what is wrong with it ----


def _parameters(signature: str) -> ast.arguments:
    node = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    return node.args


def _plain(args: ast.arguments) -> str:
    """Parameters and their defaults, without types."""
    for one in [*args.posonlyargs, *args.args, *args.kwonlyargs,
                *filter(None, (args.vararg, args.kwarg))]:
        one.annotation = None
    return ast.unparse(args)


def _takes(signature: str, count: int) -> bool:
    args = _parameters(signature)
    places = len(args.posonlyargs) + len(args.args)
    needed = places - len(args.defaults)
    return (needed <= count and (count <= places or args.vararg is not None)
            and all(args.kw_defaults))


def _ours() -> dict[str, str]:
    """The members of our class."""
    path = pathlib.Path(__file__).with_name("connector.py")
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return next(_members([node]) for node in tree.body
                if isinstance(node, ast.ClassDef)
                and node.name == "LarderConnector")


def missing(lines: list[str]) -> list[str]:
    """What the connector uses and such a release does not have, or has
    otherwise; each a few words."""
    known = {name: text.strip() for name, _, text in
             (line.partition(":") for line in lines)}
    base = {one.partition(".")[2]: text for name in reversed(CLASSES)
            for one, text in known.items() if one.startswith(f"{name}.")}
    found = [] if base else [f"{BASE} has no {CLASSES[0]}"]
    ours = _ours()
    for name, text in base.items():
        kind, _, signature = text.partition(" (")
        mine, _, my_signature = ours.get(name, "").partition(" (")
        if kind.startswith("abstract ") and not mine:
            found.append(f"{name}() has to be there, and is not known")
        if not mine or kind == "attribute" or (
                name.startswith("_") and name != "__init__"):
            continue
        if kind.removeprefix("abstract ") != mine:
            found.append(f"{name} is a {kind}, not a {mine}")
        elif mine != "property" and _plain(_parameters(
                f"({signature}")) != _plain(_parameters(f"({my_signature}")):
            found.append(f"{name} takes ({signature}")
    for symbol, count in SYMBOLS.items():
        there = known.get(symbol)
        if there is None:
            if USED_BY.get(symbol) is None or USED_BY[symbol] in base:
                found.append(f"{symbol} is not there")
        elif count is not None and not (there.startswith("(")
                                        and _takes(there, count)):
            found.append(f"{symbol} takes {there}")
    for name, wanted in FIELDS.items():
        has = known.get(f"{name} has", "").split()
        holder, held = HELD_BY.get(name, ("", ""))
        if holder and held not in known.get(f"{holder} has", "").split():
            continue
        found += [f"{name}.{field} is not there" for field in wanted.split()
                  if field not in has]
    return found
