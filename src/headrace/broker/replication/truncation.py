"""Where two logs part, by their leader epochs: what a leader says of it, and where a follower cuts.

The rule is that of KIP-101 and KIP-279. Both sides know which epoch wrote from which offset on; a round compares the
last epoch of the follower with what the leader has of it, and each round cuts less than the two have in common.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

UNKNOWN: Final = -1


class EpochEnd(NamedTuple):
    """The greatest epoch up to the one asked for, and the offset at which it ended."""

    epoch: int
    end_offset: int


class LogWithEpochs(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]: ...


class NotInLogError(Exception):
    """The offset, or the epoch before it, is not in the leader's log: the follower has to ask for its range."""


def divergence(
    log: LogWithEpochs,
    leader_epoch: int,
    fetch_offset: int,
    last_fetched_epoch: int,
    reader_start_offset: int | None = None,
) -> EpochEnd | None:
    """What a leader tells a reader whose log is not a part of its own; else None. `NotInLogError` when that is open.

    `leader_epoch` is the one in which it leads: it ends where the log does, also when nothing was written in it.
    `reader_start_offset` is where a follower's log begins; a consumer has none.
    """
    if last_fetched_epoch == leader_epoch:
        epoch, end_offset = leader_epoch, log.end_offset
    else:
        epoch, end_offset = log.end_offset_for(last_fetched_epoch)
        if reader_start_offset is not None and reader_start_offset < fetch_offset == log.start_offset == end_offset:
            # All that the follower has is deleted here, and of an epoch that is forgotten with it: nobody can tell
            # whether it is the same. Kafka takes it as such; here the follower is told, and begins anew.
            return EpochEnd(epoch, end_offset)
    if epoch < 0 or fetch_offset < log.start_offset:
        raise NotInLogError
    if epoch >= last_fetched_epoch and end_offset >= fetch_offset:
        return None
    return EpochEnd(epoch, end_offset)


def cut_at(log: LogWithEpochs, epoch: int, end_offset: int) -> int:
    """Where a follower cuts its log, when its leader's last epoch up to its own is `epoch`, ended at `end_offset`.

    The follower may not know that epoch: then it cuts to the end of the one below, and asks again.
    """
    own_epoch, own_end = log.end_offset_for(epoch)
    if own_epoch == UNKNOWN or epoch == UNKNOWN:
        # None of its records has an epoch that the leader's could be compared with.
        return min(max(end_offset, 0), log.end_offset)
    if own_epoch != epoch:
        return min(own_end, log.end_offset)
    return min(own_end, end_offset, log.end_offset)
