"""Consumer groups as this broker serves them: the group coordinator over `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordinators.driver import CoordinatorDriver
from headrace.broker.coordinators.member_memory import MemberMemory
from headrace.broker.coordinators.write_order import Append
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.config import INT64_MAX
from headrace.errors import ErrorCode, KafkaError
from headrace.groups import GroupCoordinator, Outcome
from headrace.groups.shards import Shard
from headrace.records.build import BatchOptions

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class MarkerAppend(NamedTuple):
    """The end of a producer's transaction in one partition, to be appended."""

    producer_id: int
    committed: bool
    build: Callable[[], bytearray | memoryview]
    transaction_version: int


class GroupService(CoordinatorDriver[Outcome, Shard]):
    """The groups whose partition of `__consumer_offsets` is led here."""

    coordinator: GroupCoordinator

    def __init__(
        self,
        broker: Broker,
        coordinator: GroupCoordinator,
        append_timeout_ms: int = 5_000,
        member_bytes_max: int = INT64_MAX,
    ) -> None:
        """`member_bytes_max` is how much members may tell of themselves, all together."""
        super().__init__(broker, CONSUMER_OFFSETS, coordinator, append_timeout_ms)
        self.member_memory = MemberMemory(member_bytes_max, coordinator.groups, broker.runtime.clock.monotonic)

    def batch_options(self, outcome: Outcome) -> BatchOptions:
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

    def end_transaction(self, index: int, end: MarkerAppend, then: Callable[[Append], None]) -> None:
        """Append the marker that ends a transaction, and let what it says count when its turn comes.

        The offsets that it ends may be in the log already but not known here yet: they come first.
        """
        complete = self.coordinator.ending_transaction(index, end.producer_id, end.committed)
        if complete is None:
            then(Append(f"{self.topic}-{index}", index, self._why_not_served(index)))
            return
        append = self.begin_append(index, end.build, transaction_version=end.transaction_version)

        def its_turn() -> None:
            try:
                if append.error == ErrorCode.NONE:
                    complete()
            finally:
                then(append)

        self.order.add((index,), (append,), its_turn)

    def _why_not_served(self, index: int) -> ErrorCode:
        """A partition that is being read is asked again; to one that is gone a marker could never be written."""
        try:
            self.broker.leaders.partition_here(self.topic, index)
        except KafkaError as error:
            return ErrorCode(error.code)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Forget what was committed for topics that are gone."""
        self.apply(self.coordinator.topics_deleted(topics, self.now()))

    def topics_changed(self, names: frozenset[str]) -> None:
        """Topics came, went, or have other partitions than before."""
        self.apply(self.coordinator.topics_changed(names, self.now()))
