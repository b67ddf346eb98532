"""The page that `headrace simulate --trace` writes."""

from __future__ import annotations

import pytest

from headrace.testing.simulated.html import fitting


@pytest.mark.parametrize(
    ("width", "shown"), [(200.0, "in sync 2, 3, 1"), (60.0, "2, 3, 1"), (40.0, ""), (1.0, "")], ids=str
)
def test_in_sync_replicas_are_all_shown_or_none(width: float, shown: str) -> None:
    assert fitting("in sync 2, 3, 1", width) == shown


def test_a_fault_is_named_without_its_details_where_these_do_not_fit() -> None:
    assert fitting("cut off: from the others and the store", 80.0) == "cut off"
