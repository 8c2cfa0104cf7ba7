"""Resets, as vLLM asks for them: what was stored before may be of other weights
(test_surface.py)."""
import threading
from types import SimpleNamespace

import pytest
from larder_kv import _lib
from larder_kv.engine import drop

from surface import dense
from surface_requests import (BLOCKS, LONG, TOKENS, asked, came, saves, side,
                              store, until)

__all__ = ["dense", "side"]  # fixtures


def loads(one, request, tokens):
    """vLLM gives it blocks for so many tokens of the store's."""
    blocks = SimpleNamespace(get_block_ids=lambda: (list(range(1, BLOCKS)),))
    one.allocated(request, blocks, tokens)


def told(one, *names):
    """These have their blocks, whoever loaded them."""
    one.finished_step(SimpleNamespace(
        finished_recving=set(names), finished_sending=None,
        invalid_block_ids=set(), failed_recving=(),
        kv_connector_worker_meta=None))


def test_a_reset_between_a_load_and_its_step(side):
    """What was loaded before is of the old weights, and so is what would be
    computed behind it. Who has loaded nothing saves all."""
    one = side()
    end = store(one, TOKENS)
    loader, waits = asked(TOKENS, "loader"), asked(TOKENS, "waits")
    came(one, loader)
    assert came(one, waits).lookup.stored > 0
    assert one.matched(loader, 0) == (end, True)
    loads(one, loader, end)
    told(one, "loader")
    assert one.reset()
    assert saves(one, loader) == []
    assert one.matched(waits, 0) == (0, False)
    [move] = saves(one, waits)
    assert move.begin == 0 and move.end == end


@pytest.mark.parametrize("reached", [True, False])
def test_a_reset_between_a_match_and_its_blocks(side, monkeypatch, reached):
    """vLLM may ask for the load in a later step. Nothing that was stored before
    is loaded then, and what is ordered in its place fails."""
    one = side()
    end = store(one, TOKENS)
    request = asked(TOKENS)
    keys = came(one, request).prompt.keys.data(0, 1)
    assert one.matched(request, 0) == (end, True)
    if not reached:
        monkeypatch.setattr(one.drop, "now", lambda *given: False)
    assert one.reset() == reached
    loads(one, request, end)
    [move] = one.step.loads
    assert (move.begin, move.end, move.token) == (0, end, b"")
    assert len(move.keys) == end // one.model.chunk_tokens * len(keys)
    assert keys not in move.keys and not one.loading
    one.finished_step(SimpleNamespace(
        finished_recving={"r"}, finished_sending=None,
        invalid_block_ids=set(one.requests["r"].blocks[0][1]),
        failed_recving=(), kv_connector_worker_meta=None))
    assert one.matched(request, 0) == (0, False)
    one.finished(request)
    assert one.finder._held == 0 and not one.ended


@pytest.mark.parametrize("of_tails", [False, True])
def test_a_reset_that_does_not_get_through(side, monkeypatch, of_tails):
    """The node has what was stored before; nobody may use it, and those that
    run are not saved. An arrival later it is told, and all is as it was."""
    one = side()
    store(one, TOKENS)
    waits = asked(TOKENS, "waits")
    came(one, waits)
    space = one.handoffs.tails().space if of_tails else one.space
    reset, fails = space.reset, [True]

    def tried(timeout_ms):
        if fails[0]:
            raise _lib.LarderError(_lib.E_OFFLINE, "the node is away")
        reset(timeout_ms)

    monkeypatch.setattr(space, "reset", tried)
    monkeypatch.setattr(drop, "AGAIN_SECONDS", 0.0)
    assert not one.reset()
    assert one.matched(waits, 0) == (0, False) and saves(one, waits) == []
    later = asked(TOKENS, "later")
    assert came(one, later) is None
    assert one.matched(later, 0) == (0, False) and saves(one, later) == []
    fails[0] = False
    names = iter(range(1000))
    until(lambda: came(one, asked(TOKENS, f"n{next(names)}")) is not None)
    after = asked(TOKENS, "after")
    assert came(one, after).lookup.stored == 0
    assert one.matched(after, 0) == (0, False) and saves(one, after) != []


def test_a_try_of_before_ends_no_later_reset(side, monkeypatch):
    """It was under way when vLLM asked again, and got through after that."""
    one = side()
    store(one, TOKENS)
    go, away = threading.Event(), _lib.LarderError(_lib.E_OFFLINE, "away")
    answers = iter([away, None, None, away, away])
    tries = []

    def tried(timeout_ms):
        answer = next(answers)
        tries.append(answer)
        if len(tries) == 2:
            assert go.wait(LONG)
        if answer is not None:
            raise answer

    monkeypatch.setattr(one.space, "reset", tried)
    monkeypatch.setattr(drop, "AGAIN_SECONDS", 0.0)
    assert not one.reset()
    assert came(one, asked(TOKENS, "has it tried again")) is None
    until(lambda: len(tries) == 2)
    assert one.reset()
    go.set()
    until(lambda: not one.drop._trying)
    assert not one.reset()
    assert came(one, asked(TOKENS, "after")) is None


@pytest.mark.parametrize("status", [_lib.E_TIER_OFF, _lib.E_IO])
def test_a_reset_that_is_not_everywhere(side, monkeypatch, status):
    """The node itself gives nothing of before: vLLM hears that it failed, and
    the engine goes on."""
    one = side()
    reset = one.space.reset

    def here(timeout_ms):
        reset(timeout_ms)
        raise _lib.LarderError(status, "not everywhere")

    store(one, TOKENS)
    monkeypatch.setattr(one.space, "reset", here)
    assert not one.reset()
    after = asked(TOKENS, "after")
    assert came(one, after).lookup.stored == 0
    assert saves(one, after) != []


def test_another_connectors_load(side):
    """A MultiConnector tells all of its children what one of them loaded."""
    one = side()
    end = store(one, TOKENS)
    request = asked(TOKENS, "r")
    t = came(one, request)
    assert one.matched(request, 0) == (end, True)
    loads(one, request, 0)  # another one was chosen
    one.finder.rate.load_speed = speed = 1e9
    t.lookup.tier_bytes = (1 << 30, 0, 0)
    told(one, "r")
    assert one.finder.rate.load_speed == speed
    assert t.record.reported == 0 and not one.landed
