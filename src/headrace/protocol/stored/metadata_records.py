"""Records of the metadata log: brokers, topics, partitions, configuration, quotas, credentials, access control.

Each stands in a frame of its own: three varints (frame version, type, version), then the body, always flexible. Of a
broker's registration, 1 adds the controlled shutdown, 2 a flag of a migration long past, 3 its log directories, 4 those
that are cordoned; of its changes, 1 the controlled shutdown, 2 log directories, 3 those that are cordoned. Of a
partition and its changes, 1 adds the replicas' directories, 2 the eligible leader replicas.
"""

from __future__ import annotations

from typing import Any, get_args

from headrace.protocol.codec import decode_from, encode
from headrace.protocol.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Array,
    Buffer,
    Schema,
    data,
    f,
    struct,
)
from headrace.protocol.stored.coordinator import Unknown
from headrace.protocol.wire import MalformedMessageError, read_uvarint, uvarint


@struct
class BrokerEndpoint:
    name: str = f(STRING)
    host: str = f(STRING)
    port: int = f(UINT16)
    security_protocol: int = f(INT16)


@struct
class BrokerFeature:
    name: str = f(STRING)
    min_supported_version: int = f(INT16)
    max_supported_version: int = f(INT16)


@data("0-4", flexible=0, record_type=0)
class RegisterBrokerRecord:
    broker_id: int = f(INT32)
    is_migrating_zk_broker: bool = f(BOOL, "2+")
    incarnation_id: bytes = f(UUID)
    broker_epoch: int = f(INT64)
    end_points: list[BrokerEndpoint] = f(Array(BrokerEndpoint))
    features: list[BrokerFeature] = f(Array(BrokerFeature))
    rack: str | None = f(STRING, nullable="0+")
    fenced: bool = f(BOOL, default=True)
    in_controlled_shutdown: bool = f(BOOL, "1+")
    log_dirs: list[bytes] = f(Array(UUID), "3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = f(Array(UUID), "4+", nullable="4+", default=None, tag=1)


@data("0", flexible=0, record_type=1)
class UnregisterBrokerRecord:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64)


@data("0", flexible=0, record_type=2)
class TopicRecord:
    name: str = f(STRING)
    topic_id: bytes = f(UUID)


@data("0-2", flexible=0, record_type=3)
class PartitionRecord:
    partition_id: int = f(INT32, default=-1)
    topic_id: bytes = f(UUID)
    replicas: list[int] = f(Array(INT32))
    isr: list[int] = f(Array(INT32))
    removing_replicas: list[int] = f(Array(INT32))
    adding_replicas: list[int] = f(Array(INT32))
    leader: int = f(INT32, default=-1)
    leader_recovery_state: int = f(INT8, tag=0)
    leader_epoch: int = f(INT32, default=-1)
    partition_epoch: int = f(INT32, default=-1)
    directories: list[bytes] = f(Array(UUID), "1+")
    eligible_leader_replicas: list[int] | None = f(Array(INT32), "2+", nullable="2+", default=None, tag=1)
    last_known_elr: list[int] | None = f(Array(INT32), "2+", nullable="2+", default=None, tag=2)


@data("0", flexible=0, record_type=4)
class ConfigRecord:
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    name: str = f(STRING)
    value: str | None = f(STRING, nullable="0+")


@data("0-2", flexible=0, record_type=5)
class PartitionChangeRecord:
    partition_id: int = f(INT32, default=-1)
    topic_id: bytes = f(UUID)
    isr: list[int] | None = f(Array(INT32), nullable="0+", default=None, tag=0)
    leader: int = f(INT32, default=-2, tag=1)
    replicas: list[int] | None = f(Array(INT32), nullable="0+", default=None, tag=2)
    removing_replicas: list[int] | None = f(Array(INT32), nullable="0+", default=None, tag=3)
    adding_replicas: list[int] | None = f(Array(INT32), nullable="0+", default=None, tag=4)
    leader_recovery_state: int = f(INT8, default=-1, tag=5)
    directories: list[bytes] | None = f(Array(UUID), "1+", nullable="1+", default=None, tag=8)
    eligible_leader_replicas: list[int] | None = f(Array(INT32), "2+", nullable="2+", default=None, tag=6)
    last_known_elr: list[int] | None = f(Array(INT32), "2+", nullable="2+", default=None, tag=7)


@data("0", flexible=0, record_type=9)
class RemoveTopicRecord:
    topic_id: bytes = f(UUID)


@data("0", flexible=0, record_type=10)
class DelegationTokenRecord:
    owner: str = f(STRING)
    requester: str = f(STRING)
    renewers: list[str] = f(Array(STRING))
    issue_timestamp: int = f(INT64)
    max_timestamp: int = f(INT64)
    expiration_timestamp: int = f(INT64)
    token_id: str = f(STRING)


