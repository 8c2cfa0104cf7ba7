"""The stores: how each is started, tuned, reached and ended."""
import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time

START_S = 30
STOP_S = 10
HERE = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def can_connect(where):
    """unix:PATH or tcp:PORT."""
    kind, to = where.split(":", 1)
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family) as s:
        try:
            s.connect(to if kind == "unix" else ("127.0.0.1", int(to)))
            return True
        except OSError:
            return False


class Way:
    """One way to reach one store. start() gives what the client is told."""
    store = by = ""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.title = f"{self.store} {self.by}"
        self.log = open(folder / f"{self.store}-{self.by}.log", "ab")
        self.processes = []

    def tail(self):
        text = pathlib.Path(self.log.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-8:])

    def server_env(self):
        return dict(os.environ, LD_PRELOAD=str(self.args.out / "cubic.so"))

    def client_env(self):
        return dict(os.environ)

    def launch(self, command, wait_for, env=None):
        """Starts a process of the store and waits until it listens."""
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, env=env or self.server_env(), cwd=self.folder)
        self.processes.append(process)
        end = time.monotonic() + START_S
        while not can_connect(wait_for):
            if process.poll() is not None or time.monotonic() > end:
                raise Failed(f"{self.title}: {command[0]} did not start\n"
                             f"{self.tail()}")
            time.sleep(0.05)

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []

    @contextlib.contextmanager
    def start(self, size):
        try:
            yield self.serve(size)
        finally:
            self.end()

    def room(self):
        """Bytes a store may take: nothing has to be evicted."""
        return 4 * self.args.bytes

    def client(self, where, op, size, args):
        return [str(args.out / "peer_bench"), self.store, where, op, str(size),
                str(args.bytes), str(args.batch), str(args.seconds)]


# ---- Larder ---------------------------------------------------------------

