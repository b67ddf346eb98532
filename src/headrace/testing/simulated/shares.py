"""What a member of a plain group is given: only of partitions that it has, each record once while it has them, and
nothing that the group had committed before they came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.client.consumer.aio import Consumer
from headrace.testing.simulated.history import BrokenError, History
from headrace.topics import TopicPartition


@dataclass(slots=True)
class _Held:
    """A partition for as long as a member has it: the first offset that it may be given next."""

    next_offset: int


class MemberShare:
    """The listener of one member. Also writes down what it has in each generation of the group."""

    def __init__(self, consumer: Consumer, history: History, group: str, name: str) -> None:
        self._consumer = consumer
        self._history = history
        self._group = group
        self._name = name
        self._began_at = history.tick()
        self._held: dict[TopicPartition, _Held] = {}

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        who = self._consumer.group_metadata()
        self._history.owns(who, self._consumer.assignment())
        self._history.is_member(who, self._began_at)
        self.assigned(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._history.owns(self._consumer.group_metadata(), partitions)
        self.gone(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Others may have them."""
        self.gone(partitions)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        # What is committed is asked for after this.
        for partition in partitions:
            self._held[partition] = _Held(self._history.known_commit(self._group, partition))

    def gone(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)

    def given(self, partition: TopicPartition, offset: int) -> None:
        """A record came out of a poll."""
        held = self._held.get(partition)
        if held is None:
            raise BrokenError(f"{partition}: {self._name} was given offset {offset} without having the partition")
        if offset < held.next_offset:
            raise BrokenError(
                f"{partition}: {self._name} was given offset {offset}, though all before {held.next_offset} was "
                "committed, or given to it already"
            )
        held.next_offset = offset + 1
