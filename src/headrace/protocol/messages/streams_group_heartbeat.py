"""StreamsGroupHeartbeat (key 88): join a streams group with a topology, stay in it, hear which tasks to run; leave.

Version 0. Fields that are null have not changed since the member's last heartbeat.
"""

from headrace.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    Array,
    f,
    request,
    response,
    struct,
)


@struct
class KeyValue:
    key: str = f(STRING)
    value: str = f(STRING)


@struct
class TopicInfo:
    name: str = f(STRING)
    partitions: int = f(INT32)
    replication_factor: int = f(INT16)
    topic_configs: list[KeyValue] = f(Array(KeyValue))


@struct
class CopartitionGroup:
    source_topics: list[int] = f(Array(INT16))
    source_topic_regex: list[int] = f(Array(INT16))
    repartition_source_topics: list[int] = f(Array(INT16))


@struct
class Subtopology:
    subtopology_id: str = f(STRING)
    source_topics: list[str] = f(Array(STRING))
    source_topic_regex: list[str] = f(Array(STRING))
    state_changelog_topics: list[TopicInfo] = f(Array(TopicInfo))
    repartition_sink_topics: list[str] = f(Array(STRING))
    repartition_source_topics: list[TopicInfo] = f(Array(TopicInfo))
    copartition_groups: list[CopartitionGroup] = f(Array(CopartitionGroup))


@struct
class Topology:
    epoch: int = f(INT32)
    subtopologies: list[Subtopology] = f(Array(Subtopology))


@struct
class TaskIds:
    subtopology_id: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class Endpoint:
    host: str = f(STRING)
    port: int = f(UINT16)


@struct
class TaskOffset:
    subtopology_id: str = f(STRING)
    partition: int = f(INT32)
    offset: int = f(INT64)


@request(88, "0", flexible=0)
class StreamsGroupHeartbeatRequest:
    group_id: str = f(STRING)
    member_id: str = f(STRING)
    member_epoch: int = f(INT32)
    endpoint_information_epoch: int = f(INT32)
    instance_id: str | None = f(STRING, nullable="0+", default=None)
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = f(INT32, default=-1)
    topology: Topology | None = f(Topology, nullable="0+", default=None)
    active_tasks: list[TaskIds] | None = f(Array(TaskIds), nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = f(Array(TaskIds), nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = f(Array(TaskIds), nullable="0+", default=None)
    process_id: str | None = f(STRING, nullable="0+", default=None)
    user_endpoint: Endpoint | None = f(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] | None = f(Array(KeyValue), nullable="0+", default=None)
    task_offsets: list[TaskOffset] | None = f(Array(TaskOffset), nullable="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = f(Array(TaskOffset), nullable="0+", default=None)
    shutdown_application: bool = f(BOOL)


@struct
class Status:
    status_code: int = f(INT8)
    status_detail: str = f(STRING)


@struct
class TopicPartition:
    topic: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class EndpointToPartitions:
    user_endpoint: Endpoint = f(Endpoint)
    active_partitions: list[TopicPartition] = f(Array(TopicPartition))
    standby_partitions: list[TopicPartition] = f(Array(TopicPartition))


@response(88, "0", flexible=0)
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    member_id: str = f(STRING)
    member_epoch: int = f(INT32)
    heartbeat_interval_ms: int = f(INT32)
    acceptable_recovery_lag: int = f(INT32)
    task_offset_interval_ms: int = f(INT32)
    status: list[Status] | None = f(Array(Status), nullable="0+", default=None)
    active_tasks: list[TaskIds] | None = f(Array(TaskIds), nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = f(Array(TaskIds), nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = f(Array(TaskIds), nullable="0+", default=None)
    endpoint_information_epoch: int = f(INT32)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = f(
        Array(EndpointToPartitions), nullable="0+", default=None
    )
