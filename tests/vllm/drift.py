"""What the connector takes from vLLM, and whether an installed vLLM has it.

    PYTHON drift.py            as JSON, of the vLLM that PYTHON imports
    PYTHON drift.py --lines    what tests/vllm/members-VERSION.txt keeps

Three things: every member of the base class, with its signature as it is
written there; every symbol that python/larder_kv/vllm imports; and every field
of vLLM's objects that it reads (FIELDS).
"""
import ast
import importlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "python/larder_kv/vllm"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
CLASSES = ("KVConnectorBase_V1", "SupportsHMA")

# Symbols that only later versions have, and the first that does: used there
# only.
SINCE = {
    f"{BASE}.KVConnectorTransferResults": (0, 32),
    "vllm.v1.metrics.cache_hit_source.CacheHitSource": (0, 32),
}

# Fields that are read, by the class that has them. A tuple: since then.
FIELDS = {
    "vllm.v1.request.Request": """request_id all_token_ids prompt_token_ids
        num_tokens num_prompt_tokens num_preemptions lora_request
        mm_features cache_salt prompt_embeds kv_transfer_params
        skip_reading_prefix_cache block_hashes""",
    "vllm.v1.core.sched.output.SchedulerOutput": """num_scheduled_tokens
        total_num_scheduled_tokens scheduled_new_reqs scheduled_cached_reqs
        scheduled_spec_decode_tokens""",
    "vllm.v1.core.sched.output.NewRequestData": """req_id block_ids
        num_computed_tokens""",
    "vllm.v1.core.sched.output.CachedRequestData": """req_ids resumed_req_ids
        new_block_ids num_computed_tokens""",
    "vllm.v1.core.kv_cache_manager.KVCacheBlocks": "get_block_ids",
    "vllm.v1.outputs.KVConnectorOutput": "finished_recving",
    "vllm.v1.kv_cache_interface.KVCacheConfig": """num_blocks
        kv_cache_groups""",
    "vllm.v1.kv_cache_interface.KVCacheGroupSpec": """layer_names
        kv_cache_spec""",
    "vllm.v1.kv_cache_interface.SlidingWindowSpec": "sliding_window",
    "vllm.v1.kv_cache_interface.UniformTypeKVCacheSpecs": "kv_cache_specs",
    "vllm.v1.kv_cache_interface.FullAttentionSpec": "block_size",
    "vllm.v1.kv_cache_interface.MambaSpec": "block_size",
    "vllm.config.VllmConfig": """kv_transfer_config model_config cache_config
        parallel_config load_config speculative_config""",
    "vllm.config.KVTransferConfig": """kv_load_failure_policy is_kv_producer
        is_kv_consumer kv_connector_extra_config""",
    "vllm.config.ModelConfig": """model revision hf_config dtype quantization
        max_model_len use_mla get_total_num_kv_heads multimodal_config""",
    "vllm.config.CacheConfig": "cache_dtype enable_prefix_caching",
    "vllm.config.ParallelConfig": """tensor_parallel_size
        pipeline_parallel_size decode_context_parallel_size""",
    "vllm.lora.request.LoRARequest": "lora_name lora_path",
}


# ---- what the connector says ----


