"""What the connector makes of a request: keys, switches, and whether a hit is
worth it (test_surface.py)."""
import itertools
import os
import random
import shutil
import threading
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import lookup
from larder_kv.vllm import adapters, request, stats, versions
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from surface import dense

__all__ = ["dense"]  # a fixture

MINOR = versions.minor()
SIZE = 64  # tokens in a chunk


@pytest.fixture(scope="module")
def space():
    node = _lib.Node("embed:?dram=16M")
    one = node.space(b"surface", 1, SIZE)
    yield one
    one.close()
    node.close()


# ---- keys ----


def tokens_of(seed, count):
    return random.Random(seed).choices(range(3, 2048), k=count)


def request_of(tokens, **more):
    sampling = SamplingParams(max_tokens=10)
    return Request("r", tokens, sampling, None, **more)


def keys_of(space, asked, tokens=None):
    """The keys of a request's chunks, as bytes each."""
    prompt = request.Prompt(asked)
    prompt.extend(space, asked.num_tokens if tokens is None else tokens)
    return split(prompt)


def split(prompt):
    return [prompt.keys.data(i, i + 1) for i in range(prompt.keys.count)]


def image(identifier, offset, length=40):
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=identifier,
        mm_position=PlaceholderRange(offset=offset, length=length))


def lora(path, name="a", number=1):
    return LoRARequest(name, number, str(path))


def embeds(seed, count):
    torch.manual_seed(seed)
    return torch.randn(count, 8)


def embedded(seed, count):
    return request_of(None, prompt_embeds=embeds(seed, count))


TOKENS = tokens_of(1, 4 * SIZE + 3)


def test_equal_requests_share(space):
    one, two = (keys_of(space, request_of(list(TOKENS))) for _ in range(2))
    assert one == two and len(one) == 4 and len(set(one)) == 4


def test_one_early_token_changes_every_key(space):
    other = [TOKENS[0] ^ 1, *TOKENS[1:]]
    assert not set(keys_of(space, request_of(TOKENS))) & set(
        keys_of(space, request_of(other)))


def test_the_same_tokens_with_something_else_never_share(space, dense):
    """Salt, adapter, image, embeddings: no two have a key in common, also
    not where one's name is another's (before 0.32 vLLM's own keys are the
    same for a salt "x" and an adapter "x")."""
    several = {
        "plain": request_of(TOKENS),
        "salt x": request_of(TOKENS, cache_salt="x"),
        "salt y": request_of(TOKENS, cache_salt="y"),
        "salt a": request_of(TOKENS, cache_salt="a"),
        "salt ax": request_of(TOKENS, cache_salt="ax"),
        "adapter a": request_of(TOKENS, lora_request=lora(dense / "lora-a")),
        "adapter b": request_of(TOKENS, lora_request=lora(dense / "lora-b")),
        "adapter x": request_of(TOKENS, lora_request=lora(dense / "lora-a",
                                                          "x")),
        "both": request_of(TOKENS, lora_request=lora(dense / "lora-a"),
                           cache_salt="x"),
        "image x": request_of(TOKENS, mm_features=[image("x", 5)]),
        "image y": request_of(TOKENS, mm_features=[image("y", 5)]),
        "image moved": request_of(TOKENS, mm_features=[image("x", 6)]),
        "embeddings": embedded(1, len(TOKENS)),
        "other ones": embedded(2, len(TOKENS)),
        "zeros": request_of([0] * len(TOKENS)),
    }
    found = {name: keys_of(space, one) for name, one in several.items()}
    assert all(len(keys) == 4 for keys in found.values())
    for one, two in itertools.combinations(found, 2):
        assert not set(found[one]) & set(found[two]), (one, two)
    again = request_of(TOKENS, cache_salt="x")
    assert keys_of(space, again) == found["salt x"]
    assert keys_of(space, embedded(1, len(TOKENS))) == found["embeddings"]


def test_text_before_an_image_is_shared(space):
    """Only what comes after it depends on it."""
    plain = keys_of(space, request_of(TOKENS))
    late = keys_of(space, request_of(
        TOKENS, mm_features=[image("x", 2 * SIZE + 5)]))
    assert late[:2] == plain[:2]
    assert not set(late[2:]) & set(plain)


