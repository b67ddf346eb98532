"""Looking into a dead-letter topic, and putting its records back to where they came from.

What was put back is remembered like any consumer's progress: as the offsets (and their notes) of a group of its own, so
that a letter is not put back twice and the list shows what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.consumer.blocking import Consumer
from headrace.client.consumer.records import ConsumerRecord
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer.blocking import Producer
from headrace.client.ranges import RangeReader, without_group
from headrace.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace.functions import check_plain
from headrace.parallel.errors import ParallelError
from headrace.parallel.finished import Interval, decode_finished, encode_finished, merge
from headrace.parallel.letters import PART, part_of, unpack
from headrace.parallel.retries import (
    ATTEMPT,
    DAMAGED,
    ERROR,
    ERROR_TYPE,
    FAILED_MS,
    GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    PREFIX,
    REASON,
    header,
    number,
)
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

_QUIET_S = 20.0
_AT_ONCE = 500
_SAME_LETTER = (GROUP, ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, FAILED_MS)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic, and what its headers say of how it got there."""

    record: ConsumerRecord
    reason: str | None
    error: str | None
    error_type: str | None
    attempts: int
    group: str | None
    failed_ms: int
    origin_topic: str | None
    origin_partition: int
    origin_offset: int
    origin_timestamp: int
    is_redriven: bool
    offsets: tuple[int, ...]
    """Of the parts it is made of: one where it is whole."""

    @classmethod
    def of(cls, record: ConsumerRecord, is_redriven: bool, offsets: tuple[int, ...] = ()) -> DeadLetter:
        headers = record.headers
        return cls(
            record=record,
            reason=header(headers, REASON),
            error=header(headers, ERROR),
            error_type=header(headers, ERROR_TYPE),
            attempts=number(headers, ATTEMPT, 0),
            group=header(headers, GROUP),
            failed_ms=number(headers, FAILED_MS, record.timestamp),
            origin_topic=header(headers, ORIGIN_TOPIC),
            origin_partition=number(headers, ORIGIN_PARTITION, -1),
            origin_offset=number(headers, ORIGIN_OFFSET, -1),
            origin_timestamp=number(headers, ORIGIN_TIMESTAMP, -1),
            is_redriven=is_redriven,
            offsets=offsets or (record.offset,),
        )


