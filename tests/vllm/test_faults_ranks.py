"""Proof 5, tensor parallel 2: as in test_faults_kinds, and the load of one rank
fails while that of the other does not; the one that fails ends it last, or
first. For a model with one KV group, and for one with windows (Gemma 3)."""
import contextlib

import pytest

pytest.register_assert_rewrite("faults", "kinds")

import kinds
from test_faults_kinds import (NAME, test_a_lie_is_seen, test_damaged_in_memory,
                               test_damaged_on_disk, test_killed_at_any_moment,
                               test_load_fails, test_no_descriptor_in_one_rank,
                               well)

__all__ = ["test_a_lie_is_seen", "test_damaged_in_memory",
           "test_damaged_on_disk", "test_killed_at_any_moment",
           "test_load_fails", "test_no_descriptor_in_one_rank", "well"]


@pytest.fixture(scope="module", params=["dense", "gemma3"])
def told(request, version, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield kinds.Kind(version, request.param, 2,
                         tmp_path_factory.mktemp("node"), stack)


@pytest.mark.parametrize("fault", ["kill", "stop", "damage"])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_fails_last(told, fault, rank):
    told.fails(fault, NAME, [rank])


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_fails_first(told, rank):
    """And says so while the other one still loads."""
    with told.failing([one == rank for one in told.ranks], NAME):
        with told.claimed(NAME):
            told.damage(NAME, [rank])
            told.go(rank, "loads" if told.fetches else "failed")
            told.go(1 - rank)
            told.answer()
