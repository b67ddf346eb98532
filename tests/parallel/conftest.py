"""One broker for all tests of parallel consuming, and a topic for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from tests.parallel.helpers import make_topic

from headrace.testing import broker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    overrides = {"group.min.session.timeout.ms": "500"}
    with broker(overrides=overrides) as kafka:
        yield kafka.address


@pytest.fixture
def new_topic(address: str) -> Callable[..., str]:
    """new_topic(partitions) → the name of a fresh topic."""

    def make(partitions: int = 1) -> str:
        name = f"topic{next(_numbers)}"
        make_topic(address, name, partitions)
        return name

    return make
