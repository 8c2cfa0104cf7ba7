"""The pages of the manual: every link leads somewhere, the tables of figures
are those of bench/results, and the commands of the guides work.

A fence that begins with ```sh is run, all of a page in one shell, in order.
One that cannot be run here says why behind that word: ```sh root, engine,
network, hosts. Commands of `larder` in those have to be right in their flags
at least."""
import contextlib
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ELSEWHERE = {"root", "engine", "network", "hosts"}
PAGES = sorted(path for pattern in (
    "*.md", "docs/**/*.md", "bench/**/*.md", "tests/**/*.md", "deploy/**/*.md",
    "examples/**/*.md") for path in ROOT.glob(pattern))


def name_of(path):
    return str(path.relative_to(ROOT))


# ---- links ----


def without_code(text):
    """Fences are blanked, lines kept."""
    inside, lines = False, []
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append("" if fence or inside else line)
        inside ^= fence
    assert not inside, "a fence has no end"
    return "\n".join(lines)


def anchors(path):
    """As GitHub makes them of headings: the second of a name gets -1."""
    found = {}
    for head in re.findall(r"^#+ +(.*)$", without_code(path.read_text()), re.M):
        head = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower()
        name = re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{number}" if number else name
            for name, last in found.items() for number in range(last + 1)}


def links(path):
    text = re.sub(r"`[^`\n]*`", "", without_code(path.read_text()))
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1)


def test_links_lead_somewhere():
    wrong, count = [], 0
    for path in PAGES:
        for line, target in links(path):
            if re.match(r"(https?|mailto):", target):
                continue
            count += 1
            where, _, anchor = target.partition("#")
            page = path.parent / where if where else path
            if not page.exists():
                wrong.append(f"{name_of(path)}:{line}: no {target}")
            elif anchor and page.suffix == ".md" and \
                    anchor not in anchors(page):
                wrong.append(f"{name_of(path)}:{line}: no heading {target}")
    assert count > 200
    assert wrong == []


def test_every_page_is_in_the_contents():
    contents = ROOT / "docs" / "README.md"
    listed = {(contents.parent / target).resolve()
              for _, target in links(contents)}
    pages = {path for path in PAGES if path.is_relative_to(ROOT / "docs")}
    assert pages - listed == {contents}


def test_pages_named_in_the_tree_exist():
    """In comments, messages, scripts and manifests."""
    wrong, count = [], 0
    for folder in ("src", "include", "python", "scripts", "tests", "bench",
                   "deploy", "examples", ".ci", "Makefile", "CMakeLists.txt",
                   "pyproject.toml", *(name_of(page) for page in PAGES)):
        root = ROOT / folder
        for path in root.rglob("*") if root.is_dir() else [root]:
            if not path.is_file() or path.suffix in (".png", ".pyc", ".so"):
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            for name, anchor in re.findall(
                    r"(?<![\w/.])((?:docs|bench/results)/[\w/.-]+\.\w+)"
                    r"(?:#([\w-]+))?", text):
                count += 1
                page = ROOT / name
                if not page.exists() or (
                        anchor and anchor not in anchors(page)):
                    wrong.append(f"{name_of(path)}: {name} {anchor}")
    assert count > 100
    assert wrong == []


def test_metrics_that_pages_name_exist():
    """Those of nodes: their names end in what they count."""
    known = set(re.findall(r"^\| `((?:larder|process)_\w+)`",
                           (ROOT / "docs/reference/metrics.md").read_text(),
                           re.M))
    named = {(name, name_of(page)) for page in PAGES
             if page.is_relative_to(ROOT / "docs")
             for name in re.findall(
                 r"(?<!:)\b(larder_\w+_(?:total|bytes|seconds|on))\b",
                 page.read_text())}
    assert len(named) > 50
    assert sorted(one for one in named if one[0] not in known) == []


def test_the_manual_has_no_history():
    """Dates and commits of runs stand in bench/results."""
    wrong = [f"{name_of(page)}: {found}" for page in PAGES
             if page.is_relative_to(ROOT / "docs")
             for found in re.findall(
                 r"\b20\d\d-\d\d-\d\d\b|\b\d+ [A-Z][a-z]+ 20\d\d\b"
                 r"|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7}\b",
                 re.sub(r"`[^`]*`|^    .*$", "", without_code(
                     page.read_text()), flags=re.M))]
    assert wrong == []


# ---- figures ----


def performance():
    path = str(ROOT / "scripts/performance")
    loader = importlib.machinery.SourceFileLoader("performance", path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("performance", loader))
    loader.exec_module(module)
    return module