class Larder(Way):
    store = "larder"

    def serve(self, size):
        # On the node's own machine a client needs neither token nor TLS.
        path, port = self.folder / "larder.sock", free_port()
        self.launch(
            [os.path.join(self.args.build, "bin", "larder"), "serve",
             "--socket", str(path), "--listen", f"127.0.0.1:{port}",
             "--listen_open", "on",
             "--admin", "none", "--dram", str(self.room())],
            f"tcp:{port}")
        self.wait_resident(f"unix:{path}")
        return self.url(path, port)

    def wait_resident(self, url):
        """Its memory is made resident in the background: that is no part of
        what is measured."""
        program = os.path.join(self.args.build, "bin", "larder")
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            done = subprocess.run([program, "stat", url, "--json"],
                                  stdout=subprocess.PIPE, stderr=self.log,
                                  check=False)
            stat = json.loads(done.stdout or b"{}")
            if stat and stat["dram_resident_bytes"] >= stat["dram_bytes"]:
                return
            time.sleep(0.1)
        raise Failed(f"{self.title}: not resident in {START_S} s")

    @staticmethod
    def missing(args):
        program = os.path.join(args.build, "bin", "larder")
        done = subprocess.run([program, "serve", "--help"], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return "" if done.returncode == 0 else f"{program} has no serve"

    @staticmethod
    def ways(args, folder):
        return [LarderShm(args, folder), LarderTcp(args, folder)]


class LarderShm(Larder):
    by = "shm"

    def url(self, path, port):
        return f"unix:{path}"


class LarderTcp(Larder):
    by = "tcp"

    def url(self, path, port):
        # One connection, as redis and memcached have.
        return f"tcp://127.0.0.1:{port}?connections=1"


# ---- redis, valkey --------------------------------------------------------

class Redis(Way):
    store = "redis"

    @staticmethod
    def program():
        return shutil.which("valkey-server") or shutil.which("redis-server")

    def serve(self, size):
        path, port = self.folder / "redis.sock", free_port()
        # Its allocator keeps what was freed and uses it again, instead of
        # giving it back to the kernel: puts are three times as fast.
        env = dict(self.server_env(), MALLOC_CONF="dirty_decay_ms:-1,"
                   "muzzy_decay_ms:-1,lg_extent_max_active_fit:30")
        # No persistence; as redis.conf says, I/O threads only where there are
        # cores for them (one client does not gain by them).
        threads = max(1, min(4, (os.cpu_count() or 1) - 2))
        self.launch(
            [self.program(), "--port", str(port), "--bind", "127.0.0.1",
             "--unixsocket", str(path), "--dir", str(self.folder),
             "--save", "", "--appendonly", "no", "--daemonize", "no",
             "--io-threads", str(threads),
             "--client-output-buffer-limit", "normal 0 0 0"],
            f"unix:{path}", env)
        return f"unix:{path}" if self.by == "unix" else f"tcp:{port}"

    @staticmethod
    def missing(args):
        return "" if Redis.program() else "no valkey-server or redis-server"

    @staticmethod
    def ways(args, folder):
        return [RedisUnix(args, folder), RedisTcp(args, folder)]


class RedisUnix(Redis):
    by = "unix"


class RedisTcp(Redis):
    by = "tcp"


# ---- memcached ------------------------------------------------------------

class Memcached(Way):
    store = "memcached"

    def serve(self, size):
        path, port = self.folder / "memcached.sock", free_port()
        place = (["-s", str(path), "-a", "0700"] if self.by == "unix" else
                 ["-l", "127.0.0.1", "-p", str(port), "-U", "0"])
        where = f"unix:{path}" if self.by == "unix" else f"tcp:{port}"
        if path.exists():
            path.unlink()
        user = ["-u", "root"] if os.getuid() == 0 else []
        # Large items, threads as there are cores.
        self.launch(
            ["memcached", *place, *user, "-I", "8m",
             "-m", str(2 * self.room() >> 20),
             "-t", str(min(4, os.cpu_count() or 1))], where)
        return where

    @staticmethod
    def missing(args):
        return "" if shutil.which("memcached") else "no memcached"

    @staticmethod
    def ways(args, folder):
        return [MemcachedUnix(args, folder), MemcachedTcp(args, folder)]


class MemcachedUnix(Memcached):
    by = "unix"


class MemcachedTcp(Memcached):
    by = "tcp"


# ---- Mooncake's store -----------------------------------------------------

VENV = HERE.parents[1] / "build" / "peers" / "venv"


class Mooncake(Way):
    """A master, and a client that gives memory to the pool. The load generator
    is a second client, in another process as for all others."""
    store = "mooncake"

    @staticmethod
    def home():
        found = list(VENV.glob("lib/python3*/site-packages/mooncake"))
        return found[0] if found else None

    def server_env(self):
        return dict(super().server_env(), MC_TCP_ENABLE_CONNECTION_POOL="1",
                    LD_LIBRARY_PATH=str(self.home()), MC_LOG_LEVEL="ERROR")

    client_env = server_env

    def serve(self, size):
        rpc, meta, metrics, port = (free_port() for _ in range(4))
        metadata = f"http://127.0.0.1:{meta}/metadata"
        self.launch(
            [str(self.home() / "mooncake_master"), f"-rpc_port={rpc}",
             "-enable_http_metadata_server=true",
             "-http_metadata_server_host=127.0.0.1",
             f"-http_metadata_server_port={meta}",
             f"-metrics_port={metrics}"], f"tcp:{rpc}")
        self.launch(
            [str(self.home() / "mooncake_client"), "-host=127.0.0.1",
             f"-port={port}", f"-global_segment_size={self.room() >> 20}MB",
             f"-master_server_address=127.0.0.1:{rpc}",
             f"-metadata_server={metadata}", "-protocol=tcp",
             f"-threads={os.cpu_count()}"], f"tcp:{port}")
        return f"{rpc},{meta},{port}"

    def client(self, where, op, size, args):
        return [str(VENV / "bin" / "python"), "-B",
                str(HERE / "peer_mooncake.py"), self.by, where, op,
                str(size), str(args.bytes),
                str(args.batch), str(args.seconds),
                str(args.out / "content.so")]

    @staticmethod
    def missing(args):
        if not Mooncake.home():
            return "not installed: bench/peers/setup"
        if not os.environ.get("LARDER_PEERS_NETWORK"):
            return "it would listen on every address of this machine"
        return ""

    @staticmethod
    def ways(args, folder):
        return [MooncakeTcp(args, folder), MooncakeShm(args, folder)]


class MooncakeTcp(Mooncake):
    by = "tcp"


class MooncakeShm(Mooncake):
    """Its client of a client on the same host, by shared memory: the engine's
    buffers have to lie in memory that Mooncake allocated."""
    by = "shm"


ALL = {"larder": Larder, "redis": Redis, "memcached": Memcached,
       "mooncake": Mooncake}
