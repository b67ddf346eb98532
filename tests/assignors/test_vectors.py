"""The four assignors of Kafka answer as Java's do, on every recorded case."""

from __future__ import annotations

import base64

import pytest

from headrace.assignors import Assignment, ConsumerProtocolError, StickyAssignor, Subscription, resolve
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

from .helpers import balance_score, cases, faults, from_base64, partitions, plain, read_case

NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky")


def hold_to_java(name: str, every: int) -> int:
    seen = 0
    for case in cases(name, every):
        seen += 1
        cluster, subscriptions = read_case(case)
        result = resolve(name).assign(cluster, subscriptions)
        assert isinstance(result, dict)
        label = f"{name} case {case['id']} {case['tags']}"
        assert not faults(cluster, subscriptions, result, withholds=name == "cooperative-sticky"), label
        # Where Java threw or gave an invalid answer, ours only has to be valid. Everywhere else it is the same, in the
        # same order, also where Java's depends on the order of its hash tables.
        if case["assignment"] is not None and case.get("java_invalid") is None:
            expected = {member: [tuple(pair) for pair in own] for member, own in case["assignment"].items()}
            assert plain(result) == expected, label
            assert balance_score(plain(result)) == case["balance_score"], label
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_assignments_is_javas(name: str) -> None:
    assert hold_to_java(name, every=11) > 250


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_assignment_is_javas(name: str) -> None:
    assert hold_to_java(name, every=1) >= 3000


def test_sticky_user_data_is_javas_to_the_byte() -> None:
    seen = 0
    for case in cases("sticky"):
        after = case.get("user_data_after")
        if not after:
            continue
        for member, expected in after["userData"].items():
            seen += 1
            assignor = StickyAssignor()
            assignor.on_assignment(Assignment(partitions(case["assignment"][member])), after["generation"])
            assert assignor.subscription_user_data(()) == from_base64(expected), case["id"]
    assert seen > 3000


def test_subscriptions_and_assignments_are_written_as_java_writes_them() -> None:
    seen = 0
    for case in cases("consumer-protocol"):
        if case["op"] != "roundtrip":
            continue
        seen += 1
        given = case["input"]
        user_data = from_base64(given["userData"])
        if case["kind"] == "subscription":
            owned = partitions(given["ownedPartitions"])
            value = Subscription(given["topics"], user_data, owned, given["generationId"], given["rackId"])
            written = encode_subscription(value, case["version"])
        else:
            written = encode_assignment(Assignment(partitions(given["partitions"]), user_data), case["version"])
        assert written == from_base64(case["bytes"])
    assert seen == 700


def test_subscriptions_and_assignments_are_read_or_refused_as_java_does() -> None:
    refused = 0
    for case in cases("consumer-protocol"):
        data = from_base64(case["bytes"])
        assert data is not None
        read = decode_subscription if case["kind"] == "subscription" else decode_assignment
        if case["decoded"] is None:
            refused += 1
            with pytest.raises(ConsumerProtocolError):
                read(data)
        else:
            assert as_json(read(data)) == case["decoded"], case.get("why")
    assert refused > 500


def as_json(value: Subscription | Assignment) -> dict[str, object]:
    user_data = None if value.user_data is None else base64.b64encode(value.user_data).decode()
    if isinstance(value, Assignment):
        return {"partitions": list(map(list, value.partitions)), "userData": user_data}
    return {
        "topics": value.topics,
        "userData": user_data,
        "ownedPartitions": list(map(list, value.owned_partitions)),
        "generationId": value.generation_id,
        "rackId": value.rack_id,
    }
