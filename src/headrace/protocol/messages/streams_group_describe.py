"""StreamsGroupDescribe (key 89): state, epochs, topology, members and tasks of streams groups.

Version 0.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, STRING, UINT16, Array, f, request, response, struct


@request(89, "0", flexible=0)
class StreamsGroupDescribeRequest:
    group_ids: list[str] = f(Array(STRING))
    include_authorized_operations: bool = f(BOOL)


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
class Subtopology:
    subtopology_id: str = f(STRING)
    source_topics: list[str] = f(Array(STRING))
    repartition_sink_topics: list[str] = f(Array(STRING))
    state_changelog_topics: list[TopicInfo] = f(Array(TopicInfo))
    repartition_source_topics: list[TopicInfo] = f(Array(TopicInfo))


@struct
class Topology:
    epoch: int = f(INT32)
    subtopologies: list[Subtopology] | None = f(Array(Subtopology), nullable="0+", default=None)


@struct
class Endpoint:
    host: str = f(STRING)
    port: int = f(UINT16)


@struct
class TaskOffset:
    subtopology_id: str = f(STRING)
    partition: int = f(INT32)
    offset: int = f(INT64)


@struct
class TaskIds:
    subtopology_id: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class Assignment:
    active_tasks: list[TaskIds] = f(Array(TaskIds))
    standby_tasks: list[TaskIds] = f(Array(TaskIds))
    warmup_tasks: list[TaskIds] = f(Array(TaskIds))


@struct
class Member:
    member_id: str = f(STRING)
    member_epoch: int = f(INT32)
    instance_id: str | None = f(STRING, nullable="0+", default=None)
    rack_id: str | None = f(STRING, nullable="0+", default=None)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    topology_epoch: int = f(INT32)
    process_id: str = f(STRING)
    user_endpoint: Endpoint | None = f(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] = f(Array(KeyValue))
    task_offsets: list[TaskOffset] = f(Array(TaskOffset))
    task_end_offsets: list[TaskOffset] = f(Array(TaskOffset))
    assignment: Assignment = f(Assignment)
    target_assignment: Assignment = f(Assignment)
    is_classic: bool = f(BOOL)


@struct
class DescribedGroup:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    group_id: str = f(STRING)
    group_state: str = f(STRING)
    group_epoch: int = f(INT32)
    assignment_epoch: int = f(INT32)
    topology: Topology | None = f(Topology, nullable="0+", default=None)
    members: list[Member] = f(Array(Member))
    authorized_operations: int = f(INT32, default=-2147483648)


@response(89, "0", flexible=0)
class StreamsGroupDescribeResponse:
    throttle_time_ms: int = f(INT32)
    groups: list[DescribedGroup] = f(Array(DescribedGroup))