class DeadLetters:
    """A dead-letter topic. Use it in a `with` block."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self.topic = topic
        own = {name: value for name, value in config.items() if name not in ("key.deserializer", "value.deserializer")}
        self._config = own
        # What an aborted transaction wrote is no dead letter.
        own = {"isolation.level": "read_committed", **own, "allow.auto.create.topics": False}
        self._consumer = Consumer({**own, "group.id": f"{topic}.redriven", "enable.auto.commit": False})
        self._reading = without_group(own)
        self._readers = [RangeReader(self._reading)]
        """That no list of letters uses now: each goes on while others are begun."""
        self._closed = False
        self._redriven: dict[TopicPartition, tuple[int, list[Interval]]] = {}

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._closed = True
        for reader in self._readers:
            reader.close()
        self._consumer.close()

    def letters(
        self, *, include_redriven: bool = False, select: Callable[[DeadLetter], bool] | None = None
    ) -> Iterator[DeadLetter]:
        """Every letter there is now, partition by partition in order; without those that were put back."""
        check_plain(select, "letters(select=…)")
        consumer = self._consumer
        partitions = [TopicPartition(self.topic, view.index) for view in consumer.partitions_for(self.topic)]
        if not partitions:
            raise UnknownTopicOrPartitionError.of(self.topic)
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        self._redriven = {
            name: _progress(found) for name, found in consumer.committed(partitions).items() if found is not None
        }
        reader = self._readers.pop() if self._readers else RangeReader(self._reading)
        try:
            for partition in partitions:
                # Letters that retention deletes meanwhile are gone; those behind them are not.
                found = reader.read_records(
                    {partition: (first[partition], last[partition])}, timeout=_QUIET_S, fail_on_data_loss=False
                )
                for record, offsets in joined(found):
                    letter = DeadLetter.of(record, self._is_redriven(partition, record.offset), offsets)
                    if (include_redriven or not letter.is_redriven) and (select is None or select(letter)):
                        yield letter
        finally:
            if self._closed:
                reader.close()
            else:
                self._readers.append(reader)

    def letter(self, partition: int, offset: int) -> DeadLetter | None:
        """One letter, put back or not."""
        for letter in self.letters(
            include_redriven=True,
            select=lambda one: (one.record.partition, one.record.offset) == (partition, offset),
        ):
            return letter
        return None

    def redrive(
        self,
        select: Callable[[DeadLetter], bool] | None = None,
        *,
        to: str | None = None,
        on_each: Callable[[DeadLetter, str], None] = lambda letter, topic: None,
    ) -> int:
        """Put letters back to the topic they came from first (or another); how many. Their own headers are kept, what
        the retries added is not, so that they start afresh."""
        check_plain(on_each, "redrive(on_each=…)")
        # Of a damaged batch there is no record to put back: its bytes are for whoever looks into it.
        chosen = [letter for letter in self.letters(select=select) if letter.reason != DAMAGED]
        targets = [to or letter.origin_topic for letter in chosen]
        for letter, target in zip(chosen, targets):
            if target is None:
                raise ParallelError(
                    f"{self.topic}-{letter.record.partition} at offset {letter.record.offset} has no header that says "
                    "where it came from: name a topic to put it to"
                )
        names = [name for name in targets if name is not None]
        count = 0
        with Producer(_producer_config(self._config)) as producer:
            for begin in range(0, len(chosen), _AT_ONCE):
                part = list(zip(chosen, names))[begin : begin + _AT_ONCE]
                deliveries: list[Any] = []
                refused: HeadraceError | None = None
                for letter, name in part:
                    try:
                        deliveries.append(self._send(producer, letter, name))
                    except HeadraceError as error:  # there is no room for it, say, as no broker takes those before it
                        refused = error
                        break
                errors = [delivery.exception() for delivery in deliveries]
                # Written down only once they are there: a crash in between puts some back twice, and loses none. Also
                # where others were refused, or those that are there would be put back with every attempt at these.
                there = [sent for sent, error in zip(part, errors) if error is None]
                if there:
                    self._remember([letter for letter, _ in there])
                for letter, name in there:
                    on_each(letter, name)
                count += len(there)
                for failed in (*errors, refused):
                    if failed is not None:
                        raise failed
        return count

    def _send(self, producer: Producer, letter: DeadLetter, topic: str) -> Any:
        record = letter.record
        own = [one for one in record.headers if not one[0].startswith(PREFIX)]
        return producer.send(topic, record.value, record.key, headers=own)

    def _is_redriven(self, partition: TopicPartition, offset: int) -> bool:
        base, intervals = self._redriven.get(partition, (0, []))
        return offset < base or any(first <= offset < last for first, last in intervals)

    def _remember(self, letters: list[DeadLetter]) -> None:
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition in {TopicPartition(self.topic, letter.record.partition) for letter in letters}:
            base, intervals = self._redriven.get(partition, (0, []))
            own = sorted(o for one in letters if one.record.partition == partition.partition for o in one.offsets)
            done = [(offset, offset + 1) for offset in own]
            merged = merge(sorted([(0, base), *intervals, *done]))
            base = merged[0][1] if merged[0][0] == 0 else 0
            rest = [one for one in merged if one[0] > base]
            self._redriven[partition] = (base, rest)
            note, is_whole = encode_finished(base, rest)
            if not is_whole:
                log.warning("%s: not all that was put back can be written down; some will be listed again", partition)
            offsets[partition] = OffsetAndMetadata(base, note)
        self._consumer.commit_sync(offsets)


def joined(records: Iterable[ConsumerRecord]) -> Iterator[tuple[ConsumerRecord, tuple[int, ...]]]:
    """Letters of one partition, each with its offsets: what came in parts is put together, at the last of them."""
    begun: dict[tuple[str | None, ...], dict[int, ConsumerRecord]] = {}
    for record in records:
        part = part_of(record.headers)
        if part is None:
            yield record, (record.offset,)
            continue
        number, count = part
        # A letter that was sent again (a part of it failed) has another time, so parts of both are not mixed.
        place = (*(header(record.headers, name) for name in _SAME_LETTER), str(count))
        parts = begun.setdefault(place, {})
        parts[number] = record
        if len(parts) < count:
            continue
        del begun[place]
        try:
            key, value, headers = unpack(b"".join(parts[n].value or b"" for n in range(1, count + 1)))
        except ValueError as error:
            log.warning("%s-%s at offset %s: a letter in parts cannot be read: %s", *record[:3], error)
            continue
        facts = [one for one in record.headers if one[0] != PART]
        whole = record._replace(key=key, value=value, headers=(*headers, *facts))
        yield whole, tuple(sorted(one.offset for one in parts.values()))
    for parts in begun.values():
        # Who sent it did not get to its end, so its record is not finished either: a whole one follows.
        last = next(iter(parts.values()))
        log.warning("%s-%s at offset %s: of a letter in parts some are missing", *last[:3])


def _progress(found: OffsetAndMetadata) -> tuple[int, list[Interval]]:
    return found.offset, decode_finished(found.offset, found.metadata) or []


def _producer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    from headrace.client.configs import common_config

    return {name: value for name, value in common_config(config).items() if name != "client.id"}
