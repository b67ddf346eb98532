"""A log tells at each moment what a plain list of its batches says: see `plain_list`."""

from __future__ import annotations

import pytest

from .plain_list import run_seed


@pytest.mark.parametrize("block", range(5))
def test_a_log_is_what_a_plain_list_of_its_batches_says(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_a_log_is_what_a_plain_list_says_for_longer(block: int) -> None:
    for seed in range(1_000 + block * 100, 1_100 + block * 100):
        run_seed(seed, 120)
