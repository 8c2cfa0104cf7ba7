"""What the scheduler's side does with a request, from its arrival to a claim:
on vLLM's requests and a real store, without an engine (test_surface.py)."""
import errno
import shutil
import threading
import time
from array import array
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv._options import Options
from larder_kv.engine import lookup
from larder_kv.vllm import adapters, model, scheduler
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from surface import (config_of, dense, described, full_of, kv_of,
                     window_of)
from surface_keys import image, tokens_of

__all__ = ["dense"]  # a fixture

BOX = 60.0  # seconds, of lookup_ms
LONG = 30  # that nothing here takes
BLOCKS = 16


class Clock:
    """The time of the scheduler and of lookups: it goes on, and jumps."""

    def __init__(self):
        self.ahead = 0.0

    def __getattr__(self, name):
        return getattr(time, name)

    def monotonic(self):
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(scheduler, "time", one)
    monkeypatch.setattr(lookup, "time", one)
    return one


@pytest.fixture
def side(dense, tmp_path, monkeypatch):
    """side(role=..., ...): the scheduler's side, on a store of its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = []

    def make(role="kv_both", config=None, kv=None, **options):
        config = config or config_of(dense, kv_transfer_config={
            "kv_connector": "LarderConnector", "kv_role": role,
            "kv_connector_module_path": "larder_kv.vllm"})
        given = Options(dict(dict(lookup_ms=int(BOX * 1000), load="always"),
                             **options))
        one = scheduler.Scheduler(config, given, described(config, kv),
                                  _lib.Node("embed:?dram=64M"))
        one.config = config
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def asked(tokens, name="r", sampling=None, **more):
    return Request(name, tokens, SamplingParams(max_tokens=4,
                                                **(sampling or {})), None,
                   **more)


class Pages:
    """A worker's memory."""

    def __init__(self, one, tokens):
        self.block = one.model.groups[0].block_tokens
        self.memory = torch.randn(BLOCKS, 2, self.block, 128).bfloat16()
        self.layout = model.layout(
            one.model, kv_of(full_of(one.config), blocks=BLOCKS),
            {"layers.0": self.memory})
        self.keys = _lib.Keys()
        one.space.chain(array("I", tokens), self.keys)
        self.end = self.keys.count * one.model.chunk_tokens
        self.ids = array("I", range(1, 1 + self.end // self.block))

    def move(self):
        return _lib.Move(
            keys=self.keys.data(0, self.keys.count), end=self.end, writers=1,
            timeout_ms=20000, tables=(_lib.Table * 1)(
                (self.ids.buffer_info()[0], 0, len(self.ids))))

    def used(self):
        return self.memory[1:1 + len(self.ids)].clone()


def store(one, tokens):
    """Saves what a worker would have. Answers the tokens of whole chunks."""
    pages = Pages(one, tokens)
    move = pages.move()
    assert one.space.save(pages.layout, move) == _lib.OK
    assert move.shards + move.present == pages.keys.count
    pages.layout.close()
    return pages.end


def looked(look):
    """When its thread is done."""
    end = time.monotonic() + LONG
    while not look.done and time.monotonic() < end:
        time.sleep(0.001)
    assert look.done
    return look


def came(one, request):
    """It arrives; its lookup, if it has one, is done."""
    one.arrive(request)
    t = one.requests.get(request.request_id)
    if t is not None and t.lookup is not None:
        looked(t.lookup)
    return t


TOKENS = tokens_of(1, 1100)


def saves(one, request, computed=0):
    """Of a step that computes the rest of its prompt."""
    new = SimpleNamespace(
        req_id=request.request_id, num_computed_tokens=computed,
        block_ids=(list(range(1, 1 + BLOCKS)),))
    return _step(one, request.request_id, request.num_tokens - computed, [new])


def later(one, request):
    """Of a step that computes one token more."""
    return _step(one, request.request_id, 1, [], req_ids=[request.request_id],
                 new_block_ids=[None],
                 num_computed_tokens=[request.num_tokens])


def _step(one, name, tokens, new, **cached):
    return one.build(SimpleNamespace(
        num_scheduled_tokens={name: tokens}, scheduled_spec_decode_tokens={},
        scheduled_new_reqs=new, scheduled_cached_reqs=SimpleNamespace(
            **dict(dict(req_ids=[], new_block_ids=[], num_computed_tokens=[],
                        resumed_req_ids=set()), **cached)),
        total_num_scheduled_tokens=tokens)).saves


def scheduled(one, *names):
    """A step that begins to compute these."""
    one._resumed(SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=n) for n in names],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set())))


