"""The end of the metadata log in the controller's memory: whole groups, within bounds, read as they were appended."""

from __future__ import annotations

import pytest

from headrace.broker.metadata.fetcher import reading_of
from headrace.broker.metadata.tail import MetadataTail
from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.records import ConfigRecord, MetadataRecord, ResourceType
from headrace.protocol.messages.fetch import PartitionData

MUCH = 1 << 20


def records(first: int, count: int, size: int = 1) -> list[MetadataRecord]:
    return [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=str(number), value="v" * size)
        for number in range(first, first + count)
    ]


def read(tail: MetadataTail, offset: int, bytes_max: int = MUCH) -> list[int] | None:
    """The offsets of what is read."""
    found = tail.read(offset, bytes_max, now_ms=1000)
    if found is None:
        return None
    reading = reading_of(offset, PartitionData(records=found), tail.epoch)
    assert all(isinstance(record, ConfigRecord) and record.name == str(at) for at, record in reading.records)
    assert reading.end_offset == (reading.records[-1][0] + 1 if reading.records else offset)
    return [at for at, _ in reading.records]


def test_it_begins_where_the_controller_took_over_and_has_all_since() -> None:
    tail = MetadataTail(epoch=4, offset=10)
    assert read(tail, 10) == []
    assert read(tail, 9) is None, "what predecessors wrote is in the store"
    assert read(tail, 11) is None
    tail.appended(13, records(10, 3))
    tail.appended(14, records(13, 1))
    assert read(tail, 10) == [10, 11, 12, 13]
    assert read(tail, 13) == [13]
    assert read(tail, 14) == []


def test_what_does_not_follow_the_end_is_a_defect() -> None:
    tail = MetadataTail(epoch=4, offset=10)
    with pytest.raises(ValueError, match="ended at 10"):
        tail.appended(13, records(11, 2))


def test_a_group_is_given_whole_also_when_it_is_larger_than_what_was_asked_for() -> None:
    tail = MetadataTail(epoch=1)
    tail.appended(20, records(0, 20, size=50_000))
    tail.appended(21, records(20, 1))
    assert read(tail, 0, bytes_max=1) == list(range(20)), "a part of a decision is no state of the cluster"
    assert read(tail, 20, bytes_max=1) == [20]


def test_whoever_stopped_in_the_middle_of_a_group_is_given_the_rest() -> None:
    tail = MetadataTail(epoch=1)
    tail.appended(20, records(0, 20, size=50_000))
    assert read(tail, 7, bytes_max=1) == list(range(7, 20))


def test_it_forgets_whole_groups_when_there_is_too_much() -> None:
    tail = MetadataTail(epoch=1, records_max=10)
    for number in range(4):
        tail.appended(4 * (number + 1), records(4 * number, 4))
    assert (tail.begin_offset, tail.end_offset) == (8, 16)
    assert read(tail, 7) is None
    assert read(tail, 8) == list(range(8, 16))
    tail.appended(116, records(16, 100))
    assert read(tail, 16) is None
    assert read(tail, 116) == []


def test_it_forgets_what_is_large_however_few_records_it_is() -> None:
    tail = MetadataTail(epoch=1, bytes_max=100_000)
    for number in range(6):
        tail.appended(number + 1, records(number, 1, size=30_000))
    assert (tail.begin_offset, tail.end_offset) == (3, 6)
    assert read(tail, 2) is None
    assert read(tail, 3) == [3, 4, 5]
    tail.appended(10, records(6, 4, size=30_000))
    assert read(tail, 9) is None
    assert read(tail, 10) == []


def test_an_answer_with_a_gap_or_of_a_later_epoch_is_refused() -> None:
    tail = MetadataTail(epoch=3)
    tail.appended(5, records(0, 5))
    tail.appended(9, records(5, 4))
    data = PartitionData(records=tail.read(5, MUCH, now_ms=1))
    with pytest.raises(InconsistentMetadataError, match="4 was expected"):
        reading_of(4, data, epoch=3)
    with pytest.raises(InconsistentMetadataError, match="epoch 3"):
        reading_of(5, data, epoch=2)
    assert data.records is not None
    torn = PartitionData(records=bytes(data.records[:-1]))
    with pytest.raises(InconsistentMetadataError):
        reading_of(5, torn, epoch=3)