def test_tables_are_those_of_the_results():
    done = subprocess.run([ROOT / "scripts/performance", "--check"], text=True,
                          stdout=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_table_that_was_changed_is_noticed():
    tool = performance()
    page = (ROOT / "docs/performance.md").read_text()
    assert tool.rendered(page) == page
    assert set(re.findall(r"<!-- end of ([\w-]+) -->", page)) == \
        set(tool.TABLES)
    for figure in ("39,548", "2,305 ms"):
        assert page.count(figure) == 1
        assert tool.rendered(page.replace(figure, "1")) == page


# ---- commands ----


def shell_blocks(page):
    """(line, words behind ```, text) of every block that is a shell's."""
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", page, re.M | re.S):
        words = match[1].split()
        if words[:1] == ["sh"]:
            yield page.count("\n", 0, match.start()) + 1, words[1:], match[2]


# What pages take from the system is a folder of the test's.
SYSTEM = ("/etc/larder", "/etc/engine", "/mnt/kv", "/run/larder",
          "/var/cache/larder")
# A get may miss: a member is waited for some milliseconds only.
PROGRAM = """#!/bin/sh
[ "$1" = get ] || exec %s "$@"
for i in $(seq 300); do
    %s "$@"
    code=$?
    [ $code -eq 1 ] || exit $code
    sleep 0.1
done
exit 1
"""
# Until as many nodes as were started say that they are ready.
READY = """
begun=$((begun + %d))
for i in $(seq 2400); do
    [ $(grep -c 'ready: larder' "$DOCS_LOG") -lt $begun ] || break
    sleep 0.05
done
[ $(grep -c 'ready: larder' "$DOCS_LOG") -ge $begun ]
"""


def script_of(page, root):
    """All blocks of a page that can be run, as one script."""
    parts = ["set -e\nbegun=0\n"]
    for line, words, text in shell_blocks(page):
        assert set(words) <= ELSEWHERE, f"line {line}: sh {words}"
        if not words:
            for place in SYSTEM:
                text = text.replace(place, f"{root}{place}")
            nodes = len(re.findall(r"&$", text, re.M))
            parts.append(f"echo '== line {line}'\n{text}"
                         + (READY % nodes if nodes else ""))
    return "".join(parts)


RUN = [page for page in PAGES if not all(
    words for _, words, _ in shell_blocks(page.read_text()))]


@pytest.fixture
def alone():
    """A command before others: they have a network of their own, so that the
    ports which pages name are free."""
    command = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "--net"]
    if shutil.which("ip") is None or subprocess.run(
            [*command, "ip", "link", "set", "lo", "up"],
            stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("NOT TESTED: network namespaces are not permitted here")
    return [*command, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def end(group):
    """The nodes that a page has started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        for _ in range(200):
            time.sleep(0.05)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_commands(page, alone, binary):
    """Each ends well, in the order of the page."""
    if shutil.which("openssl") is None:
        pytest.skip("NOT TESTED: there is no openssl")
    with tempfile.TemporaryDirectory(prefix="ldr") as folder:
        home = pathlib.Path(folder)
        for place in SYSTEM:
            (home / place[1:]).mkdir(parents=True)
        (home / "run" / "user").mkdir(parents=True)
        (home / "work").mkdir()
        programs = home / "bin"
        programs.mkdir()
        program = programs / "larder"
        program.write_text(PROGRAM % ((os.path.abspath(binary),) * 2))
        program.chmod(0o755)
        log = home / "log"
        script = script_of(page.read_text(), folder)
        with log.open("w") as out:
            shell = subprocess.Popen(
                [*alone, "bash", "-c", script], cwd=home / "work", stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
                stdin=subprocess.DEVNULL, env={
                    "PATH": f"{programs}:{os.environ['PATH']}", "LANG": "C",
                    "HOME": folder, "XDG_RUNTIME_DIR": str(home / "run/user"),
                    "DOCS_LOG": str(log)})
            try:
                code = shell.wait(300)
            except subprocess.TimeoutExpired:
                code = "no end within 300 s"
            finally:
                end(shell.pid)
        assert code == 0, f"{script}\n{log.read_text()}"


def command_lines(page):
    """A page's blocks for a shell, and its indented lines."""
    return "".join(text for _, _, text in shell_blocks(page)) + "".join(
        re.findall(r"^ {4,}.*\n", without_code(page), re.M))


def commands_of(page):
    """Each `larder ...` of them."""
    text = re.sub(r"\\\n\s*", " ", command_lines(page))
    for line in re.findall(r"^ *(?:\$ )?larder +([a-z].*)$", text, re.M):
        yield line.split(" #")[0].split("  ")[0].strip()


def test_flags_of_all_commands_exist(larder):
    """Also of those that are not run: the command, and its flags."""
    options = {o["name"] for o in larder.json("options", "--serve")}
    texts, wrong, count = {}, [], 0
    for page in PAGES:
        for line in commands_of(page.read_text()):
            command, *rest = line.split()
            count += 1
            if command not in texts:
                texts[command] = larder(command, "--help").out
            for flag in re.findall(r"(?<=[\s\[])--[\w-]+", " ".join(rest)):
                if not re.search(rf"{flag}\b", texts[command]) and not (
                        command == "serve" and
                        flag[2:].replace("-", "_") in options):
                    wrong.append(f"{name_of(page)}: larder {line}: {flag}")
    assert count > 40
    assert wrong == []


def test_files_and_targets_of_all_commands_exist():
    """What commands name of this repository, also of those that are not run."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    wrong, count = [], 0
    for page in PAGES:
        lines = command_lines(page.read_text())
        named = re.findall(r"\bmake ([a-z][a-z-]+)", lines)
        wrong += [f"{name_of(page)}: make {name}"
                  for name in named if name not in targets]
        paths = re.findall(r"(?<![\w/.-])(?:deploy|scripts|bench|examples|docs|"
                           r"tests)/[\w./-]+", lines)
        wrong += [f"{name_of(page)}: {path}"
                  for path in paths if not (ROOT / path).exists()]
        count += len(named) + len(paths)
    assert count > 20
    assert wrong == []
