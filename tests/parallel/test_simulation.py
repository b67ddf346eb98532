"""A share of the seeds of `python -m tests.parallel.simulate`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.parallel.mutants import MUTANTS, seeds_until_found
from tests.parallel.simulate import run_seeds


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 200, 300))])
def test_promises_are_kept_whatever_happens(first: int) -> None:
    run_seeds(first, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_defect_that_is_put_back_is_found(name: str) -> None:
    assert seeds_until_found(name) is not None
