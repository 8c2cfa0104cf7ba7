"""The Python API on real nodes: embedded, by shared memory, by TCP. Arrays of
numpy and tensors of torch are in tests/vllm/surface_client.py."""
import array
import mmap
import os
import pathlib
import random
import re
import subprocess
import sys
import threading

import pytest

import larder_kv
from conftest import ROOT
from daemon import until
from larder_kv import _lib

CHUNK, SIZE = 32, 70000
MANUAL = (ROOT / "docs/reference/python.md").read_text()


def tokens_of(seed, chunks):
    return random.Random(seed).choices(range(50000), k=chunks * CHUNK)


def values_of(seed, count):
    return [random.Random(f"{seed} {i}").randbytes(SIZE) for i in range(count)]


@pytest.fixture(params=["embed", "unix", "tcp"])
def node(request):
    url = "embed:?dram=64M"
    if request.param != "embed":
        url = request.getfixturevalue("daemon").url(request.param)
    with larder_kv.open(url) as one:
        yield one


@pytest.fixture
def space(node):
    with node.space("a model", chunk_tokens=CHUNK) as one:
        yield one


# ---- chains ----


def test_a_chain_is_a_sequence(space):
    tokens = tokens_of(1, 5)
    chain = space.chain(tokens + [7])  # the rest fills no chunk
    assert len(chain) == 5 and chain.first == 0
    assert all(len(key) == 32 for key in chain) and len(set(chain)) == 5
    assert chain[-1] == chain[4] and list(chain[1:3]) == [chain[1], chain[2]]
    assert chain[1:][1:].first == 2 and len(chain[3:1]) == 0
    assert chain[2:] == space.chain(tokens)[2:] != chain[1:]
    with pytest.raises(IndexError):
        chain[5]
    with pytest.raises(ValueError, match="gaps"):
        chain[::2]


def test_a_chain_goes_on(space):
    tokens = tokens_of(1, 5)
    whole = space.chain(tokens)
    begun = space.chain(tokens[:2 * CHUNK])
    assert space.chain(tokens[2 * CHUNK:], after=begun) == whole
    assert space.chain(tokens[2 * CHUNK:], after=whole[:2]) == whole
    assert space.chain([], after=whole[:2]) == whole[:2]


@pytest.mark.parametrize("kind", [
    tuple, iter, lambda t: array.array("I", t), lambda t: array.array("q", t),
    lambda t: memoryview(array.array("I", t))])
def test_tokens_of_any_kind(space, kind):
    tokens = tokens_of(2, 2)
    assert space.chain(kind(tokens)) == space.chain(tokens)


def test_a_token_that_is_none(space):
    for bad in ([-1] * CHUNK, [1 << 32] * CHUNK, array.array("q", [-1])):
        with pytest.raises(OverflowError):
            space.chain(bad)


def test_what_else_names_a_chunk(node, space):
    tokens = tokens_of(3, 2)
    plain = space.chain(tokens)
    assert space.chain(tokens, salt=b"x")[0] != plain[0]
    other = space.chain(tokens, extra=[b"", b"image"])
    assert other[0] == plain[0] and other[1] != plain[1]
    with pytest.raises(ValueError, match="1 entries, for 2 chunks"):
        space.chain(tokens, extra=[b""])
    with node.space(b"another model", chunk_tokens=CHUNK) as another:
        assert another.chain(tokens)[0] != plain[0]


# ---- bytes ----


def test_put_match_get(space):
    chain = space.chain(tokens_of(4, 4))
    values = values_of(4, 4)
    assert space.match(chain)[:2] == (0, "absent")
    assert space.put(chain[:3], values[:3]) == [larder_kv.Status.OK] * 3
    assert space.put(chain[:1], values[3:]) == [larder_kv.Status.PRESENT]
    found = space.match(chain)
    assert (found.chunks, found.cause) == (3, "absent")
    assert found.tier_chunks["dram"] == 3 and found.load_seconds > 0
    assert found.tier_bytes["dram"] >= 3 * SIZE
    assert space.exists(chain) == [True, True, True, False]
    room = [bytearray(SIZE + 5) for _ in chain]
    got = space.get(chain, room)
    assert [one.hit for one in got] == [True, True, True, False]
    assert got[0] == (larder_kv.Status.OK, "none", SIZE)
    assert got[3].status == larder_kv.Status.MISS and got[3].cause == "absent"
    assert [bytes(one[:SIZE]) for one in room[:3]] == values[:3]
    assert space.remove(chain[2:]) == 1
    assert space.match(chain).chunks == 2
    space.reset()
    assert space.match(chain).chunks == 0


