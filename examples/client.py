"""The Python API in twenty lines: keeps what was computed for a prompt.

    python examples/client.py [URL]      run it twice
"""
import sys

import larder_kv

SIZE = 1 << 20  # bytes of KV that a chunk of this "model" has


def compute(chunk):
    return bytes([chunk]) * SIZE


url = sys.argv[1] if len(sys.argv) > 1 else "embed:/tmp/larder?dram=64M&ssd=1G"
with larder_kv.open(url) as node, node.space("my model, bf16") as space:
    chain = space.chain(range(1024))  # a prompt: four chunks of 256 tokens
    kv = [bytearray(SIZE) for _ in chain]
    hits = space.match(chain).chunks
    got = space.get(chain[:hits], kv[:hits])
    hits = next((i for i, one in enumerate(got) if not one.hit), hits)
    print(f"{hits} of {len(chain)} chunks were in the store")
    for chunk in range(hits, len(chain)):
        kv[chunk][:] = compute(chunk)
    space.put(chain[hits:], kv[hits:])
    assert kv == [compute(chunk) for chunk in range(len(chain))]
