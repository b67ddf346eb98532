"""What the console works out by itself: filters, masks, lag in time."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.console.expressions import ExpressionError, compile_filter
from headrace.console.lags import Ends, Lags
from headrace.console.masking import MASKED, Masking, masks_of
from headrace.topics import TopicPartition

MESSAGE = {
    "key": "c1",
    "value": {"amount": 12.5, "items": [{"sku": "A1"}, {"sku": "B2"}], "note": "urgent: call", "none": None},
    "headers": {"source": "till"},
    "offset": 7,
    "partition": 2,
    "timestamp": 1_700_000_000_000,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value.amount > 12 and key == 'c1'", True),
        ("value['amount'] > 12.5", False),
        ("10 < value.amount < 20", True),
        ("value.items[1].sku in ['B2', 'C3']", True),
        ("value.items[-1].sku == 'B2'", True),
        ("value.items[9].sku == 'B2'", False),
        ("headers.source == 'till' or false", True),
        ("not value.missing", True),
        ("value.missing > 3", False),
        ("value.none is None", True),
        ("contains(value.note, 'call') and startswith(value.note, 'urgent')", True),
        ("like(value.note, 'urg*call')", True),
        ("like(value.note, '*x*')", False),
        ("like('aa', 'a*a*a')", False),
        ("len(value.items) == 2", True),
        ("offset >= 7 and partition != 3 and timestamp > 0", True),
        ("lower('ABC') == 'abc'", True),
    ],
)
def test_filters_say_what_they_seem_to(text: str, expected: bool) -> None:
    if "false" in text:
        with pytest.raises(ExpressionError, match="unknown"):
            compile_filter(text)
        return
    assert bool(compile_filter(text)(MESSAGE)) is expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "value.__class__.__mro__()",
        "(lambda: 1)()",
        "[x for x in value]",
        "open('/etc/passwd')",
        "value.amount ** 9999999",
        "'a' * 10000000",
        "f'{value}'",
        "value[key]",
        "len(value, 2)",
        "value.amount >",
        "(" * 1000,
        "key == 'a' or " * 300 + "key",
    ],
)
def test_nothing_else_can_be_said(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_filter(text)


def test_fields_that_begin_with_underscores_are_fields_like_others() -> None:
    assert compile_filter("value.__class__ is None")(MESSAGE) is True


def test_masks_take_fields_out_wherever_they_are() -> None:
    masking = Masking(masks_of([{"topics": "a|b", "fields": ["value.items.sku", "key"]}]), "b")
    assert masking.body("value", b'{"items":[{"sku":1,"n":2}]}') == f'{{"items":[{{"sku":"{MASKED}","n":2}}]}}'.encode()
    assert masking.body("key", b"secret") == MASKED.encode()
    # Nobody knows where the field is in what is no JSON.
    assert masking.body("value", b"not json") == MASKED.encode()
    assert not Masking(masks_of([{"topics": "a", "fields": ["key"]}]), "abc").is_any
    with pytest.raises(ValueError, match="does not begin"):
        masks_of([{"topics": "a", "fields": ["card"]}])


def test_lag_in_time_is_how_long_ago_the_end_was_there() -> None:
    ends = Ends()
    for second in range(11):
        ends.add(100.0 + second, second * 10)
    assert ends.reached_at(50) == pytest.approx(105.0)
    assert ends.reached_at(55) == pytest.approx(105.5)
    assert ends.rate() == pytest.approx(10.0)
    lags = Lags()
    partition = TopicPartition("a", 0)
    lags.ends[partition] = ends
    assert lags.seconds_behind(partition, 100, 110.0) == 0
    assert lags.seconds_behind(partition, 50, 112.0) == pytest.approx(7.0)


def test_what_stood_still_waits_since_it_stopped() -> None:
    ends = Ends()
    for at, end in ((0.0, 5), (10.0, 5), (20.0, 8), (30.0, 8)):
        ends.add(at, end)
    # Record 5 came some time between 10 and 20: it has been waiting since 10 at the longest.
    assert ends.reached_at(5) == 10.0
    assert ends.reached_at(4) is None


def test_a_topic_made_anew_forgets_the_ends_of_the_old_one() -> None:
    ends = Ends()
    ends.add(1.0, 100)
    ends.add(2.0, 3)
    assert ends.rate() is None


def test_the_trend_is_by_how_much_a_group_falls_behind() -> None:
    lags = Lags()
    partition = TopicPartition("a", 0)
    for second in range(5):
        lags.add_ends(float(second), {partition: 100 * second})
        lags.add_group(float(second), "g", {partition: 60 * second})
    assert lags.trend("g") == pytest.approx(40.0)
    assert lags.history("g")[-1][1] == 160


def test_a_group_of_thousands_is_answered_in_bounds() -> None:
    from types import SimpleNamespace
    from typing import Any, cast

    from headrace.client.admin import GroupDescription, MemberDescription, OffsetAndMetadata
    from headrace.console.cluster import Cluster
    from headrace.console.groups import MEMBERS_MAX, PARTITIONS_MAX, group_page
    from headrace.net.node import Node

    partitions = [TopicPartition("t", index) for index in range(10_000)]
    members = tuple(
        MemberDescription(f"m-{n}", None, f"client-{n}", "/10.0.0.1", tuple(partitions[2 * n : 2 * n + 2]), ("t",))
        for n in range(5_000)
    )
    group = GroupDescription("g", "Stable", "consumer", "range", members, Node(1, "h", 1))
    committed = {one: OffsetAndMetadata(5) for one in partitions}

    class Admin:
        async def describe_groups(self, names: Any) -> Any:
            return SimpleNamespace(ok={"g": group}, errors={})

        async def list_group_offsets(self, names: Any) -> Any:
            return SimpleNamespace(ok={"g": committed}, errors={})

    class Topics:
        async def get(self) -> Any:
            return {"t": None}

    async def ends(wanted: Any) -> Any:
        return dict.fromkeys(wanted, 5)

    async def group_offsets(names: Any) -> Any:
        return {"g": committed}

    parts = {"topics": Topics(), "ends": ends, "lags": Lags(), "look": lambda _: 0, "group_offsets": group_offsets}
    cluster = cast("Cluster", SimpleNamespace(admin=Admin(), **parts))
    page = asyncio.run(group_page(cluster, "g"))
    assert (len(page["members"]), page["members_total"]) == (MEMBERS_MAX, 5_000)
    assert (len(page["partitions"]), page["partitions_total"]) == (PARTITIONS_MAX, 10_000)
    assert len(json.dumps(page)) < 1_000_000


def test_what_would_be_of_thousands_of_members_is_worked_out() -> None:
    from headrace.client.history import Change, MemberPlan, what_if

    members = [MemberPlan(f"m-{n}", ("t",)) for n in range(2_000)]
    plan = what_if(members, {"t": 10_000}, "range", Change(strategy="cooperative-sticky", members=2_500))
    assert plan.balance == (4, 4)
