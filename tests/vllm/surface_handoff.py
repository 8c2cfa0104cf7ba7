"""Hand-offs on the scheduler's side: on vLLM's requests and a real store,
without an engine (test_surface.py). One scheduler is both sides."""
import copy
import threading
import time
from array import array
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import handoff
from larder_kv.vllm import adapters, model
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from surface import dense, full_of, kv_of
from surface_keys import tokens_of
from surface_requests import (BLOCKS, BOX, LONG, TOKENS, adapter, cached,
                              clock, hashed, hung, looked, side, until)

__all__ = ["adapter", "clock", "dense", "hung", "side"]  # fixtures

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False,
           "remote_engine_id": None, "remote_block_ids": None,
           "remote_host": None, "remote_port": None}
EARLY = {"do_remote_prefill": True, "do_remote_decode": False}


def request_of(tokens, name, params, **more):
    return Request(name, tokens, SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": params}), None, **more)


class Memory:
    """A worker's pages, and what it does with moves."""

    def __init__(self, one):
        self.one = one
        self.block = one.model.groups[0].block_tokens
        self.pages = torch.randn(BLOCKS, 2, self.block, 128).bfloat16()
        self.kv = kv_of(full_of(one.config), blocks=BLOCKS)
        self.whole = self.layout(one.model)

    def layout(self, described):
        return model.layout(described, self.kv, {"layers.0": self.pages})

    def run(self, move, load):
        where = (self.one.finder.tails.space if move.in_tail
                 else self.one.space)
        request = _lib.Move(
            keys=move.keys, first_key=move.first_key, begin=move.begin,
            end=move.end, writers=1, timeout_ms=20000, ttl_ms=move.ttl_ms,
            flags=_lib.PUT_ANNOUNCED, tables=(_lib.Table * 1)(*(
                (ids.buffer_info()[0], first, len(ids))
                for first, ids in move.tables)))
        call = where.load if load else where.save
        layout = (self.layout(handoff.tail_model(self.one.model, move.in_tail))
                  if move.in_tail else self.whole)
        assert call(layout, request) == _lib.OK
        assert request.failed == 0 and request.skipped == 0
        if move.in_tail:
            layout.close()

    def load(self, move):
        if move.begin < move.end:
            self.run(move, True)
        if move.tail is not None:
            self.run(move.tail, True)

    def close(self):
        self.whole.close()


@pytest.fixture
def memory(side):
    one = side()
    mine = Memory(one)
    yield mine
    mine.close()


def compute(one, request, computed=0, scheduled=None):
    """A step that computes so much of its prompt: its saves."""
    scheduled = scheduled or request.num_tokens - computed
    new = SimpleNamespace(
        req_id=request.request_id, num_computed_tokens=computed,
        block_ids=(list(range(1, BLOCKS)),))
    out = SimpleNamespace(
        num_scheduled_tokens={new.req_id: scheduled},
        scheduled_spec_decode_tokens={}, scheduled_new_reqs=[new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[],
            resumed_req_ids=set()),
        total_num_scheduled_tokens=scheduled)
    return one.build(out).saves


def finish(one, request, status=RequestStatus.FINISHED_LENGTH_CAPPED):
    request.status = status
    return one.finished(request)


def prefilled(memory, tokens, name="p", save=True, **more):
    """The prefill side, from arrival to answer."""
    one = memory.one
    request = request_of(tokens, name, dict(PREFILL), **more)
    one.arrive(request)
    t = one.requests[name]
    if t.lookup is not None:
        looked(t.lookup)
    assert t.gives is None or t.gives.promised.wait(LONG)
    moves = compute(one, request)
    for move in moves if save else ():
        memory.run(move, False)
    return finish(one, request), moves


def arrived(one, tokens, params, name="d", **more):
    """The decode side; its lookup is done."""
    request = request_of(tokens, name, params, **more)
    one.arrive(request)
    t = one.requests[name]
    if t.lookup is not None:
        looked(t.lookup)
    return request, t


def decoded(memory, tokens, params, local=0, name="d", first=1, **more):
    """Loads into other blocks; answers what it claimed and its move."""
    one = memory.one
    request, t = arrived(one, tokens, params, name, **more)
    claimed, later = one.matched(request, local)
    if not claimed:
        return claimed, None
    assert later
    ids = list(range(first, BLOCKS))
    one.allocated(request, SimpleNamespace(get_block_ids=lambda: (ids,)),
                  claimed)
    [move] = one.step.loads
    one.step.loads.clear()
    return claimed, move


def loaded(one, name="d"):
    one.finished_step(SimpleNamespace(
        finished_recving={name}, finished_sending=None,
        invalid_block_ids=set(), failed_recving=(),
        kv_connector_worker_meta=None))


# With blocks of 128 and chunks of 256: less than a block, a block, a tail of
# one and of two, no tail at all.
LENGTHS = (40, 128, 300, 512, 700, 1100)


@pytest.mark.parametrize("count", LENGTHS)
def test_all_but_the_last_token(memory, count):
    """Whatever its length: all of it is claimed, and the bytes are those that
    the prefill side had."""
    one, tokens = memory.one, tokens_of(count, count)
    answer, moves = prefilled(memory, tokens)
    assert answer["do_remote_prefill"] and not answer["do_remote_decode"]
    assert len(str(answer)) < 600
    used = -(-count // memory.block)
    had = memory.pages[1:1 + used].clone()
    memory.pages.fill_(7)
    claimed, move = decoded(memory, tokens, answer, first=3)
    assert claimed == count
    memory.load(move)
    assert torch.equal(memory.pages[3:3 + used], had)
    assert (memory.pages[3 + used:] == 7).all()
    loaded(one)
    assert one.counts.take()["handoffs_taken"] == 1
    # The node's lease is over, and nothing is held.
    t = one.requests["d"]
    finish(one, t.request)
    until(lambda: one.node.stats().dram_leased_chunks == 0)


@pytest.mark.parametrize("local", [128, 256, 384, 512, 640])
def test_what_the_engine_has_is_not_loaded(memory, local):
    tokens = tokens_of(5, 700)
    answer, _ = prefilled(memory, tokens)
    had = memory.pages[1:7].clone()
    memory.pages.fill_(7)
    claimed, move = decoded(memory, tokens, answer, local)
    assert claimed == 700 - local
    memory.load(move)
    first = local // memory.block
    assert torch.equal(memory.pages[1 + first:7], had[first:])
    assert (memory.pages[1:1 + first] == 7).all()


def test_an_answer_that_comes_before_the_saves(memory):
    """The decode side waits for them, and says "not yet" meanwhile."""
    one, tokens = memory.one, tokens_of(6, 700)
    answer, moves = prefilled(memory, tokens, save=False)
    request = request_of(tokens, "d", answer)
    one.arrive(request)
    time.sleep(0.1)
    assert one.matched(request, 0) == (None, False)
    for move in moves:
        assert not one.requests["d"].lookup.done
        memory.run(move, False)
    looked(one.requests["d"].lookup)
    assert one.matched(request, 0) == (700, True)


def test_a_prefill_that_is_aborted(memory):
    """It answers nothing, and nobody waits for it."""
    one, tokens = memory.one, tokens_of(7, 700)
    request = request_of(tokens, "p", dict(PREFILL))
    one.arrive(request)
    hand = one.requests["p"].gives
    assert hand.promised.wait(LONG)
    given = handoff.answer(hand, one.space, one.model.name)
    other = request_of(tokens, "d", {"larder": {"handoff": given}})
    one.arrive(other)
    time.sleep(0.05)
    assert one.matched(other, 0) == (None, False)
    assert finish(one, request, RequestStatus.FINISHED_ABORTED) is None
    looked(one.requests["d"].lookup)
    assert one.matched(other, 0) == (0, False)


def test_not_all_of_the_prompt_was_computed(memory):
    """A request that ended before its prompt did hands nothing off."""
    one, tokens = memory.one, tokens_of(8, 700)
    request = request_of(tokens, "p", dict(PREFILL))
    one.arrive(request)
    looked(one.requests["p"].lookup)
    compute(one, request, 0, 300)
    assert finish(one, request) is None


def altered(answer, **changes):
    made = copy.deepcopy(answer)
    made["larder"]["handoff"].update(changes)
    return made


BROKEN = {
    "token": lambda a: altered(a, token="00" * 16),
    "tail": lambda a: altered(a, tail="11" * 16),
    "tokens": lambda a: altered(a, tokens=701),
    "key": lambda a: altered(a, key="22" * 32),
    "seal": lambda a: altered(a, seal="33" * 32),
    "text": lambda a: altered(a, seal="\xff"),
    "version": lambda a: altered(a, v=handoff.VERSION + 1),
    "chain": lambda a: altered(a, chain="22" * 32),
    "kind": lambda a: altered(a, token=5),
    "more": lambda a: altered(a, address="10.0.0.1:7777"),
    "not one": lambda a: {"larder": {"handoff": "all of it"}},
    "null": lambda a: {"larder": {"handoff": {}}},
}


@pytest.mark.parametrize("how", BROKEN)
def test_forged_and_altered(memory, how):
    """It is served as if nobody had said anything: by what the store has."""
    one, tokens = memory.one, tokens_of(9, 700)
    answer, _ = prefilled(memory, tokens)
    one.counts.take()
    claimed, move = decoded(memory, tokens, BROKEN[how](answer))
    assert claimed == 512 and move.tail is None
    refused = [n for n in one.counts.take() if n.startswith("handoffs_ref")]
    assert len(refused) == 1


def test_of_another_prompt(memory):
    """With a good seal."""
    one = memory.one
    answer, _ = prefilled(memory, tokens_of(10, 700))
    claimed, _ = decoded(memory, tokens_of(11, 700), answer)
    assert claimed == 0
    assert one.counts.take()["handoffs_refused:prompt"] == 1


def test_of_another_tenant(memory):
    """Sealed under another secret."""
    one, tokens = memory.one, tokens_of(12, 700)
    answer, _ = prefilled(memory, tokens)
    theirs = one.node.space(one.model.descriptor, one.model.shards,
                            one.model.chunk_tokens, tenant="them",
                            secret=b"their secret is another")
    given = dict(answer["larder"]["handoff"])
    given.pop("seal")
    made = altered(answer, seal=theirs.seal(handoff._sealed(given)).hex())
    theirs.close()
    claimed, _ = decoded(memory, tokens, made)
    assert claimed == 512
    assert one.counts.take()["handoffs_refused:forged"] == 1


@pytest.mark.parametrize("why, changes", [
    ("space", {"space": "another model's"}),
    ("space", {"v": handoff.VERSION + 1}),
    ("space", {"v": 1, "chain": None}),
    ("forged", {"member": "n2"}),
    ("malformed", {"v": "2"})])
def test_reasons(memory, why, changes):
    """Of another model the seal is another too, and so is that of a newer
    engine, which may have other fields: that is no forgery."""
    one, tokens = memory.one, tokens_of(28, 700)
    answer, _ = prefilled(memory, tokens)
    made = altered(answer, **changes)
    given = made["larder"]["handoff"]
    for name in [name for name, value in given.items() if value is None]:
        del given[name]
    one.counts.take()
    claimed, _ = decoded(memory, tokens, made)
    assert claimed == 512
    assert one.counts.take()[f"handoffs_refused:{why}"] == 1


@pytest.mark.parametrize("count, claims", [(700, 512), (200, 0)])
def test_other_blocks(memory, count, claims):
    """The prefill side's blocks are of another size: its chunks are the same,
    and its tail is not. Without chunks there is nothing to be had."""
    one, tokens = memory.one, tokens_of(29, count)
    request = request_of(tokens, "p", dict(PREFILL))
    one.arrive(request)
    if one.requests["p"].lookup is not None:
        looked(one.requests["p"].lookup)
    hand = one.requests["p"].gives
    assert hand.promised.wait(LONG)
    hand.tail = bytes(len(hand.tail))
    for move in compute(one, request):
        memory.run(move, False)
    answer = finish(one, request)
    claimed, move = decoded(memory, tokens, answer)
    assert claimed == claims and (not claims or move.tail is None)
    refused = one.counts.take().get("handoffs_refused:prompt", 0)
    assert refused == (not claims)


def test_the_first_answer_names_its_node(side, monkeypatch):
    """It is not computed before the node has said its name. Later ones do not
    wait for that."""
    one, goes = side(), threading.Event()

    def promise(*_):
        assert goes.wait(LONG)
        return "n1"

    monkeypatch.setattr(_lib.Space, "promise", promise)
    monkeypatch.setattr(_lib.Space, "handoff", lambda *_: True)

    def prefill(name, count):
        request = request_of(tokens_of(count, count), name, dict(PREFILL))
        one.arrive(request)
        looked(one.requests[name].lookup)
        return request

    first = prefill("first", 300)
    assert one.matched(first, 0) == (None, False)
    goes.set()
    until(lambda: one.matched(first, 0) == (0, False))
    goes.clear()
    second = prefill("second", 400)
    assert one.matched(second, 0) == (0, False)
    for request in (first, second):
        compute(one, request)
        given = finish(one, request)["larder"]["handoff"]
        assert given["member"] == "n1"
    goes.set()


def test_twice_and_again(memory):
    """A token can be used any number of times; after a preemption the request
    is looked up as any other."""
    one, tokens = memory.one, tokens_of(13, 700)
    answer, _ = prefilled(memory, tokens)
    for name in ("first", "second"):
        claimed, _ = decoded(memory, tokens, answer, name=name)
        assert claimed == 700
        loaded(one, name)
    request = one.requests["second"].request
    request.num_preemptions += 1
    assert one.matched(request, 0) == (None, False)
    looked(one.requests["second"].lookup)
    assert one.matched(request, 0) == (512, True)


def test_late(memory, clock):
    """The lease is over and the tail is gone: its chunks are loaded, if they
    are there, and the rest is computed."""
    one, tokens = memory.one, tokens_of(14, 700)
    answer, _ = prefilled(memory, tokens)
    one.finder.tails.space.reset(20000)
    claimed, move = decoded(memory, tokens, answer)
    assert claimed == 512 and move.tail is None
    assert one.counts.take()["handoffs_short:absent"] == 1


def test_a_reset_drops_tails(memory):
    """They may be of other weights, as all that was stored before; whether
    this engine has had to do with one before, or only what it was then."""
    one, tokens = memory.one, tokens_of(25, 200)
    answer, _ = prefilled(memory, tokens)
    assert one.reset()
    claimed, _ = decoded(memory, tokens, answer)
    assert claimed == 0
    answer, _ = prefilled(memory, tokens, "again")
    before, one.finder.tails = one.finder.tails, None
    assert one.reset()
    before.close()
    claimed, _ = decoded(memory, tokens, answer, name="e")
    assert claimed == 0


def test_a_load_that_failed_is_computed(memory):
    one, tokens = memory.one, tokens_of(15, 700)
    answer, _ = prefilled(memory, tokens)
    claimed, _ = decoded(memory, tokens, answer)
    one.finished_step(SimpleNamespace(
        finished_recving={"d"}, finished_sending=None, invalid_block_ids=set(),
        failed_recving={"d"}, kv_connector_worker_meta=None))
    assert one.matched(one.requests["d"].request, 0) == (0, False)


def test_who_gives_up(memory):
    """Before its lookup is done, after it, and after its claim."""
    one, tokens = memory.one, tokens_of(16, 700)
    answer, moves = prefilled(memory, tokens, save=False)
    waits = request_of(tokens, "waits", answer)
    one.arrive(waits)
    finish(one, waits, RequestStatus.FINISHED_ABORTED)
    for move in moves:
        memory.run(move, False)
    request, _ = arrived(one, tokens, answer, "staged")
    finish(one, request, RequestStatus.FINISHED_ABORTED)
    decoded(memory, tokens, answer, name="claimed")
    finish(one, one.requests["claimed"].request,
           RequestStatus.FINISHED_ABORTED)
    loaded(one, "claimed")
    assert not one.ended and not one.loading
    until(lambda: one.node.stats().dram_leased_chunks == 0)


def test_inside_a_multiconnector(memory):
    """Only our own key: another's answer has the others."""
    memory.one.handoffs._alone = False
    answer, _ = prefilled(memory, tokens_of(17, 300))
    assert set(answer) == {"larder"}
    claimed, _ = decoded(memory, tokens_of(17, 300), answer)
    assert claimed == 300


@pytest.mark.parametrize("more", [{"cache_salt": "a"}])
def test_salts(memory, more):
    """A tail is another's under another salt."""
    one, tokens = memory.one, tokens_of(18, 200)
    answer, _ = prefilled(memory, tokens, **more)
    claimed, _ = decoded(memory, tokens, answer)
    assert claimed == 0
    claimed, _ = decoded(memory, tokens, answer, name="same", **more)
    assert claimed == 200


@pytest.mark.parametrize("sides", ["p", "d", "pd"])
def test_adapters(memory, adapter, sides):
    """Of an adapter that was looked at more than a second ago, on one side or
    both: a thread names the prompt first."""
    one, tokens, lora = memory.one, tokens_of(26, 700), adapter(1)

    def come(name, params):
        adapters.look(lora)
        age = 2 * adapters.SECONDS if name in sides else 0
        adapters._entry(lora).checked = time.monotonic() - age
        request = request_of(tokens, name, params, lora_request=lora)
        one.arrive(request)
        until(lambda: one.matched(request, 0)[0] is not None)
        return request

    prefill = come("p", dict(PREFILL))
    for move in compute(one, prefill):
        memory.run(move, False)
    answer = finish(one, prefill)
    decode = come("d", answer)
    assert one.matched(decode, 0) == (700, True)
    claimed, _ = decoded(memory, tokens, answer, name="plain")
    assert claimed == 0  # without the adapter it is another prompt
    compute(one, decode)
    assert not one.unnamed


@pytest.mark.parametrize("how", ["late", "unheeded", "aborted"])
def test_adapters_that_cannot_be_looked_at(memory, adapter, hung, clock, how):
    """Neither side hands off, and nobody waits for it."""
    one, tokens = memory.one, tokens_of(27, 700)
    requests = [
        request_of(tokens, name, params, lora_request=adapter(number))
        for number, (name, params) in enumerate(
            (("p", dict(PREFILL)), ("d", dict(EARLY))), 1)]
    for request in requests:
        one.arrive(request)
        assert one.matched(request, 0) == (None, False)
        if how == "unheeded":  # vLLM goes on all the same
            one.allocated(request, None, 0)
    clock.ahead = 1.1 * BOX
    for request in requests:
        if how == "late":
            assert one.matched(request, 0) == (0, False)
        elif how == "aborted":
            assert finish(one, request, RequestStatus.FINISHED_ABORTED) is None
    assert compute(one, requests[0]) == [] and not one.unnamed
    if how != "aborted":
        assert one.counts.take()["handoffs_refused:unable"] == 2
        assert finish(one, requests[0]) is None


def test_roles(side):
    """A prefill engine that saves nothing hands nothing off."""
    one = side("kv_consumer")
    request = request_of(tokens_of(19, 300), "p", dict(PREFILL))
    one.arrive(request)
    assert one.requests["p"].gives is None
    compute(one, request)
    assert finish(one, request) is None


def test_releases_that_cannot_be_told_of_a_failed_load(side, monkeypatch):
    """Their models with several groups go without promise and tail."""
    one = side()
    monkeypatch.setattr(one.finder, "fetches", True)
    request = request_of(tokens_of(20, 300), "p", dict(PREFILL))
    one.arrive(request)
    assert one.requests["p"].gives is None
    assert finish(one, request) is None


def test_tails_are_no_part_of_reuse(memory):
    """An ordinary request finds the whole chunks and nothing more."""
    one, tokens = memory.one, tokens_of(21, 700)
    prefilled(memory, tokens)
    claimed, move = decoded(memory, tokens + [1] * 100, None)
    assert claimed == 512 and move.tail is None
    assert one.finder.tails.unit == memory.block
    assert array("I", [handoff.PAD])[0] == 0xFFFFFFFF


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_both_at_once(memory, first):
    """A proxy that asks both sides together: the decode side waits for the
    promise, then for the KV."""
    one, tokens = memory.one, tokens_of(22, 700)
    prefill = request_of(tokens, "p", dict(PREFILL))
    decode = request_of(tokens, "d", dict(EARLY))
    for request in (decode, prefill) if first == "decode" else (prefill,
                                                                decode):
        one.arrive(request)
        time.sleep(0.05)
    assert one.matched(decode, 0) == (None, False)
    looked(one.requests["p"].lookup)
    for move in compute(one, prefill):
        assert one.matched(decode, 0) == (None, False)
        memory.run(move, False)
    looked(one.requests["d"].lookup)
    assert one.matched(decode, 0) == (700, True)
    finish(one, prefill)


def test_nobody_prefills(memory, monkeypatch):
    """It waits a moment, and is computed."""
    one = memory.one
    monkeypatch.setattr(handoff, "EARLY_SECONDS", 0.1)
    request, _ = arrived(one, tokens_of(23, 700), dict(EARLY))
    assert one.matched(request, 0) == (0, False)


def test_beside_another_connector(memory):
    """do_remote_prefill is the other's word."""
    one = memory.one
    one.handoffs._alone = False
    request, t = arrived(one, tokens_of(24, 700), dict(EARLY))
    assert t.lookup.taken is None


def test_what_vllm_has_is_saved_before_its_answer(side, monkeypatch):
    """It is scheduled before its lookup has ended, and there may be no later
    step: what the store has lost would be missing at the decode side."""
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
    request.kv_transfer_params = dict(PREFILL)
    one.arrive(request)
    assert one.requests[request.request_id].gives.promised.wait(LONG)
    assert one.matched(request, end) == (0, False)
    one.allocated(request, None, 0)
    moves = compute(one, request, computed=end)
    goes.set()
    assert [(m.begin, m.end) for m in moves if not m.in_tail] == [(0, end)]
    finish(one, request, RequestStatus.FINISHED_ABORTED)
