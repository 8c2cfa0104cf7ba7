"""What larder_kv.sglang uses of SGLang, as this SGLang has it:

    build/sglang-VERSION/bin/python tests/sglang/interface.py >FILE

writes the list from which tests/python makes stand-ins (interface-VERSION.json)
and which test_interface.py holds against the real one.
"""
import dataclasses
import importlib
import inspect
import json
import sys

STORAGE = "sglang.srt.mem_cache.hicache_storage"
FACTORY = "sglang.srt.mem_cache.storage.backend_factory"
POOLS = {"mha": "MHATokenToKVPoolHost", "mla": "MLATokenToKVPoolHost",
         "mamba": "MambaPoolHost"}
CALLED = ("get_page_buffer_meta", "get_data_page", "get_dummy_flat_data_page",
          "set_from_flat_data_page")
DATA = ("HiCacheStorageConfig", "HiCacheStorageExtraInfo", "PoolTransfer",
        "PoolTransferResult")
WORDS = ("PoolName", "PoolHitPolicy")
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"


def arguments(function):
    """[name, whether it has a default] of each, without self."""
    found = list(inspect.signature(function).parameters.values())
    return [[one.name, one.default is not one.empty] for one in found
            if one.name != "self"]


def read():
    storage = importlib.import_module(STORAGE)
    base = storage.HiCacheStorage
    methods = {name: one for name, one in vars(base).items()
               if inspect.isfunction(one) and not name.startswith("_")}
    pools = {
        kind: {name: arguments(getattr(getattr(importlib.import_module(
            f"sglang.srt.mem_cache.pool_host.{kind}"), owner), name))
            for name in CALLED}
        for kind, owner in POOLS.items()}
    updates = vars(importlib.import_module(UPDATER).WeightUpdater)
    factory = inspect.getsource(importlib.import_module(FACTORY))
    return {
        "batch": storage.STORAGE_BATCH_SIZE,
        "methods": {name: arguments(one) for name, one in methods.items()},
        "abstract": sorted(base.__abstractmethods__),
        "data": {name: [[f.name, f.default is not dataclasses.MISSING
                         or f.default_factory is not dataclasses.MISSING]
                        for f in dataclasses.fields(getattr(storage, name))]
                 for name in DATA},
        "words": {name: {one.name: one.value for one in getattr(storage, name)}
                  for name in WORDS},
        "pools": pools,
        "updates": sorted(name for name, one in updates.items()
                          if inspect.isfunction(one)
                          and not name.startswith("_")),
        "made_as": "return backend_class(storage_config, kwargs)" in factory,
    }


if __name__ == "__main__":
    json.dump(read(), sys.stdout, indent=1, sort_keys=True)
    print()
