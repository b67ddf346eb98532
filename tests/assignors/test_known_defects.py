"""Mistakes that other Python clients make, and must not be made here."""

from __future__ import annotations

import struct
import time

from headrace.assignors import (
    AssignableTopics,
    Assignment,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    StickyAssignor,
    Subscription,
    decode_subscription,
    encode_subscription,
)
from headrace.topics import TopicPartition

from .helpers import assign


def test_static_and_dynamic_members_mixed_all_get_a_range() -> None:
    group = {
        "m1": Subscription(["t"], group_instance_id="b"),
        "m2": Subscription(["t"]),
        "m3": Subscription(["t"], group_instance_id="a"),
    }
    assert assign(RangeAssignor(), {"t": 3}, group) == {"m3": [("t", 0)], "m1": [("t", 1)], "m2": [("t", 2)]}


def test_cooperative_members_tell_their_generation_in_both_places() -> None:
    member = CooperativeStickyAssignor()
    assert member.subscription_user_data(["t"]) == struct.pack(">i", -1)
    member.on_assignment(Assignment([TopicPartition("t", 0)]), 7)
    user_data = member.subscription_user_data(["t"])
    assert user_data == struct.pack(">i", 7)
    sent = encode_subscription(Subscription(["t"], user_data, [TopicPartition("t", 0)], generation_id=7))
    assert decode_subscription(sent).generation_id == 7


def test_cooperative_prefers_the_newer_generation_whichever_way_it_was_told() -> None:
    claim = [TopicPartition("t", 0)]
    for newer in (
        Subscription(["t"], owned_partitions=claim, generation_id=5),
        Subscription(["t"], struct.pack(">i", 5), claim, generation_id=5),
    ):
        group = {"old": Subscription(["t"], owned_partitions=claim, generation_id=4), "new": newer}
        result = CooperativeStickyAssignor().assign(AssignableTopics({"t": 1}), group)
        assert list(result["new"].partitions) == claim
        assert list(result["old"].partitions) == []


def test_two_consumers_in_one_process_do_not_share_what_they_remember() -> None:
    for kind in (StickyAssignor, CooperativeStickyAssignor):
        one, other = kind(), kind()
        untouched = other.subscription_user_data(["t"])
        one.on_assignment(Assignment([TopicPartition("t", 1)]), 3)
        assert other.subscription_user_data(["t"]) == untouched
        assert one.subscription_user_data(["t"]) != untouched


def test_sticky_does_not_compare_every_partition_with_every_member() -> None:
    # 20,000 partitions × 100 members with an i % 4 split did not end within a minute elsewhere.
    counts = {f"t{i}": 200 for i in range(100)}
    halves = (list(counts)[:50], list(counts)[50:])
    group = {f"c{i}": Subscription(halves[i % 4 != 0]) for i in range(100)}
    before = time.process_time()
    result = StickyAssignor().assign(AssignableTopics(counts), group)
    assert time.process_time() - before < 5
    assert sum(len(own.partitions) for own in result.values()) == 20_000


def test_cooperative_says_it_is_cooperative_and_can_be_eager() -> None:
    assert CooperativeStickyAssignor().supported_protocols == (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
    assert tuple(StickyAssignor().supported_protocols) == (RebalanceProtocol.EAGER,)
