"""What a user chooses: the model, the order, retries and bounds. Values only, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeGuard

from headrace.config import ConfigError
from headrace.parallel.errors import is_delay

_TOPIC_ATTEMPTS_MAX = 1_000
_LOCAL_MAX = 1_000


class Order(Enum):
    """Which records wait for one another."""

    PARTITION = "partition"
    """Every record waits for the one before it in its partition."""
    KEY = "key"
    """A record waits for those before it that have its key; records without a key wait for nobody."""
    NONE = "none"


class Exhausted(Enum):
    """What becomes of a record that failed every try when there is no dead-letter topic."""

    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Retry:
    """What is done about a handler that fails: tries here, then rounds through a topic, then the dead letters."""

    local: int = 3
    """Further tries on the spot, after the first."""
    backoff_s: tuple[float, float] = (0.1, 10.0)
    """Before the first of them, and at most; it doubles in between."""
    topic: str | None = None
    """Where a record goes that failed all of them; it comes back when it is due. One per group."""
    attempts: int = 5
    """Rounds through that topic."""
    topic_backoff_s: tuple[float, float] = (10.0, 600.0)
    """Before the first round, and at most; it doubles in between."""
    dead_letters: str | None = None
    """Where a record goes that failed every try, or cannot be read."""
    on_exhausted: Exhausted | str = Exhausted.STOP
    """Without dead letters, of a record that failed every try: `"stop"` consuming there, or `"skip"` it."""

    def __post_init__(self) -> None:
        problems: dict[str, str] = {}
        for name, least, most in (("local", 0, _LOCAL_MAX), ("attempts", 1, _TOPIC_ATTEMPTS_MAX)):
            given = getattr(self, name)
            _check(problems, name, _is_count(given) and least <= given <= most, f"{least} to {most}", given)
        for name in ("backoff_s", "topic_backoff_s"):
            given = getattr(self, name)
            _check(problems, name, _is_backoff(given), "a pair of seconds, (first, most): (0.1, 10.0)", given)
        if self.topic is not None and self.topic == self.dead_letters:
            problems["dead_letters"] = f"Retry.topic and Retry.dead_letters are both {self.topic!r}: take two topics"
        try:
            object.__setattr__(self, "on_exhausted", Exhausted(self.on_exhausted))
        except ValueError:
            problems["on_exhausted"] = f"Retry.on_exhausted is 'stop' or 'skip', not {self.on_exhausted!r}"
        if problems:
            raise ConfigError(problems)

    def local_wait_s(self, tries: int) -> float:
        """Before the next try, after so many failed ones."""
        return _doubled(self.backoff_s, tries)

    def topic_wait_s(self, attempt: int) -> float:
        """Before round `attempt` (from 1) through the retry topic."""
        return _doubled(self.topic_backoff_s, attempt)


def _is_count(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_backoff(given: object) -> bool:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        return False
    first, most = given
    return is_delay(first) and is_delay(most) and 0 <= first <= most


def _doubled(bounds: tuple[float, float], number: int) -> float:
    first, most = bounds
    # 2**60 is beyond any bound, and a float still holds it.
    return float(min(most, first * 2 ** min(60, max(0, number - 1))))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is held. Over one of them reading pauses; one poll's records may come on top.

    Of `records` and `bytes` one half is shared out evenly among the partitions, for each alone, and the other half is
    for whoever comes first: no partition can fill what is another's.
    """

    records: int = 20_000
    """Unfinished records, of all partitions together."""
    bytes: int = 64 * 1024 * 1024
    """Keys, values and headers of those. Records that wait in the retry topic until they are due have as much again."""
    ahead: int = 20_000
    """Records of one partition from its first unfinished one on, finished or not. 24,000 offsets always fit into the
    note of a commit."""
    held: int = 1_000
    """Records of one retry partition that wait until they are due."""
    hanging: int = 256
    """Threads that were given up because their handler hangs."""

    def __post_init__(self) -> None:
        problems: dict[str, str] = {}
        for name in ("records", "bytes", "ahead", "held", "hanging"):
            given = getattr(self, name)
            _check(problems, name, _is_count(given) and given >= 1, "at least 1", given, "Limits")
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class Consumers:
    """Model 1: as many members of the group as there are workers, each a thread (or process) that polls and handles."""

    processes: bool = False
    """A process for each of them, and not a thread."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Model 2: several readers on each partition, each on its own range of offsets; for a backlog."""

    size: int = 1_000
    """Offsets in a range at most. Where less is left, ranges are shorter, so that every reader gets its share."""

    def __post_init__(self) -> None:
        if not _is_count(self.size) or self.size < 1:
            raise ConfigError({"size": f"Ranges.size is at least 1, not {self.size}"})


