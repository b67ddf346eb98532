"""The model of the consumer, a few seeds of it. `python -m tests.client.consumer_model 10000` runs more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.client.consumer_model import run
from tests.client.consumer_mutations import (
    MUTATIONS,
    OF_CONSUMER_PROTOCOL,
    found_within,
    silenced,
    stay_when_the_group_forgot_this_member,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

_SOON = 20
_SEEDS_TAKE_LONG = (stay_when_the_group_forgot_this_member,)
_FOUND_SOON = [one for one, seeds in MUTATIONS.items() if seeds <= _SOON and one not in _SEEDS_TAKE_LONG]
_OF_CONSUMER_PROTOCOL_SOON = [one for one, seeds in OF_CONSUMER_PROTOCOL.items() if seeds <= _SOON]
"""Faults that so many seeds find are looked for whenever the slow tests run."""


@pytest.mark.parametrize("driver", ["asyncio", "blocking"])
def test_nothing_is_lost_doubled_or_committed_too_early(driver: str) -> None:
    for seed in range(driver == "blocking", 16, 2):
        found = run(seed)
        assert found is None, found


@pytest.mark.parametrize("first", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_nothing_is_lost_doubled_or_committed_too_early_by_a_member_of_the_consumer_protocol(first: int) -> None:
    with silenced():
        for seed in range(first, first * 9 + 10):
            found = run(seed, protocol="consumer")
            assert found is None, found


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(62881, id="interrupted just before the listener is called"),
        pytest.param(236805, id="asked for a position before the listener is called"),
        pytest.param(61606, id="a topic that was made anew and has nothing"),
    ],
)
def test_what_was_wrong_once_is_not_any_more(seed: int) -> None:
    with silenced():
        assert run(seed) is None


@pytest.mark.parametrize(
    "seed", [pytest.param(6291, id="an assignment in effect, and never said"), pytest.param(7299, id="given up unsaid")]
)
def test_what_was_wrong_once_in_the_consumer_protocol_is_not_any_more(seed: int) -> None:
    with silenced():
        assert run(seed, protocol="consumer") is None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(100, 175, 25))
def test_nothing_is_lost_doubled_or_committed_too_early_with_more_seeds(first: int) -> None:
    with silenced():
        for seed in range(first, first + 25):
            found = run(seed)
            assert found is None, found


@pytest.mark.slow
@pytest.mark.parametrize("mutation", [*_FOUND_SOON, *_OF_CONSUMER_PROTOCOL_SOON])
def test_a_fault_that_is_put_in_is_found(mutation: Callable[[], Any]) -> None:
    assert found_within(mutation, (MUTATIONS | OF_CONSUMER_PROTOCOL)[mutation]) is not None


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutation",
    [one for one in MUTATIONS | OF_CONSUMER_PROTOCOL if one not in (*_FOUND_SOON, *_OF_CONSUMER_PROTOCOL_SOON)],
)
def test_a_fault_that_is_harder_to_find_is_found(mutation: Callable[[], Any]) -> None:
    assert found_within(mutation, (MUTATIONS | OF_CONSUMER_PROTOCOL)[mutation]) is not None