@data("0", flexible=0, record_type=11)
class UserScramCredentialRecord:
    name: str = f(STRING)
    mechanism: int = f(INT8)
    salt: bytes = f(BYTES)
    stored_key: bytes = f(BYTES)
    server_key: bytes = f(BYTES)
    iterations: int = f(INT32)


@data("0", flexible=0, record_type=12)
class FeatureLevelRecord:
    name: str = f(STRING)
    feature_level: int = f(INT16)


@struct
class EntityData:
    entity_type: str = f(STRING)
    entity_name: str | None = f(STRING, nullable="0+")


@data("0", flexible=0, record_type=14)
class ClientQuotaRecord:
    entity: list[EntityData] = f(Array(EntityData))
    key: str = f(STRING)
    value: float = f(FLOAT64)
    remove: bool = f(BOOL)


@data("0", flexible=0, record_type=15)
class ProducerIdsRecord:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64, default=-1)
    next_producer_id: int = f(INT64)


@data("0-3", flexible=0, record_type=17)
class BrokerRegistrationChangeRecord:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64)
    fenced: int = f(INT8, tag=0)
    in_controlled_shutdown: int = f(INT8, "1+", tag=1)
    log_dirs: list[bytes] = f(Array(UUID), "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = f(Array(UUID), "3+", nullable="3+", default=None, tag=3)


@data("0", flexible=0, record_type=18)
class AccessControlEntryRecord:
    id: bytes = f(UUID)
    resource_type: int = f(INT8)
    resource_name: str = f(STRING)
    pattern_type: int = f(INT8)
    principal: str = f(STRING)
    host: str = f(STRING)
    operation: int = f(INT8)
    permission_type: int = f(INT8)


@data("0", flexible=0, record_type=19)
class RemoveAccessControlEntryRecord:
    id: bytes = f(UUID)


@data("0", flexible=0, record_type=20)
class NoOpRecord:
    pass


@data("0", flexible=0, record_type=22)
class RemoveUserScramCredentialRecord:
    name: str = f(STRING)
    mechanism: int = f(INT8)


@data("0", flexible=0, record_type=23)
class BeginTransactionRecord:
    name: str | None = f(STRING, nullable="0+", default=None, tag=0)


@data("0", flexible=0, record_type=24)
class EndTransactionRecord:
    pass


@data("0", flexible=0, record_type=25)
class AbortTransactionRecord:
    reason: str | None = f(STRING, nullable="0+", default=None, tag=0)


@data("0", flexible=0, record_type=26)
class RemoveDelegationTokenRecord:
    token_id: str = f(STRING)


@data("0", flexible=0, record_type=27)
class RegisterControllerRecord:
    controller_id: int = f(INT32)
    incarnation_id: bytes = f(UUID)
    zk_migration_ready: bool = f(BOOL)
    end_points: list[BrokerEndpoint] = f(Array(BrokerEndpoint))
    features: list[BrokerFeature] = f(Array(BrokerFeature))


@data("0", flexible=0, record_type=28)
class ClearElrRecord:
    """Of a topic, or of all: its partitions have no eligible leader replicas any more."""

    topic_name: str | None = f(STRING, nullable="0+")


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | RemoveUserScramCredentialRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RegisterControllerRecord
    | ClearElrRecord
)

_FRAME_VERSION = 1
_CLASSES: dict[int, type[Any]] = {cls.SCHEMA.api_key: cls for cls in get_args(MetadataRecord)}


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """A record in its frame; in its latest version when none is given."""
    schema: Schema = record.SCHEMA  # type: ignore[union-attr]  # set by the decorators in `schema`
    chosen = schema.versions.high if version is None else version
    if chosen not in schema.versions:
        raise ValueError(f"{schema.name} has no version {chosen}")
    return uvarint(_FRAME_VERSION) + uvarint(schema.api_key) + uvarint(chosen) + encode(record, chosen)


def decode_record(buffer: Buffer) -> MetadataRecord | Unknown:
    """The record in a frame, or `Unknown` where its type or version is not one of these.

    Bytes after the record are refused, as Kafka refuses them: nothing may hide in the metadata log.
    """
    try:
        frame_version, position = read_uvarint(buffer, 0)
        record_type, position = read_uvarint(buffer, position)
        version, position = read_uvarint(buffer, position)
    except IndexError as error:
        raise MalformedMessageError("the frame of a metadata record is cut") from error
    if frame_version != _FRAME_VERSION:
        raise MalformedMessageError(f"metadata records have frame version {_FRAME_VERSION}, not {frame_version}")
    cls = _CLASSES.get(record_type)
    if cls is None:
        return Unknown(record_type)
    schema: Schema = cls.SCHEMA
    if version not in schema.versions:
        return Unknown(record_type, version, schema.name)
    record: MetadataRecord
    record, position = decode_from(cls, version, buffer, position)
    if position != len(buffer):
        raise MalformedMessageError(f"{len(buffer) - position} bytes after a {schema.name}")
    return record
