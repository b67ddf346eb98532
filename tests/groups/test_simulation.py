"""Whatever members, network and disk do, what must hold holds. Many more seeds: see `simulation`."""

from __future__ import annotations

import pytest

from .simulation import simulate

SEEDS = 200
CHUNK = 5


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
def test_invariants_hold_under_any_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


@pytest.mark.slow
def test_the_simulation_reaches_what_it_is_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(10):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    wanted = ("joined", "synced", "commits accepted", "restarts", "moves", "failed writes", "leave_group")
    for what in (*wanted, "txn_offset_commit", "transactions committed", "transactions aborted", "clock steps"):
        assert totals.get(what, 0) >= 10, f"{what} hardly ever happens: {totals}"
    for what in ("writes that failed in part", "markers written again", "deletions of offsets", "deletions of groups"):
        assert totals.get(what, 0) >= 3, f"{what} hardly ever happens: {totals}"


def test_a_seed_decides_everything() -> None:
    first, second = simulate(7), simulate(7)
    assert first.log == second.log
    assert first.answered_ms == second.answered_ms
