"""Whatever becomes of coordinators' appends, they know what the logs say. More seeds: `coordinator_simulation`."""

from __future__ import annotations

import pytest

from .coordinator_simulation import simulate

SEEDS = 120
CHUNK = 10


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
def test_coordinators_know_what_their_logs_say_under_any_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


@pytest.mark.slow
def test_the_simulation_reaches_what_it_is_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(20):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    failures = ("appends cancelled", "appends failed", "appends refused", "appends timed out")
    for what in (*failures, "commits in transactions", "producers"):
        assert totals.get(what, 0) >= 10, f"{what} hardly ever happens: {totals}"
