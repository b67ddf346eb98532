"""Which batches of a log belong to aborted transactions, and which ends of transactions are still needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from headrace.log.transaction_index import AbortedTransaction
from headrace.records import BatchHeader


class CleanedTransactions:
    """Fed with a log's batches in order, from its first one on, each exactly once."""

    __slots__ = ("_aborted", "_firsts", "_observed", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # By producer, in the order of the log: one producer's transactions never overlap.
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for entry in sorted(set(aborted), key=lambda entry: entry.first_offset):
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._firsts = {
            producer_id: [entry.first_offset for entry in entries] for producer_id, entries in self._aborted.items()
        }
        self._observed: set[AbortedTransaction] = set()
        # Producers of whose present transaction a batch was seen.
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch; whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        entry = self._covering(header.producer_id, header.base_offset)
        self._with_data.add(header.producer_id)
        if entry is None:
            return False
        self._observed.add(entry)
        return True

    def end(self, header: BatchHeader, commit: bool) -> tuple[bool, AbortedTransaction | None]:
        """Take in a transaction's end: whether nothing of the transaction is left, and what the index has to keep."""
        had_data = header.producer_id in self._with_data
        self._with_data.discard(header.producer_id)
        if commit:
            return not had_data, None
        entry = self._covering(header.producer_id, header.base_offset)
        if entry is not None and entry in self._observed:
            self._observed.discard(entry)
            return False, entry
        return not had_data, None

    def _covering(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        firsts = self._firsts.get(producer_id)
        if firsts is None:
            return None
        place = bisect_right(firsts, offset) - 1
        if place < 0:
            return None
        entry = self._aborted[producer_id][place]
        return entry if offset <= entry.last_offset else None