@pytest.mark.parametrize("ends", ["scheduled", "failed", "aborted"])
def test_one_loads_for_all(side, ends):
    """The one whose lookup ends first, not the first in the queue: which vLLM
    asks for again when the load is over, before it has the blocks in its own
    cache. They are there when the loader is scheduled."""
    one = side()
    end = store(one, TOKENS)
    first, loader = asked(TOKENS, "first"), asked(TOKENS, "loader")
    came(one, first)
    came(one, loader)
    assert one.matched(loader, 0) == (end, True)
    blocks = SimpleNamespace(get_block_ids=lambda: (list(range(1, BLOCKS)),))
    one.allocated(loader, blocks, end)
    assert one.matched(first, 0) == (None, False)
    one.finished_step(SimpleNamespace(
        finished_recving={"loader"}, finished_sending=None,
        invalid_block_ids={1} if ends == "failed" else set(),
        failed_recving=(), kv_connector_worker_meta=None))
    if ends != "failed":
        assert one.matched(first, 0) == (None, False)
    if ends == "scheduled":
        scheduled(one, "loader")
        assert one.matched(first, end) == (0, False)  # found there
    elif ends == "aborted":
        one.finished(loader)
    assert not one.loading and not one.landed
    assert one.matched(first, 0) == (end, True)


def test_a_rank_that_fails_before_the_others_end(side):
    """vLLM tells of its blocks at once, and of the load's end later, without
    them. Another load that ends meanwhile is none of its business."""
    one = side()
    end, other = store(one, TOKENS), tokens_of(2, 1100)
    store(one, other)
    requests = asked(TOKENS, "fails"), asked(other, "loads")
    for i, request in enumerate(requests):
        came(one, request)
        assert one.matched(request, 0) == (end, True)
        ids = list(range(1 + i * BLOCKS, (i + 1) * BLOCKS))
        one.allocated(request, SimpleNamespace(get_block_ids=lambda: (ids,)),
                      end)

    def told(done, invalid=()):
        one.finished_step(SimpleNamespace(
            finished_recving=done, finished_sending=None,
            invalid_block_ids=set(invalid), failed_recving=(),
            kv_connector_worker_meta=None))

    fails, loads = (one.requests[name] for name in ("fails", "loads"))
    told({"loads"}, {2})
    assert loads.lookup.stored > 0 and not loads.record.failed
    told({"fails"})
    assert fails.lookup.stored == 0 and fails.record.failed
    assert list(one.landed.values()) == [loads]


# ---- adapters ----


@pytest.fixture
def hung(monkeypatch):
    """The disk that adapters are on does not answer until this is set."""
    answers, real = threading.Event(), adapters._look

    def look(*args):
        assert answers.wait(LONG)
        return real(*args)

    monkeypatch.setattr(adapters, "_look", look)
    yield answers
    answers.set()


def until(call):
    end = time.monotonic() + LONG
    while not call() and time.monotonic() < end:
        time.sleep(0.001)
    assert call()


@pytest.fixture
def adapter(dense, tmp_path):
    """adapter(number): one that nobody has seen."""
    place = tmp_path / "adapter"
    shutil.copytree(dense / "lora-a", place)
    return lambda number: LoRARequest("a", number, str(place))


