"""One batch, exactly once: the order of the steps, and what each failure means. Pure; the steps are done elsewhere.

The outcome of a batch's transaction and the batch's marker are one atomic fact. So whatever happens (a task fails, the
driver dies, an answer is lost), starting again from the first step is right: fencing decides every older transaction,
and only then the marker is read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import HeadraceError


class Outcome(enum.Enum):
    COMMITTED = "committed"
    SKIPPED = "skipped"
    """An earlier run had committed it."""


class ExactlyOnceError(HeadraceError):
    """A batch could not be written. Nothing of it is visible to readers with `isolation.level=read_committed`."""


class TookOver(ExactlyOnceError):
    """Another run of the same query has begun to write: this one has to stop."""


class BatchTooSlow(ExactlyOnceError):
    """The coordinator ended the transaction because it took longer than `transaction.timeout.ms`."""


class WriteFailed(HeadraceError):
    """The tasks of a batch failed; the text has the first cause."""


class Fenced(HeadraceError):
    """The broker says that this producer epoch is over."""


class OutcomeUnknown(HeadraceError):
    """No answer says whether the transaction was committed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The producer id and epoch of one attempt."""

    producer_id: int
    epoch: int


class Steps(Protocol):
    """What is done, in this order, for every attempt. All but `release` may raise the errors above."""

    def fence(self) -> Identity:
        """A new epoch: every older transaction of this id is decided when it returns."""
        ...

    def last_committed(self) -> int | None:
        """The last batch whose marker is committed. Asked after `fence`."""
        ...

    def enlist(self, identity: Identity) -> None:
        """Add every output partition to the transaction, so that ending it reaches all of them."""
        ...

    def write(self, identity: Identity) -> None:
        """Have the tasks write the rows: each output partition by one attempt of one task."""
        ...

    def mark(self, identity: Identity) -> None:
        """The batch's marker (and the source's offsets), in the same transaction."""
        ...

    def commit(self, identity: Identity) -> None: ...

    def release(self) -> None:
        """Give up: abort what is open, so that readers are not held up. Raises nothing that matters."""
        ...


def run_batch(
    steps: Steps,
    batch_id: int,
    *,
    attempts_max: int,
    timeout_ms: int,
    monotonic: Callable[[], float],
    on_retry: Callable[[int, HeadraceError], None] = lambda attempt, error: None,
) -> Outcome:
    """Write a batch, or find it written. Raises `ExactlyOnceError` with the first cause when it cannot be done."""
    first: HeadraceError | None = None
    for attempt in range(1, attempts_max + 1):
        identity = steps.fence()
        done = steps.last_committed()
        if done is not None and done >= batch_id:
            # On a later attempt that is our own commit, whose answer was lost.
            return Outcome.SKIPPED if first is None else Outcome.COMMITTED
        started = monotonic()
        try:
            steps.enlist(identity)
            steps.write(identity)
            steps.mark(identity)
            steps.commit(identity)
            return Outcome.COMMITTED
        except Fenced as error:
            # No fencing back: two drivers that do so would go on for ever.
            raise _fenced(error, batch_id, (monotonic() - started) * 1000, timeout_ms) from (first or error)
        except (WriteFailed, OutcomeUnknown) as error:
            first = first or error
            on_retry(attempt, error)
    steps.release()
    assert first is not None
    raise ExactlyOnceError(
        f"batch {batch_id} failed {attempts_max} times and nothing of it was written. The first time: {first}"
    ) from first


def _fenced(error: Fenced, batch_id: int, took_ms: float, timeout_ms: int) -> ExactlyOnceError:
    if took_ms >= timeout_ms:
        return BatchTooSlow(
            f"batch {batch_id} took {took_ms / 1000:.0f} s, longer than transaction.timeout.ms={timeout_ms}, so the "
            "broker aborted it. Make batches smaller (maxOffsetsPerTrigger), or raise transaction.timeout.ms (and "
            "transaction.max.timeout.ms on the brokers)"
        )
    return TookOver(f"batch {batch_id}: another run of this query took over ({error}); only one may run at a time")
