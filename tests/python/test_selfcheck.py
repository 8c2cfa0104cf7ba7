"""Every release of vLLM from 0.24 on has what the connector uses: by lists that
`make vllm-drift` recorded from the releases' sources, without a download."""
import ast
import pathlib
import re

import pytest

from conftest import ROOT
from larder_kv.vllm import selfcheck

PACKAGE = ROOT / "python/larder_kv/vllm"
LISTS = {re.match("members-(.*)[.]txt", path.name)[1]: path
         for path in (ROOT / "tests/vllm").glob("members-*.txt")}
NEWEST = max(LISTS, key=lambda v: [int(n) for n in v.split(".")])
ADVICE = "look what it means for the connector, then: make vllm-drift"


def lines_of(version):
    return LISTS[version].read_text().splitlines()


def changed(old, new):
    """The lines of the newest release, one of them otherwise."""
    lines = lines_of(NEWEST)
    found = [line.replace(old, new) if old in line else line for line in lines]
    assert found != lines, old
    return [line for line in found if line]


# ---- the releases ----


@pytest.mark.parametrize("version", LISTS)
def test_release(version):
    assert selfcheck.missing(lines_of(version)) == [], ADVICE


def test_every_minor_is_here():
    minors = sorted(int(v.split(".")[1]) for v in LISTS)
    assert minors == list(range(24, 24 + len(minors))) and minors[-1] >= 33


@pytest.mark.parametrize("version", LISTS)
def test_list_is_whole(version):
    """It says of each thing that is used whether it is there."""
    names = [line.partition(":")[0] for line in lines_of(version)]
    assert {f"{name} has" for name in
            selfcheck.FIELDS.keys() | selfcheck.MAYBE.keys()} == {
        name for name in names if name.endswith(" has")}, ADVICE
    used = {name for name in names if name.startswith("vllm.")
            and not name.endswith(" has")}
    assert used <= set(selfcheck.SYMBOLS), ADVICE


# What some release had and a later one has not, which was looked at.
GONE = {
    "get_num_common_prefix_blocks": "0.32.0",  # references count no more
    "get_kv_cache_shape": "0.29.0",  # tensors have one order of axes
    "compress_ratio": "0.29.0",  # tokens_per_state now
    "calculate_kv_scales": "0.28.0",
}


def test_nothing_goes_unnoticed():
    """What is read only where a release has it."""
    gone, before = {}, {}
    for version in sorted(LISTS, key=lambda v: int(v.split(".")[1])):
        for line in lines_of(version):
            name, colon, has = line.partition(" has:")
            if colon:
                lost = before.get(name, set()) - set(has.split())
                gone.update({field: version for field in lost})
                before[name] = set(has.split())
    assert gone == GONE, ADVICE
    assert all(set(fields.split()) <= set(before[name]) | set(GONE)
               for name, fields in selfcheck.MAYBE.items())


def test_what_counts_as_tested_was_run():
    """Each has a row that a run wrote, or all tests were made with it."""
    text = (PACKAGE / "versions.py").read_text()
    tested, cuda = (re.findall(r"\(0, (\d+)\)", re.search(
        rf"^{name} = (.*?\))\)$", text, re.M | re.S)[1])
        for name in ("TESTED", "TESTED_CUDA"))
    rows = re.findall(r"^\| 0\.(\d+)\.\d+ \| \d+ passed[^,\n]* \|$",
                      (ROOT / "docs/guide/vllm.md").read_text(), re.M)
    proof = re.findall(r"^\| 0\.(\d+)\.\d+ \| full attention \(Qwen3\) \| CPU",
                       (ROOT / "bench/results/vllm.md").read_text(), re.M)
    assert tested and set(tested) == set(rows) | set(proof)
    ran = (ROOT / "bench/results/gpu.md").read_text()
    assert cuda and all(f"vLLM 0.{one}." in ran for one in cuda)


# ---- what is used ----


def imports(folder):
    """What is imported of vLLM when it runs: by name, or of a module."""
    found = set()
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(), str(path))
        typing = [node for block in ast.walk(tree) if isinstance(block, ast.If)
                  and ast.unparse(block.test) == "TYPE_CHECKING"
                  for node in ast.walk(block)]
        names = {one.asname or one.name: f"{node.module}.{one.name}"
                 for node in ast.walk(tree) if node not in typing
                 and isinstance(node, ast.ImportFrom)
                 and (node.module or "").split(".")[0] == "vllm"
                 for one in node.names}
        used = {f"{names[node.value.id]}.{node.attr}"
                for node in ast.walk(tree) if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in names}
        # Of a module what is used counts; of a class, the class.
        found |= {name for name in names.values()
                  if not any(one.startswith(name + ".") for one in used)
                  or name.rpartition(".")[2][0].isupper()}
        found |= {one for one in used
                  if not one.split(".")[-2][0].isupper()
                  and not one.split(".")[-2] == "current_platform"}
        found |= {name for name in names.values()
                  if name.endswith(".current_platform")}
    return found


# Asked for with hasattr(): what a release can do.
ASKED = {"vllm.v1.core.single_type_kv_cache_manager.FullAttentionManager"}


def test_every_import_is_listed():
    assert imports(PACKAGE) - ASKED == set(selfcheck.SYMBOLS)


