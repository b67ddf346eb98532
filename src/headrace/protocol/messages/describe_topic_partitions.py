"""DescribeTopicPartitions (key 75): partitions of topics, page by page, with their eligible leaders.

Version 0, flexible. A cursor says where the next page begins.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, STRING, UUID, Array, f, request, response, struct

AUTHORIZED_OPERATIONS_OMITTED = -2147483648


@struct
class TopicRequest:
    name: str = f(STRING)


@struct
class Cursor:
    topic_name: str = f(STRING)
    partition_index: int = f(INT32)


@request(75, "0", flexible=0)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = f(Array(TopicRequest))
    response_partition_limit: int = f(INT32, default=2000)
    cursor: Cursor | None = f(Cursor, nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = f(INT16)
    partition_index: int = f(INT32)
    leader_id: int = f(INT32)
    leader_epoch: int = f(INT32, default=-1)
    replica_nodes: list[int] = f(Array(INT32))
    isr_nodes: list[int] = f(Array(INT32))
    eligible_leader_replicas: list[int] | None = f(Array(INT32), nullable="0+", default=None)
    last_known_elr: list[int] | None = f(Array(INT32), nullable="0+", default=None)
    offline_replicas: list[int] = f(Array(INT32))


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = f(INT16)
    name: str | None = f(STRING, nullable="0+")
    topic_id: bytes = f(UUID)
    is_internal: bool = f(BOOL)
    partitions: list[DescribeTopicPartitionsResponsePartition] = f(Array(DescribeTopicPartitionsResponsePartition))
    topic_authorized_operations: int = f(INT32, default=AUTHORIZED_OPERATIONS_OMITTED)


@response(75, "0", flexible=0)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = f(INT32)
    topics: list[DescribeTopicPartitionsResponseTopic] = f(Array(DescribeTopicPartitionsResponseTopic))
    next_cursor: Cursor | None = f(Cursor, nullable="0+", default=None)
