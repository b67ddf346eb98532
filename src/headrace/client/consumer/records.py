"""What a poll gives: records, made when looked at, over columns; and the small values of the consumer's interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Generic, NamedTuple, cast, overload

from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.offsets import OffsetAndMetadata as OffsetAndMetadata
from headrace.client.serializers import Deserializer
from headrace.client.typed import K, V
from headrace.records import Columns, TimestampType, kernels
from headrace.records.columns import Headers, decode_headers
from headrace.topics import TopicPartition

_new_tuple = tuple.__new__
BY_OFFSET = attrgetter("offset")


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record. Key and value are bytes, or what the deserializers made of them. Timestamps are milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: K
    value: V
    headers: Headers = ()
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class ConsumerGroupMetadata(NamedTuple):
    """Who this consumer is in its group; a transactional producer sends it along with offsets."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(slots=True)
class PartitionColumns:
    """Records of one partition as columns; no Python object per record."""

    topic_partition: TopicPartition
    columns: Columns
    leader_epoch: int
    timestamp_type: TimestampType
    next_offset: int
    """The position after these records: higher than the last offset + 1 where the log has gaps."""
    next_epoch: int = -1
    """The leader epoch to commit beside `next_offset`: of the last batch before it, which may hold no records."""

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    def __len__(self) -> int:
        return len(self.columns)


def slice_columns(columns: Columns, start: int, end: int) -> Columns:
    """Rows `start` to `end`; everything is shared."""
    return columns.rows(start, end)


def make_records(piece: PartitionColumns) -> list[ConsumerRecord]:
    """Record objects of bytes, all made in C: no Python frame per record."""
    columns = piece.columns
    topic, partition = piece.topic_partition
    to_list = kernels.choose(len(columns)).to_list
    rows = zip(
        repeat(topic),
        repeat(partition),
        columns.offsets.tolist(),
        columns.timestamps.tolist(),
        repeat(piece.timestamp_type),
        to_list(columns.keys),
        to_list(columns.values),
        _headers(columns),
        repeat(piece.leader_epoch),
    )
    return cast("list[ConsumerRecord]", list(map(_new_tuple, repeat(ConsumerRecord), rows)))


def _headers(columns: Columns) -> Iterable[Headers]:
    section = columns.headers
    if section is None or not columns.has_headers:
        return repeat(())
    return [
        () if length <= 1 else decode_headers(section.data, start)
        for start, length in zip(section.starts.tolist(), section.lengths.tolist())
    ]


class Deserializers:
    """Keys and values of a consumer's records, made of their bytes."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key, self._value = key, value
        self.is_plain = key is None and value is None

    def convert(self, records: list[ConsumerRecord]) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
        """The records up to the first that cannot be read, and the error that stands there."""
        made: list[ConsumerRecord] = []
        (key_of, key_with_headers), (value_of, value_with_headers) = _method(self._key), _method(self._value)
        for record in records:
            topic, partition, offset, timestamp, kind, key, value, headers, epoch = record
            part = "key"
            try:
                if key is not None and key_of is not None:
                    key = key_of(topic, key, headers) if key_with_headers else key_of(topic, key)
                part = "value"
                if value is not None and value_of is not None:
                    value = value_of(topic, value, headers) if value_with_headers else value_of(topic, value)
            except Exception as error:  # noqa: BLE001 - whatever a deserializer raises, the caller must learn where
                failure = RecordDeserializationError(TopicPartition(topic, partition), offset, repr(error), part)
                failure.__cause__ = error
                return made, failure
            made.append(ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, epoch))
        return made, None


def _method(deserializer: Deserializer | None) -> tuple[Callable[..., Any] | None, bool]:
    """What to call, and whether it takes the record's headers too."""
    if deserializer is None:
        return None, False
    with_headers = getattr(deserializer, "deserialize_with_headers", None)
    return (deserializer.deserialize, False) if with_headers is None else (with_headers, True)


class ConsumerRecords(Sequence[ConsumerRecord[K, V]], Generic[K, V]):
    """The records of one poll: a sequence, also per partition. Plain ones are made when looked at."""

    __slots__ = ("_count", "_made", "_pieces")

    def __init__(self, pieces: list[tuple[TopicPartition, PartitionColumns | list[ConsumerRecord[K, V]]]]) -> None:
        self._pieces = pieces
        self._count = sum(len(piece) for _, piece in pieces)
        self._made: list[ConsumerRecord[K, V]] | None = None

    @classmethod
    def of(cls, records: Iterable[ConsumerRecord[K, V]]) -> ConsumerRecords[K, V]:
        """From records in any order (an interceptor's, or a test's)."""
        by_partition: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        for record in records:
            by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return cls(list(by_partition.items()))

    def __len__(self) -> int:
        return self._count

    def count(self, value: Any = None) -> int:
        """How many records there are (Kafka's word for `len`)."""
        return self._count if value is None else self._all().count(value)

    def _all(self) -> list[ConsumerRecord[K, V]]:
        if self._made is None:
            lists = [_listed(piece) for _, piece in self._pieces]
            self._made = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
        return self._made

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[K, V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[K, V]]: ...
    def __getitem__(self, index: int | slice) -> ConsumerRecord[K, V] | list[ConsumerRecord[K, V]]:
        return self._all()[index]

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have records here."""
        return list(dict.fromkeys(partition for partition, piece in self._pieces if len(piece)))

    def records(self, partition: TopicPartition | tuple[str, int] | str) -> list[ConsumerRecord[K, V]]:
        """The records of a partition, or of a topic, in order."""
        if isinstance(partition, str):
            found = [piece for name, piece in self._pieces if name.topic == partition]
        else:
            found = [piece for name, piece in self._pieces if name == partition]
        return list(chain.from_iterable(_listed(piece) for piece in found))

    def items(self) -> Iterator[tuple[TopicPartition, list[ConsumerRecord[K, V]]]]:
        """Each partition with its records."""
        for partition in self.partitions():
            yield partition, self.records(partition)

    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit once all of these are processed."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, piece in self._pieces:
            if isinstance(piece, PartitionColumns):
                end = OffsetAndMetadata(piece.next_offset, "", _known(piece.next_epoch))
            elif piece:
                # Not the last one: an interceptor may give them in another order.
                last = max(piece, key=BY_OFFSET)
                end = OffsetAndMetadata(last.offset + 1, "", _known(last.leader_epoch))
            else:
                continue
            if partition not in found or found[partition].offset <= end.offset:
                found[partition] = end
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # For another process (a pool that is to work on them): as records, since columns look into a fetch's bytes.
        return ConsumerRecords, ([(partition, _listed(piece)) for partition, piece in self._pieces],)

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.partitions()))
        return f"ConsumerRecords({self._count} of {where})" if self._pieces else "ConsumerRecords(none)"


EMPTY: ConsumerRecords[Any, Any] = ConsumerRecords([])


def _known(epoch: int) -> int | None:
    """A leader epoch, if there is one: batches of before Kafka 0.11 have none."""
    return epoch if epoch >= 0 else None


def _listed(piece: PartitionColumns | list[ConsumerRecord]) -> list[ConsumerRecord]:
    return piece if isinstance(piece, list) else make_records(piece)
