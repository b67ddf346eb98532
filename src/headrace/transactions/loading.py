"""Reading a partition of `__transaction_state` back: the last value of every transactional id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace import coordination
from headrace.coordination import StoredRecord
from headrace.protocol.stored.coordinator import Unknown
from headrace.protocol.stored.transaction_state import decode_record
from headrace.protocol.wire import MalformedMessageError
from headrace.transactions.records import snapshot_of
from headrace.transactions.state import TransactionSnapshot

_TRANSACTION = b"\x00\x00"


@dataclass(slots=True)
class LoadReport(coordination.LoadReport):
    transactional_ids: int = 0


class Loader:
    """Takes the records of one partition in their order. Kept as bytes: only the survivors are decoded."""

    def __init__(self) -> None:
        self.report = LoadReport()
        self._last: dict[bytes, tuple[bytes, int]] = {}

    def add(self, record: StoredRecord) -> None:
        key, value, _, committed = record
        if committed is not None:
            return  # nobody writes to this topic in a transaction
        self.report.records += 1
        if key[:2] != _TRANSACTION:
            self.report.skipped += 1
        elif value is None:
            self._last.pop(key, None)
        else:
            self._last[key] = (value, self.report.records)

    def snapshots(self) -> Iterator[tuple[str, TransactionSnapshot]]:
        for key, (value, number) in self._last.items():
            try:
                record = decode_record(key, value)
                if isinstance(record, Unknown) or record.value is None:
                    self.report.skipped += 1
                    continue
                found = record.key.transactional_id, snapshot_of(record.value)
            except (MalformedMessageError, ValueError) as error:
                self.report.note_unreadable(number, error)
                continue
            self.report.transactional_ids += 1
            yield found
