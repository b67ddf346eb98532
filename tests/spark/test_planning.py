"""Which offsets a batch reads, and how they are spread over tasks."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headrace.spark.planning import (
    BackwardRangeError,
    DataLossError,
    OffsetRange,
    SourceOffsets,
    TriggerDelay,
    batch_ranges,
    capped,
    check_losses,
    group_of,
    is_ours,
    limited,
    pieces,
    ranges_between,
    resolved,
    waiting,
)
from headrace.topics import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_progress_survives_spark_in_its_own_shape() -> None:
    progress = SourceOffsets({A1: 7, A0: 3, B0: 0}, "cluster", "group")
    made = progress.to_json()
    assert made["a"] == {"0": 3, "1": 7}
    assert made["b"] == {"0": 0}
    assert SourceOffsets.from_json(made) == progress
    assert is_ours(made)
    assert not is_ours({"a": {"0": 3}})
    assert SourceOffsets.from_json({"a": {"0": 3}}) == SourceOffsets({A0: 3})


def test_a_group_is_the_users_or_named_after_the_query() -> None:
    assert group_of("id", None, SourceOffsets({}, None, "mine")) == "mine"
    assert group_of("id", "name", SourceOffsets({})) == "headrace-spark-name"
    assert group_of("id", None, SourceOffsets({})) == "headrace-spark-id"


def test_a_limit_is_shared_by_what_waits() -> None:
    start, latest = {A0: 0, A1: 0}, {A0: 900, A1: 100}
    assert limited(start, latest, {}, 100) == {A0: 90, A1: 10}
    assert limited(start, latest, {}, 1000) == latest
    # A partition that is new begins at its first record.
    assert limited({A0: 0}, {A0: 10, A1: 60}, {A1: 50}, 10) == {A0: 5, A1: 55}


def test_a_limit_never_stops_and_never_passes_the_end() -> None:
    rng = random.Random(7)
    for _ in range(200):
        start = {TopicPartition("t", p): rng.randrange(50) for p in range(rng.randint(1, 9))}
        latest = {one: offset + rng.randrange(0, 100) for one, offset in start.items()}
        rounds = 0
        now = dict(start)
        while now != latest:
            after = limited(now, latest, {}, rng.randint(1, 20))
            assert all(now[one] <= after[one] <= latest[one] for one in latest)
            assert after != now
            now = after
            rounds += 1
            assert rounds < 2000


def test_few_offsets_are_held_back_but_not_for_ever() -> None:
    patience = TriggerDelay(100, 1000)
    assert not patience.holds_back(1, 0)
    assert patience.holds_back(99, 500)
    assert not patience.holds_back(100, 600)
    assert patience.holds_back(99, 1599)
    assert not patience.holds_back(99, 1600)
    assert waiting({A0: 5}, {A0: 9, A1: 4}, {A1: 2}) == 6


def test_available_now_goes_no_further_than_its_target() -> None:
    assert capped({A0: 10, A1: 3, B0: 5}, {A0: 8, A1: 4}) == {A0: 8, A1: 3}


def test_ranges_of_new_gone_and_shortened_partitions() -> None:
    ranges, losses = ranges_between({A0: 5, A1: 5}, {A0: 9, B0: 4}, {B0: 0})
    assert ranges == [OffsetRange(A0, 5, 9), OffsetRange(B0, 0, 4)]
    assert losses == ["a-1 is not there any more"]
    ranges, losses = ranges_between({A0: 5}, {A0: 3, B0: 9}, {B0: 2})
    assert ranges == [OffsetRange(B0, 2, 9)]
    assert "new partition b-0 begins at offset 2" in " ".join(losses)
    assert "a-0 ends at offset 3, before 5" in " ".join(losses)


def test_losses_stop_the_query_unless_it_may_go_on() -> None:
    assert check_losses([], fail=True) is None
    with pytest.raises(DataLossError, match="failOnDataLoss to false"):
        check_losses(["x"], fail=True)
    warning = check_losses(["x"], fail=False)
    assert warning is not None
    assert "goes on" in warning


def test_special_offsets_are_replaced() -> None:
    assert resolved({A0: -1, A1: -2, B0: 4}, {A0: 1, A1: 2, B0: 0}, {A0: 10, A1: 20, B0: 30}) == {A0: 10, A1: 2, B0: 4}


def test_a_batch_reads_forward() -> None:
    assert batch_ranges([A0, A1], {A0: 3, A1: 4}, {A0: 9, A1: 4}) == [OffsetRange(A0, 3, 9)]
    with pytest.raises(BackwardRangeError, match="a-1 starts at offset 4, after its end 2"):
        batch_ranges([A0, A1], {A0: 3, A1: 4}, {A0: 9, A1: 2})


def test_pieces_cover_the_ranges_without_overlap() -> None:
    rng = random.Random(11)
    for _ in range(300):
        ranges = [
            OffsetRange(TopicPartition("t", p), start := rng.randrange(1000), start + rng.randrange(0, 500))
            for p in range(rng.randint(1, 8))
        ]
        least = rng.choice([None, rng.randint(1, 40)])
        most = rng.choice([None, rng.randint(1, 200)])
        made = pieces(ranges, least, most)
        by_partition: dict[TopicPartition, list[OffsetRange]] = {}
        for one in made:
            assert len(one) > 0
            by_partition.setdefault(one.partition, []).append(one)
        for whole in ranges:
            parts = sorted(by_partition.get(whole.partition, []), key=lambda part: part.start)
            assert sum(map(len, parts)) == len(whole)
            if parts:
                assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
                assert all(left.end == right.start for left, right in pairwise(parts))
        if most is not None:
            assert all(len(one) <= most for one in made)


def test_min_partitions_cuts_the_large_ones() -> None:
    made = pieces([OffsetRange(A0, 0, 1000), OffsetRange(A1, 0, 10)], 5, None)
    assert len(made) == 5
    assert made[-1] == OffsetRange(A1, 0, 10)
    assert pieces([OffsetRange(A0, 0, 3)], 10, None) == [
        OffsetRange(A0, 0, 1),
        OffsetRange(A0, 1, 2),
        OffsetRange(A0, 2, 3),
    ]
    assert pieces([OffsetRange(A0, 5, 5)], 4, None) == []
    # Spark's own counts: 1.33 of 4 rounds to a whole one, 2.5 of 5 goes up.
    assert [
        len(one) for one in pieces([OffsetRange(A0, 0, 40), OffsetRange(A1, 0, 40), OffsetRange(B0, 0, 40)], 4, None)
    ] == [40] * 3
    assert len(pieces([OffsetRange(A0, 0, 50), OffsetRange(A1, 0, 50)], 5, None)) == 6
