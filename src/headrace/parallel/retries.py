"""What becomes of a record that failed: another try here, a round through a topic, the dead letters, or the end.

Also the headers that travel with it: Kafka headers, ASCII names and text values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.consumer.records import ConsumerRecord
from headrace.parallel.errors import (
    DamagedBatchError,
    HandlerFailedError,
    HandlerStalledError,
    Reject,
    RetryLater,
    UnreadableRecordError,
    WorkerDiedError,
)
from headrace.parallel.options import Exhausted, Retry
from headrace.parallel.work import Entry
from headrace.records import TimestampType

PREFIX = "headrace."
ATTEMPT = "headrace.attempt"
DUE_MS = "headrace.due-ms"
ERROR = "headrace.error"
ERROR_TYPE = "headrace.error-type"
REASON = "headrace.reason"
GROUP = "headrace.group"
FAILED_MS = "headrace.failed-ms"
ORIGIN_TOPIC = "headrace.origin-topic"
ORIGIN_PARTITION = "headrace.origin-partition"
ORIGIN_OFFSET = "headrace.origin-offset"
ORIGIN_TIMESTAMP = "headrace.origin-timestamp"
ORIGIN_LAST_OFFSET = "headrace.origin-last-offset"
RAW_BYTES = "headrace.raw-bytes"
DAMAGED = "damaged"
REASONS = ("failed", "stalled", "poison", DAMAGED, "rejected", "crashed")
"""Why a record is among the dead letters: a word each; see `reason_of`."""
RAW_BYTES_MAX = 900_000
"""Of a damaged batch that go along as a dead letter's value; what is larger would not fit a topic's default bound."""
_ORIGIN = (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIMESTAMP)
_ERROR_TEXT_MAX = 1_000
_NUMBER_MAX = 2**63 - 1

Header = tuple[str, bytes | None]


class NextPlace(Enum):
    """Where a failed record goes next."""

    HERE = "another try on the spot"
    RETRY_TOPIC = "the retry topic"
    DEAD_LETTERS = "the dead letters"
    SKIP = "nowhere: it is skipped"
    STOP = "nowhere: consuming stops"


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: NextPlace
    delay_s: float = 0.0
    attempt: int = 0
    """Rounds through the retry topic, with this one."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A record on its way to the retry topic or the dead letters. It is finished when that is acknowledged."""

    entry: Entry
    topic: str
    verdict: Verdict
    failures: int = 0
    """How often producing it failed."""
    part_bytes: int = 0
    """Into parts of how many bytes it is cut, as it was too large; 0: it goes whole."""


def judge(retry: Retry, entry: Entry, error: BaseException) -> Verdict:
    """The fate of a record after one more failed try (already counted in `entry.tries`)."""
    rounds = attempts_of(entry.record) if entry.tracker.is_retry else 0
    if isinstance(error, (UnreadableRecordError, Reject)):
        return _give_up(retry, rounds)
    if isinstance(error, RetryLater) and retry.topic is not None:
        if rounds < retry.attempts:
            return Verdict(NextPlace.RETRY_TOPIC, error.delay_s, rounds + 1)
        return _give_up(retry, rounds)
    if entry.tries <= retry.local:
        delay_s = error.delay_s if isinstance(error, RetryLater) else retry.local_wait_s(entry.tries)
        return Verdict(NextPlace.HERE, delay_s, rounds)
    if retry.topic is not None and rounds < retry.attempts:
        return Verdict(NextPlace.RETRY_TOPIC, retry.topic_wait_s(rounds + 1), rounds + 1)
    return _give_up(retry, rounds)


def judge_refused(retry: Retry, entry: Entry) -> Verdict:
    """The fate of a record that the retry topic does not take."""
    return _give_up(retry, attempts_of(entry.record) if entry.tracker.is_retry else 0)


def _give_up(retry: Retry, rounds: int) -> Verdict:
    if retry.dead_letters is not None:
        return Verdict(NextPlace.DEAD_LETTERS, 0.0, rounds)
    return Verdict(NextPlace.SKIP if retry.on_exhausted is Exhausted.SKIP else NextPlace.STOP, 0.0, rounds)


