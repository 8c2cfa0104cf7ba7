"""`larder doctor`: what it finds, what it says to do, and that it leaves
nothing behind. Nothing here asks for a healthy host, only for true answers."""
import json
import os
import resource
import shutil
import socket
import subprocess

import pytest

BAD, USAGE = 1, 2
CHECKS = ["config", "secrets", "tls", "kernel", "cpu", "memory", "hugepages",
          "memlock", "files", "numa", "io_uring", "congestion", "ktls",
          "clock", "ntp", "gpu", "socket", "shared", "port", "disk"]


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

    def __call__(self, *args, files=None):
        """All that it says, by check; the exit code must go with it. files:
        so many may be open."""
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                            (files, files))) if files else None
        done = subprocess.run([self.larder.binary, "doctor", "--json",
                               *map(str, args)], cwd=self.larder.cwd,
                              capture_output=True, timeout=300, check=False,
                              preexec_fn=limit)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode in (0, BAD), done.stderr
        bad = [line for line in lines if line["verdict"] == "bad"]
        assert done.returncode == (BAD if bad else 0), lines
        for line in lines:
            assert line["verdict"] in ("ok", "warn", "bad", "skip")
            assert line["found"] and "\n" not in line["found"]
        return lines

    def one(self, check, *args, **more):
        lines = [x for x in self(*args, **more) if x["check"] == check]
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

def test_broken_config(doctor, tmp_path):
    file = write(tmp_path / "c", "# one\ndrram = 1G\n")
    line = doctor.one("config", "--config", file)
    assert line["verdict"] == "bad"
    assert line["found"].startswith(f"{file}:2: unknown key drram; did you")


def test_config_is_used(doctor, tmp_path):
    file = write(tmp_path / "c", f"dir = {tmp_path}/a\ndir = {tmp_path}/b\n"
                                 "sessions = 100\n[tenant x]\n")
    lines = doctor("--config", file)
    disks = [x["subject"] for x in lines if x["check"] == "disk"]
    assert disks == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert "2 directories, 2 tenants" in lines[0]["found"]
    assert sorted(os.listdir(tmp_path)) == ["c"]


def test_secrets(doctor, tmp_path):
    open_to_all = write(tmp_path / "open", "t")
    open_to_all.chmod(0o644)
    kept = write(tmp_path / "kept", "0123456789abcdef\n")
    kept.chmod(0o600)
    short = write(tmp_path / "short", "short\n")
    short.chmod(0o600)
    file = write(tmp_path / "c", f"[tenant a]\ntoken_file = {open_to_all}\n"
                                 f"[tenant b]\ntoken_file = {tmp_path}/none\n"
                                 f"[tenant c]\ntoken_file = {kept}\n"
                                 f"[tenant d]\ntoken_file = {short}\n")
    lines = [x for x in doctor("--config", file) if x["check"] == "secrets"]
    assert [x["verdict"] for x in lines] == ["bad"] * 3
    assert f"chmod o-rwx {open_to_all}" in lines[0]["found"]
    assert "tenant b" in lines[1]["found"] and "No such" in lines[1]["found"]
    assert "tenant d" in lines[2]["found"] and "not 5" in lines[2]["found"]
    file = write(tmp_path / "c", f"[tenant c]\ntoken_file = {kept}\n")
    assert doctor.one("secrets", "--config", file)["verdict"] == "ok"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_tls(doctor, tmp_path):
    for name in ("a", "b"):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                        f"{name}.key", "-out", f"{name}.crt", "-days", "1",
                        "-subj", "/CN=node"], cwd=tmp_path, check=True,
                       capture_output=True)

    def verdict(cert, key):
        file = write(tmp_path / "c", f"tls = on\ntls_cert = {tmp_path}/{cert}\n"
                                     f"tls_key = {tmp_path}/{key}\n")
        return doctor.one("tls", "--config", file)["verdict"]
    assert verdict("a.crt", "a.key") == "ok"
    assert verdict("a.crt", "b.key") == "bad"
    assert verdict("none.crt", "a.key") == "bad"


# ---- limits ----------------------------------------------------------------

