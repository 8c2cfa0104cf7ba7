"""The Python distribution: built from this tree ($LARDER_WHEEL names one that
is built already), installed into an environment of its own, without a
network."""
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile

import pytest

from daemon import LONG

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOOLS = ROOT / "build/wheel-tools"
VERSION = re.search(r"^project\(larder VERSION ([0-9.]+)",
                    (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)


def clean_env(**more):
    """No setting of the tests' own, nothing from PyPI."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("LARDER_", "PYTHON", "PIP_", "MAKE"))}
    env.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1",
               PIP_DISABLE_PIP_VERSION_CHECK="1",
               PYTHONDONTWRITEBYTECODE="1", **more)
    return env


def run(*command, code=0, env=None, **more):
    done = subprocess.run(
        [str(x) for x in command], env=env or clean_env(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=1800,
        check=False, **more)
    assert done.returncode == code, (
        f"{command}: exit code {done.returncode}\n{done.stdout[-3000:]}"
        f"\n{done.stderr[-3000:]}")
    return done


class Environment:
    """A virtual environment; what it runs finds its programs first."""

    def __init__(self, folder):
        self.folder = folder
        run(sys.executable, "-m", "venv", folder)
        self.env = clean_env(
            PATH=f"{folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin")

    def __call__(self, *command, code=0, **env):
        return run(*command, code=code, env={**self.env, **env},
                   cwd=self.folder)

    def python(self, text, *args, **env):
        return self(self.folder / "bin/python", "-c", text, *args, **env)

    def pip(self, *args):
        return self(self.folder / "bin/python", "-m", "pip", *args)

    def files(self):
        """Without what the interpreter may leave beside pip's own."""
        return {str(p.relative_to(self.folder))
                for p in self.folder.rglob("*")
                if "larder" in str(p.relative_to(self.folder))
                or "__pycache__" not in p.parts}


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("wheel") / "venv")


# Calls a hook of the back end (PEP 517 and 660), as pip does.
HOOK = """
import sys
from scikit_build_core import build
kind, folder, *settings = sys.argv[1:]
getattr(build, "build_" + kind)(folder, dict(s.split("=", 1)
                                             for s in settings))
"""


