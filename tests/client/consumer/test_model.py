"""The model of the consumer, a few seeds of it. `python -m tests.client.consumer_model 10000` runs more."""

from __future__ import annotations

import sys

import pytest
from tests.client.consumer_model import run

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("driver", ["asyncio", "blocking"])
def test_nothing_is_lost_doubled_or_committed_too_early(driver: str) -> None:
    for seed in range(driver == "blocking", 20, 2):
        found = run(seed)
        assert found is None, found


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(100, 250, 25))
def test_nothing_is_lost_doubled_or_committed_too_early_with_more_seeds(first: int) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for seed in range(first, first + 25):
            found = run(seed)
            assert found is None, found
    finally:
        sys.setswitchinterval(before)
