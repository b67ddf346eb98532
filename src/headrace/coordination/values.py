"""The values that coordinators and their drivers exchange: who asks, when, records of an internal topic, replies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple

from headrace.config import ConfigValue

NO_PRODUCER_ID: Final = -1

# A batch of records without headers is at most this much larger than their keys and values: its own header, then for
# each record its length, attributes, offset and timestamp, and the lengths of key, value and headers.
BATCH_OVERHEAD_BYTES: Final = 61
_RECORD_OVERHEAD_BYTES: Final = 23
_HEADER_OVERHEAD_BYTES: Final = 10


# The longest text that records of the internal topics hold. Requests of flexible versions may have longer ones, and
# bytes that are no text become one that is up to three times as long.
STORED_TEXT_BYTES_MAX: Final = 32_767


class Caller(NamedTuple):
    """Who asks. `token` is opaque and names the waiting request; the reply carries it back."""

    token: Hashable
    client_id: str | None = None
    client_host: str = ""
    api_version: int = 0
    #: Whether it may know of a topic; None: of all.
    may_know: Callable[[str], bool] | None = None


class Now(NamedTuple):
    """The time of a call, by two clocks.

    What is stored is by the wall clock, which others understand and which may be set. Whatever takes time is measured
    by the monotonic clock: no time-out gets longer or shorter when someone sets the wall clock.
    """

    wall_ms: int
    monotonic_ms: int


class Reply(NamedTuple):
    """The answer to a request; whoever has it knows of which kind it is."""

    token: Hashable
    response: object


class CoordinatorRecord(NamedTuple):
    """A record for that partition of the coordinator's topic; without a value it is a tombstone."""

    partition: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    """What tools may read and no coordinator needs: none of Kafka's looks at them."""


class StoredRecord(NamedTuple):
    """A record as it is found in the coordinator's topic, or the marker that ends a transaction there.

    Of a transactional batch, and of a marker, `producer_id` is the batch's.
    """

    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    committed: bool | None = None  # set for a marker only


def record_bytes(record: CoordinatorRecord) -> int:
    """The most that a record adds to its batch."""
    headers = sum(_HEADER_OVERHEAD_BYTES + len(name) * 4 + len(value) for name, value in record.headers)
    return _RECORD_OVERHEAD_BYTES + len(record.key) + (0 if record.value is None else len(record.value)) + headers


def is_storable(text: str | None, room_bytes: int = STORED_TEXT_BYTES_MAX) -> bool:
    """Whether a record can hold a name. Asked before anything is kept under it: it would never get into the log."""
    return text is None or len(text) <= room_bytes // 4 or len(text.encode()) <= room_bytes


def settings(keys: Mapping[str, str], values: Mapping[str, ConfigValue]) -> dict[str, int]:
    """Numbers of the broker's configuration, by the names of a coordinator's own fields; without those not given."""
    found: dict[str, int] = {}
    for name, key in keys.items():
        value = values.get(key)
        if isinstance(value, int):
            found[name] = value
    return found
