"""One broker for all the tests of this folder, whose failures are theirs."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.keeping import KEEP_RECORDS

from headrace.testing import EmbeddedBroker, broker

from .served import Served, counting

COVERAGE_FILE_VARIABLE = "HEADRACE_API_COVERAGE"


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with counting() as counted:
        yield counted
    path = os.environ.get(COVERAGE_FILE_VARIABLE)
    if path:
        rows = sorted((client, int(key), version, n) for (client, key, version), n in counted.counts.items())
        with Path(path).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def kafka(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker shared by all tests, so a name in it must be a test's own."""
    # Few partitions of the offsets topic: the files of fifty cost more time than all groups of a test.
    overrides = {"num.partitions": "3", "offsets.topic.num.partitions": "4", **KEEP_RECORDS}
    with broker(str(tmp_path_factory.mktemp("kafka") / "data"), overrides) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_failed_inside(request: pytest.FixtureRequest) -> Iterator[None]:
    """A defect inside a broker closes a connection, which clients get over: the test must fail all the same."""
    failures: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failures.append(logging.Formatter().format(record))

    collector = Collector(level=logging.ERROR)
    logger = logging.getLogger("headrace")
    logger.addHandler(collector)
    yield
    logger.removeHandler(collector)
    assert not failures, "\n".join(failures)


_numbers = itertools.count()


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    return lambda kind="topic": f"{kind}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(fresh: Callable[[str], str]) -> str:
    return fresh("topic")


@pytest.fixture
def group(fresh: Callable[[str], str]) -> str:
    return fresh("group")