@pytest.mark.parametrize("role", ["kv_both", "kv_producer"])
def test_an_adapter_is_looked_at_before_vllm_loads_it(side, hung, adapter,
                                                      role):
    """Its first request waits for that, also one that only saves."""
    one = side(role)
    request = asked(TOKENS, lora_request=adapter(1))
    one.arrive(request)
    assert one.matched(request, 0) == (None, False)
    hung.set()
    until(lambda: one.matched(request, 0) == (0, False))
    [move] = saves(one, request)
    plain = asked(TOKENS, "plain")
    came(one, plain)
    assert one.matched(plain, 0) == (0, False)
    assert move.keys != saves(one, plain)[0].keys


def test_an_adapter_that_was_not_looked_at_in_time(side, hung, adapter, clock):
    """Nobody knows what vLLM loads then: its number has no name any more."""
    one = side()
    request = asked(TOKENS, lora_request=adapter(1))
    one.arrive(request)
    clock.ahead = 0.9 * BOX
    assert one.matched(request, 0) == (None, False)
    clock.ahead = 1.1 * BOX
    assert one.matched(request, 0) == (0, False)
    assert saves(one, request) == []
    hung.set()
    for number, stored in ((1, 0), (2, 1)):  # 1 is not even looked at
        later = asked(TOKENS, f"later {number}", lora_request=adapter(number))
        came(one, later)
        until(lambda: one.matched(later, 0) == (0, False))
        assert len(saves(one, later)) == stored


@pytest.mark.parametrize("more", [
    {"prompt_logprobs": 1},
    {"extra_args": {"kv_transfer_params": {"larder": {
        "skip_save": True, "skip_load": True}}}}], ids=["logprobs", "skips"])
def test_who_loads_nothing_waits_for_the_look_too(side, hung, adapter, more):
    """And if vLLM does not heed that, what it loaded is not known."""
    one = side()
    for number in (1, 2):
        request = asked(TOKENS, f"r{number}", more,
                        lora_request=adapter(number))
        one.arrive(request)
        assert one.matched(request, 0) == (None, False)
        if number == 1:
            one.allocated(request, None, 0)
        else:
            hung.set()
            until(lambda: one.matched(request, 0) == (0, False))
        one.finished(request)
    for number, stored in ((1, 0), (2, 1)):
        later = asked(TOKENS, f"later {number}", lora_request=adapter(number))
        came(one, later)
        until(lambda: one.matched(later, 0) == (0, False))
        assert len(saves(one, later)) == stored


def test_a_look_that_fails(side, adapter, monkeypatch):
    """vLLM may find what we did not, and keeps it."""
    real = adapters._look

    def look(*_):
        monkeypatch.setattr(adapters, "_look", real)
        raise OSError(errno.EIO, "it cannot be read")

    monkeypatch.setattr(adapters, "_look", look)
    one = side()
    for name in ("first", "second"):
        request = asked(TOKENS, name, lora_request=adapter(1))
        came(one, request)
        assert one.matched(request, 0) == (0, False)
        assert saves(one, request) == []


def test_a_hung_disk_holds_up_nobody_else(side, hung, adapter, monkeypatch):
    """However many have adapters there; and not all of these are kept."""
    monkeypatch.setattr(lookup, "LOOKS_MAX", 4)
    one = side()
    end = store(one, TOKENS)
    first = [asked(TOKENS, f"r{i}", lora_request=adapter(1 + i))
             for i in range(8)]
    for request in first:
        one.arrive(request)
    plain = asked(TOKENS, "plain")
    came(one, plain)
    assert one.matched(plain, 0) == (end, True)
    waiting = [r for r in first if one.matched(r, 0) == (None, False)]
    assert 4 <= len(waiting) <= 5  # one is being looked at
    hung.set()
    for request in waiting:
        until(lambda: one.matched(request, 0) == (0, False))


# ---- who loads, who saves ----


@pytest.mark.parametrize("role, loads, stores", [
    ("kv_both", True, True), ("kv_producer", False, True),
    ("kv_consumer", True, False)])
def test_roles(side, role, loads, stores):
    one = side(role)
    end = store(one, TOKENS)
    request = asked(TOKENS)
    t = came(one, request)
    assert one.matched(request, 0) == ((end, True) if loads else (0, False))
    assert (t.lookup is not None) == loads
    one.finished(request)
    other = asked(tokens_of(2, 1100), "other")
    came(one, other)
    assert one.matched(other, 0) == (0, False)
    assert len(saves(one, other)) == stores


