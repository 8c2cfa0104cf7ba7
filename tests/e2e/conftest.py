"""The program under test: $LARDER_BIN, the binary or the folder it is in; and
daemons that tests start, which end with their test."""
import json
import os
import pathlib
import random
import subprocess

import pytest

from capi import make_tier
from daemon import Daemon


class Larder:
    def __init__(self, binary, cwd):
        self.binary = binary
        self.cwd = cwd

    def __call__(self, *args, code=0, stdin=b""):
        """Runs it, expects the exit code, gives what it printed."""
        done = subprocess.run([self.binary, *map(str, args)], input=stdin,
                              cwd=self.cwd, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=300,
                              check=False)
        assert done.returncode == code, (
            f"larder {' '.join(map(str, args))}: exit code {done.returncode}"
            f"\nstdout: {done.stdout[:2000]}\nstderr: {done.stderr[:2000]}")
        done.out = done.stdout.decode(errors="replace")
        done.err = done.stderr.decode(errors="replace")
        return done

    def json(self, *args, **kwargs):
        """The objects that it prints with --json, one per line."""
        lines = self(*args, "--json", **kwargs).out.splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(autouse=True)
def state(tmp_path_factory, monkeypatch):
    """What `larder doctor` keeps is kept for one test only."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def binary():
    where = os.environ.get("LARDER_BIN")
    if not where:
        pytest.fail("LARDER_BIN is not set: run scripts/run-tests dev")
    path = pathlib.Path(where)
    return str(path / "larder" if path.is_dir() else path)


@pytest.fixture
def larder(binary, tmp_path):
    return Larder(binary, tmp_path)


@pytest.fixture
def serve_options(larder):
    """What `larder serve` knows: {name: default}."""
    known = {o["name"]: o["default"]
             for o in larder.json("options", "--serve")}
    assert "dram" in known and "socket" in known
    return dict(known, dir="")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kv"


@pytest.fixture
def place(folder):
    """Small enough for a test: segments of 4 MiB."""
    return f"embed:{folder}?dram=8M&ssd=64M"


def payload(size, seed=1):
    return random.Random(seed).randbytes(size)


@pytest.fixture
def filled(larder, place):
    """Three keys in the directory; gives their bytes."""
    values = {f"key-{i}": payload(50000 + i, i) for i in range(3)}
    for name, value in values.items():
        larder("put", place, name, "-", stdin=value)
    return values


@pytest.fixture
def tier(tmp_path):
    """A directory that is a shared tier."""
    path = tmp_path / "tier"
    path.mkdir()
    make_tier(path)
    return path


# ---- daemons ---------------------------------------------------------------

@pytest.fixture
def serve(binary, tmp_path):
    """Makes daemons; each is started by who wants it, and ended here."""
    made = []

    def make(*args, name=None, start=True, **kwargs):
        folder = tmp_path / (name or f"d{len(made)}")
        daemon = Daemon(binary, folder, *args, **kwargs)
        made.append(daemon)
        return daemon.start() if start else daemon

    yield make
    errors = []
    for daemon in made:
        try:
            daemon.end()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


@pytest.fixture
def daemon(serve):
    return serve()
