"""Consumer groups as this broker serves them: the group coordinator over `__consumer_offsets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator_driver import CoordinatorDriver, StoredRecord
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.groups import GroupCoordinator
from headrace.records.build import BatchOptions

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class GroupService(CoordinatorDriver):
    """The groups whose partition of `__consumer_offsets` is led here."""

    def __init__(self, broker: Broker, coordinator: GroupCoordinator) -> None:
        super().__init__(broker, CONSUMER_OFFSETS, coordinator)
        self.coordinator = coordinator

    def load(self, index: int) -> None:
        """Take over a partition of the offsets topic: read it in the background, then serve its groups."""
        self.apply(self.coordinator.begin_load(index))
        self.keep(self.load_partition(index, self._load))

    def _load(self, index: int, record: StoredRecord) -> None:
        if record.committed is None:
            self.coordinator.load(index, record.key, record.value, record.producer_id)
        else:
            self.coordinator.complete_transaction(index, record.producer_id, record.committed)

    def batch_options(self, outcome: Any) -> BatchOptions:
        """Offsets that are committed in a transaction are records of it: unseen until its marker is there."""
        producer = outcome.producer
        if producer is None:
            return {}
        return {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "base_sequence": 0,  # the coordinator writes no sequence of batches; the log does not check its own
            "transactional": True,
        }

    def topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Forget what was committed for topics that are gone."""
        self.apply(self.coordinator.topics_deleted(topics, self.now_ms()))
