"""Keeps `__share_group_state` short: what snapshots have replaced is cut off, what stands in the way is written anew.

The topic is not compacted. All that counts of a state is its latest snapshot and what follows it, so everything
before the oldest of these can go. A state that nothing happens to would hold up the rest: it gets another snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.groups.share.state_records import StateKey, snapshot_key_of
from headrace.log import Log
from headrace.records import read_records, split

if TYPE_CHECKING:
    from headrace.broker.coordinators.share_state_service import ShareStateService

log = logging.getLogger("headrace.broker.coordinator")

_READ_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 30.0
#: A snapshot that has so many records behind it, for each state that there is, is written anew.
_RECORDS_PER_STATE: Final = 100


async def prune_for_ever(service: ShareStateService, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        for index in service.led:
            try:
                await _prune(service, index)
            except HeadraceError as error:
                log.info("%s-%d was not made shorter, and will be later: %s", service.topic, index, error)
            except Exception:
                log.exception("%s-%d could not be made shorter: please report it", service.topic, index)


async def _prune(service: ShareStateService, index: int) -> None:
    states = service.coordinator.states(index)
    partition = service.around.replicas.get(service.topic, index)
    # What is written from here on stays.
    end_offset = partition.high_watermark
    found = await service.around.runtime.offload(_snapshots, partition.log, end_offset)
    kept = {key: found[key] for key in states if key in found}
    if len(kept) < len(states):
        return  # of some nothing is in all replicas yet
    start = min(kept.values(), default=end_offset)
    if start > partition.log.start_offset:
        await partition.delete_records(start, _TIMEOUT_S)
    late = end_offset - _RECORDS_PER_STATE * max(1, len(kept))
    old = [key for key, offset in kept.items() if offset < late]
    if old:
        service.write_snapshots(old)


def _snapshots(state_log: Log, end_offset: int) -> dict[StateKey, int]:
    """Where the latest snapshot of each state is. Blocking: for a disk thread."""
    found: dict[StateKey, int] = {}
    offset = state_log.start_offset
    while offset < end_offset:
        piece = state_log.locate(offset, _READ_BYTES, limit=end_offset, at_least_one=True)
        reached = offset
        for batch in split(piece.file.read(piece.position, piece.length)):
            reached = batch.next_offset
            for record in () if batch.is_control else read_records(batch):
                key = None if record.key is None else snapshot_key_of(bytes(record.key))
                if key is not None and record.offset >= offset:
                    found[key] = record.offset
        if reached <= offset:
            break
        offset = reached
    return found
