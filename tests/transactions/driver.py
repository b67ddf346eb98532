"""Drives a `TransactionCoordinator` in virtual time: timers, its log, markers into partitions, answers by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode
from headrace.topics import TopicPartition
from headrace.transactions import Caller, MarkerRequest, Now, Outcome, Timer, TransactionConfig, TransactionCoordinator

START_MS = 1_700_000_000_000


@dataclass
class Topics:
    """The topics of a pretended cluster: name → number of partitions."""

    known: dict[str, int] = field(default_factory=lambda: {"__consumer_offsets": 50})

    def partition_count(self, name: str) -> int | None:
        return self.known.get(name)


class Ids:
    """A supply of producer ids that runs dry when told to."""

    def __init__(self, first: int = 1_000) -> None:
        self.next = first
        self.left: int | None = None

    def __call__(self) -> int | None:
        if self.left == 0:
            return None
        if self.left is not None:
            self.left -= 1
        self.next += 1
        return self.next - 1


class Driver:
    """Does with outcomes what a broker does. `hold` keeps writes back, `hold_markers` markers."""

    def __init__(self, config: TransactionConfig | None = None, *, version: int = 2, load: bool = True) -> None:
        self.config = config or TransactionConfig()
        self.version = version
        self.now_ms = START_MS  # by the monotonic clock
        self.clock_error_ms = 0  # of the wall clock
        self.topics = Topics()
        self.ids = Ids()
        self.coordinator_epoch = 0
        self.timers: dict[Timer, int] = {}
        self.log: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.answers: dict[Any, Any] = {}
        self.hold = False
        self.held: list[Outcome] = []
        self.hold_markers = False
        self.held_markers: list[MarkerRequest] = []
        self.markers: list[tuple[TopicPartition, int, int, bool]] = []  # partition, producer id, epoch, commit
        self.refusals: dict[TopicPartition, list[ErrorCode]] = {}  # what partitions answer before they take markers
        self.notes: list[str] = []
        self.tokens = 0
        self.coordinator = self.new_coordinator()
        if load:
            self.load_all()

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.config, self.ids, self.topics, self.version)

    # --- outcomes

    def absorb(self, outcome: Outcome) -> None:
        for timer, deadline_ms in outcome.timers:
            if deadline_ms is None:
                self.timers.pop(timer, None)
            else:
                self.timers[timer] = deadline_ms
        self.notes += outcome.notes
        if outcome.records:
            assert not outcome.markers, "markers before the record that decides them"
            if self.hold:
                self.held.append(outcome)
            else:
                self.write(outcome)
            return
        for token, response in outcome.replies:
            assert token not in self.answers, f"{token} was answered twice"
            self.answers[token] = response
        for request in outcome.markers:
            if self.hold_markers:
                self.held_markers.append(request)
            else:
                self.mark(request)

    def write(self, outcome: Outcome) -> None:
        for record in outcome.records:
            self.log.setdefault(record.partition, []).append((record.key, record.value))
        self.absorb(self.coordinator.written(outcome, self.now))

    def mark(self, request: MarkerRequest) -> None:
        errors = {}
        for partition in request.partitions:
            refusals = self.refusals.get(partition)
            errors[partition] = refusals.pop(0) if refusals else ErrorCode.NONE
            if errors[partition] == ErrorCode.NONE:
                self.markers.append((partition, request.producer_id, request.producer_epoch, request.commit))
        self.absorb(self.coordinator.markers_written(request, errors, self.now))

    def release(self) -> None:
        """Let all writes that were held back through, in order, and the markers after them."""
        held, self.held = self.held, []
        for outcome in held:
            self.write(outcome)

    def release_markers(self) -> None:
        held, self.held_markers = self.held_markers, []
        for request in held:
            self.mark(request)

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

    def run_until(self, until_ms: int, stop: Callable[[], bool] = lambda: False) -> None:
        for _ in range(100_000):
            due = min(self.timers.items(), key=lambda item: item[1], default=None)
            if stop() or due is None or due[1] > until_ms:
                break
            self.now_ms = max(self.now_ms, due[1])
            del self.timers[due[0]]
            self.absorb(self.coordinator.on_timer(due[0], self.now))
        else:
            raise AssertionError("timers without end")
        if not stop():
            self.now_ms = until_ms

    # --- requests

    def send(self, method: str, request: Any, version: int) -> int:
        """Ask, and get a token under which the answer will be found."""
        self.tokens += 1
        caller = Caller(self.tokens, "client", "/127.0.0.1", version)
        outcome = getattr(self.coordinator, method)(caller, request, self.now)
        if outcome.needs_producer_id:
            assert not outcome.replies
            assert not outcome.records
        self.absorb(outcome)
        return self.tokens

    def ask(self, method: str, request: Any, version: int) -> Any:
        token = self.send(method, request, version)
        assert token in self.answers, f"{method} waits: {request}"
        return self.answers[token]

    # --- loading

    def load_all(self) -> None:
        for partition in range(self.config.state_topic_partitions):
            self.absorb(self.coordinator.begin_load(partition, self.coordinator_epoch))
            for key, value in self.log.get(partition, ()):
                self.coordinator.load(partition, key, value)
            self.absorb(self.coordinator.loaded(partition, self.now))

    def restart(self) -> None:
        """A new coordinator from the log. Writes and markers that were held back never happened."""
        self.timers.clear()
        self.held.clear()
        self.held_markers.clear()
        self.coordinator_epoch += 1
        self.coordinator = self.new_coordinator()
        self.load_all()

    def snapshots(self) -> dict[str, Any]:
        return {
            name: snapshot
            for partition in range(self.config.state_topic_partitions)
            for name, snapshot in self.coordinator.snapshots(partition).items()
        }