def reason_of(error: BaseException) -> str:
    """One word for why a record is among the dead letters."""
    if isinstance(error, DamagedBatchError):
        return DAMAGED
    if isinstance(error, UnreadableRecordError):
        return "poison"
    if isinstance(error, Reject):
        return "rejected"
    if isinstance(error, HandlerStalledError):
        return "stalled"
    if isinstance(error, WorkerDiedError):
        return "crashed"
    return "failed"


def text_of(error: BaseException) -> str:
    """What an exception says; a class of the user's may fail even at that."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its record is to be accounted for whatever its error does
        return f"({type(error).__name__} cannot be shown)"


def type_name_of(error: BaseException) -> str:
    """The name of an exception's class, also of one that only a worker process has."""
    return error.type_name if isinstance(error, HandlerFailedError) else type(error).__name__


# --- headers ----------------------------------------------------------------------------------------------------------


def header(headers: Iterable[Header], name: str) -> str | None:
    """The last value under a name, as text."""
    found: str | None = None
    for one, value in headers:
        if one == name and value is not None:
            found = value.decode("utf-8", "replace")
    return found


def number(headers: Iterable[Header], name: str, default: int) -> int:
    """A number under a name; the default where it is missing or is none."""
    text = header(headers, name)
    if text is None:
        return default
    try:
        found = int(text)
    except ValueError:
        return default
    # What no offset, time or count of Kafka's can be is no number here either.
    return found if abs(found) <= _NUMBER_MAX else default


def attempts_of(record: Any) -> int:
    """How many rounds through the retry topic a record has behind it."""
    headers = getattr(record, "headers", ())
    return max(0, number(headers, ATTEMPT, 0)) if headers else 0


def due_ms_of(record: Any) -> int:
    """When a record of the retry topic is due; 0: at once."""
    return max(0, number(record.headers, DUE_MS, 0)) if record.headers else 0


def diverted_headers(outgoing: Outgoing, group: str, now_ms: int) -> list[Header]:
    """The record's own headers, where it came from first, and what happened."""
    record = outgoing.entry.record
    error = outgoing.entry.error
    own = [one for one in record.headers if not one[0].startswith(PREFIX)]
    origin: dict[str, bytes] = {}
    if outgoing.entry.tracker.is_retry:
        origin = {name: value for name, value in record.headers if name in _ORIGIN and value is not None}
    if ORIGIN_TOPIC not in origin:
        values = (record.topic, record.partition, record.offset, record.timestamp)
        origin = {name: str(value).encode() for name, value in zip(_ORIGIN, values)}
    made: list[Header] = [*own, *((name, origin[name]) for name in _ORIGIN if name in origin)]
    facts = {
        GROUP: group,
        ATTEMPT: str(outgoing.verdict.attempt),
        FAILED_MS: str(now_ms),
        ERROR_TYPE: "" if error is None else type_name_of(error),
        ERROR: "" if error is None else text_of(error)[:_ERROR_TEXT_MAX],
        REASON: "" if error is None else reason_of(error),
    }
    if isinstance(error, DamagedBatchError):
        facts[ORIGIN_LAST_OFFSET] = str(error.last_offset)
        facts[RAW_BYTES] = str(error.raw_bytes)
    if outgoing.verdict.fate is NextPlace.RETRY_TOPIC:
        facts[DUE_MS] = str(now_ms + round(outgoing.verdict.delay_s * 1000))
    made.extend((name, text.encode("utf-8", "replace")) for name, text in facts.items())
    return made


def damage_of(error: RecordDeserializationError) -> tuple[DamagedBatchError, ConsumerRecord]:
    """A batch that cannot be read, as a failure and as a record with the batch's bytes (if they fit a record)."""
    damage = DamagedBatchError(error.partition, error.offset, error.last_offset, error.why, len(error.raw))
    raw = error.raw if len(error.raw) <= RAW_BYTES_MAX else None
    topic, partition = error.partition
    return damage, ConsumerRecord(topic, partition, error.offset, -1, TimestampType.CREATE_TIME, None, raw)
