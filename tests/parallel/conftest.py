"""One broker for all tests of parallel consuming (or the Kafka that HEADRACE_TEST_ON names); topics for each."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.keeping import KEEP_RECORDS
from tests.parallel.helpers import make_topic

from headrace.testing import broker


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    given = os.environ.get("HEADRACE_TEST_ON")
    if given:
        yield given
        return
    overrides = {"group.min.session.timeout.ms": "500", **KEEP_RECORDS}
    with broker(overrides=overrides) as kafka:
        yield kafka.address


@pytest.fixture(scope="session")
def session_ms() -> int:
    """A short session: of a Kafka that is given, the shortest that it allows unless it is told otherwise."""
    return 6_000 if os.environ.get("HEADRACE_TEST_ON") else 1_000


@pytest.fixture
def new_topic(address: str) -> Callable[..., str]:
    """new_topic(partitions) → the name of a fresh topic."""

    def make(partitions: int = 1) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        make_topic(address, name, partitions)
        return name

    return make
