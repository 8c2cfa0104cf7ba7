"""The connector's own KV events: what subscribers believe after lookups
(test_surface.py)."""
import random
from types import SimpleNamespace

import pytest
from larder_kv import _lib
from larder_kv.vllm import events
from vllm.config import KVEventsConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from surface import config_of, dense, described, full_of, kv_of

__all__ = ["dense"]  # a fixture
DRAM, SSD, AWAY = events.DRAM, events.SSD, events.AWAY
GONE, UNKNOWN = events.GONE, events.UNKNOWN
LOCAL, DISK = ("CPU", "LOCAL"), ("STORAGE", "LOCAL")
FAR = ("STORAGE", "REMOTE")


class Listener:
    """What a router makes of the events: hash -> places."""

    def __init__(self, config, url="unix:/x"):
        cache = kv_of(full_of(config))
        self.events = events.Events(config, cache, described(config, cache),
                                    url)
        self.block = config.cache_config.block_size
        self.chunk = described(config, cache).chunk_tokens
        self.known = set()

    def request(self, tokens):
        init_none_hash(sha256)
        return Request("r", tokens, SamplingParams(max_tokens=1), None,
                       block_hasher=get_request_block_hasher(self.block,
                                                             sha256))

    def look(self, request, keys, places, staged=0):
        """A lookup that found the chunks in these places."""
        self.events.looked(SimpleNamespace(
            request_id="r", keys=b"".join(keys), tiers=bytes(places),
            chunks=staged, matched=len(places)))
        for event in self.events.take({"r": SimpleNamespace(request=request)}):
            stored = type(event).__name__ == "BlockStored"
            for one in event.block_hashes:
                name = one, event.medium, event.locality
                assert stored or name in self.known, "removed twice"
                (self.known.add if stored else self.known.discard)(name)

    def of(self, request):
        """Where each block is believed to be."""
        return [{name[1:] for name in self.known
                 if name[0] == events.kv_cache_utils.maybe_convert_block_hash(
                     one)} for one in request.block_hashes]


@pytest.fixture
def config(dense):
    return config_of(dense, kv_events_config=KVEventsConfig(
        enable_kv_cache_events=True))


def key(text):
    return text.encode().ljust(_lib.KEY_BYTES)


def tokens(seed, count):
    return random.Random(seed).choices(range(3, 2048), k=count)


def test_shared_blocks_stay(config):
    """Two chunks begin with the same block: it is there until both are gone,
    in each place for itself."""
    one = Listener(config)
    assert one.chunk >= 2 * one.block
    rest = one.chunk - one.block
    head = tokens("head", one.block)
    a = one.request(head + tokens("a", rest))
    b = one.request(head + tokens("b", rest))
    blocks = one.chunk // one.block
    one.look(a, [key("a")], [DRAM])
    one.look(b, [key("b")], [DRAM])
    one.look(b, [key("b")], [DRAM])  # again: nothing is counted twice
    one.look(a, [key("a")], [GONE])
    assert one.of(a) == [{LOCAL}] + [set()] * (blocks - 1)
    assert one.of(b) == [{LOCAL}] * blocks
    one.look(a, [key("a")], [SSD])
    assert one.of(a) == [{LOCAL, DISK}] + [{DISK}] * (blocks - 1)
    one.look(b, [key("b")], [GONE])
    assert one.of(a) == [{DISK}] * blocks
    assert one.of(b) == [{DISK}] + [set()] * (blocks - 1)
    one.events.reset()
    one.look(a, [key("a")], [UNKNOWN])
    assert not one.known and not one.events._users