def test_imports_are_found(tmp_path):
    """Those inside functions too, and what is used of a module."""
    (tmp_path / "one.py").write_text(
        "from vllm.a import b as c\nimport os\nfrom vllm.x import Kind\n"
        "if TYPE_CHECKING:\n    from vllm.t import Hint\n"
        "def f():\n    from vllm.x.y import z\n"
        "    return c.d + z + os.path + Kind.member\n")
    assert imports(tmp_path) == {"vllm.a.b.d", "vllm.x.y.z", "vllm.x.Kind"}


# Names that are no member of vLLM's: of a model's configuration, which may be
# anything, of torch, and of our own objects.
OTHERS = set("""_commit_hash num_key_value_heads block_configs layer_types
    _is_amx_tile_supported name time worker get_transfer_results query
    synchronize enabled""".split())


def asked():
    """What is read with getattr(), or hasattr(), by name."""
    found = set()
    for path in sorted(PACKAGE.glob("*.py")):
        if path.name in ("selfcheck.py", "stats.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                    and node.func.id in ("getattr", "hasattr")):
                found |= {one.value for one in node.args[1:2]
                          if isinstance(one, ast.Constant)}
    text = (PACKAGE / "model.py").read_text()
    for names in re.findall(r"(?:_PAGES = |for name in )\(([^)]*)\)", text):
        found |= set(re.findall(r'"(\w+)"', names))
    return found


def test_what_is_asked_for_by_name_is_listed():
    listed = {field for of in (selfcheck.FIELDS, selfcheck.MAYBE)
              for fields in of.values() for field in fields.split()}
    assert len(asked()) > 40 and asked() - OTHERS <= listed, (
        asked() - OTHERS - listed)


def test_members_named_here_are_vllms():
    """Whatever the connector defines for vLLM to call, some release calls."""
    known = {re.match(r"\w+\.(\w+):", line)[1] for version in LISTS
             for line in lines_of(version) if not line.startswith("vllm.")}
    mine = {name for name in selfcheck._ours() if not name.startswith("_")}
    assert len(mine) > 20 and mine <= known, mine - known


# ---- what would be refused ----


@pytest.mark.parametrize("old, new, said", [
    ("num_computed_tokens: int) -> tuple",
     "num_computed_tokens: int, more: int) -> tuple",
     "get_num_new_matched_tokens takes (self, request"),
    ("KVConnectorBase_V1.shutdown: method", "KVConnectorBase_V1.shutdown: "
     "property", "shutdown is a property, not a method"),
    ("KVConnectorBase_V1.finish_forward: method",
     "KVConnectorBase_V1.finish_forward: abstract method",
     "finish_forward() has to be there"),
    (f"{selfcheck.BASE}.KVConnectorRole: class", "",
     "KVConnectorRole is not there"),
    (f"{selfcheck.BASE}.KVConnectorTransferResults: class", "",
     "KVConnectorTransferResults is not there"),
    ("get_tp_group: ()", "get_tp_group: (name)", "get_tp_group takes (name)"),
    ("maybe_convert_block_hash: (", "maybe_convert_block_hash: (why, *, ",
     "maybe_convert_block_hash takes"),
    (" num_preemptions", "", "Request.num_preemptions is not there"),
    ("vllm.config.CacheConfig has: cache_dtype enable_prefix_caching",
     "vllm.config.CacheConfig has:", "CacheConfig.cache_dtype is not there"),
    (" boundary_state_offloads", "",
     "KVConnectorBlockState.boundary_state_offloads is not there"),
])
def test_a_change_is_seen(old, new, said):
    found = selfcheck.missing(changed(old, new))
    assert any(said in text for text in found), found


@pytest.mark.parametrize("old, new", [
    ("num_computed_tokens: int) ->", "num_computed_tokens: 'Count') ->"),
    ("get_tp_group: ()", "get_tp_group: (name='tp')"),
    ("KVConnectorBase_V1.finish_forward: method (self) -> None", ""),
])
def test_what_is_no_matter(old, new):
    assert selfcheck.missing(changed(old, new)) == []


def test_nothing_is_there(tmp_path):
    found = selfcheck.missing(selfcheck.surroundings(tmp_path))
    assert found[0].endswith("v1.base has no KVConnectorBase_V1")
    assert len(found) > 60


# ---- reading sources ----


def write(folder, files):
    for name, text in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return selfcheck.Source(folder)


def test_a_symbol_is_found_where_it_comes_from(tmp_path):
    source = write(tmp_path, {
        "vllm/a/__init__.py": "from .b import Thing as Renamed\n"
                              "from ..c import other\n",
        "vllm/a/b.py": "try:\n    import x\nexcept ImportError:\n"
                       "    class Thing:\n        pass\n",
        "vllm/c.py": "if TYPE_CHECKING:\n    other: int\n",
        "vllm/loop.py": "from vllm.loop import again\n"})
    assert source.find("vllm.a.Renamed")[0] == "vllm.a.b"
    assert source.find("vllm.a.other")[0] == "vllm.c"
    for name in ("vllm.a.Thing", "vllm.none.Thing", "vllm.loop.again", "vllm"):
        assert source.find(name) is None


def test_fields_of_bases_and_methods(tmp_path):
    source = write(tmp_path, {
        "vllm/a.py": "from vllm.b import Base\n"
                     "class One(Base, Generic[T]):\n    field: int = 1\n"
                     "    def f(self):\n        self.set, x.other = 1, 2\n",
        "vllm/b.py": "class Base:\n    @property\n    def old(self): ...\n"})
    found = selfcheck._fields(list(source.classes("vllm.a.One")))
    assert found == {"field", "f", "set", "old"}