@pytest.fixture(scope="module")
def builder():
    """Builds a wheel, an sdist or what an editable install installs, with the
    pinned back end and without a network; gives what it said."""
    done = subprocess.run(
        [str(ROOT / "scripts/venv"), "build/wheel-tools",
         "python/wheel-tools.txt"], stderr=subprocess.PIPE, check=False,
        text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot be installed here: {done.stderr.strip()}")

    def build(kind, *settings, folder, code=0, **env):
        done = run(TOOLS / "bin/python", "-c", HOOK, kind, folder, *settings,
                   code=code, cwd=ROOT, env=clean_env(
                       CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count()), **env))
        return done.stdout + done.stderr

    return build


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, request):
    if os.environ.get("LARDER_WHEEL"):
        return pathlib.Path(os.environ["LARDER_WHEEL"])
    folder = tmp_path_factory.mktemp("made")
    builder = request.getfixturevalue("builder")
    # The compiler's time is most of it; scripts/wheel tests what it optimized.
    builder("wheel", *(() if LONG else ("cmake.build-type=None",)),
            folder=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(venv, wheel):
    venv.before = venv.files()
    venv.pip("install", wheel)
    return venv


@pytest.fixture(scope="module")
def binary(installed):
    """What the fixture `serve` starts."""
    return str(installed.folder / "bin/larder")


# ---- what is in it ---------------------------------------------------------

def test_contents(wheel):
    assert re.fullmatch(rf"larder_kv-{re.escape(VERSION)}-py3-none-"
                        r"(many)?linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        modes = {i.filename: i.external_attr >> 16
                 for i in archive.infolist()}
        info = f"larder_kv-{VERSION}.dist-info/"
        meta = archive.read(info + "METADATA").decode()
        points = archive.read(info + "entry_points.txt").decode()
    sources = {f"larder_kv/{p.relative_to(ROOT / 'python/larder_kv')}"
               for p in (ROOT / "python/larder_kv").rglob("*.py")}
    sources.add("larder_kv/py.typed")
    assert sources <= modes.keys()
    for name in ("larder", "larder-bench", "liblarder.so"):
        assert stat.S_IMODE(modes["larder_kv/_bin/" + name]) == 0o755
    assert info + "licenses/THIRD_PARTY.md" in modes
    assert not [n for n in modes if "__pycache__" in n or
                not n.startswith(("larder_kv/", info))]
    assert "\nName: larder-kv\n" in meta
    assert f"\nVersion: {VERSION}\n" in meta
    assert "Requires-Dist" not in meta  # vLLM is the user's own
    assert "larder = larder_kv.vllm.plugin:register" in points


def test_what_the_files_need(wheel, tmp_path):
    """Nothing of OpenSSL is seen from outside, no path of the build is left;
    and the wheel for others needs glibc and what lies in it, no more."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    packaged = tmp_path / "larder_kv/_bin"
    needed = set()
    for path in sorted(packaged.iterdir()):
        said = run("readelf", "-dW", path).stdout
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", said))
        assert set(re.findall(r"R(?:UN)?PATH.*\[(.*)\]", said)) <= {
            "$ORIGIN"}, path
    exported = re.findall(
        r" [TDBWV] (\S+)",
        run("nm", "-D", "--defined-only", packaged / "liblarder.so").stdout)
    assert exported
    assert [n for n in exported if not n.startswith("larder_")] == []
    if "manylinux" in wheel.name:
        assert {n for n in needed if not (packaged / n).exists()
                and not n.startswith("ld-linux")} <= {"libc.so.6", "libm.so.6"}
        assert (tmp_path / f"larder_kv-{VERSION}.dist-info/licenses"
                / "libmicrohttpd.COPYING").is_file()


# ---- installed -------------------------------------------------------------

def test_program_on_the_path(installed):
    said = installed("larder", "--version").stdout
    assert said.startswith(f"larder {VERSION} ")
    assert "fault points" not in said
    # Nor is the variable read that arms them.
    assert installed("larder", "--version", LARDER_FAULTS="?").stdout == said
    assert "socket" in installed("larder", "options").stdout
    assert "dram-get\n" in installed("larder", "bench", "--list").stdout
    failed = installed("larder", "no-such-command", code=2)
    assert "no-such-command" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_becomes_the_program(installed):
    """No Python stays, and nothing of it: not the signals that it ignores."""
    said = installed("larder", "^SigIgn\\|^Name", "/proc/self/status",
                     LARDER_PROGRAM=shutil.which("grep")).stdout
    assert re.search(r"^Name:\s+grep$", said, re.M)
    ignored = int(re.search(r"^SigIgn:\s+(\w+)$", said, re.M).group(1), 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


def test_entry_point(installed):
    found = installed.python(
        "from importlib.metadata import entry_points, version\n"
        "print(version('larder-kv'))\n"
        "print(*[e.value for e in entry_points(group="
        "'vllm.general_plugins')])").stdout.split("\n")
    assert found[:2] == [VERSION, "larder_kv.vllm.plugin:register"]


CLIENT = """
import json, os, sys
from larder_kv._find import library_path
folder, url = sys.argv[1:3]
os.makedirs(folder + "/lib", exist_ok=True)
if not os.path.exists(folder + "/lib/liblarder.so"):
    os.symlink(library_path(), folder + "/lib/liblarder.so")
os.environ["LARDER_BUILD"] = folder
sys.path.insert(0, sys.argv[3])
import capi
with capi.Node(url) as node:
    value = capi.value_of(url)
    answer = [node.put(url, value)]
    status, _, back = node.get(url)
    answer += [status, back == value]
print(json.dumps([library_path(), *answer]))
"""


def client(installed, folder, url):
    """Saves and loads from the environment's Python by its library."""
    path, *answer = json.loads(
        installed.python(CLIENT, folder, url, HERE).stdout)
    assert path.startswith(str(installed.folder))
    return answer


def test_serve_and_load(installed, serve, tmp_path):
    daemon = serve(admin="127.0.0.1:0")
    assert client(installed, tmp_path, daemon.url()) == [0, 0, True]
    assert "larder_sessions" in daemon.http("/metrics")
    with open(f"/proc/{daemon.pid}/comm", encoding="ascii") as file:
        assert file.read() == "larder\n"
    with open(f"/proc/{daemon.pid}/cmdline", encoding="ascii") as file:
        assert file.read().split("\0")[0] == str(daemon.binary)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_tls(installed, serve, tmp_path):
    """In a process that has its interpreter's OpenSSL loaded as well."""
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "k.pem", "-out",
        "c.pem", "-days", "1", "-subj", "/CN=node", "-addext",
        "subjectAltName=IP:127.0.0.1", cwd=tmp_path)
    daemon = serve(tls="on", tls_cert=tmp_path / "c.pem",
                   tls_key=tmp_path / "k.pem")
    url = daemon.url("tcp", tls="on", tls_ca=tmp_path / "c.pem")
    path, *answer = json.loads(installed.python(
        "import hashlib, ssl\nssl.create_default_context()\n" + CLIENT,
        tmp_path, url, HERE).stdout)
    assert answer == [0, 0, True]
    assert "TLSv1.3" in installed(
        "openssl", "s_client", "-connect", f"127.0.0.1:{daemon.tcp[1]}",
        "-CAfile", tmp_path / "c.pem", "-brief").stderr


# ---- where things are ------------------------------------------------------

def find(tree, what, **env):
    """What _find.py of that tree says, or the one line that it fails with."""
    done = subprocess.run(
        [sys.executable, "-c",
         "from larder_kv import _find\n"
         "try:\n"
         f"    print(_find.{what}())\n"
         "except FileNotFoundError as error:\n"
         "    print('error:', error)"],
        env=clean_env(PYTHONPATH=str(tree / "python"), **env), text=True,
        stdout=subprocess.PIPE, timeout=300, check=True)
    assert done.stdout.count("\n") == 1
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path):
    """As a source tree, but that nothing is built in it."""
    package = tmp_path / "python/larder_kv"
    package.mkdir(parents=True)
    for name in ("_find.py", "_cli.py"):
        shutil.copy(ROOT / "python/larder_kv" / name, package)
    (tmp_path / "include/larder").mkdir(parents=True)
    (tmp_path / "include/larder/larder.h").touch()
    (tmp_path / "CMakeLists.txt").touch()
    return tmp_path


