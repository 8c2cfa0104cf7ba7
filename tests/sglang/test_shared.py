"""KV that is shared with vLLM: what real SGLang saved is read into pages as
vLLM has them on a GPU, and what is written from such pages is loaded by another
server. (Real vLLM on a CPU packs its pages for the CPU's instructions, so that
nobody else can read them.)"""
import json
import re
import sys

import rig

sys.path.insert(0, str(rig.ROOT / "tests/python"))

from vllm_pages import Engine

CHUNK, BLOCK = 256, 32
# Two chunks and less than a page: every hit ends with the second chunk.
IDS = rig.prompt("shared", 2 * CHUNK + 7)
MORE = IDS + rig.prompt("and more", 2 * CHUNK)
TABLE = [7, 3, 21, 9, 30, 1, 16, 5, 12, 40, 33, 2, 25, 18, 6, 11, 44, 8, 27,
         14, 36, 4, 19, 10, 31, 22, 15, 38, 13, 20, 29, 17]
SHARED = dict(pages="shared")


def vllm(node, server):
    """Its pages, in the space that the server says it uses."""
    found = re.findall(r"pages of 16 tokens, in chunks of (\d+), shard 0 of "
                       r"(\d+) of (\{.*\})$", server.log(), re.M)
    assert found, server.log()[-3000:]
    chunk, shards, descriptor = found[-1]
    about = json.loads(descriptor)
    assert int(chunk) == CHUNK
    handle = rig.larder_kv._lib.Node(node.url())
    one = Engine(handle, descriptor.encode(), CHUNK, rig.PAGE,
                 about["layers"], about["heads"], about["groups"][0][2][0],
                 BLOCK, blocks=48)
    assert one.rules.slices() == int(shards)
    return one


def test_with_pages_of_vllm(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with rig.node(tmp_path / "a") as first, rig.node(tmp_path / "b") as second:
        with rig.server(tmp_path, first.url(), layout="page_first",
                        io="kernel", extra=SHARED) as server:
            cold = server.ask(IDS)
            assert cold.cached == 0
            source = vllm(first, server)
            rig.daemon.until(lambda: source.match(IDS) == 2,
                             text="its chunks are not saved")
            server.flush()
            warm = server.ask(IDS)
            assert warm.tokens("storage") == 2 * CHUNK and warm == cold
            # It goes on inside a chunk whose first pages are saved.
            longer = server.ask(MORE)
            rig.daemon.until(lambda: source.match(MORE) == 4,
                             text=lambda: f"{source.match(MORE)} chunks")
            server.flush()
            again = server.ask(MORE)
            assert again.tokens("storage") == len(MORE) // rig.PAGE * rig.PAGE
            assert again == longer
            assert source.load(MORE, TABLE) == 0
            rows = source.read(TABLE, 4 * CHUNK)
            target = vllm(second, server)
        turned = TABLE[::-1]
        target.write(turned, rows, 4 * CHUNK)
        target.save(MORE, turned)
        with rig.server(tmp_path, second.url(), layout="layer_first",
                        io="direct", extra=SHARED) as server:
            assert server.ask(rig.prompt("nobody's", 600)).cached == 0
            found = server.ask(IDS)
            assert found.tokens("storage") == 2 * CHUNK
            assert found == warm
            found = server.ask(MORE)
            assert found.tokens("storage") + found.tokens("device") == (
                4 * CHUNK)
            assert found == longer
            salted = server.ask(IDS, extra_key="another's")
            assert salted.tokens("storage") == 0
        for one in source, target:
            one.close()
            one.space.node.close()
