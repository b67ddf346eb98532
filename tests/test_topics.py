"""Partitions have names, and Java's string hash decides where a group lives."""

import base64
import gzip
import json
from pathlib import Path

import pytest

from headrace.topics import TopicPartition, java_string_hash, partition_for_group

HASHES = Path(__file__).parent / "reference" / "vectors" / "hashes.jsonl.gz"


def test_group_hashes_and_partitions_are_javas() -> None:
    seen = 0
    with gzip.open(HASHES, "rt", encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            if case["kind"] != "group":
                continue
            seen += 1
            group = case["group"]
            assert java_string_hash(group) == case["hash"], group
            for partitions, expected in case["partition"].items():
                assert partition_for_group(group, int(partitions)) == expected, group
            if case["utf8"] is not None and not any("\ud800" <= unit <= "\udfff" for unit in group):
                assert base64.b64decode(case["utf8"]).decode() == group
    assert seen > 500


def test_the_smallest_hash_has_no_absolute_value_and_maps_to_zero() -> None:
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert partition_for_group("polygenelubricants", 50) == 0


def test_a_lone_surrogate_is_hashed_as_java_hashes_a_char() -> None:
    assert java_string_hash("\ud83d") == 0xD83D


def test_a_group_needs_a_partition_to_live_on() -> None:
    with pytest.raises(ValueError, match="at least one"):
        partition_for_group("g", 0)


def test_a_partition_prints_as_kafka_prints_it() -> None:
    assert str(TopicPartition("orders", 3)) == "orders-3"
    assert TopicPartition("orders", 3) == ("orders", 3)
