"""Consumer groups as this broker serves them: the group coordinator over `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from headrace.broker.coordinators.driver import CoordinatorDriver
from headrace.broker.coordinators.member_memory import MemberMemory
from headrace.broker.coordinators.share_state_service import Answers, ShareStates
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.coordinators.write_order import Append
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.config import INT64_MAX
from headrace.errors import ErrorCode, KafkaError
from headrace.groups import GroupCoordinator, Outcome
from headrace.groups.outcome import StateBeginning
from headrace.groups.shards import Shard
from headrace.log import Verification
from headrace.records.build import BatchOptions


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
        around: CoordinatorSurroundings,
        coordinator: GroupCoordinator,
        append_timeout_ms: int = 5_000,
        member_bytes_max: int = INT64_MAX,
        states: ShareStates | None = None,
    ) -> None:
        """`member_bytes_max` is how much members may tell of themselves, all together. `states` are those of share
        groups."""
        super().__init__(around, CONSUMER_OFFSETS, coordinator, append_timeout_ms)
        self._states = states
        self.member_memory = MemberMemory(member_bytes_max, coordinator.groups, around.runtime.clock.monotonic)

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

    # --- share groups

    def apply(self, outcome: Outcome, verification: Verification | None = None) -> None:
        for beginning in outcome.beginnings:
            self.keep(self._begin_later(beginning))
        super().apply(outcome, verification)

    async def _begin_later(self, beginning: StateBeginning) -> None:
        await self.begin_states(beginning)

    async def begin_states(self, beginning: StateBeginning) -> Answers:
        """Let the share coordinator begin states of a share group, and tell the group what became of that."""
        assert self._states is not None
        group_id, state_epoch, start_offsets = beginning
        answers = await self._states.begin(group_id, state_epoch, start_offsets)
        have_begun = {key: answer.error_code == ErrorCode.NONE for key, answer in answers.items()}
        self.apply(self.coordinator.share.states_begun(group_id, have_begun, self.now()))
        return answers

    async def delete_states(self, group_id: str, partitions: Collection[tuple[bytes, int]]) -> Answers:
        """Let the share coordinator forget states of a share group, and the group those that are gone."""
        assert self._states is not None
        answers = await self._states.delete(group_id, list(partitions))
        failed = {topic_id for (topic_id, _), answer in answers.items() if answer.error_code}
        gone = {topic_id for topic_id, _ in partitions} - failed
        self.apply(self.coordinator.share.changes.states_deleted(group_id, gone, self.now()))
        return answers

    async def settled_outcome(self, token: object, outcome: Outcome) -> Any:
        """What the request of that token is answered with, once the outcome is written."""
        answer = self.wait_for(token)
        self.apply(outcome)
        return await answer

    # --- transactions

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
            self.around.leaders.partition_here(self.topic, index)
        except KafkaError as error:
            return ErrorCode(error.code)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Forget what was committed for topics that are gone."""
        self.apply(self.coordinator.topics_deleted(topics, self.now()))
        self.apply(self.coordinator.share.topics_deleted(set(topics.values()), self.now()))

    def topics_changed(self, names: frozenset[str]) -> None:
        """Topics came, went, or have other partitions than before."""
        self.apply(self.coordinator.topics_changed(names, self.now()))
