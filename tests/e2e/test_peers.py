"""bench/peers: that it measures what it says, ends what it starts, and fails
when a store gives other bytes. Figures are not looked at: sizes are small and
times short."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as xml

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
SIZE, BYTES = 64 << 10, 4 << 20


def run(tmp_path, *args):
    build = os.environ["LARDER_BUILD"]
    return subprocess.run(
        [sys.executable, "-B", str(PEERS / "run.py"), "--sizes", "64K",
         "--bytes", "4M", "--seconds", "0.02", "--passes", "1", "--build",
         build, "--json", str(tmp_path / "figures"), "--svg",
         str(tmp_path / "plot.svg"), *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
        timeout=300, text=True, cwd=tmp_path)


@pytest.fixture(scope="session")
def stores():
    """Those that are installed here; Larder always is."""
    found = ["larder"]
    if shutil.which("redis-server") or shutil.which("valkey-server"):
        found.append("redis")
    if shutil.which("memcached"):
        found.append("memcached")
    if list((ROOT / "build/peers/venv").glob("lib/*/*/mooncake")):
        found.append("mooncake")
    return found


def is_sanitized():
    return any(word in os.environ["LARDER_BUILD"] for word in
               ("asan", "tsan"))


@pytest.mark.skipif(is_sanitized(), reason="links a plain program with "
                    "liblarder, which a sanitizer does not allow")
def test_a_run(tmp_path, stores):
    """Every store that is here, get and put, contents verified."""
    done = run(tmp_path, "--stores", ",".join(stores))
    if "mooncake" in stores and "NOT MEASURED: mooncake: it would" in \
            done.stderr:
        stores = [s for s in stores if s != "mooncake"]
    else:
        assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in
               (tmp_path / "figures").read_text().splitlines()]
    for store in stores:
        mine = [f for f in figures if f["store"] == store]
        ways = {f["by"] for f in mine}
        assert len(ways) == 2, f"{store}: {done.stderr}"
        assert len(mine) == 2 * len(ways)
        for f in mine:
            assert f["bytes"] == SIZE and f["value"] > 0
            assert f["rounds"] >= 3
            # One round that does not count, and each that does.
            assert f["verified"] == (f["rounds"] + 1) * BYTES
    copies = [f for f in figures if f["store"] == "copy"]
    assert {f["op"] for f in copies} == {"get", "put"}
    for title in {f["title"] for f in figures if "title" in f}:
        assert f"\n{title} " in done.stdout
    if len(stores) > 1:
        assert "larder shm is" in done.stdout
    plot = xml.parse(tmp_path / "plot.svg").getroot()
    bars = [r for r in plot.iter("{http://www.w3.org/2000/svg}rect")
            if r.find("{http://www.w3.org/2000/svg}title") is not None]
    assert len(bars) == len(figures) - len(copies)


@pytest.mark.skipif(is_sanitized(), reason="as above")
def test_a_store_that_is_missing_is_named(tmp_path):
    """Not measured is said, and is no success."""
    env = dict(os.environ, PATH=str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("cc", "ip", "unshare", "true", "as", "ld"):
        where = shutil.which(name)
        if where:
            (tmp_path / "bin" / name).symlink_to(where)
    done = subprocess.run(
        [sys.executable, "-B", str(PEERS / "run.py"), "--stores", "memcached",
         "--sizes", "64K", "--bytes", "1M", "--seconds", "0.02", "--passes",
         "1", "--build", os.environ["LARDER_BUILD"]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
        timeout=300, text=True, env=env)
    assert "NOT MEASURED: memcached: no memcached" in done.stderr
    assert done.returncode == 1


# ---- a store that lies -----------------------------------------------------

def lying_store(listener, wrong_at):
    """Speaks enough of redis: keeps values, and gives one byte wrong."""
    values = {}
    conn, _ = listener.accept()
    stream = conn.makefile("rwb")

    def argument():
        length = int(stream.readline()[1:])
        return stream.read(length + 2)[:-2]

    try:
        while True:
            line = stream.readline()
            if not line:
                return
            words = [argument() for _ in range(int(line[1:]))]
            if words[0] == b"SET":
                values[words[1]] = bytearray(words[2])
                stream.write(b"+OK\r\n")
            elif words[0] == b"DEL":
                stream.write(b":%d\r\n" % (words[1] in values))
                values.pop(words[1], None)
            else:
                value = bytearray(values[words[1]])
                if wrong_at is not None and words[1].endswith(b":3"):
                    value[wrong_at] ^= 1
                stream.write(b"$%d\r\n" % len(value) + bytes(value) + b"\r\n")
            stream.flush()
    except OSError:
        pass  # the other side had enough
    finally:
        conn.close()


@pytest.fixture(scope="session")
def peer_bench(tmp_path_factory):
    if is_sanitized():
        pytest.skip("as above")
    program = tmp_path_factory.mktemp("peers") / "peer_bench"
    lib = pathlib.Path(os.environ["LARDER_BUILD"]) / "lib"
    subprocess.run(
        ["cc", "-O1", "-std=gnu11", "-D_GNU_SOURCE", f"-I{PEERS}",
         f"-I{ROOT / 'include'}",
         *[str(PEERS / f"{n}.c") for n in (
             "peer_bench", "content", "conn", "peer_larder", "peer_redis",
             "peer_memcached")],
         "-o", str(program), f"-L{lib}", "-llarder", f"-Wl,-rpath,{lib}"],
        check=True)
    return program


@pytest.mark.parametrize("op", ["get", "put"])
@pytest.mark.parametrize("wrong_at", [None, 0, SIZE - 1])
def test_other_bytes_are_found(peer_bench, tmp_path, op, wrong_at):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        thread = threading.Thread(target=lying_store,
                                  args=(listener, wrong_at), daemon=True)
        thread.start()
        done = subprocess.run(
            [str(peer_bench), "redis", f"unix:{path}", op, str(SIZE),
             str(8 * SIZE), "4", "0"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=300, check=False, text=True)
        thread.join(10)
    if wrong_at is None:
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["verified"] == 4 * 8 * SIZE
    else:
        assert done.returncode == 1
        assert "redis gave other bytes for value 3" in done.stderr
        assert done.stdout == ""
