"""What every test of a running broker watches: that nothing inside it failed unnoticed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from .sim import SmallSegmentsBroker


@pytest.fixture
def failures() -> Iterator[list[str]]:
    """Errors the broker logs while the test runs; the test says which are expected."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(logging.Formatter().format(record))

    collector = Collector(level=logging.ERROR)
    logger = logging.getLogger("headrace")
    logger.addHandler(collector)
    yield found
    logger.removeHandler(collector)


@pytest.fixture
def large_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the first record does not roll one."""
    monkeypatch.setattr(SmallSegmentsBroker, "segment_bytes", 1 << 20)
