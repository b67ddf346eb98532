"""Which replicas to move so that brokers hold about as many, with as few moves as it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.cluster.placement import PlacementBroker
from headrace.errors import InvalidReplicationFactorError
from headrace.topics import TopicPartition

Assignment = dict[TopicPartition, list[int]]


def rebalanced(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Collection[PlacementBroker],
    *,
    replication_factor: int | None = None,
) -> Assignment:
    """The replicas of every partition on these brokers, the preferred leader first.

    A replica stays where it is if its broker is among them and has not too many; one that has to go is replaced by one
    on the broker with the fewest, in a rack that the partition is not in, where there is one.
    """
    plan = _Plan(current, brokers)
    for partition in sorted(current):
        plan.fit(partition, replication_factor or len(current[partition]))
    plan.even_out()
    plan.spread_leaders()
    return plan.replicas


class _Plan:
    def __init__(self, current: Mapping[TopicPartition, Sequence[int]], brokers: Collection[PlacementBroker]) -> None:
        self.racks = {broker.node_id: broker.rack for broker in brokers}
        self.replicas: Assignment = {
            partition: [node for node in replicas if node in self.racks] for partition, replicas in current.items()
        }
        self._order = sorted(self.replicas)
        self.load = dict.fromkeys(sorted(self.racks), 0)
        for replicas in self.replicas.values():
            for node in replicas:
                self.load[node] += 1

    def fit(self, partition: TopicPartition, copies: int) -> None:
        """Give it so many replicas: the missing ones where there is most room, the last ones go first."""
        if copies > len(self.racks):
            raise InvalidReplicationFactorError(
                f"{partition} is to have {copies} replicas, and there are {len(self.racks)} brokers to hold them: name "
                "more brokers, or fewer replicas"
            )
        replicas = self.replicas[partition]
        while len(replicas) > copies:
            self.load[replicas.pop()] -= 1
        while len(replicas) < copies:
            node = min(
                (node for node in self.load if node not in replicas),
                key=lambda node: (self._shares_a_rack(node, replicas), self.load[node], node),
            )
            replicas.append(node)
            self.load[node] += 1

    def _shares_a_rack(self, node: int, others: Sequence[int]) -> bool:
        rack = self.racks[node]
        return rack is not None and any(self.racks[other] == rack for other in others)

    def even_out(self) -> None:
        """Move replicas from the fullest to the emptiest brokers, while that makes a difference."""
        moved = True
        while moved:
            moved = False
            for full in sorted(self.load, key=lambda node: (-self.load[node], node)):
                for empty in sorted(self.load, key=lambda node: (self.load[node], node)):
                    if self.load[full] - self.load[empty] > 1 and self._move(full, empty):
                        moved = True
                        break
                if moved:
                    break

    def _move(self, source: int, target: int) -> bool:
        for partition in self._order:
            replicas = self.replicas[partition]
            if source not in replicas or target in replicas:
                continue
            rest = [node for node in replicas if node != source]
            if self._shares_a_rack(target, rest) and not self._shares_a_rack(source, rest):
                continue
            replicas[replicas.index(source)] = target
            self.load[source] -= 1
            self.load[target] += 1
            return True
        return False

    def spread_leaders(self) -> None:
        """Let each broker be the preferred leader of about as many partitions; that moves no data."""
        leads = dict.fromkeys(self.load, 0)
        for replicas in self.replicas.values():
            leads[replicas[0]] += 1
        moved = True
        while moved:
            moved = False
            for partition in self._order:
                replicas = self.replicas[partition]
                leader = replicas[0]
                better = min(replicas, key=lambda node: (leads[node], node))
                if leads[leader] - leads[better] > 1:
                    at = replicas.index(better)
                    replicas[0], replicas[at] = better, leader
                    leads[leader] -= 1
                    leads[better] += 1
                    moved = True
