"""Whatever producers, network, disk and coordinator do, what must hold holds. Many more seeds: see `simulation`."""

from __future__ import annotations

import pytest

from .simulation import simulate

SEEDS = 300
CHUNK = 10


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
def test_invariants_hold_under_any_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


@pytest.mark.slow
def test_the_simulation_reaches_what_it_is_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(30):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    often = ("commits", "aborts", "crashes", "moves", "failed writes", "lost markers", "late markers refused", "stalls")
    for what in (*often, "reloads compared", "expired ids", "clock steps", "times compared"):
        assert totals.get(what, 0) >= 20, f"{what} hardly ever happens: {totals}"
    for what in ("rotations", "waits for a producer id"):
        assert totals.get(what, 0) >= 2, f"{what} hardly ever happens: {totals}"


def test_a_seed_decides_everything() -> None:
    first, second = simulate(7), simulate(7)
    assert first.log == second.log
    assert first.counts == second.counts
