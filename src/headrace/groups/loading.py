"""Reading a partition of `__consumer_offsets` back: the last value of every key, open transactions included.

The topic is compacted, so the last value of each key is all that counts. Records are kept as bytes until the end and
only the survivors are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace import coordination
from headrace.coordination import NO_PRODUCER_ID, StoredRecord
from headrace.groups.group import Group
from headrace.groups.group_offsets import CommittedOffset
from headrace.groups.kinds import KindOfGroup, LoadedGroup, LoadedRecord
from headrace.protocol.stored.consumer_offsets import (
    RECORD_TYPES,
    GroupMetadataKey,
    LegacyOffsetCommitValue,
    OffsetCommitValue,
    decode_record,
)
from headrace.protocol.stored.coordinator import Unknown
from headrace.protocol.wire import MalformedMessageError, pack_int16

_LEGACY_OFFSET, _OFFSET = b"\x00\x00", b"\x00\x01"
_OFFSETS = (_LEGACY_OFFSET, _OFFSET)
_DECLARED = frozenset(pack_int16(record_type) for record_type in RECORD_TYPES.classes)


@dataclass(slots=True)
class LoadReport(coordination.LoadReport):
    groups: int = 0
    offsets: int = 0


class _Stored(NamedTuple):
    key: bytes
    value: bytes
    sequence: int


class LoadedOffset(NamedTuple):
    group_id: str
    topic: str
    partition: int
    offset: CommittedOffset
    producer_id: int


class Loader:
    """Takes the records of one partition in their order, then gives groups and offsets."""

    def __init__(self) -> None:
        self.report = LoadReport()
        self._settled: dict[bytes, _Stored] = {}
        self._pending: dict[int, dict[bytes, _Stored]] = {}

    def add(self, record: StoredRecord) -> None:
        key, value, producer_id, committed = record
        if committed is not None:
            self._end_transaction(producer_id, committed)
            return
        self.report.records += 1
        kind = key[:2]
        if kind not in _DECLARED:
            self.report.skipped += 1
            return
        # Both kinds of offsets name the same thing: a newer one replaces an old one.
        name = _OFFSET + key[2:] if kind == _LEGACY_OFFSET else key
        if value is None:
            self._settled.pop(name, None)
            for table in self._pending.values():
                table.pop(name, None)
            return
        stored = _Stored(key, value, self.report.records)
        if producer_id == NO_PRODUCER_ID or kind not in _OFFSETS:
            # Put anew, so that the order is that of the last writes.
            self._settled.pop(name, None)
            self._settled[name] = stored
        else:
            self._pending.setdefault(producer_id, {})[name] = stored

    def _end_transaction(self, producer_id: int, committed: bool) -> None:
        table = self._pending.pop(producer_id, {})
        if not committed:
            return
        for name, stored in table.items():
            current = self._settled.get(name)
            if current is None or current.sequence < stored.sequence:
                self._settled[name] = stored

    def groups(self, partition: int, kinds: Iterable[KindOfGroup]) -> Iterator[Group]:
        """A group whose change of kind could not be written may be there twice: it is what was written last.

        What the log has of the other one is to be ended with the group's next step. Left alone, its members would be
        back when the group becomes of their kind again.
        """
        by_type: dict[int, list[LoadedRecord]] = {}
        keys: dict[tuple[str, int], list[bytes]] = {}  # by group and type
        for stored in self._settled.values():
            if stored.key[:2] not in _OFFSETS:
                found = self._decode(stored)
                if found is not None:
                    record_type = int.from_bytes(stored.key[:2], "big")
                    by_type.setdefault(record_type, []).append(LoadedRecord(*found, stored.sequence))
                    keys.setdefault((_group_of(found[0]), record_type), []).append(stored.key)
        groups: list[tuple[LoadedGroup, frozenset[int]]] = []
        for kind in kinds:
            records = [record for record_type in kind.record_types for record in by_type.pop(record_type, ())]
            records.sort(key=lambda record: record.sequence)
            groups += ((loaded, kind.record_types) for loaded in kind.loaded(partition, records))
        self.report.skipped += sum(map(len, by_type.values()))  # of kinds that are not served here
        groups.sort(key=lambda entry: entry[0].sequence)
        latest = {loaded.group.group_id: loaded.group for loaded, _ in groups}
        for (group, _), record_types in groups:
            lasting = latest[group.group_id]
            if lasting is not group:
                for record_type in record_types:
                    lasting.book.unwritten.update(dict.fromkeys(keys.get((group.group_id, record_type), ())))
        self.report.groups += len(latest)
        yield from latest.values()

    def offsets(self) -> Iterator[LoadedOffset]:
        """In the order in which they were written, so that later ones count as later."""
        everything = [(stored, NO_PRODUCER_ID) for stored in self._settled.values() if stored.key[:2] in _OFFSETS]
        for producer_id, table in self._pending.items():
            everything += ((stored, producer_id) for stored in table.values())
        everything.sort(key=lambda entry: entry[0].sequence)
        for stored, producer_id in everything:
            found = self._decode(stored)
            if found is not None:
                key, value = found
                self.report.offsets += 1
                yield LoadedOffset(key.group, key.topic, key.partition, loaded_offset(value), producer_id)

    def _decode(self, stored: _Stored) -> tuple[Any, Any] | None:
        try:
            record = decode_record(stored.key, stored.value)
        except MalformedMessageError as error:
            self.report.note_unreadable(stored.sequence, error)
            return None
        if isinstance(record, Unknown):
            self.report.skipped += 1
            return None
        return record.key, record.value


def _group_of(key: Any) -> str:
    name: str = key.group if isinstance(key, GroupMetadataKey) else key.group_id
    return name


def loaded_offset(value: OffsetCommitValue | LegacyOffsetCommitValue) -> CommittedOffset:
    if isinstance(value, LegacyOffsetCommitValue):
        return CommittedOffset(value.offset, -1, value.metadata, value.commit_timestamp)
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )
