"""`larder doctor`: what it finds, what it says to do, and that it leaves
nothing behind. Nothing here asks for a healthy host, only for true answers."""
import json
import os
import pathlib
import subprocess

import pytest

BAD, USAGE, FAILED = 1, 2, 3
CHECKS = ["kernel", "cpu", "memory", "hugepages", "memlock", "numa",
          "io_uring", "ktls", "key", "clock", "ntp", "gpu",
          "shared", "disk"]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """A configuration that fits any host, and no variables of others."""
    for name in list(os.environ):
        if name.startswith("LARDER_") and name != "LARDER_BIN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("LARDER_DRAM", "4M")
    monkeypatch.setenv("LARDER_SSD", "8M")
    monkeypatch.setenv("LARDER_ADMIN", "none")
    monkeypatch.setenv("LARDER_SOCKET", str(tmp_path / "l.sock"))


class Doctor:
    def __init__(self, larder):
        self.larder = larder

    def __call__(self, *args):
        """All that it says, by check; the exit code must go with it."""
        done = subprocess.run([self.larder.binary, "doctor", "--json",
                               *map(str, args)], cwd=self.larder.cwd,
                              capture_output=True, timeout=300, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode in (0, BAD), done.stderr
        bad = [line for line in lines if line["verdict"] == "bad"]
        assert done.returncode == (BAD if bad else 0), lines
        for line in lines:
            assert line["verdict"] in ("ok", "warn", "bad", "skip")
            assert line["found"] and "\n" not in line["found"]
        return lines

    def one(self, check, *args):
        lines = [x for x in self(*args) if x["check"] == check]
        assert len(lines) == 1, lines
        return lines[0]


@pytest.fixture
def doctor(larder):
    return Doctor(larder)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


# ---- the whole -------------------------------------------------------------

def test_every_check_says_something(doctor, tmp_path):
    before = sorted(os.listdir(tmp_path))
    lines = doctor(tmp_path)
    assert [line["check"] for line in lines] == CHECKS
    assert sorted(os.listdir(tmp_path)) == before
    disk = lines[-1]
    assert disk["subject"] == str(tmp_path) and "GB/s" in disk["found"]


def test_text(larder, tmp_path):
    done = subprocess.run([larder.binary, "doctor", str(tmp_path)],
                          capture_output=True, timeout=300, check=False,
                          text=True)
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == CHECKS
    assert all(line.split()[0] in ("ok", "warn", "bad", "skip")
               for line in lines[:-1])
    counts = [int(word) for word in lines[-1].split() if word.isdigit()]
    assert sum(counts) == len(CHECKS) and lines[-1].endswith(" skipped")


@pytest.mark.parametrize("place, hint", [
    ("tcp://h:1", "PLACE is a directory"),
    ("unix:/s", "PLACE is a directory"),
    ("embed:/a?frob=1", "unknown option 'frob'"),
    ("", "empty name"),
])
def test_usage(larder, place, hint):
    assert hint in larder("doctor", place, code=USAGE).err


# ---- configuration ---------------------------------------------------------

def test_broken_config(larder, tmp_path):
    """As `larder serve` says it."""
    file = write(tmp_path / "c", "# one\ndrram = 1G\n")
    done = larder("doctor", "--config", file, code=FAILED)
    assert f"{file}:2: unknown key drram; did you" in done.err
    assert done.out == ""


def test_config_is_used(doctor, tmp_path):
    file = write(tmp_path / "c", f"dir = {tmp_path}/a\ndir = {tmp_path}/b\n"
                                 "sessions = 100\n[tenant x]\n")
    lines = doctor("--config", file)
    disks = [x["subject"] for x in lines if x["check"] == "disk"]
    assert disks == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert sorted(os.listdir(tmp_path)) == ["c"]


def test_key(doctor, tmp_path):
    """What a node does not say: others can read the key."""
    assert doctor.one("key")["verdict"] == "skip"
    key = write(tmp_path / "k", "secret")
    file = write(tmp_path / "c", f"tls = on\ntls_cert = {tmp_path}/cert\n"
                                 f"tls_key = {key}\n")
    key.chmod(0o644)
    line = doctor.one("key", "--config", file)
    assert line["verdict"] == "warn" and line["do"] == f"chmod o= {key}"
    key.chmod(0o640)
    assert doctor.one("key", "--config", file)["verdict"] == "ok"


# ---- limits ----------------------------------------------------------------

def test_memory(doctor, monkeypatch):
    assert doctor.one("memory")["verdict"] in ("ok", "warn")
    monkeypatch.setenv("LARDER_DRAM", "16T")
    line = doctor.one("memory")
    assert line["verdict"] == "bad" and line["do"].startswith("--dram ")


def test_numa(doctor, monkeypatch):
    if not os.path.isdir("/sys/devices/system/node/node0"):
        pytest.skip("no NUMA nodes to be seen")
    monkeypatch.setenv("LARDER_NUMA", "0")
    assert doctor.one("numa")["verdict"] == "ok"
    monkeypatch.delenv("LARDER_NUMA")
    several = len(list(pathlib.Path("/sys/devices/system/node").glob(
        "node[0-9]*"))) > 1
    assert doctor.one("numa")["verdict"] == ("warn" if several else "ok")


def test_io_uring(larder, doctor, monkeypatch):
    if "fault" not in larder("--version").out:
        pytest.skip("a build without fault points")
    monkeypatch.setenv("LARDER_FAULTS", "io_uring_denied:1:0")
    line = doctor.one("io_uring")
    assert line["verdict"] == "warn" and line["do"]
    assert "served by threads" in line["found"]
    monkeypatch.setenv("LARDER_IO", "uring")
    assert doctor.one("io_uring")["verdict"] == "bad"


# ---- disks -----------------------------------------------------------------

def test_directory_that_is_none(doctor, tmp_path):
    file = write(tmp_path / "f", "x")
    line = doctor.one("disk", file)
    assert line["verdict"] == "bad" and "Not a directory" in line["found"]
    line = doctor.one("disk", file / "below")
    assert line["verdict"] == "bad"


def test_missing_directory(doctor, tmp_path):
    line = doctor.one("disk", tmp_path / "a" / "b")
    assert line["verdict"] in ("ok", "warn")
    assert "is made at start" in line["found"]
    assert not (tmp_path / "a").exists()


def test_too_little_room(doctor, tmp_path):
    line = doctor.one("disk", f"embed:{tmp_path}?ssd=64T&dram=4M")
    assert line["verdict"] == "bad" and line["do"].startswith("--ssd ")


def test_memory_is_no_disk(doctor, monkeypatch):
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], text=True,
                          capture_output=True, check=False).stdout.strip()
    if kind != "tmpfs" or not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs to be written")
    before = sorted(os.listdir("/dev/shm"))
    line = doctor.one("disk", "/dev/shm")
    assert line["verdict"] == "warn" and "tmpfs" in line["found"]
    assert sorted(os.listdir("/dev/shm")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_of_others(doctor, tmp_path):
    place = tmp_path / "ro"
    place.mkdir(mode=0o555)
    line = doctor.one("disk", place)
    assert line["verdict"] == "bad" and "cannot be written" in line["found"]


def test_read_only_mount(doctor):
    line = doctor.one("disk", "/proc/self")
    assert line["verdict"] == "bad"
