"""Partitions as numbers read like the lists they stand for."""

from __future__ import annotations

import pytest

from headrace.assignors import Assignment, PartitionList, TopicLayout, decode_assignment, encode_assignment
from headrace.assignors.partition_list import group_by_topic
from headrace.topics import TopicPartition

LAYOUT = TopicLayout(["a", "b", "empty", "c"], [2, 3, 0, 1])
ALL = [TopicPartition(*pair) for pair in (("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0))]


def test_it_is_a_sequence_of_partitions() -> None:
    found = PartitionList(LAYOUT, range(6))
    assert list(found) == ALL
    assert [found[index] for index in range(6)] == ALL
    assert found[-1] == ("c", 0)
    assert found[1:5:2] == [ALL[1], ALL[3]]
    assert len(found) == 6
    assert TopicPartition("b", 1) in found
    assert found.index(TopicPartition("b", 1)) == 3
    assert isinstance(found[0], TopicPartition)
    with pytest.raises(IndexError):
        found[6]


def test_it_equals_what_has_the_same_partitions_in_the_same_order() -> None:
    found = PartitionList(LAYOUT, [5, 0])
    assert found == [("c", 0), ("a", 0)]
    assert found == PartitionList(TopicLayout(["c", "a"], [1, 2]), [0, 1])
    assert found == PartitionList(TopicLayout(LAYOUT.topics, LAYOUT.counts), (5, 0))
    assert found != [("a", 0), ("c", 0)]
    assert found != [("c", 0)]
    assert found != "ca"


def test_it_groups_by_topic_in_order_of_first_appearance() -> None:
    found = PartitionList(LAYOUT, [5, 4, 0, 2])
    assert list(found.by_topic().items()) == [("c", [0]), ("b", [2, 0]), ("a", [0])]
    assert group_by_topic(found) == group_by_topic(list(found))


def test_it_goes_over_the_wire_like_a_list() -> None:
    found = PartitionList(LAYOUT, [5, 4, 0, 2])
    data = encode_assignment(Assignment(found, b"x"))
    assert data == encode_assignment(Assignment(list(found), b"x"))
    assert decode_assignment(data).partitions == [("c", 0), ("b", 2), ("b", 0), ("a", 0)]


def test_a_long_one_prints_short() -> None:
    text = repr(PartitionList(TopicLayout(["t"], [1000]), range(1000)))
    assert text.startswith("PartitionList([t-0, t-1")
    assert text.endswith("…])")
    assert len(text) < 300


def test_partitions_read_from_the_wire_are_columns_that_read_like_a_list() -> None:
    found = decode_assignment(encode_assignment(Assignment(ALL))).partitions
    assert list(found) == ALL
    assert found == ALL
    assert found == PartitionList(LAYOUT, range(6))
    assert found[1:3] == ALL[1:3]
    assert found[-1] == ("c", 0)
    assert encode_assignment(Assignment(found)) == encode_assignment(Assignment(ALL))
