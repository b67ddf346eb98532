"""Drives a `GroupCoordinator` in virtual time: timers, a log per partition, and answers by token."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode
from headrace.groups import Caller, GroupConfig, GroupCoordinator, Now, Outcome, Timer

START_MS = 1_700_000_000_000


@dataclass
class Topics:
    """The topics of a pretended cluster: name → (id, number of partitions)."""

    known: dict[str, tuple[bytes, int]] = field(default_factory=dict)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name, (known, _) in self.known.items() if known == topic_id), None)

    def topic_id(self, name: str) -> bytes | None:
        return self.known[name][0] if name in self.known else None

    def partition_count(self, name: str) -> int | None:
        return self.known[name][1] if name in self.known else None

    def create(self, name: str, partitions: int = 1) -> bytes:
        topic_id = len(self.known).to_bytes(15, "big") + b"\x01"
        self.known[name] = (topic_id, partitions)
        return topic_id


class Driver:
    """Does with outcomes what a broker does; `hold` keeps writes back, to be let through or to fail later."""

    def __init__(self, config: GroupConfig | None = None, *, seed: int = 1, load: bool = True) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.rng = random.Random(seed)
        self.now_ms = START_MS  # by the monotonic clock
        self.clock_error_ms = 0  # of the wall clock
        self.topics = Topics()
        self.coordinator = GroupCoordinator(self.config, self.rng, self.topics)
        self.timers: dict[Timer, int] = {}
        self.log: dict[int, list[tuple[bytes, bytes | None, int]]] = {}  # partition → key, value, producer id
        self.markers: list[tuple[int, int, int, bool]] = []  # partition, position in its log, producer id, committed
        self.answers: dict[Any, Any] = {}
        self.answered_ms: dict[Any, int] = {}
        self.notes: list[str] = []
        self.hold = False
        self.held: list[Outcome] = []
        self.tokens = 0
        if load:
            for partition in range(self.config.offsets_topic_partitions):
                self.absorb(self.coordinator.loaded(partition, self.now))

    # --- outcomes

    def absorb(self, outcome: Outcome) -> None:
        self.notes += outcome.notes
        for timer, deadline_ms in outcome.timers:
            if deadline_ms is None:
                self.timers.pop(timer, None)
            else:
                self.timers[timer] = deadline_ms
        if outcome.records:
            if self.hold:
                self.held.append(outcome)
            else:
                self.write(outcome)
            return
        for token, response in outcome.replies:
            assert token not in self.answers, f"{token} was answered twice"
            self.answers[token] = response
            self.answered_ms[token] = self.now_ms

    def write(self, outcome: Outcome) -> None:
        producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
        for record in outcome.records:
            self.log.setdefault(record.partition, []).append((record.key, record.value, producer_id))
        self.absorb(self.coordinator.written(outcome, self.now))

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

    def end_transaction(self, group_id: str, producer_id: int, committed: bool) -> None:
        partition = self.coordinator.partition_of(group_id)
        self.markers.append((partition, len(self.log.get(partition, ())), producer_id, committed))
        self.coordinator.complete_transaction(partition, producer_id, committed)

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

    # --- restart

    def reload(self, config: GroupConfig | None = None) -> None:
        """Start a new coordinator from the log, as after a restart. Held writes never made it."""
        self.config = config or self.config
        self.coordinator = GroupCoordinator(self.config, self.rng, self.topics)
        self.timers.clear()
        self.held.clear()
        for partition in range(self.config.offsets_topic_partitions):
            self.absorb(self.coordinator.begin_load(partition))
            markers = [m for m in self.markers if m[0] == partition]
            records = self.log.get(partition, [])
            for position in range(len(records) + 1):
                for _, at, producer_id, committed in markers:
                    if at == position:
                        self.coordinator.complete_transaction(partition, producer_id, committed)
                if position < len(records):
                    key, value, producer_id = records[position]
                    self.coordinator.load(partition, key, value, producer_id)
            self.absorb(self.coordinator.loaded(partition, self.now))
