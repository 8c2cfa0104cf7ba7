#!/usr/bin/env python3
"""The Valkey back end of the shared tier beside redis-benchmark.

bench/shared/valkey.py [--build DIR] [--rounds N] [--seconds S]
                       [--connections N...] [--values "1 MiB"...]

Both move values of the same size by as many connections, to and from one
server on loopback, which keeps nothing on disk. They take turns, and of each
the best round counts: whatever else the machine does at a time slows down
either. Prints bytes per second and their ratio, as bench/results/shared.md has them.
"""
import argparse
import csv
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VALUES = 16  # of each connection, as in valkey.c
SIZES = {"256 KiB": 256 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}


def build(folder, build_dir):
    """valkey.c, linked with the library as it was built."""
    program = os.path.join(folder, "valkey")
    cache = (build_dir / "CMakeCache.txt").read_text()
    uring = ["-luring"] if "URING_INCLUDE:PATH=/" in cache else []
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-D_GNU_SOURCE=",
         "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "include"), "-I",
         str(ROOT / "src"), str(HERE / "valkey.c"), "-o", program,
         str(build_dir / "lib" / "liblarder_core.a"), "-lcrypto", *uring,
         "-lpthread", "-ldl", "-lm"], check=True)
    return program


def start_server(folder, port):
    # Debian's redis-tools has the server as redis-check-rdb: its name decides.
    program = next(filter(None, map(shutil.which, (
        "valkey-server", "redis-server", "redis-check-rdb"))))
    server = subprocess.Popen(
        ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "",
         "--appendonly", "no", "--dir", folder],
        executable=program, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.05)
    server.kill()
    raise SystemExit("the server did not start")


def benchmark(port, size, connections, seconds, speed):
    """redis-benchmark's bytes per second, SET and GET; speed: what to expect,
    for how many to ask for."""
    count = max(4 * connections, int(seconds * speed / size))
    done = subprocess.run(
        ["redis-benchmark", "-p", str(port), "-t", "set,get", "-d", str(size),
         "-c", str(connections), "-n", str(count), "-r",
         str(VALUES * connections), "--csv"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True)
    rows = {row[0]: float(row[1]) for row in csv.reader(
        done.stdout.splitlines()) if row[0] in ("SET", "GET")}
    return {"put": rows["SET"] * size, "get": rows["GET"] * size}


def ours(program, port, size, connections, seconds):
    return {what: float(subprocess.run(
        [program, f"valkey://127.0.0.1:{port}", what, str(size),
         str(connections), str(seconds)],
        check=True, stdout=subprocess.PIPE, text=True).stdout)
        for what in ("put", "get")}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path,
                        default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--values", nargs="*", choices=SIZES,
                        default=list(SIZES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder, args.build)
        port = free_port()
        server = start_server(folder, port)
        try:
            print("| value | connections | | Larder | redis-benchmark | ratio "
                  "|\n|---|---|---|---|---|---|")
            for name in args.values:
                for connections in args.connections:
                    measure(args, program, port, name, connections)
        finally:
            server.kill()
            server.wait()


def measure(args, program, port, name, connections):
    size, best = SIZES[name], {}
    for _ in range(args.rounds):
        theirs = benchmark(port, size, connections, args.seconds, 1e9)
        for who, got in (("them", theirs),
                         ("us", ours(program, port, size, connections,
                                     args.seconds))):
            for what, speed in got.items():
                best[who, what] = max(best.get((who, what), 0), speed)
    for what in ("put", "get"):
        us, them = best["us", what], best["them", what]
        print(f"| {name} | {connections} | {what} | {us / 1e9:.2f} GB/s | "
              f"{them / 1e9:.2f} GB/s | {us / them:.2f} |", flush=True)


main()
