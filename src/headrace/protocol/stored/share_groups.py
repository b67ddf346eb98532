"""Records of share groups: types 10 to 15 of `__consumer_offsets`, and all of `__share_group_state`.

Of a group: 10 a member, 11 its epoch, 12 the epoch of the target assignment, 13 a member's part of it, 14 what a member
has, 15 the partitions whose state is begun, is there, or is to be deleted. Of a partition that a group reads: 0 all of
its state, 1 what changed since.
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, STRING, UUID, Array, data, f, struct
from headrace.protocol.stored.coordinator import RecordTypes


@data("0", record_type=10)
class ShareGroupMemberMetadataKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@data("0", flexible=0, record_type=10)
class ShareGroupMemberMetadataValue:
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    subscribed_topic_names: list[str] = f(Array(STRING))


@data("0", record_type=11)
class ShareGroupMetadataKey:
    group_id: str = f(STRING)


@data("0", flexible=0, record_type=11)
class ShareGroupMetadataValue:
    epoch: int = f(INT32)
    metadata_hash: int = f(INT64)


@data("0", record_type=12)
class ShareGroupTargetAssignmentMetadataKey:
    group_id: str = f(STRING)


@data("0", flexible=0, record_type=12)
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = f(INT32)
    assignment_timestamp: int = f(INT64, tag=0)


@struct
class ShareTopicPartitions:
    topic_id: bytes = f(UUID)
    partitions: list[int] = f(Array(INT32))


@data("0", record_type=13)
class ShareGroupTargetAssignmentMemberKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@data("0", flexible=0, record_type=13)
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: list[ShareTopicPartitions] = f(Array(ShareTopicPartitions))


@data("0", record_type=14)
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@data("0", flexible=0, record_type=14)
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int = f(INT32)
    previous_member_epoch: int = f(INT32)
    state: int = f(INT8)
    assigned_partitions: list[ShareTopicPartitions] = f(Array(ShareTopicPartitions))


@data("0", record_type=15)
class ShareGroupStatePartitionMetadataKey:
    group_id: str = f(STRING)


@struct
class StateTopicPartitions:
    topic_id: bytes = f(UUID)
    topic_name: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class StateTopic:
    topic_id: bytes = f(UUID)
    topic_name: str = f(STRING)


@data("0", flexible=0, record_type=15)
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: list[StateTopicPartitions] = f(Array(StateTopicPartitions))
    initialized_topics: list[StateTopicPartitions] = f(Array(StateTopicPartitions))
    deleting_topics: list[StateTopic] = f(Array(StateTopic))


GROUP_RECORDS = {
    10: (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    11: (ShareGroupMetadataKey, ShareGroupMetadataValue),
    12: (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    13: (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    14: (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    15: (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
}


@data("0", record_type=0)
class ShareSnapshotKey:
    group_id: str = f(STRING)
    topic_id: bytes = f(UUID)
    partition: int = f(INT32)


@struct
class StoredStateBatch:
    first_offset: int = f(INT64)
    last_offset: int = f(INT64)
    delivery_state: int = f(INT8)
    delivery_count: int = f(INT16)


@data("0", flexible=0, record_type=0)
class ShareSnapshotValue:
    snapshot_epoch: int = f(INT32)
    state_epoch: int = f(INT32)
    leader_epoch: int = f(INT32)
    start_offset: int = f(INT64)
    delivery_complete_count: int = f(INT32, default=-1, tag=0)
    create_timestamp: int = f(INT64)
    write_timestamp: int = f(INT64)
    state_batches: list[StoredStateBatch] = f(Array(StoredStateBatch))


@data("0", record_type=1)
class ShareUpdateKey:
    group_id: str = f(STRING)
    topic_id: bytes = f(UUID)
    partition: int = f(INT32)


@data("0", flexible=0, record_type=1)
class ShareUpdateValue:
    snapshot_epoch: int = f(INT32)
    leader_epoch: int = f(INT32)
    start_offset: int = f(INT64)
    delivery_complete_count: int = f(INT32, default=-1, tag=0)
    state_batches: list[StoredStateBatch] = f(Array(StoredStateBatch))


STATE_RECORDS = RecordTypes(
    topic="__share_group_state",
    classes={0: (ShareSnapshotKey, ShareSnapshotValue), 1: (ShareUpdateKey, ShareUpdateValue)},
    names={0: "SHARE_SNAPSHOT", 1: "SHARE_UPDATE"},
)
