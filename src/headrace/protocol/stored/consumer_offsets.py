"""Records of `__consumer_offsets`: committed offsets and groups of all kinds.

The types: 0 an offset in its oldest form, 1 an offset, 2 a classic group. Of a consumer group: 3 its epoch, 4 what was
known of its topics (Kafka 4.0; only its tombstones are written since), 5 a member, 6 the epoch of the target
assignment, 7 a member's part of it, 8 what a member has, 16 the topics that a regular expression matches. Those of
share and streams groups are in modules of their own.

Of an offset's value, 1 has an expiry of its own, 3 adds the leader epoch, 4 is flexible and can carry the topic's id
(Kafka writes 4, or 1 when there is an expiry). Of a classic group's value, 1 adds the rebalance time-out, 2 the time of
the last change of state, 3 instance ids, 4 is flexible (Kafka writes 3).
"""

from headrace.protocol.schema import BYTES, INT8, INT32, INT64, STRING, UUID, Array, data, f, struct
from headrace.protocol.stored import share_groups, streams_groups
from headrace.protocol.stored.coordinator import RecordTypes


@data("0", record_type=0)
class LegacyOffsetCommitKey:
    group: str = f(STRING)
    topic: str = f(STRING)
    partition: int = f(INT32)


@data("0", record_type=0)
class LegacyOffsetCommitValue:
    offset: int = f(INT64)
    metadata: str = f(STRING)
    commit_timestamp: int = f(INT64)


@data("0", record_type=1)
class OffsetCommitKey:
    group: str = f(STRING)
    topic: str = f(STRING)
    partition: int = f(INT32)


@data("0-4", flexible=4, record_type=1)
class OffsetCommitValue:
    offset: int = f(INT64)
    leader_epoch: int = f(INT32, "3+", default=-1)
    metadata: str = f(STRING)
    commit_timestamp: int = f(INT64)
    expire_timestamp: int = f(INT64, "1", default=-1)
    topic_id: bytes = f(UUID, "4+", tag=0)


@data("0", record_type=2)
class GroupMetadataKey:
    group: str = f(STRING)


@struct
class MemberMetadata:
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "3+", nullable="3+", default=None)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    rebalance_timeout: int = f(INT32, "1+", default=-1)
    session_timeout: int = f(INT32)
    subscription: bytes = f(BYTES)
    assignment: bytes = f(BYTES)


@data("0-4", flexible=4, record_type=2)
class GroupMetadataValue:
    protocol_type: str = f(STRING)
    generation: int = f(INT32)
    protocol: str | None = f(STRING, nullable="0+")
    leader: str | None = f(STRING, nullable="0+")
    current_state_timestamp: int = f(INT64, "2+", default=-1)
    members: list[MemberMetadata] = f(Array(MemberMetadata))


@data("0", record_type=3)
class ConsumerGroupMetadataKey:
    group_id: str = f(STRING)


@data("0", flexible=0, record_type=3)
class ConsumerGroupMetadataValue:
    epoch: int = f(INT32)
    metadata_hash: int = f(INT64, tag=0)


@data("0", record_type=4)
class ConsumerGroupPartitionMetadataKey:
    group_id: str = f(STRING)


@struct
class PartitionRacks:
    partition: int = f(INT32)
    racks: list[str] = f(Array(STRING))


@struct
class TopicMetadata:
    topic_id: bytes = f(UUID)
    topic_name: str = f(STRING)
    num_partitions: int = f(INT32)
    partition_metadata: list[PartitionRacks] = f(Array(PartitionRacks))


@data("0", flexible=0, record_type=4)
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata] = f(Array(TopicMetadata))


@data("0", record_type=5)
class ConsumerGroupMemberMetadataKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@struct
class ClassicProtocol:
    name: str = f(STRING)
    metadata: bytes = f(BYTES)


@struct
class ClassicMemberMetadata:
    session_timeout_ms: int = f(INT32)
    supported_protocols: list[ClassicProtocol] = f(Array(ClassicProtocol))


@data("0", flexible=0, record_type=5)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = f(STRING, nullable="0+", default=None)
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    subscribed_topic_names: list[str] = f(Array(STRING))
    subscribed_topic_regex: str | None = f(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = f(INT32, default=-1)
    server_assignor: str | None = f(STRING, nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = f(ClassicMemberMetadata, nullable="0+", tag=0)


@data("0", record_type=6)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = f(STRING)


@data("0", flexible=0, record_type=6)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = f(INT32)
    assignment_timestamp: int = f(INT64, tag=0)


@data("0", record_type=7)
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@struct
class TargetTopicPartitions:
    topic_id: bytes = f(UUID)
    partitions: list[int] = f(Array(INT32))


@data("0", flexible=0, record_type=7)
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TargetTopicPartitions] = f(Array(TargetTopicPartitions))


@data("0", record_type=8)
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@struct
class CurrentTopicPartitions:
    topic_id: bytes = f(UUID)
    partitions: list[int] = f(Array(INT32))
    assignment_epochs: list[int] | None = f(Array(INT32), nullable="0+", tag=0)


@data("0", flexible=0, record_type=8)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int = f(INT32)
    previous_member_epoch: int = f(INT32)
    state: int = f(INT8)
    assigned_partitions: list[CurrentTopicPartitions] = f(Array(CurrentTopicPartitions))
    partitions_pending_revocation: list[CurrentTopicPartitions] = f(Array(CurrentTopicPartitions))


@data("0", record_type=16)
class ConsumerGroupRegularExpressionKey:
    group_id: str = f(STRING)
    regular_expression: str = f(STRING)


@data("0", flexible=0, record_type=16)
class ConsumerGroupRegularExpressionValue:
    topics: list[str] = f(Array(STRING))
    version: int = f(INT64)
    timestamp: int = f(INT64)


RECORD_TYPES = RecordTypes(
    topic="__consumer_offsets",
    classes={
        0: (LegacyOffsetCommitKey, LegacyOffsetCommitValue),
        1: (OffsetCommitKey, OffsetCommitValue),
        2: (GroupMetadataKey, GroupMetadataValue),
        3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
        5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
        **share_groups.GROUP_RECORDS,
        **streams_groups.GROUP_RECORDS,
    },
    names={
        0: "LEGACY_OFFSET_COMMIT",
        1: "OFFSET_COMMIT",
        2: "GROUP_METADATA",
        3: "CONSUMER_GROUP_METADATA",
        4: "CONSUMER_GROUP_PARTITION_METADATA",
        5: "CONSUMER_GROUP_MEMBER_METADATA",
        6: "CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA",
        7: "CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER",
        8: "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        10: "SHARE_GROUP_MEMBER_METADATA",
        11: "SHARE_GROUP_METADATA",
        12: "SHARE_GROUP_TARGET_ASSIGNMENT_METADATA",
        13: "SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER",
        14: "SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        15: "SHARE_GROUP_STATE_PARTITION_METADATA",
        16: "CONSUMER_GROUP_REGULAR_EXPRESSION",
        17: "STREAMS_GROUP_METADATA",
        19: "STREAMS_GROUP_MEMBER_METADATA",
        20: "STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA",
        21: "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
        22: "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        23: "STREAMS_GROUP_TOPOLOGY",
    },
)

encode_record = RECORD_TYPES.encode
decode_record = RECORD_TYPES.decode