@pytest.mark.parametrize("sampling", [
    {"prompt_logprobs": 1}, {"skip_reading_prefix_cache": True}], ids=str)
def test_requests_that_read_no_cache(side, sampling):
    """vLLM 0.24 and 0.29 ask the connector for them all the same."""
    one = side()
    end = store(one, TOKENS)
    request = asked(TOKENS, sampling=sampling)
    assert request.skip_reading_prefix_cache
    t = came(one, request)
    assert t.lookup is None and one.matched(request, 0) == (0, False)
    assert t.record.why == "skip"
    assert len(saves(one, request)) == 1  # saved they may be
    plain = asked(TOKENS, "plain")
    came(one, plain)
    assert one.matched(plain, 0) == (end, True)


def numbered_config(dense, gigabytes, caching):
    config = config_of(dense, enable_prefix_caching=caching,
                       kv_transfer_config={
                           "kv_connector": "LarderConnector",
                           "kv_role": "kv_both",
                           "kv_connector_module_path": "larder_kv.vllm"})
    config.model_config.multimodal_config = SimpleNamespace(
        mm_processor_cache_gb=gigabytes, mm_processor_kwargs=None)
    return config


@pytest.mark.parametrize("gigabytes, caching, skipped", [
    (0, False, True), (0, True, False), (4, False, False)])
def test_images_without_a_lasting_name(side, dense, monkeypatch, gigabytes,
                                       caching, skipped):
    """Numbered by the process, they would be another's after a restart:
    neither saved nor loaded. The same prompts without an image are."""
    config = numbered_config(dense, gigabytes, caching)
    monkeypatch.setattr(model, "_images", lambda _: None)
    one = side(config=config)
    end = store(one, TOKENS)
    request = asked(TOKENS, mm_features=[image("3-image-0", end + 5)])
    t = came(one, request)
    data = one.stats()
    counted = data.get("skipped_numbered_images", 0) if data else 0
    assert counted == skipped
    assert (t is None) == skipped
    assert one.matched(request, 0) == ((0, False) if skipped
                                       else (end, True))
    other = asked(tokens_of(3, 1100), "other",
                  mm_features=[image("4-image-0", 5)])
    came(one, other)
    assert len(saves(one, other)) == (0 if skipped else 1)
    plain = asked(TOKENS, "plain")
    came(one, plain)
    assert one.matched(plain, 0) == (end, True)


# ---- the time that a request may wait ----


def crowded(one, tokens=TOKENS):
    """A request that finds all room taken."""
    one.finder._held = 1 << 60
    request = asked(tokens)
    t = came(one, request)
    assert t.lookup.crowded and t.lookup.reason == "crowded"
    assert one.matched(request, 0) == (None, False)
    return request, t


def test_a_crowded_request_gets_its_turn(side, clock):
    one = side()
    end = store(one, TOKENS)
    request, t = crowded(one)
    first = t.lookup
    clock.ahead = 0.5 * BOX
    assert one.matched(request, 0) == (None, False)
    assert t.lookup is first
    one.finder._held = 0
    assert one.matched(request, 0) == (None, False)
    looked(t.lookup)
    assert t.lookup is not first and first.left
    assert one.matched(request, 0) == (end, True)
    one.finished(request)
    assert one.finder._held == 0


@pytest.mark.parametrize("chunks", [0, 100])
def test_what_is_left_is_given_back(side, monkeypatch, chunks):
    """Once: little by who leaves it, much by a thread."""
    monkeypatch.setattr(lookup, "RELEASE_CHUNKS", chunks)
    one = side()
    store(one, TOKENS)
    request = asked(TOKENS)
    look = came(one, request).lookup
    lease, gone = look.lease, []
    release = lease.release
    lease.release = lambda: (release(),
                             gone.append(threading.current_thread().name))
    assert look.booked and one.finder._held == look.booked
    one.finished(request)
    one.finder.leave(look)
    assert one.finder._held == 0  # at once: others may have the room
    until(lambda: gone)
    assert look.lease is None and len(gone) == 1
    assert gone[0].startswith("larder-lookup") == (chunks == 0)


