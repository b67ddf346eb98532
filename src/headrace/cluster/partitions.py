"""Changes of single partitions: in-sync replicas, elections, the end of a reassignment.

Every change is one record, made by `change`: it finishes a reassignment whose new replicas have caught up, elects a
leader if the present one cannot lead any more, and says only what is different. A partition whose last in-sync replica
is gone has no leader and keeps that replica as in sync: only it has every acknowledged record.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.cluster.image import PartitionImage
from headrace.cluster.records import DIRECTORY_UNASSIGNED, LEADER_UNCHANGED, NO_LEADER, PartitionChangeRecord


class Election(enum.Enum):
    """How a leader is looked for."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


class _Elected(NamedTuple):
    leader: int
    unclean: bool = False


def change(
    topic_id: bytes,
    index: int,
    partition: PartitionImage,
    can_lead: Callable[[int], bool],
    *,
    election: Election = Election.ONLINE,
    isr: Sequence[int] | None = None,
    replicas: Sequence[int] | None = None,
    adding: Sequence[int] | None = None,
    removing: Sequence[int] | None = None,
    recovering: bool | None = None,
) -> PartitionChangeRecord | None:
    """The record that brings a partition to what is asked for, or None when that changes nothing."""
    target_isr = tuple(partition.isr if isr is None else isr)
    target_replicas = tuple(partition.replicas if replicas is None else replicas)
    target_adding = tuple(partition.adding if adding is None else adding)
    target_removing = tuple(partition.removing if removing is None else removing)
    done = _finish_reassignment(target_replicas, target_isr, target_adding, target_removing)
    if done is not None:
        target_replicas, target_isr = done
        target_adding = target_removing = ()

    record = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    elected = _elect(partition, target_replicas, target_isr, can_lead, election)
    if elected.leader != partition.leader:
        record.leader = elected.leader
        if elected.unclean:
            record.isr = [elected.leader]
            if not partition.recovering:
                record.leader_recovery_state = 1
    elif not set(partition.replicas) <= set(target_replicas):
        # A new epoch fences the replica that is being taken away.
        record.leader = partition.leader
    if record.isr is None and target_isr and target_isr != partition.isr:
        record.isr = list(target_isr)
    if target_replicas != partition.replicas:
        record.replicas = list(target_replicas)
        record.directories = _directories(partition, target_replicas)
    if target_adding != partition.adding:
        record.adding_replicas = list(target_adding)
    if target_removing != partition.removing:
        record.removing_replicas = list(target_removing)
    if recovering is not None and recovering != partition.recovering:
        record.leader_recovery_state = int(recovering)
    return None if _is_empty(record) else record


def _directories(partition: PartitionImage, replicas: Sequence[int]) -> list[bytes]:
    known = dict(zip(partition.replicas, partition.directories))
    return [known.get(node_id, DIRECTORY_UNASSIGNED) for node_id in replicas]


def _is_empty(record: PartitionChangeRecord) -> bool:
    return (
        record.leader == LEADER_UNCHANGED
        and record.leader_recovery_state == -1
        and all(
            value is None
            for value in (
                record.isr,
                record.replicas,
                record.adding_replicas,
                record.removing_replicas,
                record.directories,
            )
        )
    )


def _finish_reassignment(
    replicas: tuple[int, ...], isr: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Replicas and in-sync replicas after a reassignment that has nothing left to wait for; None while it has."""
    if not adding and not removing:
        return None
    left = tuple(node_id for node_id in replicas if node_id not in removing)
    left_isr = tuple(node_id for node_id in isr if node_id not in removing)
    if not left or not left_isr or not set(left) <= set(left_isr):
        return None
    return left, left_isr


def _elect(
    partition: PartitionImage,
    replicas: Sequence[int],
    isr: Sequence[int],
    can_lead: Callable[[int], bool],
    election: Election,
) -> _Elected:
    def is_valid(node_id: int) -> bool:
        return node_id in isr and can_lead(node_id)

    if election is Election.PREFERRED and is_valid(replicas[0]):
        return _Elected(replicas[0])
    if is_valid(partition.leader):
        return _Elected(partition.leader)
    for node_id in replicas:
        if is_valid(node_id):
            return _Elected(node_id)
    if election is Election.UNCLEAN:
        for node_id in replicas:
            if can_lead(node_id):
                return _Elected(node_id, unclean=True)
    return _Elected(NO_LEADER)
