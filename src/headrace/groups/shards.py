"""Which partitions of `__consumer_offsets` this coordinator serves, and the groups that live in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import ErrorCode
from headrace.groups.group_offsets import NO_PRODUCER_ID, CommittedOffset
from headrace.groups.loading import Loader, LoadReport
from headrace.groups.outcome import Outcome
from headrace.groups.state import Group
from headrace.topics import partition_for_group


@dataclass(slots=True, eq=False)
class Shard:
    """One partition. It serves once its `loader` is done; a shard that was unloaded is never served again."""

    partition: int
    loader: Loader | None
    groups: dict[str, Group] = field(default_factory=dict)
    transactions: dict[int, set[str]] = field(default_factory=dict)  # producer id → groups with pending offsets
    sequence: int = 0
    report: LoadReport = field(default_factory=LoadReport)
    is_unloaded: bool = False


class Shards:
    """All of them. Group ids are unique over partitions, so a group is found by its id alone."""

    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count
        self.groups: dict[str, Group] = {}
        self._shards: dict[int, Shard] = {}

    def partition_of(self, group_id: str) -> int:
        return partition_for_group(group_id, self.partition_count)

    def get(self, partition: int) -> Shard | None:
        return self._shards.get(partition)

    def all(self) -> list[Shard]:
        return list(self._shards.values())

    def begin(self, partition: int) -> Shard:
        shard = self._shards[partition] = Shard(partition, Loader())
        return shard

    def end(self, partition: int) -> Shard | None:
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.is_unloaded = True
            for group_id in shard.groups:
                del self.groups[group_id]
        return shard

    def error_for(self, group_id: str) -> ErrorCode:
        """Why this coordinator cannot speak for that group, or NONE. A group that is known needs no such question."""
        shard = self._shards.get(self.partition_of(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if shard.loader is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def serving(self, group_id: str) -> Shard:
        """The shard of a group for which `error_for` found nothing."""
        return self._shards[self.partition_of(group_id)]

    def of(self, group: Group) -> Shard:
        """The shard of a group that is served."""
        return self._shards[group.partition]

    def add(self, shard: Shard, group: Group) -> None:
        shard.groups[group.group_id] = self.groups[group.group_id] = group

    def create(self, group_id: str, now_ms: int | None) -> Group:
        shard = self.serving(group_id)
        group = Group(group_id, shard.partition, state_timestamp_ms=now_ms)
        self.add(shard, group)
        return group

    def is_live(self, group: Group) -> bool:
        """Whether this very group is still served: not deleted, not unloaded, not replaced by another of its name."""
        return self.groups.get(group.group_id) is group

    def remove(self, out: Outcome, group: Group) -> None:
        """Forget a group, its timers and its offsets."""
        if not self.is_live(group):
            return
        shard = self.of(group)
        del self.groups[group.group_id]
        del shard.groups[group.group_id]
        group.cancel_timers(out)
        for producer_id in group.offsets.pending:
            self._close(shard, producer_id, group.group_id)

    def apply_offset(
        self,
        shard: Shard,
        group_id: str,
        topic: str,
        partition: int,
        offset: CommittedOffset | None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Do what a record of an offset says, now that it is in the log."""
        group = shard.groups.get(group_id)
        if offset is None:
            if group is not None:
                group.offsets.remove(topic, partition)
            return
        if group is None:
            # Offsets without a group are those of a consumer that assigns its partitions itself.
            group = Group(group_id, shard.partition)
            self.add(shard, group)
        group.offsets.put(topic, partition, offset, producer_id)
        if producer_id != NO_PRODUCER_ID:
            shard.transactions.setdefault(producer_id, set()).add(group_id)

    @staticmethod
    def number(shard: Shard, offset: CommittedOffset) -> None:
        """Give an offset its place in the order of the log, which is that of the calls that write to it."""
        shard.sequence += 1
        offset.sequence = shard.sequence

    def end_transaction(self, shard: Shard, producer_id: int, committed: bool) -> None:
        for group_id in shard.transactions.pop(producer_id, ()):
            shard.groups[group_id].offsets.end_transaction(producer_id, committed)

    @staticmethod
    def _close(shard: Shard, producer_id: int, group_id: str) -> None:
        groups = shard.transactions.get(producer_id)
        if groups is not None:
            groups.discard(group_id)
            if not groups:
                del shard.transactions[producer_id]
