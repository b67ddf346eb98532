"""The page that `headrace simulate --trace` writes."""

from __future__ import annotations

import pytest

from headrace.testing.simulated.html import fitting, stacked
from headrace.testing.simulated.timeline import Span


@pytest.mark.parametrize(
    ("width", "shown"), [(200.0, "in sync 2, 3, 1"), (60.0, "2, 3, 1"), (40.0, ""), (1.0, "")], ids=str
)
def test_in_sync_replicas_are_all_shown_or_none(width: float, shown: str) -> None:
    assert fitting("in sync 2, 3, 1", width) == shown


def test_a_fault_is_named_without_its_details_where_these_do_not_fit() -> None:
    assert fitting("cut off: from the others and the store", 80.0) == "cut off"


def test_faults_that_overlap_are_below_one_another() -> None:
    spans = [Span(0.0, 2.0, "one", "a"), Span(1.0, 3.0, "one", "b"), Span(1.0, 3.0, "other", "c")]
    spans += [Span(2.0, 4.0, "one", "d"), Span(2.5, 2.6, "one", "e")]
    assert {span.text: row for span, row in stacked(spans).items()} == {"a": 0, "b": 1, "c": 0, "d": 0, "e": 2}
