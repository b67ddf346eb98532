"""What an append to a log did, or why it could not continue the log."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import HeadraceError


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
