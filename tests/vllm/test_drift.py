"""Each vLLM that is supported is the one that the connector was written for:
no member of the base class came, went or has another signature, and all that
is imported is there. `make vllm-drift` asks the same of the newest vLLM."""
import ast
import re

import pytest

import drift
import rig

VERSIONS = rig.VERSIONS
pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def found(version):
    report = drift.run(rig.python_of(version))
    assert report["version"].split("+")[0] == version
    return version, report


def test_members(found):
    version, report = found
    changed = drift.difference(drift.kept(version), report["lines"])
    assert not changed, (
        f"look what it means for the connector, then: build/vllm-{version}"
        f"/bin/python tests/vllm/drift.py --lines >tests/vllm/members-"
        f"{version}.txt\n" + "\n".join(changed))


def test_symbols(found):
    assert found[1]["missing"] == []
    assert found[1]["unneeded"] == [], "SINCE says that they come later"


def test_overrides(found):
    assert found[1]["overrides"] == []


# ---- of the test itself ----


def test_every_supported_version_is_here():
    source = (drift.PACKAGE / "versions.py").read_text()
    [supported] = re.findall(r"^SUPPORTED = (\(.*\))$", source, re.M)
    assert {v.rpartition(".")[0] for v in VERSIONS} == set(
        ast.literal_eval(supported))


def test_members_named_here_are_vllms():
    """Whatever the connector defines for vLLM to call, some version calls."""
    known = {re.match(r"\w+\.(\w+):", line)[1] for version in VERSIONS
             for line in drift.kept(version)
             if not line.startswith("vllm.")}
    tree = ast.parse((drift.PACKAGE / "connector.py").read_text())
    [connector] = [n for n in tree.body if isinstance(n, ast.ClassDef)
                   and n.name == "LarderConnector"]
    mine = {n.name for n in connector.body
            if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}
    assert mine and mine <= known, mine - known


def test_a_changed_member_is_seen():
    old = drift.kept(VERSIONS[0])
    assert drift.difference(old, old) == []
    signed = [line.replace("num_computed_tokens: int", "computed: int")
              for line in old]
    assert len(drift.difference(old, signed)) == 2
    name = "KVConnectorBase_V1.shutdown: method (self)"
    assert drift.difference(old, [n for n in old if n != name]) == [
        f"- {name}"]
    assert drift.difference(old, [*old, "KVConnectorBase_V1.new: method ()"]
                            ) == ["+ KVConnectorBase_V1.new: method ()"]


def test_imports_are_found(tmp_path):
    """Those inside functions too, and what is used of a module."""
    (tmp_path / "one.py").write_text(
        "import vllm\nfrom vllm.a import b as c\nimport os\n"
        "def f():\n    from vllm.x.y import z\n    return c.d + z + os.path\n"
        "print(vllm.__version__)\n")
    assert set(drift.imports(tmp_path)) == {
        "vllm", "vllm.a.b", "vllm.a.b.d", "vllm.x.y.z", "vllm.__version__"}
