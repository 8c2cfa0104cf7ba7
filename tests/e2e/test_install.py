"""What `make install` installs: complete, enough to build a program with, and
gone after `make uninstall`. The Debian packages are made of the same parts;
deploy/debian/check installs them."""
import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIX = "/usr/local"
PARTS = ("library", "development", "program")
HEADER = (ROOT / "include/larder/larder.h").read_text()
PROGRAM = """
#include <larder/larder.h>
#include <stdio.h>

int main(void)
{
    larder_t *lar = NULL;
    larder_status_t st = larder_open("embed:?dram=4M", NULL, &lar);

    if (st != LARDER_OK || larder_abi() != LARDER_ABI) {
        fprintf(stderr, "%s\\n", larder_last_error());
        return 1;
    }
    printf("%s\\n", larder_version());
    return larder_close(&lar, 1000) == LARDER_OK ? 0 : 1;
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(app C)
find_package(larder %s REQUIRED)
add_executable(app app.c)
target_link_libraries(app larder::larder)
"""


def run(*command, code=0, **more):
    done = subprocess.run([str(x) for x in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=600, **more)
    assert done.returncode == code, done.stdout
    return done.stdout


class Installed:
    def __init__(self, build, folder):
        self.top = folder
        self.tree = folder / PREFIX.lstrip("/")
        self.manifests = ""
        # A manifest for each part, so that nobody else's is overwritten.
        for part in PARTS:
            run("cmake", "--install", build, "--prefix", PREFIX,
                "--component", part, env={**os.environ, "DESTDIR": str(folder)})
            self.manifests += (build / f"install_manifest_{part}.txt"
                               ).read_text() + "\n"
        (self.library,) = self.tree.rglob("liblarder.so.0.*")

    def env(self):
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library.parent),
                "PKG_CONFIG_PATH": str(self.library.parent / "pkgconfig"),
                "CMAKE_PREFIX_PATH": str(self.tree)}

    def page(self, name, section):
        return (self.tree / f"share/man/man{section}/{name}.{section}"
                ).read_text().replace("\\-", "-")


@pytest.fixture(scope="module")
def build():
    made = pathlib.Path(os.environ["LARDER_BUILD"])
    if any(word in str(made) for word in ("asan", "tsan")):
        pytest.skip("a sanitized library is not what is installed")
    return made


