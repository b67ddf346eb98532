"""The values that administrative operations take and give. Names and fields are those of Kafka's Admin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from headrace.config import ConfigType, ConfigValue
from headrace.errors import HeadraceError
from headrace.net.node import Node
from headrace.topics import TopicPartition

# --- topics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made. -1: as the broker likes; `replicas_assignments` (partition → brokers) replaces both."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, ConfigValue] = field(default_factory=dict)
    replicas_assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What was made of a `NewTopic`. Brokers before Kafka 2.4 do not tell: then numbers are -1 and the id is zero."""

    name: str
    topic_id: bytes
    num_partitions: int
    replication_factor: int
    configs: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """How many partitions a topic shall have in all, and (if wanted) the brokers of each new one."""

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicListing:
    name: str
    topic_id: bytes
    is_internal: bool


@dataclass(frozen=True, slots=True)
class TopicPartitionInfo:
    """One partition. `leader` is -1 while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[TopicPartitionInfo, ...]


# --- configuration ----------------------------------------------------------------------------------------------------


class ResourceType(IntEnum):
    """What has configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A topic, a broker (an empty name: the default of all brokers) or a group."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(default)'}"


class ConfigSource(IntEnum):
    """Where a value comes from."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value in effect. `value` is None for what is sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: ConfigType | None = None
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class OpType(IntEnum):
    """What to do to a value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """One change of one key. `APPEND` and `SUBTRACT` are for lists."""

    name: str
    value: ConfigValue
    op: OpType = OpType.SET


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`state` and `type` are empty where the broker is too old to tell."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    topics: tuple[str, ...] = ()
    epoch: int | None = None
    """Which epoch of the group it has reached; None in a classic group."""
    target: tuple[TopicPartition, ...] | None = None
    """What it is to have; None where nothing says so."""
    protocol: str | None = None
    """Whether a member of a consumer group speaks the classic protocol or the new one (consumer)."""
    topic_pattern: str | None = None
    tasks: tuple[str, ...] = ()
    """Of a Kafka Streams application: subtopology and number of each."""
    standby_tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group; `partition_assignor` is the strategy that its members agreed on, or the coordinator's.

    `type` is classic, consumer, share or streams. All but the classic ones have an epoch, and one of the assignment.
    """

    group_id: str
    state: str
    protocol_type: str
    partition_assignor: str
    members: tuple[MemberDescription, ...]
    coordinator: Node
    type: str = "classic"
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ShareMemberDescription:
    """A member of a share group. Several may have the same partition."""

    member_id: str
    client_id: str
    host: str
    member_epoch: int
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ShareMemberDescription, ...]
    coordinator: Node


@dataclass(frozen=True, slots=True)
class ShareGroupOffset:
    """Where a share group starts in a partition: all before it is finished. None: it has not read there yet."""

    start_offset: int | None
    lag: int | None
    """How many records from there on are not finished; None where that is not known."""


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """A partition's committed offset before a reset (None: there was none) and after it."""

    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class ListOffsetsResultInfo:
    """`offset` is -1 when no record fits what was asked for; `timestamp` is -1 when it was not about time."""

    offset: int
    timestamp: int
    leader_epoch: int | None


# --- cluster ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica on a disk. `is_future` is one that is being moved there."""

    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory. The bytes are -1 where the broker does not tell."""

    error: HeadraceError | None
    replicas: dict[TopicPartition, ReplicaInfo]
    total_bytes: int = -1
    usable_bytes: int = -1


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinalizedVersionRange:
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """`finalized` are the levels in effect, `supported` those that the asked broker could do."""

    finalized: dict[str, FinalizedVersionRange]
    supported: dict[str, FinalizedVersionRange]
    finalized_epoch: int | None


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    max_version_level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


# --- producers and transactions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer that wrote to a partition. `current_transaction_start_offset` is None while it has none open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    coordinator_id: int
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_s: float
    transaction_start_time_ms: int | None
    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition. `transactional_id` is None where no coordinator knows the producer."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None
    start_offset: int
    last_timestamp: int
    transactional_id: str | None = None


# --- security and quotas ----------------------------------------------------------------------------------------------


class AclResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class AclBinding:
    """Who may (or may not) do what to what. A principal is `User:name`; `*` is everybody, everywhere."""

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission_type: AclPermissionType = AclPermissionType.ALLOW
    host: str = "*"
    pattern_type: PatternType = PatternType.LITERAL


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """Which ACLs are meant; None and ANY match everything."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: AclPermissionType = AclPermissionType.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY


class ScramMechanism(IntEnum):
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A password for a user. It is hashed here: the broker never sees it. Without a `salt` a random one is made."""

    user: str
    mechanism: ScramMechanism
    password: bytes | str = field(repr=False)
    iterations: int = 4096
    salt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    user: str
    mechanism: ScramMechanism


class ClientQuotaEntity(NamedTuple):
    """Whose quota: pairs of type (`user`, `client-id`, `ip`) and name (None: the default of that type)."""

    entries: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, entries: Mapping[str, str | None]) -> ClientQuotaEntity:
        return cls(tuple(sorted(entries.items())))
