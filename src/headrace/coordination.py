"""What coordinators have in common: who asks, records of an internal topic, replies, and what becomes of a write."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.errors import ErrorCode

OutcomeT = TypeVar("OutcomeT")


class Caller(NamedTuple):
    """Who asks. `token` is opaque and names the waiting request; the reply carries it back."""

    token: Hashable
    client_id: str | None = None
    client_host: str = ""
    api_version: int = 0


class Now(NamedTuple):
    """The time of a call, by two clocks.

    What is stored is by the wall clock, which others understand and which may be set. Whatever takes time is measured
    by the monotonic clock: no time-out gets longer or shorter when someone sets the wall clock.
    """

    wall_ms: int
    monotonic_ms: int


class CoordinatorRecord(NamedTuple):
    """A record for that partition of the coordinator's topic; without a value it is a tombstone."""

    partition: int
    key: bytes
    value: bytes | None


# A batch of records without headers is at most this much larger than their keys and values: its own header, then for
# each record its length, attributes, offset and timestamp, and the lengths of key, value and headers.
BATCH_OVERHEAD_BYTES = 61
_RECORD_OVERHEAD_BYTES = 23


def record_bytes(record: CoordinatorRecord) -> int:
    """The most that a record adds to its batch."""
    return _RECORD_OVERHEAD_BYTES + len(record.key) + (0 if record.value is None else len(record.value))


class Reply(NamedTuple):
    token: Hashable
    response: Any


@dataclass(slots=True)
class Effect(Generic[OutcomeT]):
    """Records of one partition, and what becomes of the state once they are written, or could not be.

    They are written together or not at all. Those of several effects may be torn apart: by a failure, by a crash, or
    because they do not fit one batch. So an effect has as few records as make sense without each other.
    """

    records: tuple[CoordinatorRecord, ...]
    written: Callable[[OutcomeT, Now], None]
    failed: Callable[[OutcomeT, ErrorCode, Now], None]

    @property
    def partition(self) -> int:
        return self.records[0].partition


def error_after_failed_write(error: ErrorCode) -> ErrorCode:
    """What a client is told when its record was not written: to look for another coordinator, or to retry."""
    return _AFTER_FAILED_WRITE.get(error, error)


_AFTER_FAILED_WRITE = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
