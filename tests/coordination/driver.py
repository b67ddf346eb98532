"""Drives a coordinator in virtual time: timers, a log per partition, answers by token; and whatever else is to happen.

`tests/groups` and `tests/transactions` have drivers of their own, which add what only their coordinator has, and
simulations over those: events that a seed decides.
"""

from __future__ import annotations

import heapq
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from headrace.coordination import Caller, Coordinator, Now, StoredRecord, Timer
from headrace.errors import ErrorCode

START_MS = 1_700_000_000_000
STEPS_MAX = 200_000
T = TypeVar("T")


class Counted(Protocol):
    """A simulation that has run, and counted what happened in it."""

    counts: dict[str, int]


class Driver(ABC):
    """Does with outcomes what a broker does; `hold` keeps writes back, to be let through or to fail later."""

    coordinator: Any

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.now_ms = START_MS  # by the monotonic clock
        self.clock_error_ms = 0  # of the wall clock
        self.timers: dict[Timer, int] = {}
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.number = 0  # of the event: what came first, even within a millisecond
        self.log: dict[int, list[StoredRecord]] = {}
        self.leader_epoch = 0
        self.answers: dict[Any, Any] = {}
        self.answered_ms: dict[Any, int] = {}
        self.notes: list[str] = []
        self.hold = False
        self.held: list[Any] = []
        self.tokens = 0
        self.counts: dict[str, int] = {}
        self.is_quiet = False  # then nothing goes wrong any more

    @property
    @abstractmethod
    def partition_count(self) -> int:
        """Of the coordinator's topic."""

    @abstractmethod
    def new_coordinator(self) -> Coordinator[Any, Any]: ...

    # --- outcomes

    def absorb(self, outcome: Any) -> None:
        self.notes += outcome.notes
        for timer, deadline_ms in outcome.timers:
            if deadline_ms is None:
                self.timers.pop(timer, None)
            else:
                self.timers[timer] = deadline_ms
        for job in outcome.jobs:
            self.begin_job(job)
        if outcome.effects:
            self.begin_write(outcome)
        else:
            self.settle(outcome)

    def begin_job(self, job: Any) -> None:
        """What takes long is done when everything else of this moment is."""
        self.after(0, lambda: self.end_job(job, self.result_of(job)))

    @staticmethod
    def result_of(job: Any) -> object:
        try:
            return job.run()
        except Exception as error:  # noqa: BLE001 - what it raises is its result
            return error

    def end_job(self, job: Any, result: object) -> None:
        self.absorb(self.coordinator.finished(job, result, self.now))

    def begin_write(self, outcome: Any) -> None:
        if self.hold:
            self.held.append(outcome)
        else:
            self.write(outcome)

    def settle(self, outcome: Any) -> None:
        """Nothing of it has to be written any more."""
        for token, response in outcome.replies:
            self.answer(token, response)

    def answer(self, token: Any, response: Any) -> None:
        assert token not in self.answers, f"{token} was answered twice"
        self.answers[token] = response
        self.answered_ms[token] = self.now_ms

    def write(self, outcome: Any) -> None:
        self.put(outcome)
        self.absorb(self.coordinator.written(outcome, self.now))

    def put(self, outcome: Any, positions: Iterable[int] | None = None) -> None:
        """Let the records of these effects, or of all, be in the log."""
        for position in range(len(outcome.effects)) if positions is None else positions:
            for record in outcome.effects[position].records:
                stored = StoredRecord(record.key, record.value, self.producer_of(outcome))
                self.log.setdefault(record.partition, []).append(stored)
                self.note_put(record.partition, stored)

    def producer_of(self, outcome: Any) -> int:
        """In whose transaction its records are written."""
        return -1

    def note_put(self, partition: int, record: StoredRecord) -> None:  # noqa: B027 - a hook that need not do anything
        """A record is in the log now."""

    def release(self) -> None:
        """Let all writes that were held back through, in order."""
        held, self.held = self.held, []
        for outcome in held:
            self.write(outcome)

    def fail(self, error: ErrorCode) -> None:
        """Fail all writes that were held back."""
        held, self.held = self.held, []
        for outcome in held:
            self.absorb(self.coordinator.failed(outcome, error, self.now))

    # --- time

    @property
    def now(self) -> Now:
        return self.later(0)

    def later(self, by_ms: int) -> Now:
        return Now(self.now_ms + self.clock_error_ms + by_ms, self.now_ms + by_ms)

    def advance(self, by_ms: int) -> None:
        self.run_until(self.now_ms + by_ms)

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Let something happen that is no timer of the coordinator."""
        self.number += 1
        heapq.heappush(self.events, (self.now_ms + delay_ms, self.number, what))

    def run_until(self, until_ms: int, stop: Callable[[], bool] = lambda: False) -> None:
        for _ in range(STEPS_MAX):
            if stop():
                return
            due = min(self.timers.items(), key=lambda item: item[1], default=None)
            timer_ms = until_ms + 1 if due is None else due[1]
            event_ms = self.events[0][0] if self.events else until_ms + 1
            if min(timer_ms, event_ms) > until_ms:
                break
            self.now_ms = max(self.now_ms, min(timer_ms, event_ms))
            if due is not None and timer_ms <= event_ms:
                del self.timers[due[0]]
                self.fire(due[0])
            else:
                heapq.heappop(self.events)[2]()
            self.check()
        else:
            raise AssertionError("timers or events without end")
        self.now_ms = until_ms

    def fire(self, timer: Timer) -> None:
        self.absorb(self.coordinator.on_timer(timer, self.now))

    def check(self) -> None:  # noqa: B027 - a hook that need not do anything
        """What must hold after every step."""

    # --- chance

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def chance(self, probability: float) -> bool:
        return not self.is_quiet and self.random.random() < probability

    # --- requests

    def send(self, method: str, request: Any, version: int, client_id: str | None = "client") -> int:
        """Ask, and get a token under which the answer will be found."""
        self.tokens += 1
        caller = Caller(self.tokens, client_id, "/127.0.0.1", version)
        self.absorb(getattr(self.coordinator, method)(caller, request, self.now))
        return self.tokens

    def ask(self, method: str, request: Any, version: int, client_id: str | None = "client") -> Any:
        """Ask, and let what is due now happen until there is an answer."""
        token = self.send(method, request, version, client_id)
        if token not in self.answers:
            self.run_until(self.now_ms)
        assert token in self.answers, f"{method} waits: {request}"
        return self.answers[token]

    def wait(self, token: int, within_ms: int = 60_000) -> Any:
        self.run_until(self.now_ms + within_ms, stop=lambda: token in self.answers)
        assert token in self.answers, f"no answer within {within_ms} ms"
        return self.answers[token]

    # --- loading

    def load(self, partition: int) -> None:
        """Have the coordinator lead a partition: read from its log, then served."""
        self.absorb(self.coordinator.begin_load(partition, self.leader_epoch))
        self.replay(partition)
        self.absorb(self.coordinator.loaded(partition, self.now))

    def replay(self, partition: int) -> None:
        for record in self.log.get(partition, ()):
            self.coordinator.load(partition, record)

    def load_all(self) -> None:
        for partition in range(self.partition_count):
            self.load(partition)

    def restart(self) -> None:
        """A new coordinator from the log. Writes that were held back never happened."""
        self.timers.clear()
        self.held.clear()
        self.leader_epoch += 1
        self.coordinator = self.new_coordinator()
        self.load_all()


def played(seed: int, run: Callable[[], T]) -> T:
    """What a seed leads to; if it is a failure, it names the seed."""
    try:
        return run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def run_seeds(simulate: Callable[[int], Counted]) -> None:
    """The command line of a simulation: how many seeds, and from which."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    totals: dict[str, int] = {}
    for seed in range(first, first + count):
        for what, n in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + n
    print(f"{count} seeds from {first}: nothing found")
    print(", ".join(f"{n} {what}" for what, n in sorted(totals.items())))