def test_memory(doctor, monkeypatch):
    assert doctor.one("memory")["verdict"] in ("ok", "warn")
    monkeypatch.setenv("LARDER_DRAM", "16T")
    line = doctor.one("memory")
    assert line["verdict"] == "bad" and line["do"].startswith("--dram ")


def test_files(doctor, monkeypatch):
    monkeypatch.setenv("LARDER_SESSIONS", "4096")
    line = doctor.one("files", files=1024)
    assert line["verdict"] == "warn" and "LimitNOFILE=" in line["do"]
    monkeypatch.setenv("LARDER_SESSIONS", "10")
    assert doctor.one("files", files=1024)["verdict"] == "ok"


def test_numa(doctor, monkeypatch):
    if not os.path.isdir("/sys/devices/system/node/node0"):
        pytest.skip("no NUMA nodes to be seen")
    monkeypatch.setenv("LARDER_NUMA", "0")
    assert doctor.one("numa")["verdict"] == "ok"
    monkeypatch.setenv("LARDER_NUMA", "0,63")
    line = doctor.one("numa")
    assert line["verdict"] == "bad" and "'0,63'" in line["found"]


def test_io_uring(larder, doctor, monkeypatch):
    if "fault" not in larder("--version").out:
        pytest.skip("a build without fault points")
    monkeypatch.setenv("LARDER_FAULTS", "io_uring_denied:1:0")
    line = doctor.one("io_uring")
    assert line["verdict"] == "warn" and line["do"]
    assert "served by threads" in line["found"]
    monkeypatch.setenv("LARDER_IO", "uring")
    assert doctor.one("io_uring")["verdict"] == "bad"


def test_congestion(doctor, monkeypatch):
    monkeypatch.setenv("LARDER_CONGESTION", "nosuch")
    line = doctor.one("congestion")
    assert line["verdict"] == "warn" and "modprobe tcp_nosuch" in line["do"] \
        or line["verdict"] == "skip"


# ---- addresses -------------------------------------------------------------

def test_ports(doctor, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("LARDER_ADMIN", f"127.0.0.1:{port}")
        line = doctor.one("port")
        assert line["verdict"] == "bad" and "--admin" in line["do"]
        assert line["subject"] == f"127.0.0.1:{port}"
        assert f"process {os.getpid()}" in line["found"]
    line = doctor.one("port")
    assert line["verdict"] == "ok" and "free" in line["found"]
    monkeypatch.setenv("LARDER_ADMIN", "192.0.2.1:80")  # nobody's
    line = doctor.one("config")
    assert line["verdict"] == "bad" and "admin_open = on" in line["found"]
    monkeypatch.setenv("LARDER_ADMIN_OPEN", "on")
    assert doctor.one("port")["verdict"] == "bad"


def test_listen_addresses(doctor, monkeypatch):
    monkeypatch.setenv("LARDER_LISTEN", "127.0.0.1:0,localhost:0")
    ports = [x for x in doctor() if x["check"] == "port"]
    assert [x["verdict"] for x in ports] == ["skip", "ok", "ok"]
    assert [x["subject"] for x in ports[1:]] == ["127.0.0.1:0", "localhost:0"]


def test_socket(doctor, tmp_path, monkeypatch):
    path = tmp_path / "l.sock"
    assert doctor.one("socket")["found"].endswith(": free")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)
    line = doctor.one("socket")
    assert line["verdict"] == "ok" and f"process {os.getpid()}" in line["found"]
    server.close()
    assert "left behind" in doctor.one("socket")["found"]
    path.unlink()
    path.write_text("mine", encoding="utf-8")
    line = doctor.one("socket")
    assert line["verdict"] == "bad" and path.read_text("utf-8") == "mine"
    monkeypatch.setenv("LARDER_SOCKET", str(tmp_path / "new" / "s"))
    assert "made at start" in doctor.one("socket")["found"]
    monkeypatch.setenv("LARDER_SOCKET", str(tmp_path / "a" / "b" / "s"))
    line = doctor.one("socket")
    assert line["verdict"] == "bad" and "install -d" in line["do"]
    assert not (tmp_path / "new").exists() and not (tmp_path / "a").exists()


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
    assert line["verdict"] == "bad" and line["do"].startswith("sudo chown")


def test_read_only_mount(doctor):
    line = doctor.one("disk", "/proc/self")
    assert line["verdict"] == "bad"