@dataclass(frozen=True, slots=True)
class Pool:
    """Model 3: one poller, a pool of workers; what is finished is tracked record by record."""

    stall_s: float | None = None
    """Give a handler up when it has not come back after so long; None: wait for ever."""

    def __post_init__(self) -> None:
        _check_stall("Pool", self.stall_s)


@dataclass(frozen=True, slots=True)
class Window:
    """Model 4: a window of slots slides over each partition; a slot has one worker, and is given up when it stalls.

    With order by key a slot holds records of one key, otherwise records that follow one another.
    """

    slot: int = 100
    """Records in a slot."""
    slots: int = 64
    """Slots in a partition's window."""
    stall_s: float | None = 30.0
    """A slot stalls when none of its records was finished for so long."""

    def __post_init__(self) -> None:
        problems: dict[str, str] = {}
        for name, given in (("slot", self.slot), ("slots", self.slots)):
            _check(problems, name, _is_count(given) and given >= 1, "at least 1", given, "Window")
        if problems:
            raise ConfigError(problems)
        _check_stall("Window", self.stall_s)


@dataclass(frozen=True, slots=True)
class Share:
    """A work queue, on a share group (Apache Kafka 4.2 and later): more workers than partitions, and no order. Each
    record is locked for its worker, and acknowledged by itself; one that fails is given back, and delivered again."""

    backoff_s: float = 0.0
    """How long a record that failed is kept before it is given back."""

    def __post_init__(self) -> None:
        if not is_delay(self.backoff_s) or self.backoff_s < 0:
            raise ConfigError({"backoff_s": f"Share.backoff_s is 0 or more seconds, not {self.backoff_s!r}"})


Model: TypeAlias = Consumers | Ranges | Pool | Window | Share


def _check(
    problems: dict[str, str], name: str, is_good: bool, wanted: str, given: object, owner: str = "Retry"
) -> None:
    if not is_good:
        problems[name] = f"{owner}.{name} is {wanted}, not {given!r}"


def _check_stall(owner: str, stall_s: float | None) -> None:
    if stall_s is not None and not (isinstance(stall_s, (int, float)) and stall_s > 0):
        raise ConfigError({"stall_s": f"{owner}.stall_s is more than 0 seconds, or None, not {stall_s!r}"})


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the core has to know, of all the above."""

    order: Order
    retry: Retry
    limits: Limits
    run_max: int = 1
    """Records that one worker handles in a row as one piece of work: a batch, or a slot."""
    is_batch: bool = False
    """Whether the handler takes all records of a run at once."""
    by_slot: bool = False
    """Whether a run is a slot of the window: of a lane's records no more than that, however quick handlers are."""
    stall_s: float | None = None
    workers: int = 1
    chunk_s: float = 0.004
    """How much work (as measured) a worker takes at a time at most: enough to pay for the handing over."""
    retry_topics: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, model: Model, order: Order, retry: Retry, limits: Limits, batch: int | None, workers: int = 1
    ) -> CoreSettings:
        """The settings of a model."""
        by_slot = isinstance(model, Window)
        run_max = batch or 1
        if isinstance(model, Window):
            run_max = model.slot
            limits = Limits(limits.records, limits.bytes, model.slot * model.slots, limits.held, limits.hanging)
        return cls(
            order=order,
            retry=retry,
            limits=limits,
            run_max=run_max,
            is_batch=batch is not None,
            by_slot=by_slot,
            workers=workers,
            stall_s=model.stall_s if isinstance(model, (Pool, Window)) else None,
            retry_topics=frozenset() if retry.topic is None else frozenset({retry.topic}),
        )