@pytest.fixture(scope="module")
def installed(build, tmp_path_factory):
    return Installed(build, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def app(tmp_path):
    (tmp_path / "app.c").write_text(PROGRAM)
    return tmp_path


# ---- what is there ---------------------------------------------------------

def test_programs_and_service(installed):
    assert "larder 0." in run(installed.tree / "bin/larder", "--version")
    assert "shm-get" in run(installed.tree / "bin/larder", "bench", "--list")
    unit = installed.tree / "lib/systemd/system/larder.service"
    assert "ExecStart=larder serve" in unit.read_text()
    users = installed.tree / "lib/sysusers.d/larder.conf"
    assert users.read_text().splitlines()[-1].startswith("u larder ")


def test_soname_is_the_number_of_the_interface(installed):
    """Any 0.x may change the interface; then the number and the name differ."""
    abi = ctypes.CDLL(str(installed.library)).larder_abi()
    assert f"#define LARDER_ABI {abi}\n" in HEADER
    dynamic = run("readelf", "-d", installed.library)
    assert re.search(r"SONAME.*\[(.*)\]",
                     dynamic).group(1) == f"liblarder.so.{abi}"
    for name in ("liblarder.so", f"liblarder.so.{abi}"):
        assert (installed.library.parent / name
                ).resolve() == installed.library.resolve()


def test_manual_is_whole(installed):
    """As in the source: each page, and all that pages link to and show."""
    doc = installed.tree / "share/doc/larder"
    pages = {p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 20
    missing, count = [], 0
    for page in {*pages, *map(pathlib.Path, ("README.md", "SECURITY.md",
                                             "CHANGELOG.md"))}:
        text = (doc / page).read_text()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            count += 1
            if (not target.startswith("http")
                    and not (doc / page.parent / target).exists()):
                missing.append((str(page), target))
    assert not missing and count > 200
    assert (doc / "deploy/larder.conf").exists()


# ---- manual pages: nothing of the program is left out ----------------------

def commands(binary):
    return re.findall(r"^  ([a-z]+)  +\S", run(binary, "--help"), re.M)


def test_a_page_for_each_command(installed, binary):
    names = set(commands(binary)) - {"larder"}
    assert {"serve", "top", "put", "cluster"} <= names
    main = installed.page("larder", 1)
    for name in names:
        assert f"larder-{name} (1)" in main
        page = installed.page(f"larder-{name}", 1)
        said = run(binary, name, "--help")
        flags = set(re.findall(r"--[a-z][a-z_-]+", said))
        assert flags and flags <= set(re.findall(r"--[a-z][a-z_-]+", page))
        assert f"\nlarder {name}" in page


def test_a_page_for_the_configuration(installed, larder):
    page = installed.page("larder.conf", 5)
    known = larder.json("options", "--serve")
    assert len(known) > 50
    for option in known:
        assert f"\n.B {option['name']}\n\\&{option['text']}" in page
    assert "\n.B token_file =\n" in page
    for line in (ROOT / "deploy/larder.conf").read_text().splitlines():
        assert line in page


def test_a_page_for_each_function(installed):
    functions = set(re.findall(
        r"^LARDER_API[^;]*?\b(larder_\w+)\(", HEADER, re.M))
    assert len(functions) > 50 and "larder_open" in functions
    pages = {p.name[:-2] for p in (installed.tree / "share/man/man3").iterdir()}
    assert pages == functions | {"larder"}
    assert "const char *url" in installed.page("larder_open", 3)
    assert installed.page("larder_gpu_close",
                          3) == ".so man3/larder_gpu_open.3\n"
    assert "RULES THAT HOLD FOR EVERY CALL" in installed.page("larder", 3)


def test_pages_can_be_set(installed):
    groff = shutil.which("groff")
    if not groff:
        pytest.skip("NOT TESTED: there is no groff")
    pages = [p for p in (installed.tree / "share/man").rglob("*.?")
             if not p.read_text().startswith(".so ")]
    # -ww without `break`: a line that is too long to be filled is no mistake.
    assert run(groff, "-man", "-Kutf8", "-Tutf8", "-ww", "-Wbreak", "-z",
               *pages) == ""


def test_a_function_without_a_comment_is_refused(tmp_path, binary):
    """A page must not be missing, or empty, in silence."""
    header = tmp_path / "larder.h"
    header.write_text(HEADER.replace(
        "/* The name of a tier, constant. Never NULL. */\n", ""))
    said = run(ROOT / "scripts/man", tmp_path / "man", header, binary, code=1)
    assert "larder_tier_text has no comment" in said


# ---- a program is built with it --------------------------------------------

def test_pkg_config(installed, app):
    if not shutil.which("pkg-config"):
        pytest.skip("NOT TESTED: there is no pkg-config (scripts/install-deps "
                    "test)")
    flags = run("pkg-config", "--cflags", "--libs", "larder",
                env=installed.env()).split()
    run("cc", "-o", app / "app", app / "app.c", *flags)
    assert "0." in run(app / "app", env=installed.env())


def test_cmake(installed, app):
    (app / "CMakeLists.txt").write_text(PROJECT % "0.1")
    run("cmake", "-S", app, "-B", app / "b", env=installed.env())
    run("cmake", "--build", app / "b")
    assert "0." in run(app / "b/app", env=installed.env())
    # Another 0.x may have another interface: it is not taken for this one.
    (app / "CMakeLists.txt").write_text(PROJECT % "0.0")
    said = run("cmake", "-S", app, "-B", app / "c", env=installed.env(), code=1)
    assert 'compatible with requested version "0.0"' in " ".join(said.split())


# ---- and removed -----------------------------------------------------------

def test_uninstall(build, tmp_path):
    """Removes what was installed, and what others put beside it stays."""
    top = tmp_path / "top"
    made = Installed(build, top)
    for path in ("scripts", "build/install"):
        (tmp_path / path).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/uninstall", tmp_path / "scripts")
    command = tmp_path / "scripts/uninstall"
    env = {**os.environ, "DESTDIR": str(top)}
    assert "make install" in run(command, env=env, code=1)
    (tmp_path / "build/install/install_manifest.txt").write_text(
        made.manifests.strip().replace("\n\n", "\n"))
    others = [made.tree / "bin/other", made.tree / "share/doc/larder/NOTES"]
    for path in others:
        path.write_text("mine")
    run(command, env=env)
    assert {p for p in top.rglob("*")
            if p.is_symlink() or not p.is_dir()} == set(others)
    assert [str(p.relative_to(made.tree)) for p in top.rglob("larder")
            ] == ["share/doc/larder"]


# ---- released --------------------------------------------------------------

def test_what_is_released_has_no_fault_points():
    presets = {p["name"]: p for p in json.loads(
        (ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    assert presets["install"]["cacheVariables"]["LARDER_FAULTS"] == "OFF"
    assert presets["deb"]["inherits"] == "install"
    assert "LARDER_FAULTS" not in presets["deb"]["cacheVariables"]
    makefile = (ROOT / "Makefile").read_text()
    for target in ("install", "deb"):
        rule = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", makefile, re.M)
        assert f"scripts/build {target}\n" in rule.group(1)
    assert re.search(r"^LARDER_FAULTS = false$",
                     (ROOT / "pyproject.toml").read_text(), re.M)


def test_packages_of_a_build_for_tests_are_refused(build, binary, tmp_path):
    if "fault points" not in run(binary, "--version"):
        pytest.skip("this build has no fault points")
    if not shutil.which("dpkg-shlibdeps"):
        pytest.skip("NOT TESTED: there is no dpkg-shlibdeps (dpkg-dev)")
    said = run(ROOT / "scripts/deb", build, tmp_path / "deb", code=1)
    assert "fault points" in said and "make deb" in said
    assert list((tmp_path / "deb").iterdir()) == []
