"""ElectLeaders (key 43): elect the preferred replica (type 0) or, with loss, any that is alive (1).

Versions 0-2. 1 adds the type of election and an error at the top; 2 is flexible.
"""

from headrace.protocol.schema import INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class TopicPartitions:
    topic: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@request(43, "0-2", flexible=2)
class ElectLeadersRequest:
    election_type: int = f(INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = f(Array(TopicPartitions), nullable="0+")
    timeout_ms: int = f(INT32, default=60000)


@struct
class PartitionResult:
    partition_id: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")


@struct
class ReplicaElectionResult:
    topic: str = f(STRING)
    partition_result: list[PartitionResult] = f(Array(PartitionResult))


@response(43, "0-2", flexible=2)
class ElectLeadersResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = f(Array(ReplicaElectionResult))
