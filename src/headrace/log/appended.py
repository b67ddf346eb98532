"""What an append to a log did, or why it could not continue the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from headrace.errors import HeadraceError, KafkaError
from headrace.runtime import DiskError


class UnexpectedOffsetError(HeadraceError):
    """A leader sent batches that do not continue this log: the follower must find out where they part."""


class Appended(NamedTuple):
    """What an append did."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    leader_epoch_changed: bool = False
    sync_due: bool = False
    """`flush.messages` is reached: sync before acknowledging."""
    rolled: bool = False
    """A segment ended: sync in the background, so that recovery stays short."""


#: What became of one batch. An error: nothing of it is in the log.
Outcome: TypeAlias = Appended | KafkaError | DiskError


def only(outcomes: Sequence[Outcome]) -> Appended:
    """What became of one batch; raises what is wrong."""
    (outcome,) = outcomes
    if not isinstance(outcome, Appended):
        raise outcome
    return outcome


def as_far_as(outcomes: Sequence[Outcome]) -> Appended | None:
    """What became of copies, as far as they are in the log; None without any. Raises why there is none of them."""
    first: Appended | None = None
    last: Appended | None = None
    is_new = is_due = rolled = False
    for outcome in outcomes:
        if not isinstance(outcome, Appended):
            if first is None:
                raise outcome
            break  # what is missing is sent again, since the next fetch begins at the log's end
        first, last = first or outcome, outcome
        is_new, is_due = is_new or outcome.leader_epoch_changed, is_due or outcome.sync_due
        rolled = rolled or outcome.rolled
    if first is None or last is None:
        return None
    return Appended(first.base_offset, last.last_offset, -1, last.log_start_offset, False, is_new, is_due, rolled)
