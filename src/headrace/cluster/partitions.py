"""Changes of single partitions: in-sync replicas, elections, the end of a reassignment.

Every change is one record, made by `change`: it finishes a reassignment whose new replicas have caught up, elects a
leader if the present one cannot lead any more, and says only what is different.

Replicas that leave the in-sync ones while those are fewer than `min.insync.replicas` are *eligible* (KIP-966): nothing
was committed without them, so one of them may lead when no in-sync replica is left. Without that rule a partition whose
last in-sync replica is gone has no leader and keeps that replica as in sync: only it has every acknowledged record.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

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


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """What the cluster and a topic's configuration say about elections of one topic's partitions."""

    min_isr: int = 1
    #: Whether replicas are eligible, and whether the last leader may lead again when nothing else is left.
    has_eligible: bool = False
    trusts_last_leader: bool = True
    #: Whether records may be lost to have a leader again.
    is_unclean_allowed: bool = False

    @property
    def election(self) -> Election:
        """How a leader is looked for when nobody asked for one."""
        return Election.UNCLEAN if self.is_unclean_allowed else Election.ONLINE


RulesOf: TypeAlias = Callable[[str], ElectionRules]
"""The rules of a topic, by its name."""


def plain_rules(topic: str) -> ElectionRules:
    """Of a cluster without a configuration."""
    return ElectionRules()


def clean(rules_of: RulesOf) -> RulesOf:
    """The same rules, by which nothing is lost."""
    return lambda topic: replace(rules_of(topic), is_unclean_allowed=False)


@dataclass(slots=True)
class _Target:
    """What a partition is to become."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()


def change(
    topic_id: bytes,
    index: int,
    partition: PartitionImage,
    can_lead: Callable[[int], bool],
    rules: ElectionRules,
    *,
    election: Election = Election.ONLINE,
    isr: Sequence[int] | None = None,
    replicas: Sequence[int] | None = None,
    adding: Sequence[int] | None = None,
    removing: Sequence[int] | None = None,
    recovering: bool | None = None,
    lost_data: Collection[int] = (),
    directories: Sequence[bytes] | None = None,
) -> PartitionChangeRecord | None:
    """The record that brings a partition to what is asked for, or None when that changes nothing.

    `lost_data` are replicas that may lack records that they had: they came back without having been stopped cleanly.
    `directories` are those of the present replicas.
    """
    before = partition
    if directories is not None:
        partition = replace(partition, directories=tuple(directories))
    target = _Target(
        tuple(partition.replicas if replicas is None else replicas),
        tuple(partition.isr if isr is None else isr),
        tuple(partition.adding if adding is None else adding),
        tuple(partition.removing if removing is None else removing),
    )
    _finish_reassignment(target)
    needed = min(rules.min_isr, len(target.replicas))
    if rules.has_eligible and len(target.isr) < needed:
        _find_eligible(partition, target, lost_data)
    elif not rules.has_eligible and not target.isr and not partition.isr:
        # They are left from when there were eligible replicas: nobody else has all that was committed.
        target.eligible = tuple(n for n in partition.eligible if n in target.replicas and n not in lost_data)
    record = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    elected = _elect(partition, target, can_lead, rules, election)
    if elected.leader != partition.leader:
        record.leader = elected.leader
        if elected.unclean:
            record.isr = [elected.leader]
            target.eligible = target.last_known = ()
            if not partition.recovering:
                record.leader_recovery_state = 1
        elif elected.leader in target.eligible:
            target.isr = (elected.leader,)
            # Where one is enough, it goes on without the others.
            others = tuple(n for n in target.eligible if n != elected.leader)
            target.eligible = others if needed > 1 and rules.has_eligible else ()
    elif not set(partition.replicas) <= set(target.replicas):
        # A new epoch fences the replica that is being taken away.
        record.leader = partition.leader
    if record.isr is None and (target.isr or rules.has_eligible) and target.isr != partition.isr:
        record.isr = list(target.isr)
    if target.eligible != partition.eligible:
        record.eligible_leader_replicas = list(target.eligible)
    if target.replicas != partition.replicas:
        record.replicas = list(target.replicas)
        record.directories = _directories(partition, target.replicas)
    elif partition.directories != before.directories:
        record.directories = list(partition.directories)
    if target.adding != partition.adding:
        record.adding_replicas = list(target.adding)
    if target.removing != partition.removing:
        record.removing_replicas = list(target.removing)
    if recovering is not None and recovering != partition.recovering:
        record.leader_recovery_state = int(recovering)
    _note_last_leader(partition, target, rules, record)
    return None if _is_empty(record) else record