def test_adapters_by_content(space, dense, tmp_path):
    """The same adapter elsewhere, and another in the same place. vLLM names
    adapters too: by name, since 0.32 also by path. So a copy is shared only
    before 0.32, and only under its name."""
    original = dense / "lora-a"
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    keys = {path: keys_of(space, request_of(
        TOKENS, lora_request=lora(path)))[0] for path in (original, copy)}
    same = keys[original] == keys[copy]
    assert same == (MINOR in ("0.24", "0.29"))
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        changed = tmp_path / f"changed-{name}"
        shutil.copytree(original, changed)
        with open(changed / name, "r+b") as file:
            data = file.read()
            at = data.rindex(b'"r": 8') + 5 if name.endswith("json") else -1
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            file.write(b"9" if at > 0 else bytes([data[-1] ^ 1]))
        assert keys_of(space, request_of(
            TOKENS, lora_request=lora(changed)))[0] not in keys.values()


def test_adapter_that_is_replaced(space, dense, tmp_path, monkeypatch):
    """Under the same name and path, with a date that is not newer. vLLM keeps
    what it loaded under a number: only a new number has the new keys."""
    monkeypatch.setattr(adapters, "SECONDS", 0)
    place = tmp_path / "adapter"
    shutil.copytree(dense / "lora-a", place)
    first = keys_of(space, request_of(TOKENS, lora_request=lora(place)))
    weights = place / "adapter_model.safetensors"
    then = weights.stat().st_mtime_ns
    shutil.copyfile(dense / "lora-b/adapter_model.safetensors", weights)
    os.utime(weights, ns=(then, then))
    with pytest.raises(ValueError, match="load it again"):
        keys_of(space, request_of(TOKENS, lora_request=lora(place)))
    again = LoRARequest("a", 2, str(place))
    second = keys_of(space, request_of(TOKENS, lora_request=again))
    assert not set(first) & set(second)


def test_adapter_that_is_not_here(space, dense, tmp_path, monkeypatch):
    """Who knows what vLLM will get under its name: it has none, not even when
    it is here later. Where no hub is asked it is what was downloaded."""
    monkeypatch.setattr(adapters, "SECONDS", 0)
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in ("nobody/one", empty):
        with pytest.raises(ValueError, match="from its directory"):
            keys_of(space, request_of(TOKENS, lora_request=lora(path)))
    shutil.copytree(dense / "lora-a", empty, dirs_exist_ok=True)
    with pytest.raises(ValueError, match="load it again"):
        keys_of(space, request_of(TOKENS, lora_request=lora(empty)))
    monkeypatch.setattr(adapters.weights, "snapshot",
                        lambda name, _: str(dense / "lora-a"))
    for number, (offline, named) in enumerate(((False, False), (True, True))):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE",
                            offline)
        one = LoRARequest("a", 10 + number, "nobody/two")
        if named:
            assert adapters.look(one) == adapters.look(lora(dense / "lora-a"))
        else:
            with pytest.raises(ValueError, match="from its directory"):
                adapters.look(one)


def test_adapter_at_home(space, dense, monkeypatch):
    monkeypatch.setenv("HOME", str(dense))
    assert (adapters.look(LoRARequest("a", 21, "~/lora-a"))
            == adapters.look(lora(dense / "lora-a")))


@pytest.mark.parametrize("more", [
    {}, {"cache_salt": "x"}, {"mm_features": "images"}, {"adapter": True}],
    ids=str)
def test_generated_tokens_go_on(space, dense, more):
    """A prompt and its answer, chunk by chunk as they are computed, have the
    names that they have as the next turn's prompt."""
    more = dict(more)
    if more.get("mm_features"):
        more["mm_features"] = [image("x", 10), image("y", 70, 100),
                               image("z", 180, 5)]
    if more.pop("adapter", False):
        more["lora_request"] = lora(dense / "lora-a")
    tokens = tokens_of(3, 5 * SIZE + 7)
    asked = request_of(tokens[:SIZE + 9], **more)
    prompt = request.Prompt(asked)
    prompt.extend(space, asked.num_tokens)
    assert prompt.keys.count == 1
    for token in tokens[SIZE + 9:]:
        asked.append_output_token_ids(token)
        prompt.extend(space, asked.num_tokens)
        assert prompt.keys.count == asked.num_tokens // SIZE
    assert split(prompt) == keys_of(space, request_of(tokens, **more))


