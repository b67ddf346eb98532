"""Errors that only a consumer raises."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.errors import HeadraceError, KafkaError, OffsetOutOfRangeError, RetriableError, error_for
from headrace.topics import TopicPartition


class WakeupError(HeadraceError):
    """`wakeup()` was called from another thread: the wait was given up, nothing is lost."""


class ConcurrentAccessError(HeadraceError):
    """A second thread (or task) used a consumer while another was inside it. Its state is unharmed."""


class ConsumerForkedError(HeadraceError):
    """A consumer that was in use before a fork was used in the child: its connections belong to the parent."""


class IllegalStateError(HeadraceError):
    """What was asked does not fit what the consumer was told to do before."""


class NoOffsetForPartitionError(HeadraceError):
    """There is no committed offset, and `auto.offset.reset` is none. `partitions` are those without a position."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions = sorted(partitions)
        names = ", ".join(map(str, self.partitions))
        super().__init__(
            f"no committed offset and no reset policy for {names}: seek() to where reading is to begin, "
            "commit an offset, or set auto.offset.reset to earliest or latest"
        )


def out_of_range(offsets: Mapping[TopicPartition, int]) -> OffsetOutOfRangeError:
    """For positions that the log does not have (any more), when `auto.offset.reset` is none."""
    what = ", ".join(f"{partition} at {offset}" for partition, offset in sorted(offsets.items()))
    return OffsetOutOfRangeError(
        f"the log does not have these positions: {what}. They were deleted or never written, and "
        "auto.offset.reset is none: seek() to an offset between beginning_offsets() and end_offsets()",
        offsets,
    )


class LogTruncationError(OffsetOutOfRangeError):
    """The log was cut back behind what was read (an unclean leader election), and `auto.offset.reset` is none.

    `divergent_offsets` says, where known, from which offset on the log may differ from what was read.
    """

    def __init__(self, offsets: Mapping[TopicPartition, int], divergent_offsets: Mapping[TopicPartition, int]) -> None:
        self.divergent_offsets = dict(divergent_offsets)
        what = ", ".join(
            f"{partition} (read up to {offset}, the same up to {self.divergent_offsets.get(partition, 'somewhere')})"
            for partition, offset in sorted(offsets.items())
        )
        super().__init__(f"the log was truncated behind the position of {what}: seek() to where to go on", offsets)


class CommitFailedError(HeadraceError):
    """Offsets cannot be committed any more: the group gave the partitions to somebody else."""


class RetriableCommitFailedError(HeadraceError):
    """An asynchronous commit failed for a reason that may pass; commit again if no later commit went through."""


class RecordDeserializationError(HeadraceError):
    """A record cannot be read: its bytes are not what the deserializer takes, or its batch is damaged.

    The position is still at that record: `seek(partition, offset + 1)` goes on behind it. Of a damaged batch,
    `last_offset` is where it ends, as far as can be told, and `raw` are its bytes; `seek(partition, last_offset + 1)`.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        why: str,
        part: str = "batch",
        *,
        last_offset: int | None = None,
        raw: bytes = b"",
    ) -> None:
        self.partition, self.offset, self.part, self.why = partition, offset, part, why
        self.last_offset = offset if last_offset is None else max(offset, last_offset)
        self.raw = raw
        what = f"at offset {offset}" if self.last_offset == offset else f"at offsets {offset} to {self.last_offset}"
        super().__init__(
            f"the {part} of {partition} {what} cannot be read: {why}. "
            f"To skip it: seek({partition!r}, {self.last_offset + 1})"
        )


class CallbackInterruptedError(HeadraceError):
    """A listener or assignor was ended from outside: its task was cancelled, or a signal's handler raised."""


class RebalanceListenerError(HeadraceError):
    """A rebalance listener raised; the rebalance itself went on."""


def is_retriable(code: int) -> bool:
    """Whether what an error code says may pass. One of a newer Kafka, which nobody here knows, may not."""
    return isinstance(error_for(code), RetriableError)


def say(error: KafkaError, what: str) -> KafkaError:
    """The same error, saying what it happened to."""
    message = f"{what}: {error.message}"
    # Subclasses with arguments of their own keep the code's class.
    return error_for(error.code, message)