def _find_eligible(partition: PartitionImage, target: _Target, lost_data: Collection[int]) -> None:
    """Who has all that was committed though it is not in sync any more."""
    # A replica that is taken away deletes its log: should it be one again, it has nothing.
    left = dict.fromkeys(n for n in (*partition.eligible, *partition.isr) if n in target.replicas)
    target.eligible = tuple(sorted(n for n in left if n not in target.isr and n not in lost_data))
    known = dict.fromkeys((*left, *partition.last_known))
    target.last_known = tuple(sorted(n for n in known if n not in target.isr and n not in target.eligible))


def _note_last_leader(
    partition: PartitionImage, target: _Target, rules: ElectionRules, record: PartitionChangeRecord
) -> None:
    """Remember who led when nobody does any more, until somebody leads again."""
    if not rules.has_eligible or not rules.trusts_last_leader:
        if target.last_known != partition.last_known:
            record.last_known_elr = list(target.last_known)
        return
    has_leader = record.leader >= 0 or (partition.leader != NO_LEADER and record.leader != NO_LEADER)
    if record.leader == NO_LEADER:
        if partition.last_known != (partition.leader,):
            record.last_known_elr = [partition.leader]
    elif has_leader and partition.last_known:
        record.last_known_elr = []


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
                record.eligible_leader_replicas,
                record.last_known_elr,
            )
        )
    )


def _finish_reassignment(target: _Target) -> None:
    """A reassignment that has nothing left to wait for is over: its new replicas are in sync.

    Where more replicas go than come, all that stay have to be in sync.
    """
    if not target.adding and not target.removing:
        return
    left = tuple(node_id for node_id in target.replicas if node_id not in target.removing)
    left_isr = tuple(node_id for node_id in target.isr if node_id not in target.removing)
    if not left_isr or not set(target.adding) <= set(left_isr):
        return
    if len(target.removing) > len(target.adding) and not set(left) <= set(left_isr):
        return
    target.replicas, target.isr = left, left_isr
    target.adding = target.removing = ()


def _elect(
    partition: PartitionImage,
    target: _Target,
    can_lead: Callable[[int], bool],
    rules: ElectionRules,
    election: Election,
) -> _Elected:
    # Only when nobody is in sync: whoever is has all that was committed, too, and is known to.
    candidates = target.isr or target.eligible

    def is_able(node_id: int) -> bool:
        return can_lead(node_id) and not partition.is_lost_at(node_id)

    def is_valid(node_id: int) -> bool:
        return node_id in candidates and is_able(node_id)

    if election is Election.PREFERRED and is_valid(target.replicas[0]):
        return _Elected(target.replicas[0])
    if is_valid(partition.leader):
        return _Elected(partition.leader)
    for node_id in target.replicas:
        if is_valid(node_id):
            return _Elected(node_id)
    last = partition.last_known
    # Without eligible replicas the last one stays in sync; where nobody is, there were some until now.
    is_trusted = rules.trusts_last_leader and (rules.has_eligible or not partition.isr)
    if is_trusted and not candidates and len(last) == 1 and is_able(last[0]):
        return _Elected(last[0], unclean=True)
    if election is Election.UNCLEAN:
        for node_id in target.replicas:
            if is_able(node_id):
                return _Elected(node_id, unclean=True)
    return _Elected(NO_LEADER)
