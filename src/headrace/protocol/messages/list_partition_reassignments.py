"""ListPartitionReassignments (key 46): moves of partitions that are under way.

Version 0, flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, Array, f, request, response, struct


@struct
class ListPartitionReassignmentsTopics:
    name: str = f(STRING)
    partition_indexes: list[int] = f(Array(INT32))


@request(46, "0", flexible=0)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = f(INT32, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = f(
        Array(ListPartitionReassignmentsTopics), nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment:
    partition_index: int = f(INT32)
    replicas: list[int] = f(Array(INT32))
    adding_replicas: list[int] = f(Array(INT32))
    removing_replicas: list[int] = f(Array(INT32))


@struct
class OngoingTopicReassignment:
    name: str = f(STRING)
    partitions: list[OngoingPartitionReassignment] = f(Array(OngoingPartitionReassignment))


@response(46, "0", flexible=0)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    topics: list[OngoingTopicReassignment] = f(Array(OngoingTopicReassignment))