def _modules_of(tree):
    """(module, name, alias) of each import from vLLM."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and (
                node.module.split(".")[0] == "vllm"):
            for one in node.names:
                yield node.module, one.name, one.asname or one.name
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "vllm":
                    yield one.name, None, one.asname or one.name


def imports(package=PACKAGE):
    """{symbol: files}: imported by name, or used of an imported module."""
    found = {}
    for path in sorted(package.glob("*.py")):
        tree = ast.parse(path.read_text(), str(path))
        names = {alias: f"{module}.{name}" if name else module
                 for module, name, alias in _modules_of(tree)}
        symbols = set(names.values())
        for node in ast.walk(tree):
            if (isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in names):
                symbols.add(f"{names[node.value.id]}.{node.attr}")
        for symbol in symbols:
            found.setdefault(symbol, []).append(path.name)
    return found


# ---- what vLLM has ----


def resolve(symbol):
    """The object of a dotted name; raises ImportError or AttributeError."""
    words = symbol.split(".")
    for cut in range(len(words), 0, -1):
        try:
            thing = importlib.import_module(".".join(words[:cut]))
        except ModuleNotFoundError as error:
            if not ".".join(words[:cut]).startswith(error.name or "?"):
                raise
            continue
        for word in words[cut:]:
            thing = getattr(thing, word)
        return thing
    raise ImportError(symbol)


def _definitions(thing):
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _kind(node):
    """property, classmethod, staticmethod or method, and abstract."""
    words = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
    kind = next((k for k in ("property", "classmethod", "staticmethod")
                 if k in words), "method")
    return ("abstract " if "abstractmethod" in words else "") + kind


def _signature(node):
    gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return re.sub(r"\s+", " ", f"({ast.unparse(node.args)}){gives}")


def members(class_):
    """"name: kind signature" of each that the class and its bases of vLLM's
    define, sorted."""
    found = {}
    for one in reversed(class_.__mro__):
        if not one.__module__.startswith("vllm."):
            continue
        for node in _definitions(one).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[node.name] = f"{_kind(node)} {_signature(node)}"
            elif isinstance(node, ast.AnnAssign):
                found[node.target.id] = "attribute"
            elif isinstance(node, ast.Assign):
                found.update((t.id, "attribute") for t in node.targets)
    hidden = {n for n in dir(class_) if not n.startswith("__")
              and not n.startswith("_abc_")} - set(found)
    assert not hidden, f"members that the source does not show: {hidden}"
    return [f"{class_.__name__}.{name}: {found[name]}"
            for name in sorted(found)]


def functions(symbols):
    """Signatures of the functions among what is imported."""
    found = []
    for symbol in sorted(symbols):
        try:
            thing = resolve(symbol)
        except (ImportError, AttributeError):
            continue
        if inspect.isfunction(thing):
            found.append(f"{symbol}: {_signature(_definitions(thing))}")
    return found


def lines():
    base = importlib.import_module(BASE)
    found = [line for name in CLASSES for line in members(getattr(base, name))]
    return found + functions(imports())


def _fields(class_):
    """What an object of it has: by its annotations, its class body, and what
    its constructor sets."""
    found = set(dir(class_))
    for one in class_.__mro__:
        found |= set(vars(one).get("__annotations__", ()))
        if "__init__" in vars(one) and one.__module__.startswith("vllm."):
            source = inspect.getsource(one)
            found |= set(re.findall(r"\bself\.(\w+)(?::[^=\n]+)? = ", source))
    return found


def missing(version):
    """What the connector wants of this version and does not find."""
    found = []
    for symbol, files in sorted(imports().items()):
        if version < SINCE.get(symbol, (0, 0)):
            continue
        try:
            resolve(symbol)
        except (ImportError, AttributeError) as error:
            found.append(f"{symbol} ({', '.join(files)}): {error}")
    for name, text in FIELDS.items():
        try:
            has = _fields(resolve(name))
        except (ImportError, AttributeError) as error:
            found.append(f"{name}: {error}")
            continue
        found += [f"{name}.{field} is gone" for field in text.split()
                  if field not in has]
    return found


def unneeded(version):
    """Symbols that SINCE says this version lacks, and that it has."""
    found = []
    for symbol, since in SINCE.items():
        if version < since:
            try:
                resolve(symbol)
                found.append(symbol)
            except (ImportError, AttributeError):
                pass
    return found


def overrides():
    """Where the connector's members are not as the base class has them."""
    sys.path.insert(0, str(PACKAGE.parent.parent))
    from larder_kv.vllm import LarderConnector

    found = [f"{name} is abstract and not there"
             for name in LarderConnector.__abstractmethods__]
    bases = [getattr(importlib.import_module(BASE), n) for n in CLASSES]
    for name, mine in vars(LarderConnector).items():
        theirs = next((vars(b)[name] for b in bases if name in vars(b)), None)
        if theirs is None or (name.startswith("_") and name != "__init__"):
            continue
        if type(mine) is not type(theirs):
            found.append(f"{name} is a {type(theirs).__name__} there")
        elif isinstance(mine, property):
            continue
        elif _words(mine) != _words(theirs):
            found.append(f"{name}({', '.join(_words(mine))}) is "
                         f"({', '.join(_words(theirs))}) there")
    return found


def _words(function):
    """Its parameters, without their types."""
    plain = getattr(function, "__func__", function)
    return [str(p.replace(annotation=p.empty))
            for p in inspect.signature(plain).parameters.values()]


def report():
    import vllm

    words = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    version = (int(words[1]), int(words[2])) if words else (999, 0)
    return {"version": vllm.__version__, "lines": lines(),
            "missing": missing(version), "unneeded": unneeded(version),
            "overrides": overrides()}


def run(python):
    """report() of another Python's vLLM, in a process of its own."""
    env = dict(os.environ, VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    done = subprocess.run(
        [str(python), "-B", __file__], env=env, text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"{python} drift.py failed:\n"
                           f"{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def kept(version):
    """What is known of a version, and was the same when it was tested."""
    return (HERE / f"members-{version}.txt").read_text().splitlines()


def difference(old, new):
    """Lines that went (-) and came (+)."""
    went = [f"- {line}" for line in old if line not in new]
    came = [f"+ {line}" for line in new if line not in old]
    return sorted(went + came, key=lambda line: (line[2:].split(":")[0],
                                                 line[0] == "+"))


def main(words):
    if words == ["--lines"]:
        print("\n".join(lines()))
    elif not words:
        # vLLM prints what it likes: this is the last line.
        print("\n" + json.dumps(report()))
    else:
        sys.exit("usage: drift.py [--lines]")


if __name__ == "__main__":
    main(sys.argv[1:])
