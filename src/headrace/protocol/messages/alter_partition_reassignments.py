"""AlterPartitionReassignments (key 45): move partitions to other brokers, or call a move off (null replicas).

Versions 0-1, both flexible. 1 lets a move be refused when it would change the replication factor.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class ReassignablePartition:
    partition_index: int = f(INT32)
    replicas: list[int] | None = f(Array(INT32), nullable="0+", default=None)


@struct
class ReassignableTopic:
    name: str = f(STRING)
    partitions: list[ReassignablePartition] = f(Array(ReassignablePartition))


@request(45, "0-1", flexible=0)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = f(INT32, default=60000)
    allow_replication_factor_change: bool = f(BOOL, "1+", default=True)
    topics: list[ReassignableTopic] = f(Array(ReassignableTopic))


@struct
class ReassignablePartitionResponse:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")


@struct
class ReassignableTopicResponse:
    name: str = f(STRING)
    partitions: list[ReassignablePartitionResponse] = f(Array(ReassignablePartitionResponse))


@response(45, "0-1", flexible=0)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = f(INT32)
    allow_replication_factor_change: bool = f(BOOL, "1+", default=True)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    responses: list[ReassignableTopicResponse] = f(Array(ReassignableTopicResponse))
