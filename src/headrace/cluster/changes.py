"""What changed in an image, for whoever keeps something in step with it: logs, leaders, configurations.

Records are taken in steps in which nothing is made before something else of its name is removed, so that a topic that
was deleted and created again is two things also to a broker that hears of both at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cluster.image import Image, TopicImage
from headrace.cluster.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    UnregisterBrokerRecord,
)

_OF_BROKERS = (RegisterBrokerRecord, UnregisterBrokerRecord, BrokerRegistrationChangeRecord)


class ChangedPartition(NamedTuple):
    """A partition that is new, or other than before."""

    topic: TopicImage
    partition: int
    is_new: bool


@dataclass(slots=True)
class Changes:
    """The difference between two images. Topics were deleted before anything else."""

    deleted: list[TopicImage] = field(default_factory=list)
    partitions: list[ChangedPartition] = field(default_factory=list)
    #: The topics whose configuration changed, and whether that of brokers did, or of groups.
    configured: set[str] = field(default_factory=set)
    brokers_configured: bool = False
    groups_configured: bool = False
    #: The brokers that came, went, were fenced or unfenced.
    brokers: set[int] = field(default_factory=set)


def steps(records: Iterable[MetadataRecord]) -> Iterator[list[MetadataRecord]]:
    """The records in pieces, each of which removes topics, if at all, before it does anything else."""
    step: list[MetadataRecord] = []
    for record in records:
        if isinstance(record, RemoveTopicRecord) and step and not isinstance(step[-1], RemoveTopicRecord):
            yield step
            step = []
        step.append(record)
    if step:
        yield step


def apply(image: Image, step: list[MetadataRecord]) -> Changes:
    """Fold one step into an image."""
    changes = Changes()
    for record in step:
        if isinstance(record, RemoveTopicRecord):
            gone = image.topics_by_id.get(record.topic_id)
            if gone is not None:
                changes.deleted.append(gone)
        image.apply(record)
        if isinstance(record, (PartitionRecord, PartitionChangeRecord)):
            topic = image.topics_by_id[record.topic_id]
            is_new = isinstance(record, PartitionRecord)
            changes.partitions.append(ChangedPartition(topic, record.partition_id, is_new))
        elif isinstance(record, ConfigRecord):
            if record.resource_type == ResourceType.TOPIC:
                changes.configured.add(record.resource_name)
            elif record.resource_type == ResourceType.BROKER:
                changes.brokers_configured = True
            elif record.resource_type == ResourceType.GROUP:
                changes.groups_configured = True
        elif isinstance(record, _OF_BROKERS):
            changes.brokers.add(record.broker_id)
    return changes


def difference(old: Image, new: Image) -> Changes:
    """What is other in an image that was made anew, from a snapshot."""
    changes = Changes(
        deleted=[topic for topic in old.topics.values() if topic.topic_id not in new.topics_by_id],
        brokers_configured=_configs_of(old, ResourceType.BROKER) != _configs_of(new, ResourceType.BROKER),
        groups_configured=_configs_of(old, ResourceType.GROUP) != _configs_of(new, ResourceType.GROUP),
        brokers={
            node_id for node_id in {*old.brokers, *new.brokers} if old.brokers.get(node_id) != new.brokers.get(node_id)
        },
    )
    for topic in new.topics.values():
        known = old.topics_by_id.get(topic.topic_id)
        before = [] if known is None else known.partitions
        for index, partition in enumerate(topic.partitions):
            if index >= len(before) or before[index] != partition:
                changes.partitions.append(ChangedPartition(topic, index, index >= len(before)))
        if old.config(ResourceType.TOPIC, topic.name) != new.config(ResourceType.TOPIC, topic.name):
            changes.configured.add(topic.name)
    return changes


def _configs_of(image: Image, resource_type: ResourceType) -> dict[str, dict[str, str]]:
    return {name: values for (kind, name), values in image.configs.items() if kind == resource_type}
