"""What `make` shows: builds are quiet unless they fail, and the tests say how
long each stage took. The scripts run in a tree of their own, with programs that
only seem to build and test."""
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]

CMAKE = """#!/bin/sh
case "$1" in
--preset) mkdir -p build/$2 && touch build/$2/Makefile ;;
*) echo "[ 50%] Building C object x.c.o"
   [ -z "$SAY" ] || echo "$SAY" >&2
   exit ${CODE:-0} ;;
esac
"""
CTEST = """#!/bin/sh
while [ $# -gt 0 ]; do
    [ "$1" != --output-junit ] || cat >$2 <<END
<testsuite><testcase name="a" status="run"><system-out>
[==========] 3 test(s) run.
[  PASSED  ] 3 test(s).
</system-out></testcase></testsuite>
END
    shift
done
"""


@pytest.fixture
def tree(tmp_path):
    """Scripts that run what is given here in place of the real programs."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "fake").mkdir()
    for name in ("build", "run-tests"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    for path, text in (("fake/cmake", CMAKE), ("fake/ctest", CTEST),
                       ("scripts/tidy", "print('ok  all')\n"),
                       ("scripts/run-vllm-tests", "#!/bin/sh\nexit 5\n")):
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    return tmp_path


def run(tree, *command, code=0, **env):
    done = subprocess.run(command, cwd=tree, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **env,
                               "PATH": f"{tree}/fake:{os.environ['PATH']}"})
    assert done.returncode == code, done.stdout
    return done.stdout


def test_build_is_quiet(tree):
    lines = run(tree, "scripts/build", "dev").splitlines()
    assert len(lines) == 2, lines
    assert re.fullmatch(r"build/dev: configure \.\.\. \d+ s", lines[0])
    assert re.fullmatch(r"build/dev: build \.\.\. \d+ s", lines[1])
    assert len(run(tree, "scripts/build", "dev").splitlines()) == 1
    assert "Building C object" in (tree / "build/dev.log").read_text()


def test_build_that_fails_says_why(tree):
    text = run(tree, "scripts/build", "dev", code=2, CODE="2",
               SAY="x.c:1: error: no such thing")
    assert "x.c:1: error: no such thing" in text and "FAILED" in text
    assert "build/dev.log" in text and "50%" not in text


def test_build_that_warns_shows_it(tree):
    text = run(tree, "scripts/build", "dev", SAY="x.c:1: warning: odd")
    assert "x.c:1: warning: odd" in text


def test_stages_and_their_times(tree):
    lines = run(tree, "scripts/run-tests", "dev").splitlines()
    assert lines[-1] == "4 passed, 0 failed"
    table = lines[lines.index("how long it took, min:s") + 1:-1]
    names = [line.rsplit(None, 1)[0].strip() for line in table]
    assert names == ["build", "tidy", "C", "python", "e2e", "cuda",
                     "vLLM, newest", "all"]
    assert all(re.search(r" \d+:\d\d$", line) for line in table)


def test_failed_build_is_timed_too(tree):
    lines = run(tree, "scripts/run-tests", "dev", code=1,
                CODE="1").splitlines()
    assert lines[-1] == "0 passed, 1 failed"
    assert any(re.match(r"  build +0:\d\d$", line) for line in lines)


# ---- the table of vLLM's releases ----


@pytest.fixture
def releases():
    path = str(ROOT / "scripts/vllm-releases")
    loader = importlib.machinery.SourceFileLoader("vllm_releases", path)
    spec = importlib.util.spec_from_loader("vllm_releases", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_rows_of_releases(releases, tmp_path, monkeypatch):
    """A row is added or replaced, the others stay; the newest is the first."""
    manual = tmp_path / "vllm.md"
    text = releases.MANUAL.read_text()
    assert len(releases.TABLE.findall(text)) == 1
    manual.write_text(releases.TABLE.sub(r"\1\3", text))
    monkeypatch.setattr(releases, "MANUAL", manual)
    empty = manual.read_text()
    for version, result in (("0.9.0", "7 passed"), ("0.31.0", "1 failed"),
                            ("0.31.0", "8 passed")):
        releases.write(version, result)
    rows = "| 0.31.0 | 8 passed |\n| 0.9.0 | 7 passed |\n"
    end = "<!-- end of releases -->"
    assert manual.read_text() == empty.replace(end, rows + end)


def test_releases_that_are_run(releases):
    found = releases.recorded()
    assert found[-1] == "0.24.0" and len(found) >= 10
    for name in releases.FILES:
        assert (ROOT / "tests/vllm" / name).exists()