def test_generated_after_embeddings(space):
    """One step at a time, or all at once."""
    found = []
    for step in (1, 1000):
        asked = embedded(3, 2 * SIZE)
        prompt = request.Prompt(asked)
        for i, token in enumerate(tokens_of(4, 2 * SIZE)):
            asked.append_output_token_ids(token)
            if i % step == 0:
                prompt.extend(space, asked.num_tokens)
        prompt.extend(space, asked.num_tokens)
        found.append(split(prompt))
    assert found[0] == found[1] and len(found[0]) == 4


@pytest.mark.parametrize("made", [True, False])
def test_named_by_a_thread(space, made):
    """Or by who needs the names before: they are the same, and those of what
    is generated follow."""
    tokens = tokens_of(5, 4 * SIZE)
    asked = request_of(tokens[:2 * SIZE + 5])
    prompt = request.Prompt(asked)
    names = prompt.later(2)
    assert prompt.keys.count == 0
    for token in tokens[2 * SIZE + 5:]:
        asked.append_output_token_ids(token)
    asked.prompt_token_ids.extend(tokens_of(6, SIZE))  # as a session does
    if made:
        thread = threading.Thread(target=names.make, args=(space,))
        thread.start()
        thread.join()
        assert prompt.keys.count == 2
    prompt.extend(space, 4 * SIZE)
    assert prompt.keys.count == 4
    assert split(prompt) == keys_of(space, request_of(tokens))
    assert names.make(space) == prompt.keys.data(0, 2)


def test_what_a_thread_cannot_name(space, dense):
    """Prompts whose names need more than their tokens."""
    known = lora(dense / "lora-a")
    adapters.look(known)
    for asked in (request_of(TOKENS, cache_salt="x"),
                  request_of(TOKENS, lora_request=known),
                  request_of(TOKENS, mm_features=[image("x", 5)]),
                  embedded(1, len(TOKENS))):
        prompt = request.Prompt(asked)
        assert prompt.later(4) is None
        prompt.extend(space, len(TOKENS))
        assert prompt.keys.count == 4
    wrong = request.Prompt(request_of([-1] * SIZE))
    for make in (lambda: wrong.later(1), lambda: wrong.extend(space, SIZE)):
        with pytest.raises(OverflowError):
            make()


