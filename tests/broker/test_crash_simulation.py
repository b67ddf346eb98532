"""Power losses and kills at random moments of a broker's life, in a simulation: what it promised holds."""

from __future__ import annotations

import pytest

from headrace.runtime.simulated import run_twice

from . import crash_simulation

SEEDS, PER_TEST = 40, 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_a_broker_that_loses_its_power_keeps_what_it_promised(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        assert crash_simulation.run_seed(seed) > 0


@pytest.mark.slow
def test_a_seed_takes_the_same_course_each_time() -> None:
    run_twice(crash_simulation.main, 3, time_max_s=3_600.0)
