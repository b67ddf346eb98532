"""Brokers come and go: registration, fencing, unfencing, shutting down, and the elections that follow.

A broker that is started anew has a new incarnation. Its registration replaces that of the old one, and every partition
it led begins a new leader epoch: records that the old incarnation had not yet on disk may be gone, and offsets of the
same epoch must never name other records.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.cluster.decision import Decision
from headrace.cluster.features import check_supported
from headrace.cluster.image import BrokerImage, Endpoint, Image, PartitionImage, TopicImage, registration
from headrace.cluster.partitions import ElectionRules, RulesOf, change, clean, plain_rules
from headrace.cluster.records import (
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    ControlledShutdown,
    Fencing,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    UnregisterBrokerRecord,
)
from headrace.errors import BrokerIdNotRegisteredError, DuplicateBrokerRegistrationError, StaleBrokerEpochError

PRODUCER_ID_BLOCK_SIZE = 1000
#: What a broker that is gone has led is led by others first, where it is more than so many partitions.
LED_FIRST_FROM = 500


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker tells of itself when it registers."""

    node_id: int
    incarnation_id: bytes
    listeners: Sequence[Endpoint]
    rack: str | None = None
    directories: Sequence[bytes] = ()
    features: Sequence[tuple[str, int, int]] = ()
    #: The epoch in which it was last stopped cleanly; -1 when it was not.
    stopped_in_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids that only one broker gives out."""

    first: int
    size: int = PRODUCER_ID_BLOCK_SIZE


def register(
    image: Image,
    broker: Registration,
    *,
    fenced: bool = True,
    session_alive: bool = False,
    rules_of: RulesOf = plain_rules,
) -> Decision[int]:
    """Register a broker; the answer is its epoch. `session_alive`: a broker of that number was heard of just now."""
    previous = image.brokers.get(broker.node_id)
    if previous is not None and previous.incarnation_id == broker.incarnation_id:
        return Decision(previous.epoch)
    if previous is not None and session_alive and not previous.fenced:
        raise DuplicateBrokerRegistrationError(
            f"Another broker with node.id {broker.node_id} is running; give this one another number or stop that one."
        )
    check_supported(image, broker.node_id, broker.features)
    first = broker.listeners[0]
    epoch = image.offset
    registered = BrokerImage(
        node_id=broker.node_id,
        host=first.host,
        port=first.port,
        listeners=tuple(broker.listeners),
        rack=broker.rack,
        epoch=epoch,
        fenced=fenced,
        incarnation_id=broker.incarnation_id,
        directories=tuple(broker.directories),
        features=tuple(broker.features),
    )
    records: list[MetadataRecord] = [registration(registered)]
    others = _Eligible(image, {broker.node_id: not fenced})
    was_clean = previous is not None and previous.epoch == broker.stopped_in_epoch
    for topic, index, partition in _partitions(image):
        rules = rules_of(topic.name)
        record = _restarted(topic, index, partition, broker.node_id, others, rules, fenced=fenced, was_clean=was_clean)
        if record is not None:
            records.append(record)
    return Decision(epoch, records)


class _Eligible:
    """Whether a broker can lead once the decision at hand is folded."""

    def __init__(self, image: Image, changed: dict[int, bool]) -> None:
        self._image = image
        self._changed = changed

    def __call__(self, node_id: int) -> bool:
        return self._changed[node_id] if node_id in self._changed else self._image.is_active(node_id)


def _restarted(
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    node_id: int,
    can_lead: _Eligible,
    rules: ElectionRules,
    *,
    fenced: bool,
    was_clean: bool,
) -> PartitionChangeRecord | None:
    """What the restart of a broker means for one partition."""
    if node_id not in partition.replicas:
        return None
    change_to = functools.partial(
        change,
        topic.topic_id,
        index,
        partition,
        can_lead,
        rules,
        election=rules.election,
        # What it had not yet on disk is gone.
        lost_data=() if was_clean else (node_id,),
    )
    if node_id not in partition.isr:
        # Out of sync: it helps only if nobody leads.
        if node_id not in partition.eligible and (partition.leader != NO_LEADER or fenced):
            return None
        return change_to()
    others = [member for member in partition.isr if member != node_id]
    if others or (rules.has_eligible and fenced and partition.leader == node_id):
        # The restarted replica may lack the newest records: those that have them go on without it until it caught up.
        # The last one in sync goes too: eligible replicas may have what it lost, and else it is trusted as last leader.
        return change_to(isr=others)
    if partition.leader == node_id and not fenced and not partition.is_lost_at(node_id):
        return PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=node_id)
    return change_to()


def fence(image: Image, node_id: int, rules_of: RulesOf = plain_rules) -> Decision[bool]:
    """A broker was not heard of for too long: it leads nothing and is in sync nowhere until it is back.

    The answer is whether that is all. Where it leads many partitions, others are let lead those first, as nobody can
    write to them meanwhile, and the rest is to be asked for again.
    """
    broker = _registered(image, node_id)
    if broker.fenced:
        return Decision(True)
    led = [one for one in _partitions(image) if one[2].leader == node_id]
    if len(led) > LED_FIRST_FROM:
        elected = _without(image, node_id, rules_of, led)
        if elected:
            return Decision(False, elected)
    records = _without(image, node_id, rules_of, _partitions(image))
    records.append(BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=broker.epoch, fenced=Fencing.FENCE))
    return Decision(True, records)


def unfence(image: Image, node_id: int, rules_of: RulesOf = plain_rules) -> Decision[None]:
    """A broker is (again) ready: it may lead partitions that nobody leads."""
    broker = _registered(image, node_id)
    if not broker.fenced:
        return Decision(None)
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=broker.epoch, fenced=Fencing.UNFENCE)
    ]
    # One that is about to stop was fenced on its way: it is heard of again, and leads nothing for that.
    can_lead = _Eligible(image, {node_id: not broker.in_controlled_shutdown})
    for topic, index, partition in _partitions(image):
        if partition.leader == NO_LEADER and node_id in partition.replicas:
            rules = rules_of(topic.name)
            record = change(topic.topic_id, index, partition, can_lead, rules, election=rules.election)
            if record is not None:
                records.append(record)
    return Decision(None, records)


def shut_down(image: Image, node_id: int, rules_of: RulesOf = plain_rules) -> Decision[bool]:
    """A broker wants to stop: hand its leaderships over. The answer is whether it leads nothing any more."""
    broker = _registered(image, node_id)
    records = _without(image, node_id, clean(rules_of), _partitions(image))
    if not broker.in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=node_id,
                broker_epoch=broker.epoch,
                in_controlled_shutdown=ControlledShutdown.IN_CONTROLLED_SHUTDOWN,
            )
        )
    return Decision(True, records)


def unregister(image: Image, node_id: int, rules_of: RulesOf = plain_rules) -> Decision[None]:
    """Forget a broker for good; its replicas stay assigned to it, without a leader among them."""
    broker = _registered(image, node_id)
    records = _without(image, node_id, clean(rules_of), _partitions(image))
    records.append(UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.epoch))
    return Decision(None, records)


def allocate_producer_ids(image: Image, node_id: int, broker_epoch: int) -> Decision[ProducerIdBlock]:
    """A block of producer ids that no other broker has had or will have."""
    broker = _registered(image, node_id)
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpochError(f"Broker {node_id} is registered with epoch {broker.epoch}, not {broker_epoch}.")
    first = image.next_producer_id
    if first > 2**63 - 1 - PRODUCER_ID_BLOCK_SIZE:
        raise OverflowError("all producer ids are used up")
    record = ProducerIdsRecord(
        broker_id=node_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
    )
    return Decision(ProducerIdBlock(first), [record])


def _registered(image: Image, node_id: int) -> BrokerImage:
    broker = image.brokers.get(node_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"Broker ID {node_id} is not currently registered")
    return broker


def _partitions(image: Image) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def _without(
    image: Image,
    node_id: int,
    rules_of: RulesOf,
    partitions: Iterable[tuple[TopicImage, int, PartitionImage]],
) -> list[MetadataRecord]:
    """These partitions without a broker that goes: not among the in-sync replicas, led by another if there is one."""
    can_lead = _Eligible(image, {node_id: False})
    records: list[MetadataRecord] = []
    for topic, index, partition in partitions:
        if node_id in partition.isr or partition.leader == node_id:
            left = [member for member in partition.isr if member != node_id]
            rules = rules_of(topic.name)
            record = change(topic.topic_id, index, partition, can_lead, rules, election=rules.election, isr=left)
            if record is not None:
                records.append(record)
    return records