@pytest.mark.parametrize("length", [SIZE - 1, 2 * SIZE + 5], ids=str)
def test_an_adapter_is_looked_at_by_a_thread(space, dense, tmp_path, length):
    """By nobody else, however long that takes: until then nothing is named.
    The names are those of one whose adapter is known."""
    place = tmp_path / "adapter"
    shutil.copytree(dense / "lora-a", place)
    tokens = tokens_of(7, 4 * SIZE)
    asked = request_of(tokens[:length], lora_request=lora(place))
    prompt = request.Prompt(asked)
    names = prompt.later(length // SIZE)
    assert prompt.waits() and prompt.keys.count == 0
    thread = threading.Thread(target=names.make, args=(space,))
    thread.start()
    thread.join()
    assert not prompt.waits() and prompt.keys.count == length // SIZE
    for token in tokens[length:]:
        asked.append_output_token_ids(token)
    prompt.extend(space, 4 * SIZE)
    known = request_of(tokens, lora_request=lora(place))
    assert request.Prompt(known).later(4) is None
    assert split(prompt) == keys_of(space, known)


def test_an_adapter_that_cannot_be_named(space, dense, tmp_path, monkeypatch):
    """Its request is said to go without, once, and has no name."""
    said = []
    monkeypatch.setattr(request.logger, "warning",
                        lambda text, *_: said.append(text))
    monkeypatch.setattr(adapters, "SECONDS", 0)
    place = tmp_path / "adapter"
    shutil.copytree(dense / "lora-a", place)
    adapters.look(lora(place))
    (place / "adapter_config.json").write_text("{}")
    prompt = request.Prompt(request_of(TOKENS, lora_request=lora(place)))
    names = prompt.later(4)
    for make in (names.make, names.make, lambda s: prompt.extend(s, SIZE)):
        with pytest.raises(request.Unnamed, match="load it again"):
            make(space)
    assert not prompt.waits() and prompt.keys.count == 0
    assert len(said) == 1 and "goes without" in said[0]


def test_not_more_than_is_asked_for(space):
    asked = request_of(TOKENS)
    assert len(keys_of(space, asked, SIZE - 1)) == 0
    assert len(keys_of(space, asked, 2 * SIZE)) == 2


# ---- switches ----


def test_switches():
    assert request.Switches(None).skip_save is False
    assert request.Switches({"other": {"x": 1}}).tiers is None
    one = request.Switches({"larder": {
        "skip_save": True, "skip_load": True, "ttl_ms": 5, "member": "kv3",
        "tiers": ["dram"]}})
    assert (one.skip_save, one.skip_load, one.ttl_ms) == (True, True, 5)
    assert one.member == "kv3" and request.Switches(None).member == ""
    assert one.tiers == {"dram"} and one.hint == 0
    one = request.Switches({"larder": {"class": 2, "closed": True}})
    assert one.hint == 2 | 4
    one = request.Switches({"larder": {"template": True, "closed": False}})
    assert one.hint == 8


@pytest.mark.parametrize("params, member", [
    ({"remote_kv_source": {"remote_host": "10.0.0.3", "remote_port": 5600,
                           "kv_request_id": "x"}}, "10.0.0.3:5600"),
    ({"remote_kv_source": {"remote_host": "::1", "remote_port": 5600}},
     "[::1]:5600"),
    ({"remote_kv_source": {"remote_host": "10.0.0.3"}}, "10.0.0.3:0"),
    ({"kv.fetch": {"source_control_endpoint": "tcp://kv3:7700",
                   "block_hashes": [1], "mode": "copy"}}, "kv3:7700"),
    ({"kv.fetch": {"source_control_endpoint": "kv3:7700"}}, "kv3:7700"),
    ({"kv.fetch": {"source_control_endpoint": "kv3:7700"},
      "larder": {"member": "kv4"}}, "kv4"),
    # It is advice: what cannot be read is left out.
    ({"remote_kv_source": {"remote_host": 7}}, ""),
    ({"remote_kv_source": "kv3"}, ""), ({"remote_kv_source": None}, ""),
    ({"kv.fetch": {"source_control_endpoint": "x" * 100}}, ""),
    ({"remote_kv_source": {"remote_host": "\ud800"}}, ""),
    ({"kv.fetch": [1]}, ""), ({"remote_host": "10.0.0.3"}, ""),
])
def test_places_by_address(params, member):
    assert request.switches_of(params).member == member


@pytest.mark.parametrize("given, hint", [
    ({"skip": True}, "skip_save, skip_load, ttl_ms, tiers"),
    ({"skip_save": "no"}, "skip_save"),
    ({"ttl_ms": -1}, "ttl_ms"),
    ({"ttl_ms": 1 << 40}, "ttl_ms"),
    ({"ttl_ms": "soon"}, "ttl_ms"),
    ({"member": 7}, "member"),
    ({"member": "x" * 64}, "member"),
    ({"tiers": []}, "tiers"),
    ({"tiers": "dram"}, "tiers"),
    ({"tiers": ["dram", "tape"]}, "tape"),
    ({"class": 4}, "class"),
    ({"class": True}, "class"),
    ({"closed": 1}, "closed"),
    ({"template": "yes"}, "template"),
])
def test_switches_that_are_wrong(given, hint):
    with pytest.raises(ValueError) as caught:
        request.Switches({"larder": given})
    assert hint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [5, "skip_save", [1], True,
                                   {"tiers": [["dram"]]}], ids=str)
