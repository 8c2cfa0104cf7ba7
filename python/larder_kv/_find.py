"""Where liblarder and the program `larder` are.

The first that is there: what the environment names, what the wheel brought,
what the source tree has built, what the system has.
"""
from __future__ import annotations

import ctypes.util
import glob
import os
import pathlib
import re

_HERE = pathlib.Path(__file__).resolve().parent
_BIN = _HERE / "_bin"


def library_path() -> str:
    """A path, or a name that the loader finds."""
    found = _named("LARDER_LIBRARY") or _ours("liblarder.so",
                                              "lib/liblarder.so")
    found = found or ctypes.util.find_library("larder")
    if not found:
        raise FileNotFoundError(_missing("liblarder.so", "LARDER_LIBRARY"))
    return found


def program_path() -> str:
    """A path of the program itself, never of the script of the same name."""
    found = _named("LARDER_PROGRAM") or _ours("larder", "bin/larder")
    found = found or _on_path("larder")
    if not found:
        raise FileNotFoundError(_missing("the program larder",
                                         "LARDER_PROGRAM"))
    return found


def _named(variable: str) -> str | None:
    value = os.environ.get(variable)
    if value and not os.path.isfile(value):
        raise FileNotFoundError(f"{variable}={value}: there is no such file; "
                                f"correct the variable or unset it")
    return value or None


def _ours(packaged: str, built: str) -> str | None:
    places = [_BIN / packaged]
    root = _source_tree()
    if root is not None:
        places.append(root / "build/release" / built)
    return next((str(p) for p in places if p.is_file()), None)


def _source_tree() -> pathlib.Path | None:
    root = _HERE.parent.parent
    if (root / "CMakeLists.txt").is_file() and (
            root / "include/larder/larder.h").is_file():
        return root
    return None


def _on_path(name: str) -> str | None:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and _is_program(path):
            return path
    return None


def _is_program(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _missing(what: str, variable: str) -> str:
    how = "run make build" if _source_tree() else "reinstall larder-kv"
    return f"{what} was not found: {how}, or set {variable} to its path"


def nvrtc_path() -> str:
    """libnvrtc, which PyTorch for CUDA brings along where the loader does not
    look; "": it has to be found there."""
    try:
        import nvidia
    except ImportError:
        return ""
    found = [name for root in nvidia.__path__ for name in sorted(glob.glob(
        os.path.join(glob.escape(root), "*", "lib", "libnvrtc.so.*")))
        if not re.search("builtins|alt", os.path.basename(name))]
    return found[-1] if found else ""