def test_a_crowded_request_goes_without(side, clock):
    one = side()
    store(one, TOKENS)
    request, t = crowded(one)
    clock.ahead = 0.99 * BOX
    assert one.matched(request, 0) == (None, False)
    clock.ahead = 1.01 * BOX
    assert one.matched(request, 0) == (0, False)
    assert t.lookup.left
    assert t.record.fields(one.model.chunk_tokens)["reason"] == "crowded"
    one.finder._held = 0
    assert one.matched(request, 0) == (0, False)  # for good


def test_a_crowded_request_waits_half_of_computing(side, clock):
    one = side()
    store(one, TOKENS)
    one.finder.rate.tokens_per_second = 1024 / (0.5 * BOX)
    request, t = crowded(one)
    clock.ahead = 0.2 * BOX
    assert one.matched(request, 0) == (None, False)
    clock.ahead = 0.3 * BOX
    assert one.matched(request, 0) == (0, False)


def test_the_time_counts_from_the_arrival(side, clock, monkeypatch):
    """Also that of a second lookup, which a crowded request gets late."""
    one = side()
    store(one, TOKENS)
    request, t = crowded(one)
    began = t.lookup.began
    clock.ahead = 0.7 * BOX
    one.finder._held = 0
    go_on = threading.Event()
    find = one.finder._find
    monkeypatch.setattr(one.finder, "_find",
                        lambda look: go_on.wait(LONG) and find(look))
    try:
        assert one.matched(request, 0) == (None, False)
        assert t.lookup.until == pytest.approx(began + BOX, abs=1)
        assert t.lookup.deadline == t.lookup.until
        clock.ahead = 0.95 * BOX
        assert one.matched(request, 0) == (None, False)
        clock.ahead = 1.05 * BOX
        assert one.matched(request, 0) == (0, False)
        assert t.record.why == "late"
    finally:
        go_on.set()


def test_time_in_vllms_queue_does_not_count(side, clock):
    """vLLM asks for it long after its arrival, when there is room again: it is
    looked up again, and has the same time for that, once."""
    one = side()
    end = store(one, TOKENS)
    one.finder._held = 1 << 60
    request = asked(TOKENS)
    t = came(one, request)
    clock.ahead = 3 * BOX
    assert one.matched(request, 0) == (None, False)
    clock.ahead = 3.9 * BOX
    assert one.matched(request, 0) == (None, False)
    other = asked(TOKENS, "other")
    one.finder._held = 0
    assert one.matched(request, 0) == (None, False)
    looked(t.lookup)
    assert one.matched(request, 0) == (end, True)
    one.finished(request)
    one.finder._held = 1 << 60
    t = came(one, other)
    clock.ahead = 7 * BOX
    assert one.matched(other, 0) == (None, False)
    clock.ahead = 8.1 * BOX
    assert one.matched(other, 0) == (0, False) and t.lookup.left


def test_what_was_preempted_arrives_again(side, clock):
    """Its second time counts from there."""
    one = side()
    end = store(one, TOKENS)
    request = asked(TOKENS)
    t = came(one, request)
    clock.ahead = 3 * BOX
    request.num_preemptions += 1
    assert one.matched(request, 0)[0] in (None, end)
    assert t.lookup.until > clock.monotonic()
    looked(t.lookup)
    assert one.matched(request, 0) == (end, True)


def test_what_vllm_has_itself_is_not_waited_for(side, monkeypatch):
    """Nothing of it could be claimed, whatever the lookup finds."""
    gate = threading.Event()
    find = lookup.Finder._find
    monkeypatch.setattr(lookup.Finder, "_find",
                        lambda *args: gate.wait(LONG) and find(*args))
    one = side()
    end = store(one, TOKENS)
    request = asked(TOKENS)
    one.arrive(request)
    t = one.requests["r"]
    assert one.matched(request, end - 1) == (None, False)
    assert one.matched(request, end) == (0, False) and not t.lookup.done
    assert t.record.fields(one.model.chunk_tokens)["reason"] == ""
    gate.set()
    looked(t.lookup)
    assert one.matched(request, end) == (0, False)
    assert one.matched(request, 0) == (end, True)  # if vLLM has lost it since


