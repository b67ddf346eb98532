"""The model cluster: nothing is lost under any of some seeds, and mistakes that are put in are found."""

from __future__ import annotations

import pytest
from tests.broker.replication.model import run
from tests.broker.replication.mutations import MUTATIONS, Mutation, found_after

_QUICK = 100


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_no_schedule_breaks_an_invariant(first: int) -> None:
    committed = 0
    for seed in range(first, first + 100):
        committed += sum(map(len, run(seed).cluster.committed.values()))
    assert committed > 200


@pytest.mark.parametrize("seed", [10485, 16309])
def test_a_follower_that_ends_where_the_leaders_log_begins_comes_in_with_the_same_records(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", [1080762, 1078087, 2045528, 2076565, 5018064])
def test_what_failed_once_does_not_fail_again(seed: int) -> None:
    """A late proposal that let one in whom the leader did not wait for any more; the model itself, which took records
    that are deleted for committed ones, and twice the cut of a copy that nobody counts on for a loss."""
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [mutation for mutation in MUTATIONS if mutation.seeds <= _QUICK], ids=lambda mutation: mutation.name
)
def test_the_model_finds_a_mistake(mutation: Mutation) -> None:
    assert found_after(mutation, mutation.seeds) is not None


@pytest.mark.long
@pytest.mark.parametrize(
    "mutation", [mutation for mutation in MUTATIONS if mutation.seeds > _QUICK], ids=lambda mutation: mutation.name
)
def test_the_model_finds_a_rarer_mistake(mutation: Mutation) -> None:
    assert found_after(mutation, mutation.seeds) is not None
