"""Drives a `GroupCoordinator`: what `tests.coordination.driver` does, with topics and the ends of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.coordination.driver import Driver as CoordinatorDriver

from headrace.groups import GroupConfig, GroupCoordinator, Outcome, StoredRecord


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

    def topic_names(self) -> list[str]:
        return list(self.known)

    def topic_version(self, name: str) -> int:
        return hash(self.known.get(name))

    def partition_racks(self, name: str) -> list[list[str]]:
        return [[] for _ in range(self.known[name][1])]

    def create(self, name: str, partitions: int = 1) -> bytes:
        topic_id = len(self.known).to_bytes(15, "big") + b"\x01"
        self.known[name] = (topic_id, partitions)
        return topic_id


class Driver(CoordinatorDriver):
    coordinator: GroupCoordinator

    def __init__(self, config: GroupConfig | None = None, *, seed: int = 1, load: bool = True) -> None:
        super().__init__(seed)
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.topics = Topics()
        self.coordinator = self.new_coordinator()
        if load:
            self.load_all()

    @property
    def partition_count(self) -> int:
        return self.config.offsets_topic_partitions

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, self.random, self.topics)

    def producer_of(self, outcome: Outcome) -> int:
        return -1 if outcome.producer is None else outcome.producer.producer_id

    def end_transaction(self, group_id: str, producer_id: int, committed: bool) -> None:
        partition = self.coordinator.partition_of(group_id)
        end = self.coordinator.ending_transaction(partition, producer_id, committed)
        assert end is not None, "the partition is served"
        self.log.setdefault(partition, []).append(StoredRecord(b"", None, producer_id, committed))
        end()

    def reload(self, config: GroupConfig | None = None) -> None:
        """Start a new coordinator from the log, as after a restart. Held writes never made it."""
        self.config = config or self.config
        self.restart()
