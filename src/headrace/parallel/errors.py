"""Errors of parallel consuming, and those that a handler raises to say what is to become of a record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from headrace.errors import HeadraceError
from headrace.topics import TopicPartition
from headrace.words import plural

DELAY_MAX_S = 365 * 24 * 3600
_KEY_CHARS_MAX = 100


def is_delay(seconds: object) -> bool:
    """Whether these are seconds that a record may wait: a number, and not so large that no time comes after it."""
    return isinstance(seconds, (int, float)) and seconds <= DELAY_MAX_S


def shown(error: BaseException) -> str:
    """An exception as text; a class of the user's may fail even at that."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - its record is to be accounted for whatever its error does
        return f"<{type(error).__name__} that cannot be shown>"


def place_of(partition: TopicPartition, offset: int, record: Any) -> str:
    """Where a record is, for a person: topic, partition and offset, and its key where it has one."""
    key = getattr(record, "key", None)
    if key is None:
        return f"{partition} at offset {offset}"
    try:
        text = key.decode("utf-8", "backslashreplace") if isinstance(key, (bytes, bytearray)) else str(key)
    except Exception:  # noqa: BLE001 - a deserialised key is the user's own object: showing it may fail
        text = f"a {type(key).__name__}"
    return f"{partition} at offset {offset} (key {text[:_KEY_CHARS_MAX]})"


class ParallelError(HeadraceError):
    """The root of what parallel consuming raises."""


class RetriesExhaustedError(ParallelError):
    """A record failed every try, and there is nowhere to put it: consuming stopped before it."""

    def __init__(self, partition: TopicPartition, offset: int, tries: int, error: BaseException) -> None:
        self.partition, self.offset, self.tries, self.error = partition, offset, tries, error
        what = (
            f"{partition} at offset {offset} cannot be read"
            if isinstance(error, UnreadableRecordError)
            else (f"the handler failed {plural(tries, 'time')} on {partition} at offset {offset}")
        )
        super().__init__(
            f"{what} ({shown(error)}); nothing from there on is committed. Mend it and start "
            "again, or give Retry a topic or dead_letters, or on_exhausted='skip'"
        )


class DeadLetterRefusedError(RetriesExhaustedError):
    """A record failed every try, and its dead-letter topic does not take it: consuming stopped before it."""

    def __init__(self, partition: TopicPartition, offset: int, tries: int, topic: str, error: BaseException) -> None:
        self.partition, self.offset, self.tries, self.error = partition, offset, tries, error
        ParallelError.__init__(
            self,
            f"{topic} refuses the dead letter of {partition} at offset {offset} for good ({error!r}); nothing from "
            "there on is committed. Mend the topic or who may write to it, and start again, or name another topic",
        )


class HandlerStalledError(ParallelError):
    """A handler did not come back within the stall threshold. Its worker was given up."""


class WorkerDiedError(ParallelError):
    """A worker process ended while it handled a record: killed, out of memory, or a crash in native code."""


class HandlerFailedError(ParallelError):
    """What a handler raised in a worker process, where the exception itself cannot be read in this one."""

    def __init__(self, type_name: str, text: str) -> None:
        self.type_name = type_name
        super().__init__(text)

    def __repr__(self) -> str:
        return f"{self.type_name}({str(self)!r})"


class TooManyHangingHandlersError(ParallelError):
    """So many handlers hang that no more threads are started for others."""


class UnreadableRecordError(ParallelError):
    """A record's key or value cannot be deserialised: no retry will help."""

    def __init__(self, partition: TopicPartition, offset: int, part: str, error: BaseException) -> None:
        self.partition, self.offset, self.part = partition, offset, part
        super().__init__(f"the {part} of {partition} at offset {offset} cannot be deserialised: {shown(error)}")


class DamagedBatchError(UnreadableRecordError):
    """A batch of the log that cannot be read: its checksum is wrong, or its records cannot be decoded."""

    def __init__(self, partition: TopicPartition, offset: int, last_offset: int, why: str, raw_bytes: int = 0) -> None:
        super().__init__(partition, offset, "batch", ValueError(why))
        self.last_offset, self.raw_bytes = last_offset, raw_bytes
        self.args = (f"the batch of {partition} at offsets {offset} to {last_offset} cannot be read: {why}",)


# --- raised by handlers -----------------------------------------------------------------------------------------------


class Reject(ParallelError):  # noqa: N818 - an instruction, not an error
    """Raised by a handler: do not try this record again, put it to the dead letters at once."""


class RetryLater(ParallelError):  # noqa: N818 - an instruction, not an error
    """Raised by a handler: try again after that many seconds, through the retry topic if there is one.

    A year at most. What waits in a topic for longer than the topic's retention is deleted there.
    """

    def __init__(self, delay_s: float, reason: str = "the handler asked for it") -> None:
        if not is_delay(delay_s):
            raise ValueError(f"RetryLater takes seconds, up to {DELAY_MAX_S:,} (a year), not {delay_s!r}")
        self.delay_s = max(0.0, delay_s)
        super().__init__(reason)


class BatchFailedError(ParallelError):
    """Raised by a batch handler: only these records (or positions in the batch) failed, the others are done."""

    def __init__(self, failed: Collection[Any], reason: str = "part of the batch failed") -> None:
        self.failed = failed
        super().__init__(reason)

    def indexes(self, records: Sequence[Any]) -> set[int]:
        """Positions of the failed records within the batch; all of them when a name does not fit."""
        found: set[int] = set()
        try:
            for one in self.failed:
                if isinstance(one, int):
                    matches = [one] if 0 <= one < len(records) else []
                else:
                    matches = [i for i, record in enumerate(records) if record is one or record == one]
                if not matches:
                    return set(range(len(records)))
                found.update(matches)
        except Exception:  # noqa: BLE001 - whatever the handler named cannot be gone through or compared: none is left out
            return set(range(len(records)))
        return found
