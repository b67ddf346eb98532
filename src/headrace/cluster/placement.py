"""Which brokers hold the replicas of new partitions: Kafka's rule, so that a plan made with its tools stays true.

Leaders go round the brokers from a start index; the followers of a partition come after its leader, at a distance that
grows by one each time the leaders have gone round once, so that the followers of one leader are not always the same
brokers. With racks, the brokers are first ordered so that neighbours are in different racks, and a rack gets its second
replica only when every rack has one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import InvalidPartitionsError, InvalidReplicationFactorError, KafkaError


class MissingRackError(InvalidReplicationFactorError):
    """Some brokers have a rack and some have none, so that replicas cannot be spread over racks."""


@dataclass(frozen=True, slots=True)
class PlacementBroker:
    """A broker that replicas can be placed on."""

    node_id: int
    rack: str | None = None


def place(
    brokers: Sequence[PlacementBroker],
    partitions: int,
    replication_factor: int,
    rng: random.Random,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> dict[int, list[int]]:
    """The replicas of each new partition, the preferred leader first.

    `first_partition` is the number of partitions that exist already. A `start_index` makes the result predictable;
    without one it is random, and so is the distance of the first follower.
    """
    _check(brokers, partitions, replication_factor)
    if start_index is not None and start_index >= 0:
        shift = start_index
    else:
        start_index = rng.randrange(len(brokers))
        shift = rng.randrange(len(brokers))
    racks = {broker.node_id: broker.rack for broker in brokers if broker.rack is not None}
    order = _alternate(racks) if racks else [broker.node_id for broker in brokers]
    rack_count = len(set(racks.values()))
    placed: dict[int, list[int]] = {}
    for partition in range(max(0, first_partition), max(0, first_partition) + partitions):
        if partition > 0 and partition % len(order) == 0:
            shift = _int32(shift + 1)
        first = _remainder(_int32(partition + start_index), len(order))
        if racks:
            placed[partition] = _over_racks(order, racks, first, _int32(shift * rack_count), replication_factor)
        else:
            followers = (_follower(order, first, shift, i) for i in range(replication_factor - 1))
            placed[partition] = [_at(order, first), *followers]
    return placed


def _check(brokers: Sequence[PlacementBroker], partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise InvalidPartitionsError(f"The number of partitions is {partitions}; it must be larger than 0.")
    if replication_factor <= 0:
        raise InvalidReplicationFactorError(
            f"The replication factor is {replication_factor}; it must be larger than 0."
        )
    if replication_factor > len(brokers):
        raise InvalidReplicationFactorError(
            f"The replication factor {replication_factor} is larger than the number of brokers, {len(brokers)}."
        )
    without = [broker.node_id for broker in brokers if broker.rack is None]
    if without and len(without) < len(brokers):
        raise MissingRackError(f"Some brokers have a rack and {without} have none; give broker.rack to all of them.")


def _alternate(racks: dict[int, str]) -> list[int]:
    """The brokers in an order in which neighbours are in different racks as long as that is possible."""
    by_rack: dict[str, list[int]] = {}
    for node_id in sorted(racks):
        by_rack.setdefault(racks[node_id], []).append(node_id)
    # Java compares UTF-16 units, which is not the order of code points.
    columns = [by_rack[rack] for rack in sorted(by_rack, key=lambda name: name.encode("utf-16-be", "surrogatepass"))]
    longest = max(map(len, columns))
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


def _over_racks(order: list[int], racks: dict[int, str], first: int, shift: int, replication_factor: int) -> list[int]:
    leader = _at(order, first)
    replicas = [leader]
    used_racks = {racks[leader]}
    rack_count = len(set(racks.values()))
    # Each round over the brokers finds at least one more replica, so this is as many steps as can be needed.
    for step in range(len(order) * len(order)):
        if len(replicas) == replication_factor:
            break
        candidate = _follower(order, first, shift, step)
        rack_is_free = racks[candidate] not in used_racks or len(used_racks) == rack_count
        if rack_is_free and candidate not in replicas:
            replicas.append(candidate)
            used_racks.add(racks[candidate])
    return replicas


def _follower(order: list[int], first: int, shift: int, index: int) -> int:
    distance = 1 + _remainder(_int32(shift + index), len(order) - 1)
    return _at(order, _remainder(first + distance, len(order)))


def _at(order: list[int], index: int) -> int:
    if index < 0:
        raise _StartTooLargeError(
            f"A start index so close to 2^31 cannot be used with {len(order)} brokers; take a smaller one."
        )
    return order[index]


class _StartTooLargeError(KafkaError):
    """The sum of start index and partition does not fit 32 bits, where Java (whose rule this is) fails too."""


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _remainder(number: int, divisor: int) -> int:
    """Java's %, which has the sign of the number: only different where a sum did not fit 32 bits."""
    return number % divisor if number >= 0 else -(-number % divisor)


def available(brokers: Iterable[PlacementBroker]) -> list[PlacementBroker]:
    """Brokers in the order in which they are used without racks: by number, as Kafka has it."""
    return sorted(brokers, key=lambda broker: broker.node_id)
