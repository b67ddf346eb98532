"""Rows on their way into batches: which of them are put together."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.producer._rows import EXTENDED_ROWS_MAX, Rows
from headrace.client.producer.delivery import BatchDelivery, Callbacks


def rows(*values: bytes, topic: str = "t", **fields: Any) -> Rows:
    def called(error: Any, where: Any) -> None: ...

    count = len(values)
    made = Rows(Callbacks([called] * count), topic, list(values), [None] * count, None, [None] * count, None)
    for name, column in fields.items():
        setattr(made, name, column)
    return made


def test_rows_that_nobody_holds_take_in_those_behind_them() -> None:
    first, second = rows(b"a", b"b"), rows(b"c", keys=[b"k"], timestamps=[5])
    assert isinstance(first.handles, Callbacks)
    assert isinstance(second.handles, Callbacks)
    functions = [*first.handles.functions, *second.handles.functions]
    assert first.extend(second)
    assert (first.values, first.keys, first.timestamps) == ([b"a", b"b", b"c"], [None, None, b"k"], [None, None, 5])
    assert first.handles.functions == functions


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"topic": "u"}, id="another topic"),
        pytest.param({"partitions": [0]}, id="chosen partitions"),
        pytest.param({"headers": [[("h", b"")]]}, id="headers"),
        pytest.param({"handles": []}, id="handles that somebody holds"),
        pytest.param({"handles": BatchDelivery(None, "t", None)}, id="a batch of the user's"),
    ],
)
def test_other_rows_stay_apart(other: dict[str, Any]) -> None:
    for one, two in ((rows(b"a"), rows(b"b", **other)), (rows(b"b", **other), rows(b"a"))):
        values = list(one.values)
        assert not one.extend(two)
        assert one.values == values


def test_rows_grow_only_so_far() -> None:
    many = rows(*[b""] * EXTENDED_ROWS_MAX)
    assert not many.extend(rows(b"a"))
    assert len(many) == EXTENDED_ROWS_MAX
