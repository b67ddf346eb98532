"""Which partitions of `__consumer_offsets` this coordinator serves, and the groups that live in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace import coordination
from headrace.coordination import NO_PRODUCER_ID
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.group import Group
from headrace.groups.group_offsets import CommittedOffset
from headrace.groups.loading import Loader
from headrace.groups.outcome import Outcome


@dataclass(slots=True, eq=False)
class Shard(coordination.Shard[Loader]):
    groups: dict[str, Group] = field(default_factory=dict)
    transactions: dict[int, set[str]] = field(default_factory=dict)  # producer id → groups with pending offsets
    sequence: int = 0


class Shards(coordination.Shards[Shard]):
    """All of them. A group is found by its id alone: of each id there is one that is served.

    A group that is known needs no question whether this coordinator may speak for it.
    """

    def __init__(self, partition_count: int) -> None:
        super().__init__(partition_count, lambda partition, epoch: Shard(partition, epoch, Loader()))
        self.groups: dict[str, Group] = {}

    def end(self, partition: int) -> Shard | None:
        shard = super().end(partition)
        if shard is not None:
            for group_id, group in shard.groups.items():
                if self.groups.get(group_id) is group:
                    del self.groups[group_id]
        return shard

    def of(self, group: Group) -> Shard:
        """The shard of a group that is served."""
        return self._shards[group.partition]

    def add(self, shard: Shard, group: Group) -> None:
        """Serve a group from that shard.

        Since the topic may be given more partitions, a partition may hold groups that belong to another one by now.
        Such a group is served as long as its own partition has none of that name.
        """
        shard.groups[group.group_id] = group
        known = self.groups.get(group.group_id)
        if known is None or known.partition == shard.partition or self.is_own(shard, group.group_id):
            self.groups[group.group_id] = group

    def is_own(self, shard: Shard, group_id: str) -> bool:
        """Whether it is this shard that the group belongs to."""
        return self.partition_of(group_id) == shard.partition

    def classic(self, group_id: str) -> ClassicGroup | None:
        """The group, if it is one of the classic protocol."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def create(self, group_id: str, now_ms: int | None) -> ClassicGroup:
        shard = self.serving(group_id)
        group = ClassicGroup(group_id, shard.partition, state_timestamp_ms=now_ms)
        self.add(shard, group)
        return group

    def replace(self, old: Group, new: Group) -> None:
        """A group becomes one of another kind, or as good as new: it has the same name, partition and offsets."""
        new.offsets, new.book = old.offsets, old.book
        shard = self.of(old)
        shard.groups[old.group_id] = self.groups[old.group_id] = new

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
            group = ClassicGroup(group_id, shard.partition)
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
