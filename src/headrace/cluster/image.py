"""The cluster as it is now: a fold over the metadata records.

`Image.apply` takes one record; everything else only reads. Values inside (`PartitionImage`, `BrokerImage`) are
replaced, never changed, so a reader may keep one. `version` counts the records applied; `TopicImage.version` and
`brokers_version` say when that part last changed, so that answers made from it can be kept until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from headrace.cluster.records import (
    DIRECTORY_LOST,
    DIRECTORY_UNASSIGNED,
    LEADER_UNCHANGED,
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControlledShutdown,
    DelegationTokenRecord,
    EntityData,
    FeatureLevelRecord,
    Fencing,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.errors import HeadraceError

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Whom a quota is for: pairs of entity type and name (None: the default of that type), sorted by type."""


class InconsistentMetadataError(HeadraceError):
    """A metadata record does not fit the records before it: the metadata log is damaged or was tampered with."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address under which a broker is reached."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. `host` and `port` are those of its first listener."""

    node_id: int
    host: str
    port: int
    listeners: tuple[Endpoint, ...]
    rack: str | None
    epoch: int
    fenced: bool
    in_controlled_shutdown: bool = False
    incarnation_id: bytes = bytes(16)
    directories: tuple[bytes, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it may lead partitions and join in-sync replicas."""
        return not self.fenced and not self.in_controlled_shutdown

    def listener(self, name: str) -> Endpoint | None:
        return next((listener for listener in self.listeners if listener.name == name), None)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition's replicas and who leads; `directories` has one entry per replica."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False
    #: Out of sync, but nothing was committed without them (KIP-966); and who led when nobody was in sync any more.
    eligible: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    def is_lost_at(self, node_id: int) -> bool:
        """Whether that replica's log is in a directory that failed: it can neither lead nor be in sync."""
        return DIRECTORY_LOST in self.directories and (node_id, DIRECTORY_LOST) in zip(self.replicas, self.directories)


@dataclass(slots=True)
class TopicImage:
    """A topic. Partitions are numbered from 0 without gaps; each entry is replaced when its partition changes."""

    name: str
    topic_id: bytes
    partitions: list[PartitionImage] = field(default_factory=list)
    version: int = 0


@dataclass(slots=True)
class Image:
    """All metadata of a cluster. `offset` is that of the next record; whoever folds keeps it."""

    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    topics_by_id: dict[bytes, TopicImage] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    scram: dict[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)
    tokens: dict[str, DelegationTokenRecord] = field(default_factory=dict)
    acls: dict[bytes, AccessControlEntryRecord] = field(default_factory=dict)
    offset: int = 0
    version: int = 0
    brokers_version: int = 0
    #: The version with which an ACL, or a quota, changed last.
    acls_version: int = 0
    quotas_version: int = 0
    _collisions: dict[str, set[str]] = field(default_factory=dict)

    # --- reading ------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        """The dynamic configuration of a resource; not to be changed."""
        return self.configs.get((resource_type, name), {})

    def is_active(self, node_id: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.is_active

    def broker_of_epoch(self, node_id: int, epoch: int) -> BrokerImage | None:
        """A broker that is still registered as it was with that epoch."""
        broker = self.brokers.get(node_id)
        return broker if broker is not None and broker.epoch == epoch else None

    def colliding_topic(self, name: str) -> str | None:
        """Another topic whose name differs only in dots and underscores: their metrics would have the same name."""
        return min(self._collisions.get(unify(name), set()) - {name}, default=None)

    # --- whole images -------------------------------------------------------------------------------------------------

    def copied(self) -> Image:
        """Another image with the same content, to be changed apart from this one."""
        copy = Image()
        copy.become(self)
        copy.topics = {name: replace(topic, partitions=list(topic.partitions)) for name, topic in self.topics.items()}
        copy.topics_by_id = {topic.topic_id: topic for topic in copy.topics.values()}
        copy.brokers = dict(self.brokers)
        copy.configs = {resource: dict(values) for resource, values in self.configs.items()}
        copy.features = dict(self.features)
        copy.quotas = {entity: dict(values) for entity, values in self.quotas.items()}
        copy.scram = dict(self.scram)
        copy.tokens = dict(self.tokens)
        copy.acls = dict(self.acls)
        copy._collisions = {name: set(topics) for name, topics in self._collisions.items()}
        return copy

    def become(self, other: Image) -> None:
        """Take over the content of another image, which is not used any more."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    # --- folding ------------------------------------------------------------------------------------------------------

    def apply(self, record: MetadataRecord) -> None:
        """Take one record. One that cannot be true after those before it is an `InconsistentMetadataError`."""
        self.version += 1
        _FOLD[type(record)](self, record)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        listeners = tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points)
        first = listeners[0] if listeners else Endpoint("", "", 0, 0)
        self.brokers[record.broker_id] = BrokerImage(
            node_id=record.broker_id,
            host=first.host,
            port=first.port,
            listeners=listeners,
            rack=record.rack,
            epoch=record.broker_epoch,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            incarnation_id=record.incarnation_id,
            directories=tuple(record.log_dirs),
            features=tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features),
        )
        self.brokers_version = self.version

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        if self.brokers.pop(record.broker_id, None) is None:
            raise InconsistentMetadataError(f"broker {record.broker_id} is unregistered but was never registered")
        self.brokers_version = self.version

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self.brokers.get(record.broker_id)
        if broker is None or broker.epoch != record.broker_epoch:
            raise InconsistentMetadataError(
                f"broker {record.broker_id} of epoch {record.broker_epoch} changes, but is not registered so"
            )
        fenced = broker.fenced if record.fenced == Fencing.NO_CHANGE else record.fenced == Fencing.FENCE
        shutdown = broker.in_controlled_shutdown
        if record.in_controlled_shutdown != ControlledShutdown.NO_CHANGE:
            shutdown = True
        directories = tuple(record.log_dirs) or broker.directories
        self.brokers[record.broker_id] = replace(
            broker, fenced=fenced, in_controlled_shutdown=shutdown, directories=directories
        )
        self.brokers_version = self.version

    def _add_topic(self, record: TopicRecord) -> None:
        if record.name in self.topics or record.topic_id in self.topics_by_id:
            raise InconsistentMetadataError(f"the topic {record.name} is created twice")
        topic = TopicImage(record.name, record.topic_id, version=self.version)
        self.topics[record.name] = topic
        self.topics_by_id[record.topic_id] = topic
        if "." in record.name or "_" in record.name:
            self._collisions.setdefault(unify(record.name), set()).add(record.name)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic_of(record.topic_id, "deleted")
        del self.topics[topic.name]
        del self.topics_by_id[topic.topic_id]
        self.configs.pop((ResourceType.TOPIC, topic.name), None)
        same = self._collisions.get(unify(topic.name))
        if same is not None:
            same.discard(topic.name)
            if not same:
                del self._collisions[unify(topic.name)]

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self._topic_of(record.topic_id, "given a partition")
        partition = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories) or (DIRECTORY_UNASSIGNED,) * len(record.replicas),
            adding=tuple(record.adding_replicas),
            removing=tuple(record.removing_replicas),
            recovering=record.leader_recovery_state == 1,
            eligible=tuple(record.eligible_leader_replicas or ()),
            last_known=tuple(record.last_known_elr or ()),
        )
        if record.partition_id == len(topic.partitions):
            topic.partitions.append(partition)
        elif 0 <= record.partition_id < len(topic.partitions):
            topic.partitions[record.partition_id] = partition
        else:
            raise InconsistentMetadataError(
                f"partition {record.partition_id} is added to {topic.name}, which has {len(topic.partitions)}"
            )
        topic.version = self.version

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self._topic_of(record.topic_id, "changed")
        if not 0 <= record.partition_id < len(topic.partitions):
            raise InconsistentMetadataError(f"{topic.name}-{record.partition_id} changes, but was never created")
        topic.partitions[record.partition_id] = changed(topic.partitions[record.partition_id], record)
        topic.version = self.version

    def _clear_eligible(self, record: ClearElrRecord) -> None:
        for topic in self.topics.values():
            if record.topic_name in (None, topic.name):
                topic.partitions[:] = [replace(part, eligible=(), last_known=()) for part in topic.partitions]
                topic.version = self.version

    def _set_config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.name] = record.value
            return
        values = self.configs.get(resource)
        if values is not None:
            values.pop(record.name, None)
            if not values:
                del self.configs[resource]

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.feature_level == 0:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level

    def _set_producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        self.quotas_version = self.version
        entity = tuple(sorted(((e.entity_type, e.entity_name) for e in record.entity), key=lambda pair: pair[0]))
        if not record.remove:
            self.quotas.setdefault(entity, {})[record.key] = record.value
            return
        values = self.quotas.get(entity)
        if values is not None:
            values.pop(record.key, None)
            if not values:
                del self.quotas[entity]

    def _set_scram(self, record: UserScramCredentialRecord) -> None:
        self.scram[record.name, record.mechanism] = record

    def _set_token(self, record: DelegationTokenRecord) -> None:
        self.tokens[record.token_id] = record

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        self.tokens.pop(record.token_id, None)

    def _remove_scram(self, record: RemoveUserScramCredentialRecord) -> None:
        self.scram.pop((record.name, record.mechanism), None)

    def _add_acl(self, record: AccessControlEntryRecord) -> None:
        self.acls[record.id] = record
        self.acls_version = self.version

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        self.acls.pop(record.id, None)
        self.acls_version = self.version

    def _nothing(self, record: NoOpRecord | RegisterControllerRecord) -> None:
        """A record that only says that its controller was there."""

    def _topic_of(self, topic_id: bytes, what: str) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise InconsistentMetadataError(f"the topic with id {topic_id.hex()} is {what}, but was never created")
        return topic

    # --- the shortest log with the same result ------------------------------------------------------------------------

    def to_records(self) -> Iterator[MetadataRecord]:
        """Records that make this image when folded from nothing: a snapshot."""
        for name, level in self.features.items():
            yield FeatureLevelRecord(name=name, feature_level=level)
        for broker in self.brokers.values():
            yield registration(broker)
        for topic in self.topics.values():
            yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
            for index, partition in enumerate(topic.partitions):
                yield partition_record(topic.topic_id, index, partition)
        for (resource_type, resource_name), values in self.configs.items():
            for name, value in values.items():
                yield ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
        if self.next_producer_id:
            yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)
        for entity, quotas in self.quotas.items():
            for key, rate in quotas.items():
                data = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
                yield ClientQuotaRecord(entity=data, key=key, value=rate, remove=False)
        yield from self.scram.values()
        yield from self.tokens.values()
        yield from self.acls.values()


def unify(topic: str) -> str:
    """The name under which topics collide in metrics, where dots become underscores."""
    return topic.replace(".", "_")


def changed(partition: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """The partition after a change. A record that names a leader, even the same one, begins a new leader epoch."""
    new_epoch = record.leader != LEADER_UNCHANGED
    recovering = partition.recovering if record.leader_recovery_state == -1 else record.leader_recovery_state == 1
    return PartitionImage(
        replicas=partition.replicas if record.replicas is None else tuple(record.replicas),
        isr=partition.isr if record.isr is None else tuple(record.isr),
        leader=record.leader if new_epoch else partition.leader,
        leader_epoch=partition.leader_epoch + new_epoch,
        partition_epoch=partition.partition_epoch + 1,
        directories=partition.directories if record.directories is None else tuple(record.directories),
        adding=partition.adding if record.adding_replicas is None else tuple(record.adding_replicas),
        removing=partition.removing if record.removing_replicas is None else tuple(record.removing_replicas),
        recovering=recovering,
        eligible=_or(record.eligible_leader_replicas, partition.eligible),
        last_known=_or(record.last_known_elr, partition.last_known),
    )


def _or(given: list[int] | None, before: tuple[int, ...]) -> tuple[int, ...]:
    return before if given is None else tuple(given)


def partition_record(topic_id: bytes, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=int(partition.recovering),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible) or None,
        last_known_elr=list(partition.last_known) or None,
    )


def registration(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.node_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol)
            for x in broker.listeners
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
    )


_FOLD: Final[dict[type, Callable[[Image, Any], None]]] = {
    RegisterBrokerRecord: Image._register_broker,
    UnregisterBrokerRecord: Image._unregister_broker,
    BrokerRegistrationChangeRecord: Image._change_broker,
    TopicRecord: Image._add_topic,
    RemoveTopicRecord: Image._remove_topic,
    PartitionRecord: Image._add_partition,
    PartitionChangeRecord: Image._change_partition,
    ConfigRecord: Image._set_config,
    FeatureLevelRecord: Image._set_feature,
    ProducerIdsRecord: Image._set_producer_ids,
    ClientQuotaRecord: Image._set_quota,
    UserScramCredentialRecord: Image._set_scram,
    RemoveUserScramCredentialRecord: Image._remove_scram,
    DelegationTokenRecord: Image._set_token,
    RemoveDelegationTokenRecord: Image._remove_token,
    AccessControlEntryRecord: Image._add_acl,
    RemoveAccessControlEntryRecord: Image._remove_acl,
    ClearElrRecord: Image._clear_eligible,
    NoOpRecord: Image._nothing,
    RegisterControllerRecord: Image._nothing,
}
