"""The shared tier in real servers, through whole nodes: Redis (or Valkey) with
a password, with and without TLS; and, where LARDER_TEST_SHARED is set (`make
test-shared`), an S3 server."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from capi import E_DEADLINE, E_OFFLINE, MISS, OK, Node, found, put_some
from daemon import free_port, until

SHARED = 2  # LARDER_TIER_SHARED
SIZE = 60000
COUNT = 120
SECRET = "not-to-be-seen"
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Server:
    """One that keeps what it was given in its folder: it may be killed and
    started again."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir()
        self.port = free_port()
        self.process = None

    def start(self, *command, **options):
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=open(self.folder / "log", "ab"), stderr=subprocess.STDOUT,
            **options)

        def answers():
            assert self.process.poll() is None, self.log()
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", self.port)) == 0
        until(answers, text=self.log)

    def log(self):
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def login(self, text):
        path = self.folder / "login"
        path.write_text(text)
        path.chmod(0o600)
        return path


class Redis(Server):
    # Debian's redis-tools has the server as redis-check-rdb: its name decides.
    programs = ("valkey-server", "redis-server", "redis-check-rdb")

    def __init__(self, folder, tls):
        super().__init__(folder)
        self.options = {"shared_login": self.login(f"password={SECRET}\n"),
                        "shared": f"valkey://127.0.0.1:{self.port}"}
        self.ports = ["--port", str(self.port)]
        if tls:
            self.certificate()
            self.options["shared"] = (f"valkeys://127.0.0.1:{self.port}"
                                      f"?ca={folder}/cert.pem")
            self.ports = ["--port", "0", "--tls-port", str(self.port),
                          "--tls-cert-file", f"{folder}/cert.pem",
                          "--tls-key-file", f"{folder}/key.pem",
                          "--tls-ca-cert-file", f"{folder}/cert.pem",
                          "--tls-auth-clients", "no"]

    def certificate(self):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
             "/CN=larder", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
             self.folder / "key.pem", "-out", self.folder / "cert.pem"],
            check=True, capture_output=True)

    def up(self):
        program = next(filter(None, map(shutil.which, self.programs)))
        # What was answered for is on disk: kill -9 loses nothing of it.
        self.start("redis-server", "--bind", "127.0.0.1", *self.ports,
                   "--requirepass", SECRET, "--save", "", "--appendonly",
                   "yes", "--appendfsync", "always", "--dir",
                   str(self.folder), executable=program)
        return self


class Swift(Server):
    def __init__(self, folder, _):
        super().__init__(folder)
        self.options = {
            "shared_login": self.login("access_key=test:tester\n"
                                       f"secret_key={SECRET}\n"),
            "shared": f"s3://larder-test/kv?endpoint=http://127.0.0.1:"
                      f"{self.port}&region=us-east-1"}

    def up(self):
        self.start("/usr/bin/python3", "-B", "tests/tier/shared/s3_server.py",
                   str(self.folder), str(self.port), "larder-test",
                   "--conditional", f"--secret={SECRET}")
        return self


def has_redis():
    return any(map(shutil.which, Redis.programs))


@pytest.fixture(params=["redis", "redis-tls", "s3"])
def server(request, tmp_path):
    kind = request.param
    if kind == "s3" and "LARDER_TEST_SHARED" not in os.environ:
        pytest.skip("`make test-shared` has an S3 server")
    if kind != "s3" and not has_redis():
        pytest.skip("no redis-server: scripts/install-deps test")
    one = (Swift if kind == "s3" else Redis)(tmp_path / "server",
                                             kind.endswith("tls"))
    yield one.up()
    one.kill()


@pytest.fixture
def node(serve, server):
    def make(name, **options):
        given = {"shared_poll_ms": 100, "retry_ms": 200, "dram": "32M",
                 "shared_timeout_ms": 3000, "dirs": 0, **server.options,
                 **options}
        return serve(name=name, **given)
    return make


def all_there(node, count, name="k"):
    return all(node.exists(f"{name} {i}") == OK for i in range(count))


