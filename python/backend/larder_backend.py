"""Builds the wheel of larder-kv: PEP 517 and 660, standard library only.

The wheel is the Python package as it lies in python/larder_kv, with the
library and the programs, built by CMake, in its folder _bin. Nothing in it
depends on the version of Python: its tag is py3-none-PLATFORM.

Config settings (pip's --config-settings NAME=VALUE):
  without     optional parts to leave out: uring, microhttpd, or both by comma
  cmake-args  more arguments for cmake, as a shell would read them
and those of scripts/wheel:
  build-dir   folder for cmake, instead of build/pip
  platform    platform of the tag, instead of linux_MACHINE
  beside      files that go beside the program, separated by colons
  licenses    files that go to the licences, separated by colons
"""
from __future__ import annotations

import base64
import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/larder_kv"
CMAKE_MIN = (3, 25)
LOG_LINES = 30
# The headers that show that a package is there, and Debian's name for it.
NEEDED = {"libssl-dev": "openssl/evp.h", "liburing-dev": "liburing.h",
          "libmicrohttpd-dev": "microhttpd.h"}
OPTIONAL = {"uring": "liburing-dev", "microhttpd": "libmicrohttpd-dev"}


def fail(text):
    """pip shows what is printed; a traceback would only hide it."""
    print(f"larder-kv: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


class Settings:
    def __init__(self, given):
        self._given = given or {}
        self.without = [x for x in self._text("without").split(",") if x]
        self.cmake_args = shlex.split(self._text("cmake-args"))
        self.build_dir = self._text("build-dir")
        self.platform = self._text("platform")
        self.beside = [x for x in self._text("beside").split(":") if x]
        self.licenses = [x for x in self._text("licenses").split(":") if x]
        for name in self.without:
            if name not in OPTIONAL:
                fail(f"without={name}: only {' and '.join(OPTIONAL)} can be "
                     f"left out")

    def _text(self, name):
        """A setting given twice is a list."""
        value = self._given.get(name, "")
        return value if isinstance(value, str) else " ".join(value)


# ---- what pyproject.toml and CMakeLists.txt say ---------------------------

def project():
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    found = re.search(r"^project\(larder VERSION ([0-9.]+)", text, re.M)
    if not found:
        fail("CMakeLists.txt names no version")
    return found.group(1)


def dist_name():
    return f"{project()['name'].replace('-', '_')}-{version()}"


def metadata(licenses):
    p = project()
    lines = ["Metadata-Version: 2.4", f"Name: {p['name']}",
             f"Version: {version()}", f"Summary: {p['description']}",
             f"Keywords: {','.join(p['keywords'])}",
             *(f"Classifier: {c}" for c in p["classifiers"]),
             f"Requires-Python: {p['requires-python']}",
             f"License-Expression: {p['license']}",
             *(f"License-File: {pathlib.Path(f).name}" for f in licenses),
             *(f"Requires-Dist: {d}" for d in p.get("dependencies", ())),
             "Description-Content-Type: text/markdown", "",
             (ROOT / p["readme"]).read_text()]
    return "\n".join(lines)


def entry_points():
    p = project()
    groups = {"console_scripts": p["scripts"], **p["entry-points"]}
    return "\n".join(
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
        for group, entries in groups.items())


# ---- the C side ------------------------------------------------------------

def cmake():
    """A cmake that is new enough, or None."""
    path = shutil.which("cmake")
    if path is None:
        return None
    said = subprocess.run([path, "--version"], stdout=subprocess.PIPE,
                          text=True, check=False).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    return path if found and tuple(map(int, found.groups())) >= CMAKE_MIN \
        else None


def check_tools(settings):
    """Everything that is missing, in one line."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    missing = []
    if shutil.which(compiler[0]) is None:
        if "CC" in os.environ:
            fail(f"CC={os.environ['CC']}: there is no such compiler")
        missing.append("gcc")
        compiler = []
    if shutil.which("make") is None and shutil.which("ninja") is None:
        missing.append("make")
    optional = {OPTIONAL[name] for name in settings.without}
    # Whoever has libraries elsewhere tells cmake, which then has the word.
    elsewhere = settings.cmake_args or any(
        os.environ.get(x) for x in ("CMAKE_PREFIX_PATH", "OPENSSL_ROOT_DIR"))
    for package, header in NEEDED.items():
        if not elsewhere and package not in optional and (
                not compiler or not has_header(compiler, header)):
            missing.append(package)
    if "gcc" in missing:
        missing.append("libc6-dev")
    if missing:
        text = (f"to build it, this is missing: apt-get install "
                f"{' '.join(missing)} (Debian's names)")
        if set(missing) <= set(OPTIONAL.values()):
            names = [n for n, p in OPTIONAL.items() if p in missing]
            text += (f"; or leave it out: --config-settings without="
                     f"{','.join(settings.without + names)}")
        fail(text)


def has_header(compiler, header):
    flags = shlex.split(os.environ.get("CPPFLAGS", "")) + shlex.split(
        os.environ.get("CFLAGS", ""))
    return subprocess.run(
        [*compiler, *flags, "-E", "-"], input=f"#include <{header}>\n",
        text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        check=False).returncode == 0


def call(command, what):
    """Runs it; its output is shown only if it fails."""
    env = {k: v for k, v in os.environ.items()
           if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        for line in done.stdout.splitlines()[-LOG_LINES:]:
            print(f"  {line}", file=sys.stderr)
        fail(f"{what} failed; its last lines are above")
    return done.stdout


@contextlib.contextmanager
def build_folder(settings):
    """One build at a time in a folder that is kept, so that the next one is
    quick; a temporary one where the tree cannot be written to."""
    folder = pathlib.Path(settings.build_dir or ROOT / "build/pip")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w", encoding="ascii")
    except OSError:
        with tempfile.TemporaryDirectory() as temporary:
            yield pathlib.Path(temporary)
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache = folder / "CMakeCache.txt"
        if cache.exists() and (f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n"
                               not in cache.read_text()):
            cache.unlink()  # the tree was moved
        yield folder


def build_c(folder, settings):
    """Gives the library and the programs, stripped."""
    tool = cmake()
    if tool is None:
        fail("cmake {}.{} or newer is not on the PATH".format(*CMAKE_MIN))
    # Where the tree lies is nobody's business, and no part of the result.
    flags = (f"{os.environ.get('CFLAGS', '')} "
             f"-ffile-prefix-map={shlex.quote(str(ROOT))}=.").strip()
    args = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DLARDER_BUILD_TYPE=release",
            f"-DCMAKE_C_FLAGS={flags}",
            "-DLARDER_TESTS=OFF", "-DLARDER_FAULTS=OFF", "-DLARDER_WERROR=OFF",
            # They find what lies beside them; the build's own paths stay out.
            "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
            "-DCMAKE_INSTALL_RPATH=$ORIGIN",
            f"-DLARDER_URING={'OFF' if 'uring' in settings.without else 'ON'}",
            # Empty is "none"; out of the cache is "look again".
            "-DMICROHTTPD_LIBRARY=" if "microhttpd" in settings.without
            else "-UMICROHTTPD_LIBRARY"]
    call([tool, "-S", str(ROOT), "-B", str(folder), *args,
          *settings.cmake_args], "cmake")
    jobs = os.environ.get("JOBS") or str(len(os.sched_getaffinity(0)))
    call([tool, "--build", str(folder), "--parallel", jobs, "--target",
          "larder", "larder_program", "larder_bench"], "the build")
    out = folder / "stripped"
    out.mkdir(exist_ok=True)
    strip = shutil.which("strip")
    made = []
    for source, name in ((folder / "lib/liblarder.so", "liblarder.so"),
                         (folder / "bin/larder", "larder"),
                         (folder / "bin/larder-bench", "larder-bench")):
        shutil.copyfile(source, out / name)
        if strip:
            call([strip, "--strip-unneeded", str(out / name)], "strip")
        made.append(out / name)
    return made


# ---- the wheel -------------------------------------------------------------

class Wheel:
    """Writes the archive; with the same input, the same bytes."""

    def __init__(self, path):
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name)  # 1980: no clock in the result
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        data = data.encode() if isinstance(data, str) else data
        self._zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        self._record.append(
            f"{name},sha256={digest.decode().rstrip('=')},{len(data)}")

    def close(self, info):
        record = f"{info}/RECORD"
        self.add(record, "\n".join([*self._record, f"{record},,", ""]))
        self._zip.close()


def package_files():
    """The Python package without what the interpreter leaves in it."""
    for path in sorted(PACKAGE.rglob("*")):
        parts = path.relative_to(PACKAGE).parts
        if path.is_file() and parts[0] != "_bin" and not any(
                p == "__pycache__" or p.startswith(".") or
                p.endswith((".pyc", ".orig", ".rej")) for p in parts):
            yield path, "/".join(("larder_kv", *parts))


def write_info(wheel, tag, licenses):
    info = f"{dist_name()}.dist-info"
    names = [pathlib.Path(x).name for x in licenses]
    if len(set(names)) != len(names):
        fail(f"two licences of one name: {' '.join(names)}")
    for path in licenses:
        wheel.add(f"{info}/licenses/{pathlib.Path(path).name}",
                  (ROOT / path).read_bytes())
    wheel.add(f"{info}/METADATA", metadata(licenses))
    wheel.add(f"{info}/WHEEL",
              f"Wheel-Version: 1.0\nGenerator: larder_backend {version()}\n"
              f"Root-Is-Purelib: false\nTag: {tag}\n")
    wheel.add(f"{info}/entry_points.txt", entry_points())
    wheel.close(info)


def write_wheel(folder, settings, fill):
    """Under a name of its own first: who sees a wheel sees a whole one."""
    where = settings.platform or f"linux_{platform.machine()}"
    tag = f"py3-none-{where}"
    name = f"{dist_name()}-{tag}.whl"
    part = os.path.join(folder, f".{name}.part")
    wheel = Wheel(part)
    fill(wheel)
    write_info(wheel, tag, [*project()["license-files"], *settings.licenses])
    os.replace(part, os.path.join(folder, name))
    return name


# ---- the hooks -------------------------------------------------------------

def get_requires_for_build_wheel(config_settings=None):
    check_tools(Settings(config_settings))
    return [] if cmake() else ["cmake>={}.{}".format(*CMAKE_MIN)]


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None,
                metadata_directory=None):
    settings = Settings(config_settings)
    check_tools(settings)
    with build_folder(settings) as folder:
        built = build_c(folder, settings)

        def fill(wheel):
            for path, name in package_files():
                wheel.add(name, path.read_bytes())
            for path in (*built, *map(pathlib.Path, settings.beside)):
                wheel.add(f"larder_kv/_bin/{path.name}", path.read_bytes(),
                          0o755)

        return write_wheel(wheel_directory, settings, fill)


def build_editable(wheel_directory, config_settings=None,
                   metadata_directory=None):
    """The package where it lies; it finds what `make build` makes."""
    settings = Settings(config_settings)
    check_tools(settings)
    if cmake() is None:
        fail("cmake {}.{} or newer is not on the PATH".format(*CMAKE_MIN))
    call([str(ROOT / "scripts/build"), "release"], "scripts/build release")
    return write_wheel(
        wheel_directory, settings,
        lambda wheel: wheel.add("larder_kv.pth", f"{PACKAGE.parent}\n"))


def source_files():
    """What git does not ignore; without git, all but what is built."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        done = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=False)
        if done.returncode == 0:
            return [name for name in sorted(set(done.stdout.split("\0")))
                    if name and (ROOT / name).is_file()]
    return [str(p.relative_to(ROOT)) for p in sorted(ROOT.rglob("*"))
            if p.is_file() and p.relative_to(ROOT).parts[0] not in
            ("build", "PKG-INFO") and "__pycache__" not in p.parts]


def build_sdist(sdist_directory, config_settings=None):
    base = dist_name()
    name = f"{base}.tar.gz"

    def add(archive, path, data, mode):
        info = tarfile.TarInfo(f"{base}/{path}")
        info.size, info.mode = len(data), mode
        archive.addfile(info, io.BytesIO(data))

    with open(os.path.join(sdist_directory, name), "wb") as out, \
            gzip.GzipFile(name, "wb", fileobj=out, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w",
                         format=tarfile.PAX_FORMAT) as archive:
        for path in source_files():
            mode = 0o755 if os.access(ROOT / path, os.X_OK) else 0o644
            add(archive, path, (ROOT / path).read_bytes(), mode)
        add(archive, "PKG-INFO",
            metadata(project()["license-files"]).encode(), 0o644)
    return name
