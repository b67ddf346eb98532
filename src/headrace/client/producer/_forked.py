"""In a forked child: what becomes of the handles of records that the parent has sent, or is about to send."""

from __future__ import annotations

from headrace.client.errors import ClientClosedError
from headrace.client.producer._accumulator import Accumulator
from headrace.client.producer._batch import Handles, ProducerBatch
from headrace.client.producer._rows import ColumnRows, Rows
from headrace.client.producer.delivery import OWNER, PLACE, BatchDelivery, Delivery


def leave_to_parent(accumulator: Accumulator, parent: int) -> None:
    """Nobody in this process will hear how these fared, so nobody is to wait for it. No callback is called: that is for
    the parent to do. Its other threads may have been anywhere: nothing is locked here, or taken for settled."""
    error = ClientClosedError(
        f"the record was sent by process {parent}, before the fork: only that process learns how its delivery ended"
    )
    nowhere = ProducerBatch(accumulator.sender, "", -1, 0.0)
    nowhere.is_done, nowhere.error = True, error
    for batch in list(accumulator.incomplete):
        batch.is_done, batch.error = True, error
        for run in list(batch.runs):
            if isinstance(run.handles, BatchDelivery):
                _end(run.handles, nowhere)
    held = [entry.rows for entries in list(accumulator.held.values()) for entry in entries]
    for rows in [*accumulator.taken, *accumulator.pending, *held]:
        _end(_handles_of(rows), nowhere)


def _handles_of(rows: Delivery | Rows | ColumnRows) -> Handles:
    if isinstance(rows, Delivery):
        return [rows]
    return rows.handles if isinstance(rows, Rows) else rows.delivery


def _end(handles: Handles, nowhere: ProducerBatch) -> None:
    if isinstance(handles, BatchDelivery):
        handles.is_done, handles.error = True, handles.error or nowhere.error
    elif isinstance(handles, list):
        for delivery in handles:
            delivery[OWNER], delivery[PLACE] = nowhere, 0
