"""Records of streams groups: types 17 and 19 to 23 of `__consumer_offsets`.

17 the group's epoch, 19 a member, 20 the epoch of the target assignment, 21 a member's part of it, 22 what a member
has, 23 the topology.
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, STRING, UINT16, Array, data, f, struct


@struct
class StreamsKeyValue:
    key: str = f(STRING)
    value: str = f(STRING)


@data("0", record_type=17)
class StreamsGroupMetadataKey:
    group_id: str = f(STRING)


@data("0", flexible=0, record_type=17)
class StreamsGroupMetadataValue:
    epoch: int = f(INT32)
    metadata_hash: int = f(INT64)
    validated_topology_epoch: int = f(INT32, default=-1, tag=0)
    last_assignment_configs: list[StreamsKeyValue] | None = f(Array(StreamsKeyValue), nullable="0+", tag=1)


@data("0", record_type=19)
class StreamsGroupMemberMetadataKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@struct
class StreamsEndpoint:
    host: str = f(STRING)
    port: int = f(UINT16)


@data("0", flexible=0, record_type=19)
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = f(STRING, nullable="0+", default=None)
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    rebalance_timeout_ms: int = f(INT32, default=-1)
    topology_epoch: int = f(INT32)
    process_id: str = f(STRING)
    user_endpoint: StreamsEndpoint | None = f(StreamsEndpoint, nullable="0+", default=None)
    client_tags: list[StreamsKeyValue] = f(Array(StreamsKeyValue))


@data("0", record_type=20)
class StreamsGroupTargetAssignmentMetadataKey:
    group_id: str = f(STRING)


@data("0", flexible=0, record_type=20)
class StreamsGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = f(INT32)
    assignment_timestamp: int = f(INT64, tag=0)


@data("0", record_type=21)
class StreamsGroupTargetAssignmentMemberKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@struct
class StreamsTargetTasks:
    subtopology_id: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@data("0", flexible=0, record_type=21)
class StreamsGroupTargetAssignmentMemberValue:
    active_tasks: list[StreamsTargetTasks] = f(Array(StreamsTargetTasks))
    standby_tasks: list[StreamsTargetTasks] = f(Array(StreamsTargetTasks))
    warmup_tasks: list[StreamsTargetTasks] = f(Array(StreamsTargetTasks))


@data("0", record_type=22)
class StreamsGroupCurrentMemberAssignmentKey:
    group_id: str = f(STRING)
    member_id: str = f(STRING)


@struct
class StreamsCurrentTasks:
    subtopology_id: str = f(STRING)
    partitions: list[int] = f(Array(INT32))
    assignment_epochs: list[int] | None = f(Array(INT32), nullable="0+", tag=0)


@data("0", flexible=0, record_type=22)
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: int = f(INT32)
    previous_member_epoch: int = f(INT32)
    state: int = f(INT8)
    active_tasks: list[StreamsCurrentTasks] = f(Array(StreamsCurrentTasks))
    standby_tasks: list[StreamsCurrentTasks] = f(Array(StreamsCurrentTasks))
    warmup_tasks: list[StreamsCurrentTasks] = f(Array(StreamsCurrentTasks))
    active_tasks_pending_revocation: list[StreamsCurrentTasks] = f(Array(StreamsCurrentTasks))
    standby_tasks_pending_revocation: list[StreamsCurrentTasks] = f(Array(StreamsCurrentTasks))
    warmup_tasks_pending_revocation: list[StreamsCurrentTasks] = f(Array(StreamsCurrentTasks))


@data("0", record_type=23)
class StreamsGroupTopologyKey:
    group_id: str = f(STRING)


@struct
class StreamsTopicInfo:
    name: str = f(STRING)
    partitions: int = f(INT32)
    replication_factor: int = f(INT16)
    topic_configs: list[StreamsKeyValue] = f(Array(StreamsKeyValue))


@struct
class StreamsCopartitionGroup:
    source_topics: list[int] = f(Array(INT16))
    source_topic_regex: list[int] = f(Array(INT16))
    repartition_source_topics: list[int] = f(Array(INT16))


@struct
class StreamsSubtopology:
    subtopology_id: str = f(STRING)
    source_topics: list[str] = f(Array(STRING))
    source_topic_regex: list[str] = f(Array(STRING))
    state_changelog_topics: list[StreamsTopicInfo] = f(Array(StreamsTopicInfo))
    repartition_sink_topics: list[str] = f(Array(STRING))
    repartition_source_topics: list[StreamsTopicInfo] = f(Array(StreamsTopicInfo))
    copartition_groups: list[StreamsCopartitionGroup] = f(Array(StreamsCopartitionGroup))


@data("0", flexible=0, record_type=23)
class StreamsGroupTopologyValue:
    epoch: int = f(INT32)
    subtopologies: list[StreamsSubtopology] | None = f(Array(StreamsSubtopology), nullable="0+", default=None)


GROUP_RECORDS = {
    17: (StreamsGroupMetadataKey, StreamsGroupMetadataValue),
    19: (StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
    20: (StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue),
    21: (StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
    22: (StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue),
    23: (StreamsGroupTopologyKey, StreamsGroupTopologyValue),
}