def test_memory_of_any_kind(space, tmp_path):
    """Nothing is copied on the way: what is given is read and written."""
    [value] = values_of(5, 1)
    (tmp_path / "file").write_bytes(value)
    with open(tmp_path / "file", "rb") as file, mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for seed, given in enumerate([
                value, bytearray(value), memoryview(value), mapped,
                memoryview(value).cast("H"),
                [value[:100], bytearray(value[100:])]]):
            chain = space.chain(tokens_of(100 + seed, 1))
            assert space.put(chain, [given]) == [larder_kv.Status.OK]
            parts = bytearray(77), array.array("Q", bytes(SIZE - SIZE % 8))
            [got] = space.get(chain, [parts])
            assert got.hit
            assert (bytes(parts[0]) + parts[1].tobytes())[:SIZE] == value
            del got


def test_a_buffer_is_free_afterwards(space):
    chain = space.chain(tokens_of(6, 1))
    given = bytearray(SIZE)
    space.put(chain, [given])
    given += b"x"  # which a pinned one would refuse
    room = bytearray(10)
    with pytest.raises(larder_kv.RequestError):
        space.get(chain, [room])
    room += b"x"
    before = sys.getrefcount(given)
    for _ in range(10):
        space.exists(chain)
        space.put(chain, [given])
    assert sys.getrefcount(given) == before


def test_buffers_that_cannot_be_taken(space):
    chain = space.chain(tokens_of(7, 2))
    with pytest.raises(ValueError, match="1 buffers for 2 chunks"):
        space.put(chain, [b"x"])
    with pytest.raises(BufferError):
        space.get(chain, [bytearray(9), b"cannot be written to"])
    with pytest.raises(BufferError):
        space.put(chain[:1], [memoryview(bytes(SIZE))[::2]])
    with pytest.raises(TypeError):
        space.put(chain[:1], ["text"])


def test_more_than_one_batch(node):
    with node.space("short", chunk_tokens=1) as space:
        count = _lib.BATCH_MAX + 3
        chain = space.chain(range(count))
        for at in (0, _lib.BATCH_MAX, count - 1):
            space.put(chain[at:at + 1], [at.to_bytes(4, "little")])
        room = [bytearray(4) for _ in range(count)]
        got = space.get(chain, room)
        assert [i for i, one in enumerate(got) if one.hit] == [
            0, _lib.BATCH_MAX, count - 1]
        assert room[-1] == (count - 1).to_bytes(4, "little")
        assert sum(space.exists(chain)) == space.remove(chain) == 3


def test_shards_and_groups(node):
    with node.space("sliced", chunk_tokens=CHUNK, shards=2) as space:
        chain = space.chain(tokens_of(8, 1))
        space.put(chain, [b"zero"], shard=0)
        assert space.match(chain).chunks == 0  # a chunk needs all its shards
        space.put(chain, [b"one"], shard=1)
        assert space.match(chain).chunks == 1
        assert space.match(chain, group=3).chunks == 0
        room = bytearray(4)
        [got] = space.get(chain, [room], shard=1)
        assert (got.length, room[:3]) == (3, b"one")


def test_stage(space):
    chain = space.chain(tokens_of(9, 3))
    values = values_of(9, 2)
    space.put(chain[:2], values)
    with space.stage(chain) as lease:
        assert lease and lease.match.chunks == 2
        for i, value in enumerate(values):
            pieces = lease.views(i)
            assert b"".join(pieces) == value
            assert all(piece.readonly for piece in pieces)
        with pytest.raises(larder_kv.LarderError):
            lease.views(2)
    with pytest.raises(larder_kv.HandleError):
        lease.views(0)
    lease.release()
    with space.stage(chain[2:]) as lease:
        assert not lease and lease.match[:2] == (0, "absent")


def test_what_is_staged_stays(node, space):
    """However much is put meanwhile."""
    chain = space.chain(tokens_of(10, 1))
    [value] = values_of(10, 1)
    space.put(chain, [value])
    with space.stage(chain) as lease:
        used = lease.views(0)[0][5:]
        assert node.stats()["dram_leased_chunks"] == 1
    assert node.stats()["dram_leased_chunks"] == 1  # a view is in use
    more = space.chain(tokens_of("more", 700))  # all of it has no room
    space.put(more, [bytes(SIZE)] * len(more))
    assert bytes(used) == value[5:5 + len(used)]
    del used
    until(lambda: node.stats()["dram_leased_chunks"] == 0)


def test_pin_and_ttl(space):
    chain = space.chain(tokens_of(11, 1))
    assert space.put(chain, [b"x"], pin=True, ttl_ms=1,
                     timeout_ms=5000) == [larder_kv.Status.OK]
    end = threading.Event()
    for _ in range(1000):
        if not space.exists(chain)[0]:
            break
        end.wait(0.01)
    assert space.match(chain).chunks == 0


# ---- failures ----


