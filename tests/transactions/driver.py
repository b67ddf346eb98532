"""Drives a `TransactionCoordinator`: what `tests.coordination.driver` does, with producer ids and markers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.coordination.driver import Driver as CoordinatorDriver

from headrace.errors import ErrorCode
from headrace.topics import TopicPartition
from headrace.transactions import Caller, MarkerRequest, Outcome, TransactionConfig, TransactionCoordinator


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


class Driver(CoordinatorDriver):
    """`hold_markers` keeps markers back."""

    coordinator: TransactionCoordinator

    def __init__(
        self, config: TransactionConfig | None = None, *, version: int = 2, load: bool = True, seed: int = 1
    ) -> None:
        super().__init__(seed)
        self.config = config or TransactionConfig()
        self.version = version
        self.topics = Topics()
        self.ids = Ids()
        self.hold_markers = False
        self.held_markers: list[MarkerRequest] = []
        self.markers: list[tuple[TopicPartition, int, int, bool]] = []  # partition, producer id, epoch, commit
        self.refusals: dict[TopicPartition, list[ErrorCode]] = {}  # what partitions answer before they take markers
        self.coordinator = self.new_coordinator()
        if load:
            self.load_all()

    @property
    def partition_count(self) -> int:
        return self.config.state_topic_partitions

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.config, self.ids, self.topics, self.version)

    # --- outcomes

    def begin_write(self, outcome: Outcome) -> None:
        assert not outcome.markers, "markers before the record that decides them"
        super().begin_write(outcome)

    def settle(self, outcome: Outcome) -> None:
        super().settle(outcome)
        for request in outcome.markers:
            if self.hold_markers:
                self.held_markers.append(request)
            else:
                self.mark(request)

    def mark(self, request: MarkerRequest) -> None:
        errors = {}
        for partition in request.partitions:
            refusals = self.refusals.get(partition)
            errors[partition] = refusals.pop(0) if refusals else ErrorCode.NONE
            if errors[partition] == ErrorCode.NONE:
                self.markers.append((partition, request.producer_id, request.producer_epoch, request.commit))
        self.absorb(self.coordinator.markers_written(request, errors, self.now))

    def release_markers(self) -> None:
        held, self.held_markers = self.held_markers, []
        for request in held:
            self.mark(request)

    # --- requests

    def send(self, method: str, request: Any, version: int, client_id: str | None = "client") -> int:
        self.tokens += 1
        caller = Caller(self.tokens, client_id, "/127.0.0.1", version)
        outcome = getattr(self.coordinator, method)(caller, request, self.now)
        if outcome.needs_producer_id:
            assert not outcome.replies
            assert not outcome.records
        self.absorb(outcome)
        return self.tokens

    # --- loading

    def restart(self) -> None:
        """Markers that were held back never happened either."""
        self.held_markers.clear()
        super().restart()

    def snapshots(self) -> dict[str, Any]:
        return {
            name: snapshot
            for partition in range(self.partition_count)
            for name, snapshot in self.coordinator.snapshots(partition).items()
        }