def test_switches_that_are_none(given):
    """Whatever a request has there: refused, as arrive() expects it."""
    with pytest.raises((TypeError, ValueError)):
        request.Switches({"larder": given})


# ---- is it worth it ----


def on_disk(tokens, load_us):
    return _lib.Match(tried=tokens // 256, tried_us=load_us,
                      tried_below_bytes=tokens * 2048)


def test_what_the_node_is_told_of_the_engine():
    """How long a chunk takes to compute, how fast loads from memory were, and
    how much longer disks took than the node expected. (tests/python/test_stage
    has what it makes of that.)"""
    rate = lookup.Rate()
    assert rate.worth(256) == {}  # what is not known does not decide
    rate.tokens_per_second = 2000.0
    assert rate.worth(256) == {"chunk_ns": 128000000, "below_percent": 100}
    rate.staged(on_disk(2560, 20000), 2560, 0.5, late=True)
    assert rate.worth(256)["below_percent"] > 2000  # not done by then
    for _ in range(2):
        rate.staged(on_disk(512, 4000), 512, 0.01)  # it is fast again
    assert rate.worth(256)["below_percent"] < 1000
    rate.loaded(1 << 30, 0.5)
    assert rate.worth(256)["dram_speed"] == 1 << 31


def test_a_load_that_was_slow_is_not_for_ever():
    """Loads are declined since one was held up. Nothing would measure them
    again, if not one were tried some time."""
    rate = lookup.Rate()
    rate.tokens_per_second = 2000.0
    match = _lib.Match(chunks=10, tier_bytes=(2560 * 8192, 0, 0))
    rate.loaded(match.tier_bytes[0], 100.0)
    slow = rate.worth(256)["dram_speed"]
    finder = lookup.Finder.__new__(lookup.Finder)
    finder.rate, finder.layout = rate, None
    finder._options = SimpleNamespace(lookup_ms=500)
    finder._space = SimpleNamespace(match=lambda *_: match)
    look = SimpleNamespace(matched=10, keys=b"")
    for tries in range(1, 5):
        finder._probed = float("-inf")
        finder._probe(look)
        finder._probe(look)  # not twice in a while
        assert rate.worth(256)["dram_speed"] == pytest.approx(
            slow << tries, rel=1e-3)


@pytest.mark.parametrize("cause, staged, stored", [
    ("corrupt", 0, 0), ("corrupt", 3, 3), ("evicted", 1, 1),
    ("deadline", 0, 4), ("full", 2, 4), ("none", 4, 4)])
def test_what_is_lost_is_saved_again(cause, staged, stored):
    """A prefix that a match promised: what was lost when it was to be read is
    computed, and must not be taken for something that is stored."""
    finder = lookup.Finder.__new__(lookup.Finder)
    finder.rate, finder.layout, finder.fetches = lookup.Rate(), None, False
    finder.lock, finder._held, finder._hold_max = threading.Lock(), 0, 1 << 30
    finder._hold_known = True
    finder._options = SimpleNamespace(lookup_ms=500, load="auto")
    finder._events, finder.eagle, finder._size = None, False, 256
    finder.whole = True
    lease = object() if staged else None
    finder._space = SimpleNamespace(stage=lambda *_: (lease, _lib.Match(
        chunks=staged, found=4, tried=4, tried_bytes=4 << 20,
        cause=_lib.CAUSES.index(cause))))
    look = lookup.Lookup("r", b"", 4, None, 0.5)
    finder._find(look)
    assert (look.matched, look.chunks, look.stored) == (4, staged, stored)


def test_stats_of_a_child():
    """vLLM's MultiConnector reads them in an engine of one process, too."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import multi_connector

    seen = []
    child = SimpleNamespace(observe=lambda data, engine: seen.append(data))
    multi = SimpleNamespace(_prom_metrics={"LarderConnector": child})
    data = {"hits": 1}
    both = multi_connector.MultiKVConnectorStats(
        data={"LarderConnector": stats.LarderStats(data=data)})
    given = both.to_dict() if hasattr(both, "to_dict") else both.data
    multi_connector.MultiKVConnectorPromMetrics.observe(multi, given)
    assert seen == [data]
