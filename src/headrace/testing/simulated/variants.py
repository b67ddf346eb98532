"""Which parallel consumers a plan may have: models, orders, retries, transactions; and which records they fail at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.parallel.options import Consumers, Model, Order, Pool, Ranges, Retry, Window

#: What parallel consumers read, what they try again later, and where that goes which they cannot handle.
KEYED, RETRIES, DEAD_LETTERS = "keyed", "retries", "dead-letters"
PARALLEL_GROUP = "parallel"
#: So long a handler may take without having finished anything, where one that hangs is given up.
STALL_S = 0.5
#: So long a member waits for its handlers before it lets a partition go.
DRAIN_S = 5.0
#: What a handler asks for that puts a record off: no wait of the retries below.
LATER_S = 0.07
#: So many tries that no handler which fails now and then fails all of them.
_MANY = Retry(local=50, backoff_s=(0.01, 0.1), dead_letters=DEAD_LETTERS)
_FEW = Retry(local=2, backoff_s=(0.01, 0.1), dead_letters=DEAD_LETTERS)
_ROUNDS = Retry(
    local=1, backoff_s=(0.01, 0.05), topic=RETRIES, attempts=2, topic_backoff_s=(0.05, 0.2), dead_letters=DEAD_LETTERS
)


@dataclass(frozen=True, slots=True)
class ParallelVariant:
    """One way to consume in parallel. Two members of a group have the same."""

    model: Model
    order: Order
    retry: Retry
    is_transactional: bool = False
    batch: int | None = None

    @property
    def can_stall(self) -> bool:
        """Whether a handler that hangs is given up."""
        return isinstance(self.model, (Pool, Window)) and self.model.stall_s is not None

    @property
    def topics(self) -> tuple[str, ...]:
        """What its members read."""
        return (KEYED,) if self.retry.topic is None else (KEYED, self.retry.topic)

    @property
    def tries(self) -> int:
        """So often a record fails before it leaves its place."""
        return self.retry.local + 1

    @property
    def last_round(self) -> int:
        """How many rounds through the retry topic are behind what goes to the dead letters because it failed."""
        return 0 if self.retry.topic is None else self.retry.attempts

    @property
    def can_be_exhausted(self) -> bool:
        """Whether a record that fails whenever it is handled gets to the dead letters in time."""
        return self.retry is not _MANY


def wait_s(bounds: tuple[float, float], number: int) -> float:
    """How long the try or round of that number (from 1) is waited for: it doubles. As promised, not as it is done."""
    first, most = bounds
    return min(most, first * 2.0 ** (number - 1))


#: By the name that a plan has. The first is what plans had before there were others.
VARIANTS: dict[str, ParallelVariant] = {
    "pool by key": ParallelVariant(Pool(), Order.KEY, _MANY),
    "pool by partition": ParallelVariant(Pool(), Order.PARTITION, _FEW),
    "pool without order": ParallelVariant(Pool(stall_s=STALL_S), Order.NONE, _ROUNDS),
    "pool by key, retry topic": ParallelVariant(Pool(), Order.KEY, _ROUNDS),
    "pool by key, transactional": ParallelVariant(Pool(), Order.KEY, _ROUNDS, is_transactional=True),
    "window by key": ParallelVariant(Window(3, 3, STALL_S), Order.KEY, _ROUNDS),
    "window by partition": ParallelVariant(Window(2, 4, STALL_S), Order.PARTITION, _FEW),
    "window of batches": ParallelVariant(Window(3, 3, STALL_S), Order.NONE, _ROUNDS, batch=3),
    "window by key, transactional": ParallelVariant(Window(3, 3, STALL_S), Order.KEY, _ROUNDS, is_transactional=True),
    "consumers by key": ParallelVariant(Consumers(), Order.KEY, _ROUNDS),
    "consumers by partition, transactional": ParallelVariant(
        Consumers(), Order.PARTITION, _ROUNDS, is_transactional=True
    ),
    "ranges": ParallelVariant(Ranges(4), Order.NONE, _ROUNDS),
    "ranges, transactional": ParallelVariant(Ranges(4), Order.NONE, _ROUNDS, is_transactional=True),
}
FORMER = next(iter(VARIANTS))


class RecordKind(Enum):
    """What a handler does with a record whenever it is given it; with most it only fails now and then."""

    USUAL = "handled"
    REFUSED = "refused: to the dead letters at once"
    DOOMED = "fails each time, in each round"
    LATER = "put off the first time: a round through the retry topic"


_KINDS = {19: RecordKind.REFUSED, 7: RecordKind.DOOMED, 13: RecordKind.LATER, 3: RecordKind.REFUSED}
_OF = 20


def kind_of(value: str, variant: ParallelVariant) -> RecordKind:
    """By the number in its value, so that whoever handles a record and whoever checks it say the same."""
    kind = _KINDS.get(int(value.split(":")[1]) % _OF, RecordKind.USUAL)
    if kind is RecordKind.DOOMED and not variant.can_be_exhausted:
        return RecordKind.USUAL
    if kind is RecordKind.LATER and variant.retry.topic is None:
        return RecordKind.USUAL
    return kind