def test_errors_say_what_they_are():
    with pytest.raises(larder_kv.RequestError, match="nope") as caught:
        larder_kv.open("nope:")
    assert caught.value.status == larder_kv.Status.E_INVALID
    with pytest.raises(larder_kv.NodeError) as caught:
        larder_kv.open("unix:/no/such/socket")
    assert caught.value.status == larder_kv.Status.E_OFFLINE
    assert isinstance(caught.value, larder_kv.LarderError)


def test_a_node_that_is_closed(node):
    space = node.space("a model", chunk_tokens=CHUNK)
    chain = space.chain(tokens_of(12, 1))
    space.put(chain, [b"x"])
    lease = space.stage(chain)
    node.close()
    node.close()
    for call in (node.stats, node.flush, lambda: node.space("other"),
                 lambda: space.match(chain), lambda: space.put(chain, [b"x"])):
        with pytest.raises(larder_kv.HandleError) as caught:
            call()
        assert caught.value.status == larder_kv.Status.E_CLOSED
    lease.release()
    space.close()


def test_a_tenant_that_is_not_ours(daemon):
    with larder_kv.open(daemon.url("unix")) as node:
        with pytest.raises(larder_kv.NodeError) as caught:
            node.space("a model", tenant="another")
    assert caught.value.status == larder_kv.Status.E_DENIED


def test_secrets(tmp_path):
    with larder_kv.open(f"embed:{tmp_path}?dram=16M&ssd=64M") as node:
        ours = node.space("m", tenant="t", secret=b"s" * 32)
        chain = ours.chain(range(256))
        ours.put(chain, [b"x"])
        with pytest.raises(larder_kv.NodeError) as caught:
            node.space("m", tenant="t", secret=b"x" * 32)
        assert caught.value.status == larder_kv.Status.E_SECRET
        node.flush()
        ours.close()
    with larder_kv.open(f"embed:{tmp_path}?dram=16M&ssd=64M") as node:
        with node.space("m", tenant="t", secret=b"s" * 32) as again:
            assert again.chain(range(256)) == chain
            assert again.match(chain).tier_chunks["ssd"] == 1
            room = bytearray(1)
            assert again.get(chain, [room])[0].hit and room == b"x"


def test_log(tmp_path):
    lines = []
    with larder_kv.open(f"embed:{tmp_path}?dram=16M&ssd=64M",
                        log=lambda *line: lines.append(line)):
        pass
    assert all(0 <= level <= 3 and text for level, text in lines)


# ---- what users see ----


def test_statuses_are_the_headers():
    header = (ROOT / "include/larder/larder.h").read_text()
    there = {name: int(value) for name, value in
             re.findall(r"X\(LARDER_(\w+), (-?\d+), ", header)}
    assert {one.name: one.value for one in larder_kv.Status} == there
    # Of a newer library: above zero nothing failed.
    assert larder_kv.Status(1000) == larder_kv.Status.MISS
    assert larder_kv.Status(-1000) == larder_kv.Status.E_OTHER


def test_the_manual_has_every_name():
    for name in larder_kv.__all__:
        assert re.search(rf"\b{name}\b", MANUAL), name
    for kind in (larder_kv.Node, larder_kv.Space, larder_kv.Lease):
        for name in vars(kind):
            assert name.startswith("_") or re.search(
                rf"\b{name}\b", MANUAL), name


def test_the_manuals_programs_run(daemon):
    """Each block of the manual, in its order, in one program."""
    blocks = re.findall(r"```python\n(.*?)```", MANUAL, re.S)
    assert len(blocks) > 3
    program = "\n".join(blocks).replace("unix:/run/larder/larder.sock",
                                        daemon.url("unix"))
    assert program.count(daemon.url("unix")) == 2
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60,
                   env=dict(os.environ, PYTHONPATH=str(ROOT / "python")))


def test_the_example(tmp_path):
    """Run twice, as it says: the second run finds what the first one saved."""
    program = ROOT / "examples/client.py"
    code = [line for line in program.read_text().split('"""')[2].splitlines()
            if line.strip()]
    assert len(code) <= 22
    said = [subprocess.run(
        [sys.executable, str(program), f"embed:{tmp_path}?dram=16M&ssd=64M"],
        check=True, timeout=60, text=True, stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "python"))).stdout
        for _ in range(2)]
    assert said == ["0 of 4 chunks were in the store\n",
                    "4 of 4 chunks were in the store\n"]


def test_types_are_there():
    """A checker looks for this file; test_wheel.py for it in the wheel."""
    assert (pathlib.Path(larder_kv.__file__).parent / "py.typed").exists()
    assert set(larder_kv.__all__) <= set(dir(larder_kv))
    with pytest.raises(AttributeError):
        larder_kv.nothing
