"""The binding against the header, and what it does on real nodes."""
import ast
import ctypes
import inspect
import json
import mmap
import pathlib
import random
import re
import shutil
import subprocess
from array import array
from ctypes import (Structure, c_char_p, c_int, c_size_t, c_uint16, c_uint32,
                    c_uint64, c_void_p)

import pytest

from conftest import BUILD, ROOT
from larder_kv import _lib
from larder_kv._lib import LarderError
from larder_kv._options import Options, names

_lib.library()  # which says how long some structures are
HEADER = (ROOT / "include/larder/larder.h").read_text()
PLAIN = re.sub(r"/\*.*?\*/", " ", HEADER, flags=re.S)
STRUCTURES = {name: one for name, one in vars(_lib).items()
              if inspect.isclass(one) and issubclass(one, Structure)
              and one is not Structure}


def c_name(name: str) -> str:
    """OpenParams: larder_open_params."""
    return "larder" + re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name)


# ---- the header ----


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, int]:
    """What the compiler says of the header: sizes, offsets, constants."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler"
    lines = []
    for name, one in STRUCTURES.items():
        c = c_name(name) + "_t"
        lines.append(f'P("{name}", sizeof({c}));')
        for field in one._fields_:
            where = f"{name}.{field[0]}"
            lines.append(f'P("{where}", offsetof({c}, {field[0]}));')
            lines.append(f'P("{where} size", sizeof((({c} *)0)->{field[0]}));')
    constants = [n for n in vars(_lib) if re.match("E_[A-Z]+$", n)]
    constants += ["OK", "PRESENT", "MISS", "KEY_BYTES", "SHARDS_MAX",
                  "RULE_ALL", "RULE_TRAILING", "RULE_LAST", "HINT_CLASS",
                  "HINT_CLOSED", "HINT_TEMPLATE", "HINT_OVER", "PUT_ANNOUNCED",
                  "PUT_PIN", "OP_PUT", "OP_GET", "OP_EXISTS", "OP_REMOVE",
                  "BATCH_MAX", "VALUE_MAX"]
    counts = ["CAUSE_COUNT", "TIER_COUNT"]
    lines += [f'P("{n}", LARDER_{n});' for n in constants + counts]
    text = ('#include <stdio.h>\n#include "larder/larder.h"\n'
            '#define P(n, v) printf("%s=%lld\\n", n, (long long)(v))\n'
            "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
    folder = tmp_path_factory.mktemp("c")
    (folder / "p.c").write_text(text)
    subprocess.run([compiler, "-I", str(ROOT / "include"), "-o",
                    str(folder / "p"), str(folder / "p.c")], check=True)
    out = subprocess.run([str(folder / "p")], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    return {n: int(v) for n, v in (x.split("=") for x in out.splitlines())}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure(compiled, name):
    one = STRUCTURES[name]
    assert ctypes.sizeof(one) == compiled[name]
    for field in one._fields_:
        mine = getattr(one, field[0])
        there = f"{name}.{field[0]}"
        assert (mine.offset, mine.size) == (
            compiled[there], compiled[f"{there} size"]), there


def c_fields(name: str) -> list[str]:
    body = re.search(rf"struct {name} \{{(.*?)\}} {name}_t;", PLAIN, re.S)
    assert body, f"the header has no {name}"
    found = []
    for statement in body[1].split(";"):
        for part in statement.split(","):
            word = re.search(r"(\w+)\s*(?:\[[^]]*\])?\s*$", part)
            found += [word[1]] if word else []
    return found


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_has_every_field(name):
    """Also of those that fit into padding, which no size would tell."""
    assert ([f[0] for f in STRUCTURES[name]._fields_]
            == c_fields(c_name(name)))


def test_constants(compiled):
    for name in compiled:
        if hasattr(_lib, name) and name.isupper():
            assert getattr(_lib, name) == compiled[name], name
    for words, kind in ((_lib.CAUSES, "CAUSE"), (_lib.TIERS, "TIER")):
        assert len(words) == compiled[f"{kind}_COUNT"]
        assert list(words) == re.findall(rf'X\(LARDER_{kind}_\w+, "(\w+)"\)',
                                         HEADER)


KINDS = {"uint16_t": c_uint16, "uint32_t": c_uint32, "uint64_t": c_uint64,
         "size_t": c_size_t, "int": c_int, "larder_status_t": c_int,
         "larder_cause_t": c_int, "larder_tier_t": c_int,
         "larder_op_t": c_int, "larder_handoff_t": c_int,
         "larder_team_fn": c_void_p}


def is_pointer(kind) -> bool:
    return kind in (c_char_p, c_void_p) or hasattr(kind, "contents")


@pytest.mark.parametrize("name", _lib._SIGNATURES)
def test_signature(name):
    found = re.search(rf"LARDER_API ([\w \n*]*?)\b{name}\(([^)]*)\);", PLAIN)
    assert found, "the header has no such function"
    function = getattr(_lib.library(), name)
    returned = found[1].strip()
    if returned == "void":
        assert function.restype is None
    elif "*" in returned:
        assert is_pointer(function.restype)
    else:
        assert function.restype is KINDS[returned]
    words = [" ".join(p.split()) for p in found[2].split(",")]
    words = [] if words == ["void"] else words
    assert len(words) == len(function.argtypes), words
    for text, mine in zip(words, function.argtypes):
        if "*" in text or "[" in text:
            assert is_pointer(mine), text
        else:
            assert mine is KINDS[text.rsplit(" ", 1)[0]], text


def test_calls_release_the_gil():
    assert not isinstance(_lib.library(), ctypes.PyDLL)


# ---- memory ----

BLOCK, CHUNK, BLOCKS = 16, 32, 24
PAGE, LAYERS = 192, 3


class Pages:
    """An engine's KV memory: LAYERS layers of BLOCKS pages, and the same
    place once more for each further group."""

    def __init__(self, groups=((_lib.RULE_ALL, 0),)):
        self.map = mmap.mmap(-1, PAGE * LAYERS * BLOCKS)
        self._view = (ctypes.c_char * len(self.map)).from_buffer(self.map)
        base = ctypes.addressof(self._view)
        region = _lib.Region(b"kv", base, len(self.map))
        layers = (_lib.Layer * LAYERS)(*(
            (b"layer.%d" % i, 0, i * PAGE * BLOCKS, PAGE, PAGE)
            for i in range(LAYERS)))
        self.layout = _lib.Layout(
            CHUNK, [_lib.Group(rule, BLOCK, window, layers, LAYERS)
                    for rule, window in groups], [region], BLOCKS)

    def block(self, number: int) -> bytes:
        return b"".join(
            self.map[at:at + PAGE] for at in
            ((i * BLOCKS + number) * PAGE for i in range(LAYERS)))

    def fill(self, seed: int) -> None:
        self.map[:] = random.Random(seed).randbytes(len(self.map))

    def close(self) -> None:
        self.layout.close()
        del self._view
        self.map.close()


def tokens_of(seed: int, count: int) -> array:
    return array("I", random.Random(seed).choices(range(2048), k=count))


def move_of(keys: _lib.Keys, tables: list[array], end: int, begin: int = 0,
            first: int = 0, **more) -> _lib.Move:
    """Of tables that begin at the block of token begin."""
    made = (_lib.Table * len(tables))(
        *((ids.buffer_info()[0], begin // BLOCK, len(ids))
          for ids in tables))
    move = _lib.Move(keys=keys.data(first, keys.count), tables=made,
                     first_key=first, begin=begin, end=end, writers=1,
                     timeout_ms=20000, **more)
    move.ids = tables  # stay as long as it does
    return move


@pytest.fixture(params=["embed", "unix", "tcp"])
def node(request):
    if request.param == "embed":
        one = _lib.Node("embed:?dram=16M")
    else:
        daemon = request.getfixturevalue("daemon")
        one = _lib.Node(daemon.url(request.param))
    yield one
    one.close()


@pytest.fixture
def space(node):
    one = node.space(b"a model", 1, CHUNK)
    yield one
    one.close()


@pytest.fixture
def pages():
    one = Pages()
    yield one
    one.close()


def test_announce(space, pages):
    keys = _lib.Keys()
    space.chain(tokens_of(2, 3 * CHUNK), keys)
    hint = 2 | _lib.HINT_CLOSED | _lib.HINT_TEMPLATE
    space.announce(keys.data(0, 3), 3, 3 * CHUNK, hint, request=7)
    space.announce(keys.data(0, 3), 3, hint=_lib.HINT_OVER)
    with pytest.raises(LarderError) as caught:
        space.announce(keys.data(0, 3), 3, hint=32)
    assert caught.value.status == _lib.E_INVALID
    assert "LARDER_HINT_" in str(caught.value)


def test_save_match_stage_load(node, space, pages):
    tokens, keys = tokens_of(1, 4 * CHUNK + 5), _lib.Keys()
    space.chain(tokens, keys)
    assert keys.count == 4 and len(keys.data(0, 4)) == 4 * _lib.KEY_BYTES
    none = space.match(pages.layout, keys.data(0, 4), 4, 20000)
    assert (none.chunks, _lib.CAUSES[none.cause]) == (0, "absent")
    lease, none = space.stage(pages.layout, keys.data(0, 4), 4, 20000)
    assert lease is None and none.chunks == 0

    pages.fill(1)
    source = array("I", [3, 9, 1, 2, 20, 11, 5, 6])
    saved = [pages.block(b) for b in source]
    move = move_of(keys, [source], 4 * CHUNK)
    assert space.save(pages.layout, move) == _lib.OK
    assert (move.shards, move.present, move.failed) == (4, 0, 0)
    assert move.bytes == 8 * PAGE * LAYERS == 4 * pages.layout.bytes(0)
    again = move_of(keys, [source], 4 * CHUNK)
    assert space.save(pages.layout, again) == _lib.OK
    assert (again.shards, again.present) == (0, 4)

    found = space.match(pages.layout, keys.data(0, 4), 4, 20000)
    assert found.chunks == 4
    assert found.tier_bytes[0] == move.bytes
    lease, staged = space.stage(pages.layout, keys.data(0, 4), 4, 20000)
    assert staged.chunks == 4
    target = array("I", [7, 8, 10, 12, 13, 14, 15, 16])
    pages.fill(2)
    before = {b: pages.block(b) for b in range(BLOCKS)}
    load = move_of(keys, [target], 4 * CHUNK)
    assert space.load(pages.layout, load) == _lib.OK
    lease.release()
    lease.release()  # once more does nothing
    assert [pages.block(b) for b in target] == saved
    for b in set(range(BLOCKS)) - set(target):
        assert pages.block(b) == before[b], "a block that was not asked for"
    stats = node.stats()
    assert stats.dram_leased_chunks == 0
    assert stats.dram_bytes > 0
    assert stats.saves_stored == 4


def test_load_of_the_end_only(space, pages):
    """Tokens before begin are there: only later blocks are written."""
    keys = _lib.Keys()
    space.chain(tokens_of(2, 4 * CHUNK), keys)
    pages.fill(3)
    ids = array("I", range(1, 9))
    saved = [pages.block(b) for b in ids]
    assert space.save(pages.layout,
                      move_of(keys, [ids], 4 * CHUNK)) == _lib.OK
    pages.fill(4)
    begin = 3 * BLOCK  # in the middle of a chunk
    first = begin // CHUNK
    before = [pages.block(b) for b in ids]
    load = move_of(keys, [ids[3:]], 4 * CHUNK, begin, first)
    assert space.load(pages.layout, load) == _lib.OK
    assert [pages.block(b) for b in ids] == before[:3] + saved[3:]


def test_hybrid_groups_on_one_memory(space):
    """A window of 20 tokens needs the last two blocks of a prefix; the null
    block stands for what was freed."""
    pages = Pages(((_lib.RULE_ALL, 0), (_lib.RULE_TRAILING, 20)))
    keys = _lib.Keys()
    space.chain(tokens_of(3, 3 * CHUNK), keys)
    pages.fill(5)
    full = array("I", [1, 2, 3, 4, 5, 6])
    window = array("I", [0, 0, 0, 10, 11, 12])
    kept = [pages.block(b) for b in window[4:]]
    move = move_of(keys, [full, window], 3 * CHUNK)
    assert space.save(pages.layout, move) == _lib.OK
    assert (move.shards, move.skipped, move.item) == (4, 2, _lib.OK)
    found = space.match(pages.layout, keys.data(0, 3), 3, 20000)
    assert found.chunks == 3, "the middle needs no window of its own"
    assert space.match(pages.layout, keys.data(0, 2), 2, 20000).chunks == 0
    pages.fill(6)
    window = array("I", [0, 0, 0, 0, 21, 22])
    load = move_of(keys, [full, window], 3 * CHUNK)
    assert space.load(pages.layout, load) == _lib.OK
    assert [pages.block(b) for b in window[4:]] == kept
    pages.close()


def test_fetch_and_place(space, pages):
    """A prefix copied into memory of its own, and from there into pages."""
    keys = _lib.Keys()
    space.chain(tokens_of(4, 2 * CHUNK), keys)
    pages.fill(7)
    ids = array("I", [4, 3, 2, 1])
    saved = [pages.block(b) for b in ids]
    assert space.save(pages.layout,
                      move_of(keys, [ids], 2 * CHUNK)) == _lib.OK
    data = keys.data(0, 2)
    lease, staged = space.stage(pages.layout, data, 2, 20000)
    size = 4 * PAGE * LAYERS
    with pytest.raises(LarderError, match="to fetch"):
        space.fetch(pages.layout, lease, data, staged.chunks, 20000, size - 1)
    memory = space.fetch(pages.layout, lease, data, staged.chunks, 20000,
                         1 << 20)
    lease.release()
    pages.fill(8)
    target = array("I", [20, 21, 22, 23])
    move = move_of(keys, [target], 2 * CHUNK)
    assert space.place(pages.layout, move, memory.path) == _lib.OK
    memory.close()
    assert [pages.block(b) for b in target] == saved


# ---- chains ----


def test_chain_goes_on(space):
    """In pieces it is what it is as a whole."""
    tokens = tokens_of(5, 6 * CHUNK)
    whole, pieces = _lib.Keys(), _lib.Keys()
    space.chain(tokens, whole)
    for first, end in ((0, 1), (1, 4), (4, 6)):
        space.chain(tokens[first * CHUNK:end * CHUNK], pieces)
    assert pieces.data(0, 6) == whole.data(0, 6)
    space.chain(tokens[:CHUNK - 1], pieces)
    assert pieces.count == 6, "no full chunk"


def test_chain_extra(space):
    """Extra bytes of a chunk change its key and all that follow."""
    tokens = tokens_of(6, 3 * CHUNK)
    found = []
    for extra in (None, [b"", b"x", b""], [b"", b"y", b""]):
        keys = _lib.Keys()
        space.chain(tokens, keys, extra)
        found.append([keys.data(i, i + 1) for i in range(3)])
    plain, x, y = found
    assert x[0] == y[0]
    assert len({*plain, *x[1:], *y[1:]}) >= 7
    assert not set(x[1:]) & set(y[1:])


def test_spaces_are_apart(node, pages):
    """By descriptor, by the number of shards, and by the chunk."""
    keys, tokens = [], tokens_of(7, 2 * CHUNK)
    for name, shards, chunk in ((b"a", 1, CHUNK), (b"b", 1, CHUNK),
                                (b"a", 2, CHUNK), (b"a", 1, 2 * CHUNK)):
        space = node.space(name, shards, chunk)
        one = _lib.Keys()
        space.chain(tokens, one)
        assert one.count == 2 * CHUNK // chunk
        keys.append(one.data(0, 1))
        space.close()
    assert len(set(keys)) == 4


def test_shards_complete_a_chunk(node, pages):
    """A chunk of two shards is there when both are."""
    space = node.space(b"two ranks", 2, CHUNK)
    keys = _lib.Keys()
    space.chain(tokens_of(8, CHUNK), keys)
    ids = array("I", [1, 2])
    for shard, chunks in ((1, 0), (0, 1)):
        move = move_of(keys, [ids], CHUNK, shard=shard)
        assert space.save(pages.layout, move) == _lib.OK
        assert (move.shards, move.failed) == (1, 0)
        assert space.match(pages.layout, keys.data(0, 1), 1,
                           20000).chunks == chunks
    space.close()


def test_reset_drops_this_space_only(node, pages):
    ids, keys = array("I", [1, 2]), {}
    spaces = {name: node.space(name, 1, CHUNK) for name in (b"a", b"b")}
    for name, space in spaces.items():
        keys[name] = _lib.Keys()
        space.chain(tokens_of(9, CHUNK), keys[name])
        assert space.save(pages.layout,
                          move_of(keys[name], [ids], CHUNK)) == _lib.OK
    spaces[b"a"].reset()
    for name, chunks in ((b"a", 0), (b"b", 1)):
        assert spaces[name].match(pages.layout, keys[name].data(0, 1), 1,
                                  20000).chunks == chunks
        spaces[name].close()


# ---- errors ----


def test_errors_have_the_words_of_the_library():
    with pytest.raises(LarderError, match="write embed:DIR") as caught:
        _lib.Node("nowhere")
    assert caught.value.status == _lib.E_INVALID
    with pytest.raises(LarderError, match="is `larder serve` running") as e:
        _lib.Node("unix:/nonexistent/larder.sock", lambda *_: None)
    assert e.value.status == _lib.E_OFFLINE
    with pytest.raises(LarderError, match="did you mean timeout_ms"):
        _lib.Node("unix:/x?timout_ms=1")


def test_layout_errors_name_the_layer():
    memory = (ctypes.c_char * 1000)()
    region = _lib.Region(b"kv", ctypes.addressof(memory), 1000)
    layers = (_lib.Layer * 1)((b"layers.7", 0, 8, 100, 100))
    with pytest.raises(LarderError, match=r"layers\.7"):
        _lib.Layout(CHUNK, [_lib.Group(_lib.RULE_ALL, BLOCK, 0, layers, 1)],
                    [region], 10)
    with pytest.raises(LarderError, match="chunk"):
        _lib.Layout(CHUNK + 1, [_lib.Group(_lib.RULE_ALL, BLOCK, 0)])


def test_log_lines_arrive(tmp_path):
    lines = []
    with pytest.raises(LarderError):
        _lib.Node(f"unix:{tmp_path}/none", lambda *a: lines.append(a))
    assert lines and "cannot connect" in lines[0][1]
    assert lines[0][0] == 1  # a warning


def test_closed_handles():
    node = _lib.Node("embed:?dram=16M")
    node.close()
    node.close()
    with pytest.raises(LarderError):
        node.stats()


def test_library_of_another_version(tmp_path, monkeypatch):
    """One that lacks a function is refused with one line."""
    source = tmp_path / "old.c"
    source.write_text("int larder_open(void) { return 0; }\n")
    old = tmp_path / "liblarder.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", old, source], check=True)
    monkeypatch.setenv("LARDER_LIBRARY", str(old))
    monkeypatch.setattr(_lib, "_library", None)
    with pytest.raises(LarderError, match="another version.*install") as e:
        _lib.library()
    assert e.value.status == _lib.E_VERSION
    assert "\n" not in str(e.value)


def test_a_library_with_other_structures(monkeypatch):
    """Found before anything is called with structures that do not fit."""
    monkeypatch.setattr(_lib, "_library", None)
    monkeypatch.setattr(_lib, "ABI", _lib.ABI + 1)
    with pytest.raises(LarderError, match="another version.*interface") as e:
        _lib.library()
    assert e.value.status == _lib.E_VERSION


# ---- options ----


def table() -> list[dict]:
    out = subprocess.run([BUILD / "bin/larder", "options", "--json"],
                         check=True, stdout=subprocess.PIPE).stdout
    return [o for o in map(json.loads, out.splitlines())
            if "connector" in o["where"]]


def test_options_are_the_table():
    rows = table()
    assert [o["name"] for o in rows] == names()
    assert set(names()) == set(Options.__annotations__)
    for o in rows:
        text = Options.__annotations__[o["name"]] == "str"
        assert text == (o["kind"] in ("TEXT", "ENUM")), o["name"]


def test_option_defaults():
    plain = Options()
    for o in table():
        value = getattr(plain, o["name"])
        if isinstance(value, str):
            assert value == o["default"]
        else:
            assert value == getattr(Options({o["name"]: o["default"]}),
                                    o["name"])
    assert plain.node_ssd == 4 << 30


def test_every_option_can_be_set():
    given = {"url": "tcp://a:1", "secret_file": "/c d", "chunk": 512,
             "weights": "v 2", "pod": "p", "pages": "rank", "lookup_ms": 7,
             "page_tokens": 16, "events_ownership": "off",
             "load": "always", "load_ms": "8",
             "load_threads": 3, "save": "prompt",
             "save_ms": 9, "save_threads": "16", "node_dram": "2G",
             "node_dram_start": "1M", "node_ssd": 0, "node_dir": "/a b",
             "node_idle_s": 5}
    assert set(given) == set(names())
    options = Options(given)
    for name, value in given.items():
        wanted = {"load_ms": 8, "node_dram": 2 << 30,
                  "node_dram_start": 1 << 20}.get(name, value)
        assert getattr(options, name) == wanted, name
    assert Options({"lookup_ms": None}).lookup_ms == Options().lookup_ms


@pytest.mark.parametrize("given, hint", [
    ({"lookup": 1}, "did you mean lookup_ms?"),
    ({"lod_threads": 1}, "did you mean load_threads?"),
    ({"node-dram": 1}, "did you mean node_dram?"),
    ({"nothing_like_it": 1}, "`larder options` lists them"),
    ({"dram": "4G"}, "unknown option 'dram'"),
    ({"load_threads": 0}, "1 to 64"),
    ({"load_threads": 65}, "1 to 64"),
    ({"load_ms": -1}, "load_ms"),
    ({"load": "sometimes"}, "auto, always or never"),
    ({"save": True}, "all, prompt or never"),
    ({"save_threads": 17}, "write 0 to 16, or auto"),
    ({"save_threads": "some"}, "write 0 to 16, or auto"),
    ({"node_dram": "4X"}, "node_dram"),
    ({"chunk": 70000}, "0 to 65536"),
    ({"url": "x" * 300}, "0 to 255"),
    ({"url": ["unix:/a"]}, "a text or a number is wanted"),
    ({"url": "unix:/a\0b"}, "NUL"),
])
def test_bad_options(given, hint):
    with pytest.raises(LarderError) as caught:
        Options(given)
    text = str(caught.value)
    assert text.startswith("larder: kv_connector_extra_config: ")
    assert hint in text and "\n" not in text
    assert caught.value.status == _lib.E_INVALID


def test_package_compiles():
    """Every file, for the oldest Python that the package names."""
    for path in pathlib.Path(ROOT / "python").rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 80, f"{path}:{number}"
