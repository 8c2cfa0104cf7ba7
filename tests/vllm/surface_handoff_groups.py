"""Hand-offs of models with several KV groups, on the scheduler's side: windows
shorter than a chunk, recurrent states, blocks of different sizes; and of
engines with a drafter (test_surface.py). One scheduler is both sides."""
from types import SimpleNamespace

import pytest
import torch
from larder_kv import _lib
from larder_kv.engine import handoff
from larder_kv.vllm import model
from larder_kv.vllm.handoff import SHORTENED
from vllm.v1.request import RequestStatus

from surface import config_of, dense, full_of, kv_of, state_of, window_of
from surface_handoff import EARLY, PREFILL, finish, loaded, request_of
from surface_keys import tokens_of
from surface_requests import BLOCKS, LONG, looked, side

__all__ = ["dense", "side"]  # fixtures
ROLE = {"kv_connector": "LarderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "larder_kv.vllm"}
NULL = _lib.NULL_BLOCK


class Memory:
    """A worker's pages of all groups. Block ids are as places, and one more:
    0 stands for none."""

    def __init__(self, one, kv):
        self.one, self.kv = one, kv
        self.specs = [g.kv_cache_spec for g in kv.kv_cache_groups]
        self.pages = [
            torch.randint(-99, 99, (BLOCKS, 1, 1, spec.page_size_bytes),
                          dtype=torch.int8) if hasattr(spec, "shapes") else
            torch.randn(BLOCKS, 2, spec.block_size, 128).bfloat16()
            for spec in self.specs]

    def run(self, move, load):
        described = (handoff.tail_model(self.one.model, move.in_tail)
                     if move.in_tail else self.one.model)
        layout = model.layout(described, self.kv, {
            f"layers.{i}": pages for i, pages in enumerate(self.pages)})
        where = (self.one.finder.tails.space if move.in_tail
                 else self.one.space)
        request = _lib.Move(
            keys=move.keys, first_key=move.first_key, begin=move.begin,
            end=move.end, writers=1, timeout_ms=20000, ttl_ms=move.ttl_ms,
            flags=_lib.PUT_ANNOUNCED,
            tables=(_lib.Table * len(move.tables))(*(
                (ids.buffer_info()[0] if ids else None, first, len(ids))
                for first, ids in move.tables)))
        call = where.load if load else where.save
        assert call(layout, request) == _lib.OK and request.failed == 0
        layout.close()

    def load(self, move):
        if move.begin < move.end:
            self.run(move, True)
        if move.tail is not None:
            self.run(move.tail, True)

    def tables(self, computed, tokens):
        """As vLLM has them when so many tokens are computed, of so many that
        have blocks: what these do not see is given away."""
        found = []
        for spec in self.specs:
            size = spec.block_size
            ids = list(range(1, 1 + -(-tokens // size)))
            gone = 0
            if hasattr(spec, "shapes"):
                gone = len(ids) - 1
            elif getattr(spec, "sliding_window", None):
                gone = max(0, computed - spec.sliding_window + 1) // size
            found.append([NULL] * gone + ids[gone:])
        return found

    def seen(self, computed, tokens):
        """What is at these places, by group and block."""
        return {(i, b): self.pages[i][b].clone()
                for i, ids in enumerate(self.tables(computed, tokens))
                for b in ids if b != NULL}


@pytest.fixture
def memory(side, dense):
    """memory(spec, ..., block=...): of an engine with these groups."""
    def make(*specs, block=128):
        config = config_of(dense, block_size=block, kv_transfer_config=ROLE)
        kv = kv_of(*(spec(config) for spec in specs), blocks=BLOCKS)
        return Memory(side(config=config, kv=kv), kv)
    return make


def step(memory, request, computed, count):
    """One that computes so many tokens of it: its saves."""
    one, name = memory.one, request.request_id
    end = computed + count
    size = memory.specs[-1].block_size
    offers = {}
    if end % size == 0 and hasattr(memory.specs[-1], "shapes"):
        offers = {name: [(len(memory.specs) - 1, end // size, end)]}
    cached = dict(req_ids=[], new_block_ids=[], num_computed_tokens=[],
                  resumed_req_ids=set())
    new = []
    if computed == 0:
        new = [SimpleNamespace(req_id=name, num_computed_tokens=0,
                               block_ids=tuple(memory.tables(0, end)))]
    else:
        before = [len(ids) for ids in memory.tables(0, computed)]
        cached.update(req_ids=[name], num_computed_tokens=[computed],
                      new_block_ids=[tuple(
                          ids[had:] for ids, had in zip(
                              memory.tables(computed, end), before))])
    out = SimpleNamespace(
        num_scheduled_tokens={name: count}, scheduled_spec_decode_tokens={},
        scheduled_new_reqs=new,
        scheduled_cached_reqs=SimpleNamespace(**cached),
        total_num_scheduled_tokens=count,
        kv_connector_block_state=SimpleNamespace(
            boundary_state_offloads=offers,
            resolve_block_ids=lambda _: memory.tables(computed, end)))
    for move in one.build(out).saves:
        memory.run(move, False)


def prefilled(memory, tokens, first=0):
    """The prefill side, from arrival to answer. first: tokens of its first
    step, or steps end where blocks do, as for states."""
    one = memory.one
    request = request_of(list(tokens), "p", dict(PREFILL))
    one.arrive(request)
    t = one.requests["p"]
    looked(t.lookup) if t.lookup is not None else None
    assert t.gives is not None and t.gives.promised.wait(LONG)
    count = request.num_prompt_tokens
    first = first or (count - 1) // memory.specs[0].block_size * (
        memory.specs[0].block_size)
    if first:
        step(memory, request, 0, first)
    step(memory, request, first, count - first)
    return finish(one, request), request


def decoded(memory, tokens, params, local=0, name="d"):
    """What it claims, behind what the engine has; and its load."""
    one = memory.one
    request = request_of(tokens, name, params)
    one.arrive(request)
    looked(one.requests[name].lookup)
    claimed, later = one.matched(request, local)
    if not claimed:
        return 0, None
    assert later
    ids = memory.tables(local + claimed, local + claimed)
    one.allocated(request, SimpleNamespace(get_block_ids=lambda: tuple(ids)),
                  claimed)
    [move] = one.step.loads
    one.step.loads.clear()
    return claimed, move


def check(memory, count, first=0, local=0, wanted=None):
    """All but the last token is claimed, and what that token sees is what the
    prefill side had."""
    one, tokens = memory.one, tokens_of(count, count)
    answer, request = prefilled(memory, tokens, first)
    had = memory.seen(count - 1, request.num_prompt_tokens)
    kept = memory.seen(0, local)
    for pages in memory.pages:
        pages.fill_(7)
    for (i, b), data in kept.items():
        memory.pages[i][b] = data
    claimed, move = decoded(memory, tokens, answer, local)
    assert local + claimed == (wanted or count - 1)
    memory.load(move)
    for (i, b), data in memory.seen(count - 1, local + claimed).items():
        assert torch.equal(data, had[i, b]), (i, b)
    loaded(one)
    assert one.counts.take()["handoffs_taken"] == 1
    finish(one, one.requests["d"].request)
    return request


def window(size):
    return lambda config: window_of(config, size)


# With blocks of 128 and chunks of 256: the window ends in the chunk before the
# tail, at a block's border, in the tail, and in its last block.
COUNTS = (300, 385, 512, 639, 767)


@pytest.mark.parametrize("size", [2, 64, 129, 200])
@pytest.mark.parametrize("count", COUNTS)
def test_windows(memory, size, count):
    check(memory(full_of, window(size)), count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("left", [1, 60])
def test_a_last_step_that_is_short(memory, count, left):
    """The prefill engine has given away what lay before its window then, and
    what the tail needs is still there."""
    check(memory(full_of, window(64)), count, first=count - left)


def test_a_window_and_what_the_engine_has(memory):
    for local in (128, 256, 384):
        check(memory(full_of, window(64)), 700, local=local)


STATES = (257, 300, 513, 600, 769, 1000)  # with blocks of 256


@pytest.mark.parametrize("count", STATES)
def test_states(memory, count):
    """vLLM's rule for these: the prefill side computes all but the last token,
    so that the state is that before it."""
    request = check(memory(full_of, state_of, block=256), count)
    assert request.num_prompt_tokens == count - 1 == request.num_tokens
    assert request.max_tokens == 1 and request.kv_transfer_params[SHORTENED]


def test_states_and_another_connector(memory):
    """It has shortened the prompt already: that is not done again."""
    mine = memory(full_of, state_of, block=256)
    params = dict(PREFILL, **{SHORTENED: True})
    request = request_of(tokens_of(1, 600), "p", params)
    mine.one.arrive(request)
    assert request.num_prompt_tokens == 600
    assert mine.one.requests["p"].gives.tokens == 600
    finish(mine.one, request, RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize("more", [{"skip": True}, {"count": 1}])
def test_states_that_are_not_handed_off(memory, more):
    """A prompt of one token; one whose logprobs the decode side computes."""
    mine = memory(full_of, state_of, block=256)
    count = more.get("count", 600)
    request = request_of(tokens_of(2, count), "p", dict(PREFILL))
    request.skip_reading_prefix_cache = "skip" in more
    mine.one.arrive(request)
    assert request.num_prompt_tokens == count
    t = mine.one.requests.get("p")
    assert t is None or t.gives is None
    assert finish(mine.one, request) is None


def test_a_state_that_is_lost(memory):
    """The tail is gone: what is left is the last boundary's."""
    mine = memory(full_of, state_of, block=256)
    tokens = tokens_of(3, 600)
    answer, _ = prefilled(mine, tokens)
    mine.one.finder.tails.space.reset(20000)
    claimed, move = decoded(mine, tokens, answer)
    assert claimed == 512 and move.tail is None
    assert mine.one.counts.take()["handoffs_short:absent"] == 1


def test_states_early(memory):
    """The decode side, asked at once, names what the prefill side will."""
    mine = memory(full_of, state_of, block=256)
    tokens = tokens_of(4, 600)
    prefilled(mine, tokens)
    claimed, _ = decoded(mine, tokens, dict(EARLY))
    assert claimed == 599


@pytest.mark.parametrize("count", [40, 300, 500, 700])
def test_blocks_of_different_sizes(memory, count):
    """A tail has the larger ones; behind the prompt there may be no smaller
    one."""
    def small(config):
        return full_of(config, block_size=64)

    mine = memory(full_of, small)
    assert mine.one.model.chunk_tokens == 256
    check(mine, count, wanted=count)
    assert mine.one.finder.tails.unit == 128


def test_a_drafter(memory):
    """It needs hidden states before the first token that is computed: the last
    one's of a whole hand-off; else a block's."""
    mine = memory(full_of)
    mine.one.finder.eagle = True
    tokens = tokens_of(5, 700)
    check(mine, 700, wanted=700)
    answer, _ = prefilled(mine, tokens)
    mine.one.finder.tails.space.reset(20000)
    claimed, _ = decoded(mine, tokens, answer, name="e")
    assert claimed == 512 - 128
