"""A build of Larder as the next one could be: one tier, one cause and two
statuses more, at the ends of their lists, and a daemon that says them. Made of
a copy of the sources, so that no source has to know of it; kept in
$LARDER_BUILD/next, and built again only where a source has changed."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = ("CMakeLists.txt", "scripts/install.cmake", "scripts/larder.pc.in",
           "include", "src")

# The numbers that the new ones get.
STATUS_MISS, STATUS_FAIL = 77, -77

# (file, what is there once, what comes in its place)
EDITS = (
    ("include/larder/larder.h",
     '"a failure that only a newer version knows")\n',
     '"a failure that only a newer version knows") \\\n'
     f'    X(LARDER_NEXT, {STATUS_MISS}, "next: not there") \\\n'
     f'    X(LARDER_E_NEXT, {STATUS_FAIL}, "next: failed")\n'),
    ("include/larder/larder.h",
     '    X(LARDER_CAUSE_OTHER, "other")',
     '    X(LARDER_CAUSE_OTHER, "other") X(LARDER_CAUSE_NEXT, "next")'),
    ("include/larder/larder.h",
     '    X(LARDER_TIER_PEER, "peer")',
     '    X(LARDER_TIER_PEER, "peer") X(LARDER_TIER_NEXT, "next")'),
    # What is absent, is so for the new reason and by the new status.
    ("src/wire/batch.c",
     "    ldr_put32(at, (uint32_t)row->status);\n"
     "    ldr_put32(at + 4, (uint32_t)row->cause);\n",
     "    bool absent = row->status == LARDER_MISS &&\n"
     "                  row->cause == LARDER_CAUSE_ABSENT;\n"
     "    ldr_put32(at, (uint32_t)(absent ? LARDER_NEXT : row->status));\n"
     "    ldr_put32(at + 4, (uint32_t)(absent ? LARDER_CAUSE_NEXT"
     " : row->cause));\n"),
    ("src/wire/batch.c",
     "    ldr_put16(at + 54, row->flags);\n",
     "    ldr_put16(at + 54, row->flags | 2 * LDR_LIST_PINNED);\n"),
    # A call fails with the new status.
    ("src/wire/wire.c",
     "    ldr_put32(at + 32, frame->arg);\n",
     "    ldr_put32(at + 32, (frame->flags & LDR_FRAME_REPLY) != 0 &&\n"
     "        frame->arg == (uint32_t)LARDER_E_TIER_OFF\n"
     "        ? (uint32_t)LARDER_E_NEXT : frame->arg);\n"),
    # All that is in dram is in the new tier.
    ("src/wire/batch.c",
     "size_t ldr_put_matched(uint8_t *at, const larder_match_t *m)\n{\n",
     "size_t ldr_put_matched(uint8_t *at, const larder_match_t *from)\n{\n"
     "    larder_match_t own = *from, *m = &own;\n"
     "    own.tier_chunks[LARDER_TIER_NEXT] = own.tier_chunks[0];\n"
     "    own.tier_bytes[LARDER_TIER_NEXT] = own.tier_bytes[0];\n"
     "    own.tier_chunks[0] = 0, own.tier_bytes[0] = 0;\n"
     "    if (own.cause == LARDER_CAUSE_ABSENT) {\n"
     "        own.cause = LARDER_CAUSE_NEXT;\n"
     "    }\n"),
    ("src/server/ops.c",
     "    ldr_reply(r, LARDER_OK, body, ldr_put_stats(body, &stats));\n",
     "    stats.misses[LARDER_CAUSE_NEXT] =\n"
     "        stats.misses[LARDER_CAUSE_ABSENT];\n"
     "    stats.misses[LARDER_CAUSE_ABSENT] = 0;\n"
     "    ldr_reply(r, LARDER_OK, body, ldr_put_stats(body, &stats));\n"),
)


def _files():
    for name in SOURCES:
        path = ROOT / name
        yield from (p for p in ([path] if path.is_file()
                                else path.rglob("*")) if p.is_file())


def _copy(tree):
    wanted = set()
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        data = path.read_bytes()
        for file, old, new in EDITS:
            if file == name:
                assert data.count(old.encode()) == 1, (
                    f"{name} has changed: tests/e2e/next_build.py looks for\n"
                    f"{old}")
                data = data.replace(old.encode(), new.encode())
        to = tree / name
        wanted.add(to)
        if not to.exists() or to.read_bytes() != data:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
    for path in [p for p in tree.rglob("*") if p.is_file()]:
        if path not in wanted:
            path.unlink()


def build():
    """The folder with bin/larder and lib/liblarder.so."""
    folder = pathlib.Path(os.environ["LARDER_BUILD"]).resolve() / "next"
    _copy(folder / "tree")
    commands = []
    if not (folder / "build/CMakeCache.txt").exists():
        commands.append(
            ["cmake", "-S", folder / "tree", "-B", folder / "build",
             "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O0 -w",
             "-DLARDER_TESTS=OFF", "-DLARDER_WERROR=OFF",
             "-DLARDER_BUILD_TYPE=next"])
    commands.append(["cmake", "--build", folder / "build", "--parallel",
                     os.environ.get("JOBS", str(os.cpu_count())),
                     "--target", "larder", "larder_program"])
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:]
    return folder / "build"
