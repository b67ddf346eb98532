"""One batch, exactly once: the order of the steps, and what each failure means. Pure; the steps are done elsewhere.

The outcome of a batch's transaction and the batch's marker are one atomic fact. So whatever happens (a task fails, the
driver dies, an answer is lost), starting again from the first step is right: fencing decides every older transaction,
and only then the marker is read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from headrace.client.errors import ProducerFencedError, TransactionOutcomeUnknownError
from headrace.client.transactions import ProducerIdentity
from headrace.errors import HeadraceError


class BatchOutcome(enum.Enum):
    COMMITTED = "committed"
    SKIPPED = "skipped"
    """An earlier run had committed it."""


class MarkerFinding(enum.Enum):
    """What the marker says of a batch."""

    NOTHING = "nothing"
    OURS = "ours"
    """This very call has committed it: the answer was lost."""
    BEFORE = "before"
    """An earlier run has committed it, from the same offsets of the source."""


class ExactlyOnceError(HeadraceError):
    """A batch was not written, or it is not known whether it was; the text says which."""


class TakenOverError(ExactlyOnceError):
    """Another run of the same query has begun to write: this one has to stop."""


class BatchTooSlowError(ExactlyOnceError):
    """The coordinator ended the transaction because it took longer than `transaction.timeout.ms`."""


class WrongHistoryError(ExactlyOnceError):
    """What is committed was not written by the history that this batch belongs to: a checkpoint restored from a backup,
    a copy of it, or another sink under the same name. Going on would lose or repeat rows."""


class QueryStoppedError(ExactlyOnceError):
    """The query was stopped while it wrote a batch, which is left to the next start."""


class WriteFailedError(HeadraceError):
    """The tasks of a batch failed; the text has the first cause."""


class Steps(Protocol):
    """What is done, in this order, for every attempt. Each may raise the errors above, and the client's own:
    `ProducerFencedError` (this epoch is over), `TransactionOutcomeUnknownError`."""

    def fence(self) -> ProducerIdentity:
        """A new epoch: every older transaction of this id is decided when it returns, by an abort if it was open."""
        ...

    def look(self) -> MarkerFinding:
        """What the marker says of this batch. Asked after `fence`. Raises `WrongHistoryError`."""
        ...

    def enlist(self, identity: ProducerIdentity) -> None:
        """Add every output partition to the transaction, so that ending it reaches all of them."""
        ...

    def write(self, identity: ProducerIdentity) -> None:
        """Have the tasks write the rows: each output partition by one attempt of one task."""
        ...

    def mark(self, identity: ProducerIdentity) -> None:
        """The batch's marker (and the source's offsets), in the same transaction."""
        ...

    def commit(self, identity: ProducerIdentity) -> None: ...

    def is_stopped(self) -> bool:
        """Whether nobody wants the batch any more: then it is not begun again."""
        ...


def run_batch(
    steps: Steps,
    batch_id: int,
    *,
    attempts_max: int,
    timeout_ms: int,
    monotonic: Callable[[], float],
    on_retry: Callable[[int, HeadraceError], None] = lambda attempt, error: None,
) -> BatchOutcome:
    """Write a batch, or find it written. Raises `ExactlyOnceError` with the first cause when it cannot be done."""
    first: HeadraceError | None = None
    in_doubt = False
    for attempt in range(1, attempts_max + 1):
        identity = steps.fence()
        found = steps.look()
        if found is not MarkerFinding.NOTHING:
            return _outcome(found)
        started = monotonic()
        in_doubt = False
        try:
            steps.enlist(identity)
            steps.write(identity)
            steps.mark(identity)
            in_doubt = True
            steps.commit(identity)
            return BatchOutcome.COMMITTED
        except ProducerFencedError as error:
            # No fencing back: two drivers that do so would go on for ever.
            seen = _seen(steps) if in_doubt else MarkerFinding.NOTHING
            took_ms = (monotonic() - started) * 1000
            raise _fenced(error, batch_id, took_ms, timeout_ms, seen) from (first or error)
        except (WriteFailedError, TransactionOutcomeUnknownError) as error:
            first = first or error
            if steps.is_stopped():
                break
            on_retry(attempt, error)
    assert first is not None
    return _give_up(steps, batch_id, first, attempt, in_doubt)


def _outcome(found: MarkerFinding) -> BatchOutcome:
    return BatchOutcome.COMMITTED if found is MarkerFinding.OURS else BatchOutcome.SKIPPED


def _give_up(steps: Steps, batch_id: int, first: HeadraceError, attempts: int, in_doubt: bool) -> BatchOutcome:
    """Abort what is open, so that readers are not held up, and look: only then is it known what was written."""
    said = f"batch {batch_id} failed {attempts} times"
    try:
        steps.fence()
        found = steps.look()
    except WrongHistoryError:
        raise
    except HeadraceError as error:
        known = "whether it was written is not known" if in_doubt else "nothing of it was committed"
        raise ExactlyOnceError(
            f"{said}, and {known}: its transaction could not be ended here ({error}), and ends by itself after its "
            f"time-out. The query started again finds out. The first time: {first}"
        ) from first
    if found is not MarkerFinding.NOTHING:
        return _outcome(found)
    if steps.is_stopped():
        raise QueryStoppedError(f"batch {batch_id}: the query was stopped, and nothing of it was written") from first
    raise ExactlyOnceError(f"{said} and nothing of it was written. The first time: {first}") from first


def _seen(steps: Steps) -> MarkerFinding | None:
    """What became of our commit, as far as that can be told without fencing whoever has taken over; None: it cannot."""
    try:
        return steps.look()
    except HeadraceError:
        return None


def _fenced(
    error: ProducerFencedError, batch_id: int, took_ms: float, timeout_ms: int, seen: MarkerFinding | None
) -> ExactlyOnceError:
    if seen is MarkerFinding.OURS:
        return TakenOverError(f"batch {batch_id} is committed, but another run of this query took over ({error})")
    if took_ms >= timeout_ms and seen is MarkerFinding.NOTHING:
        return BatchTooSlowError(
            f"batch {batch_id} took {took_ms / 1000:.0f} s, longer than transaction.timeout.ms={timeout_ms}, so the "
            "broker aborted it. Make batches smaller (maxOffsetsPerTrigger), or raise transaction.timeout.ms (and "
            "transaction.max.timeout.ms on the brokers)"
        )
    return TakenOverError(
        f"batch {batch_id}: another run of this query took over ({error}); only one may run at a time"
    )