def test_places(config):
    """Where a chunk was found, and in memory once it was staged; it is in no
    nearer place any more."""
    one = Listener(config)
    a = one.request(tokens("a", 2 * one.chunk))
    blocks = one.chunk // one.block

    def believed():
        found = one.of(a)
        first, second = found[:blocks], found[blocks:]
        assert all(f == first[0] for f in first)
        assert all(s == second[0] for s in second)
        return first[0], second[0]

    keys = [key("1"), key("2")]
    one.look(a, keys, [AWAY, AWAY])
    assert believed() == ({FAR}, {FAR})
    one.look(a, keys, [AWAY, AWAY], staged=1)
    assert believed() == ({LOCAL, FAR}, {FAR})
    one.look(a, keys, [DRAM, SSD])
    assert believed() == ({LOCAL, FAR}, {DISK, FAR})
    one.look(a, keys, [SSD, UNKNOWN])
    assert believed() == ({DISK, FAR}, {DISK, FAR})
    one.look(a, keys, [AWAY, AWAY])
    assert believed() == ({FAR}, {FAR})
    one.look(a, keys, [GONE, DRAM])
    assert believed() == (set(), {LOCAL, FAR})


def test_node_elsewhere(config):
    one = Listener(config, "tcp://10.0.0.1:7700")
    a = one.request(tokens("a", one.chunk))
    one.look(a, [key("1")], [DRAM])
    assert one.of(a)[0] == {("CPU", "REMOTE")}
    one.look(a, [key("1")], [SSD])
    assert one.of(a)[0] == {("STORAGE", "REMOTE")}


def test_survey(config):
    """The tier of each chunk, from few questions."""
    one = Listener(config)
    tiers = ["dram"] * 5 + ["peer"] * 4 + ["ssd"] * 3 + ["shared", "peer"]
    keys = b"".join(key(str(i)) for i in range(20))
    asked = []

    def match(part, count, group):
        asked.append(count)
        first = keys.index(part) // _lib.KEY_BYTES
        found = _lib.Match()
        here = tiers[first:first + count]
        found.chunks = len(here)
        found.cause = _lib.CAUSES.index("absent" if len(here) < count
                                        else "none")
        for tier in here:
            found.tier_bytes[_lib.TIERS.index(tier)] += 1000
        return found

    whole = match(keys, 20, 0)
    found = one.events.survey(match, keys, 20, whole)
    assert list(found) == ([DRAM] * 5 + [AWAY] * 4 + [SSD] * 3 + [AWAY] * 2
                           + [UNKNOWN] * 6)
    assert len(asked) <= events.MATCHES_MAX + 1
    asked.clear()
    tiers = ["peer"] * 10
    found = one.events.survey(match, keys, 10, match(keys[:320], 10, 0))
    assert list(found) == [AWAY] * 10 and len(asked) == 1


def test_looked_for_again(config, monkeypatch):
    """What nobody asks for is withdrawn too, and announced where it is now;
    what is announced meanwhile stays."""
    monkeypatch.setattr(events, "AGAIN_SECONDS", 0)
    one = Listener(config)
    ordered, there = [], {}

    def match(part, count, group):
        found = _lib.Match()
        found.chunks = int(part in there)
        found.cause = _lib.CAUSES.index("none" if found.chunks else "evicted")
        if found.chunks:
            found.tier_bytes[_lib.TIERS.index(there[part])] = 1000
        return found

    one.events.watch(match, ordered.append)
    requests = {name: one.request(tokens(name, one.chunk)) for name in "abc"}
    for name, request in requests.items():
        there[key(name)] = "dram"
        one.look(request, [key(name)], [DRAM])
        one.look(request, [key(name)], [SSD])
    none = one.request(tokens("none", one.block))

    def again():
        ordered.pop()()
        one.look(none, [], [])
        return [one.of(requests[name])[0] for name in "abc"]

    # (The first was ordered when a was announced alone.)
    assert again() == again() == [{DISK}] * 3
    there.update({key("a"): "ssd", key("b"): "peer"})
    del there[key("c")]
    assert again() == [{DISK}, {FAR}, set()]
    del there[key("a")]
    ordered.pop()()
    one.look(requests["a"], [key("a")], [SSD])  # found again before it is read
    assert one.of(requests["a"])[0] == {DISK}
    assert again()[0] == set()