def test_order_of_places(tree):
    path = tree / "path"
    path.mkdir()

    def places():
        return find(tree, "program_path", PATH=str(path))

    # A script of that name, such as pip's own, is not the program.
    (path / "larder").write_text("#!/bin/sh\n")
    (path / "larder").chmod(0o755)
    assert places() == ("error: the program larder was not found: run make "
                        "build, or set LARDER_PROGRAM to its path")
    shutil.copy("/bin/true", path / "larder")
    assert places() == str(path / "larder")
    for where in ("build/release/bin", "python/larder_kv/_bin"):
        (tree / where).mkdir(parents=True)
        (tree / where / "larder").touch()
        assert places() == str(tree / where / "larder")
    assert find(tree, "program_path",
                LARDER_PROGRAM="/bin/true") == "/bin/true"
    for where in ("build/release/lib", "python/larder_kv/_bin"):
        (tree / where).mkdir(exist_ok=True)
        (tree / where / "liblarder.so").touch()
        assert find(tree, "library_path") == str(
            tree / where / "liblarder.so")
    assert find(tree, "library_path",
                LARDER_LIBRARY=__file__) == __file__
    assert find(tree, "library_path", LARDER_LIBRARY="/no/such") == (
        "error: LARDER_LIBRARY=/no/such: there is no such file; correct the "
        "variable or unset it")


def test_command_without_program(installed, tree):
    """One line, from the command that pip made, also if it names itself."""
    script = installed.folder / "bin/larder"
    said = installed(script, "serve", code=1, LARDER_PROGRAM="/no/such")
    assert said.stderr == ("larder: LARDER_PROGRAM=/no/such: there is no such "
                           "file; correct the variable or unset it\n")
    said = installed(script, "serve", code=1, LARDER_PROGRAM=str(script))
    assert said.stderr == (f"larder: LARDER_PROGRAM={script} is this script: "
                           "set it to the program, or unset it\n")


# ---- building it -----------------------------------------------------------

def test_says_what_is_missing(builder, tmp_path):
    """The package, and how to do without it; before anything is compiled."""
    def said(*settings, **env):
        return builder("wheel", *settings, code=1, folder=tmp_path, **env)

    text = said(CC="/no/such")
    assert "/no/such" in text and "apt-get install build-essential" in text
    # Libraries that are found one after the other.
    known = ["cmake.define.CMAKE_IGNORE_PATH=/usr/include",
             "cmake.define.OPENSSL_INCLUDE_DIR=/usr/include"]
    assert ("apt-get install liburing-dev (Debian's name); or leave it out: "
            "--config-settings cmake.define.LARDER_URING=OFF"
            ) in " ".join(said(*known).split())
    known.append("cmake.define.LARDER_URING=OFF")
    assert ("apt-get install libmicrohttpd-dev (Debian's name); or leave it "
            "out: --config-settings cmake.define.LARDER_MICROHTTPD=OFF"
            ) in " ".join(said(*known).split())
    assert not list(tmp_path.glob("*.whl"))


def test_source_distribution(builder, tmp_path):
    builder("sdist", folder=tmp_path)
    name = f"larder_kv-{VERSION}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames()}
        modes = {m.name.split("/", 1)[1]: m.mode for m in archive}
    assert {"PKG-INFO", "pyproject.toml", "CMakeLists.txt", "LICENSE",
            "include/larder/larder.h", "python/larder_kv/_find.py",
            "python/larder_kv/py.typed", "src/net/tls.c"} <= names
    assert modes["scripts/build"] == 0o755
    assert not [n for n in names if n.startswith("build/")]


def test_pins_are_the_same():
    pinned = re.search(r"scikit-build-core==[\d.]+",
                       (ROOT / "pyproject.toml").read_text()).group()
    assert pinned in (ROOT / "python/wheel-tools.txt").read_text()


def test_editable(builder, tmp_path):
    """The package stays in the tree, and finds what make build made there."""
    builder("editable", folder=tmp_path)
    made = next(tmp_path.glob("*.whl"))
    assert made.name == f"larder_kv-{VERSION}-py3-none-any.whl"
    place = Environment(tmp_path / "venv")
    place.pip("install", made)
    said = place.python("import larder_kv\nprint(larder_kv.__file__)").stdout
    assert said.strip() == str(ROOT / "python/larder_kv/__init__.py")


# ---- the end ---------------------------------------------------------------

def test_uninstall_leaves_nothing(installed):
    """The last one: what it takes away, the others use."""
    installed.pip("uninstall", "-y", "larder-kv")
    assert sorted(installed.files() - installed.before) == []