def is_on(daemon, operation):
    return daemon.metrics().sum("larder_shared_on", operation=operation) == 1


def save(node, server):
    """A node saves, is stopped, and nothing of it is left."""
    first = node("first", dirs=1)
    with Node(first.url()) as writer:
        until(lambda: is_on(first, "write"), text=first.log)
        put_some(writer, COUNT, SIZE)
        assert writer.flush(SHARED, 60000) == OK, writer.error()
    assert SECRET not in first.log()
    first.stop()
    shutil.rmtree(first.folder)


def test_cold_start(node, server):
    """What a node that is no more has saved another one gives: every byte."""
    save(node, server)
    second = node("second")
    with Node(second.url()) as reader:
        until(lambda: all_there(reader, COUNT), text=second.log)
        names = [f"k {i}" for i in range(COUNT)]
        assert reader.tiers(names) == (0, 0, COUNT)
        assert found(reader, COUNT, SIZE) == COUNT  # compares the bytes
        assert reader.tiers(names) == (COUNT, 0, 0)


def test_killed_and_back(node, server):
    """The server dies while it is read from: fewer hits and no error, and hits
    again once it is back."""
    save(node, server)
    second = node("second")
    with Node(second.url()) as reader, Node(second.url()) as other:
        until(lambda: all_there(reader, COUNT), text=second.log)
        assert found(reader, 20, SIZE) == 20
        end, wrong, loads = threading.Event(), [], [0]

        def load():
            while not end.is_set() and not wrong:
                try:
                    found(other, COUNT, SIZE)  # right, or not there
                    loads[0] += 1
                except AssertionError as e:
                    wrong.append(e)

        loader = threading.Thread(target=load)
        loader.start()
        try:
            server.kill()
            until(lambda: not is_on(second, "read"), text=second.log)
            # What is in DRAM still comes, what is new is taken.
            assert found(reader, 20, SIZE) == 20
            put_some(reader, 10, SIZE, "meanwhile")
            assert found(reader, 10, SIZE, "meanwhile") == 10
            assert reader.get("never saved")[0] == MISS
            before = loads[0]
            until(lambda: loads[0] > before or wrong)
            server.up()
            until(lambda: is_on(second, "write"), text=second.log)
        finally:
            end.set()
            loader.join()
        assert not wrong, wrong
        until(lambda: found(reader, COUNT, SIZE) == COUNT, text=second.log)
        assert reader.flush(SHARED, 60000) == OK, reader.error()
    with Node(node("third").url()) as cold:
        until(lambda: all_there(cold, 10, "meanwhile"))
        assert found(cold, 10, SIZE, "meanwhile") == 10


def is_idle(daemon):
    """Nobody waits for a disk, but who asks this."""
    return daemon.value("larder_jobs_running") <= 1


def test_reset_while_it_hangs(node, server):
    """The server does not answer: a reset ends by its deadline, in the daemon
    too, and the disks have it before anybody waits for the server."""
    daemon = node("one", dirs=1, shared_timeout_ms=60000)
    superblock = daemon.dirs[0] / "larder.super"
    with Node(daemon.url()) as first:
        until(lambda: is_on(daemon, "write"), text=daemon.log)
        put_some(first, 5, SIZE)
        server.process.send_signal(signal.SIGSTOP)
        assert first.reset(1000) in (E_DEADLINE, E_OFFLINE)
        until(lambda: is_idle(daemon), 30, "it still waits")
    with Node(daemon.url()) as second:
        put_some(second, 20, SIZE)
        assert second.flush() == OK
        before = superblock.stat().st_mtime_ns
        resetter = threading.Thread(target=second.reset, args=(50000,))
        resetter.start()
        try:
            until(lambda: superblock.stat().st_mtime_ns != before,
                  text="the disk has heard of nothing")
            time.sleep(0.5)  # until all of it is there
            assert not is_idle(daemon)
            daemon.kill()
        finally:
            resetter.join()
    daemon.given.update(shared=None, shared_login=None)
    daemon.start()
    with Node(daemon.url()) as third:
        assert found(third, 20, SIZE) == 0
