#!/usr/bin/env python3
"""How a node may find what a shared tier holds: manifests that it follows, or
probes when a request arrives; and what sealing records costs. Prints what
docs/concepts/shared.md repeats.

bench/shared/run.py [--chunks N] [--dir DIR] [--build DIR] [--no-cold]

Writes a file for every 32 chunks below DIR and removes them again. Cold figures
need root: they empty the kernel's caches. Redis is measured where it is
installed, on a server of its own.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def build(folder, build_dir):
    """The program, linked with the library as it was built."""
    program = os.path.join(folder, "finding")
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-D_GNU_SOURCE=",
         "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "include"), "-I",
         str(ROOT / "src"), str(HERE / "finding.c"), "-o", program,
         str(build_dir / "lib/liblarder_core.a"), "-lcrypto", "-lpthread",
         "-ldl"] + uring(), check=True)
    return program


def uring():
    """liburing, if it is not in the archive's reach otherwise."""
    found = subprocess.run(["sh", "-c", "echo 'int main(void){return 0;}' | "
                            "cc -xc - -luring -o /dev/null"],
                           stderr=subprocess.DEVNULL, check=False)
    return ["-luring"] if found.returncode == 0 else []


def redis(program, folder, chunks):
    if shutil.which("redis-server") is None:
        print("no redis-server here")
        return
    path = os.path.join(folder, "redis.sock")
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", path, "--save", "",
         "--appendonly", "no", "--dir", folder], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if os.path.exists(path):
                break
            time.sleep(0.1)
        subprocess.run([program, "write-redis", path, chunks], check=True)
        info = subprocess.run(["redis-cli", "-s", path, "info", "memory"],
                              stdout=subprocess.PIPE, text=True, check=True)
        print(next(line for line in info.stdout.splitlines()
                   if line.startswith("used_memory_human")))
        subprocess.run([program, "probe-redis", path, chunks], check=True)
    finally:
        server.terminate()
        server.wait()


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--chunks", type=int, default=10_000_000)
    p.add_argument("--dir", help="where to write; a temporary one")
    p.add_argument("--build", type=pathlib.Path,
                   default=ROOT / "build/release")
    p.add_argument("--no-cold", action="store_true")
    args = p.parse_args()
    chunks = str(args.chunks)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        program = build(folder, args.build)
        manifests = os.path.join(folder, "m")
        names = os.path.join(folder, "o")

        def step(*words):
            print("--", *(os.path.basename(w) for w in words), flush=True)
            subprocess.run([program, *words], check=True)

        step("seal")
        step("write-manifests", manifests, chunks)
        step("read-manifests", manifests)
        step("write-names", names, chunks)
        step("probe-names", names, chunks,
             "warm" if args.no_cold else "cold")
        redis(program, folder, chunks)


if __name__ == "__main__":
    main()