@pytest.fixture
def staged(monkeypatch):
    """Chunks of every prefix that was asked to be staged."""
    found, real = [], _lib.Space.stage

    def stage(self, layout, keys, chunks, *more):
        found.append(chunks)
        return real(self, layout, keys, chunks, *more)

    monkeypatch.setattr(_lib.Space, "stage", stage)
    return found


def hashed(one, tokens):
    """With a hash for each block, as vLLM's own cache names them."""
    block = one.model.groups[0].block_tokens
    return asked(tokens, block_hasher=lambda request: [
        bytes([i]) for i in range(request.num_tokens // block)])


def cached(one, blocks):
    """vLLM's own cache has the first so many blocks of any prompt."""
    one.pool = SimpleNamespace(get_cached_block=lambda block, groups: (
        [None] if groups == [0] and block[0] < blocks else None))


def test_what_vllm_has_itself_is_not_staged(side, staged):
    """Only which chunks need not be saved is asked for. If vLLM has less when
    it is scheduled, it is looked up."""
    one = side()
    end = store(one, TOKENS)
    blocks = end // one.model.groups[0].block_tokens
    cached(one, blocks)
    request = hashed(one, TOKENS)
    t = came(one, request)
    assert not staged and t.lookup.lease is None
    assert one.matched(request, end) == (0, False)
    assert saves(one, request) == []
    # Not all of it is there any more.
    assert one.matched(request, end - 256) == (None, False)
    looked(t.lookup)
    assert staged == [end // one.model.chunk_tokens]
    assert one.matched(request, 0) == (end, True)
    assert one.matched(request, end) == (0, False)


def test_what_vllm_has_of_several_groups_is_not_staged(side, staged, dense):
    """The last blocks in each of them, which have one hash."""
    config = config_of(dense, kv_transfer_config=CONNECTOR)
    one = side(config=config, kv=kv_of(full_of(config),
                                       window_of(config, 512)))
    block = config.cache_config.block_size
    end = (len(TOKENS) - 1) // one.model.chunk_tokens * one.model.chunk_tokens
    has = {0: end // block, 1: end // block}
    one.pool = SimpleNamespace(get_cached_block=lambda key, groups: (
        [None] * len(groups) if all(key[0] < has[i] for i in groups)
        and groups == [0, 1] else None))
    came(one, hashed(one, TOKENS))
    assert len(staged) == 1  # it does not know what is hashed
    one.hash_tokens = block
    request = asked(TOKENS, "whole", block_hasher=lambda request: [
        bytes([i]) for i in range(request.num_tokens // block)])
    t = came(one, request)
    assert len(staged) == 1 and t.lookup.lease is None
    assert one.matched(request, end) == (0, False)
    assert one.matched(request, end - block) == (None, False)
    looked(t.lookup)
    assert len(staged) == 2
    has[1] -= 1  # of the window's blocks one is gone
    came(one, asked(TOKENS, "less", block_hasher=lambda request: [
        bytes([i]) for i in range(request.num_tokens // block)]))
    assert len(staged) == 3


@pytest.mark.parametrize("why", ["less", "off", "unbound", "hashes"])
def test_what_vllm_may_not_have_is_staged(side, staged, why):
    one = side()
    end = store(one, TOKENS)
    cached(one, end // one.model.groups[0].block_tokens - (why == "less"))
    one._caches = why != "off"
    if why == "unbound":
        one.pool = None
    request = hashed(one, TOKENS)
    if why == "hashes":  # of blocks of another size
        request = asked(TOKENS, block_hasher=lambda _: [bytes([0])] * 99)
    came(one, request)
    assert staged and one.matched(request, 0) == (end, True)


def test_what_the_store_has_lost_is_saved_again(side, staged):
    """Also where vLLM has it: the store may have it after a restart."""
    one = side()
    end = len(TOKENS) // one.model.chunk_tokens
    cached(one, BLOCKS)
    request = hashed(one, TOKENS)
    came(one, request)
    [move] = saves(one, request)
    assert (move.begin, move.end) == (0, end * one.model.chunk_tokens)
    assert not staged


def test_what_vllm_has_is_not_saved_before_its_lookup_ends(side, monkeypatch):
    """vLLM schedules such a request at once. A later step saves what the store
    turns out to have lost; here all of it."""
    one = side()
    goes = threading.Event()
    match = _lib.Space.match

    def slow(*given):
        assert goes.wait(LONG)
        return match(*given)

    monkeypatch.setattr(_lib.Space, "match", slow)
    end = len(TOKENS) // one.model.chunk_tokens * one.model.chunk_tokens
    cached(one, BLOCKS)
    request = hashed(one, TOKENS)
    one.arrive(request)
    assert one.matched(request, end) == (0, False)
    one.allocated(request, None, 0)
    assert saves(one, request, computed=end) == []
    assert later(one, request) == []
    goes.set()
    looked(one.requests["r"].lookup)
    [move] = later(one, request)
    assert (move.begin, move.end) == (0, end)
    assert later(one, request) == []


def test_what_vllm_and_the_store_have_is_never_saved(side):
    one = side()
    end = store(one, TOKENS)
    cached(one, BLOCKS)
    request = hashed(one, TOKENS)
    t = came(one, request)
    one.allocated(request, None, 0)
    assert saves(one, request, computed=end) == [] == later(one, request)
    assert t.lookup.matched == end // one.model.chunk_tokens


def test_a_node_that_comes_later_says_how_much_it_has(side, monkeypatch):
    stats = _lib.Node.stats
    monkeypatch.setattr(_lib.Node, "stats", gone)
    one = side()
    assert one.finder._hold_max == lookup.HOLD_UNKNOWN
    monkeypatch.setattr(_lib.Node, "stats", stats)
    store(one, TOKENS)
    came(one, asked(TOKENS))
    assert one.finder._hold_max == (64 << 20) // lookup.HOLD_PART


def gone(_):
    raise _lib.LarderError(_lib.E_OFFLINE, "nobody listens")


# ---- where a hit would end the engine ----


CONNECTOR = {"kv_connector": "LarderConnector", "kv_role": "kv_both",
             "kv_connector_module_path": "larder_kv.vllm"}


@pytest.mark.parametrize("kind, loads", [
    ("LAST", True), ("MEAN", False), ("CLS", False)])
def test_pooling(dense, side, kind, loads):
    """vLLM asks for hits, and ends where the whole prompt is pooled."""
    config = config_of(dense, runner="pooling", convert="embed",
                       pooler_config={"seq_pooling_type": kind},
                       kv_transfer_config=CONNECTOR)
    one = side(config=config)
    assert one.loads == loads and one.saves


def test_routed_experts(dense, side):
    """A vLLM without these settings refuses it beside any connector."""
    config = config_of(dense, kv_transfer_config=CONNECTOR)
    outputs = getattr(config, "aux_output_config", None)
    if outputs is not None:
        outputs.enable_return_routed_experts = True
    assert side(config=config).loads == (outputs is None)


@pytest.mark.parametrize("sizes, found", [
    ({"dram": 10}, {"host": 1000}),
    ({"ssd": 7}, {"disk": 1000}),
    ({"dram": 30, "ssd": 10}, {"host": 750, "disk": 250}),
    ({"dram": 1, "ssd": 1, "shared": 1},
     {"host": 334, "disk": 333, "external_unspecified": 333}),
    ({}, {"host": 1000})])
def test_where_a_hit_came_from(side, sizes, found):
    one = side()
    request = asked(TOKENS)
    came(one, request).lookup.tier_bytes = tuple(
        sizes.get(name, 0) for name in _lib.TIERS)
    assert one.hit_sources(request, 1000) == found
    assert one.hit_sources(asked(TOKENS, "nobody"), 1000) == {"host": 1000}
