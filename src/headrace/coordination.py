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


class CoordinatorRecord(NamedTuple):
    """A record for that partition of the coordinator's topic; without a value it is a tombstone."""

    partition: int
    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    token: Hashable
    response: Any


@dataclass(frozen=True, slots=True)
class Effect(Generic[OutcomeT]):
    """What becomes of the state once the records of one partition are written, or could not be."""

    partition: int
    written: Callable[[OutcomeT, int], None]
    failed: Callable[[OutcomeT, ErrorCode, int], None]


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
