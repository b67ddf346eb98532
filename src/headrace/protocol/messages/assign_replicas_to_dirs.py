"""AssignReplicasToDirs (key 73): a broker tells the controller in which log directories its replicas are.

Version 0, between brokers, flexible. A reserved id stands for a directory that failed.
"""

from headrace.protocol.schema import INT16, INT32, INT64, UUID, Array, f, request, response, struct


@struct
class AssignedPartition:
    partition_index: int = f(INT32)


@struct
class AssignedTopic:
    topic_id: bytes = f(UUID)
    partitions: list[AssignedPartition] = f(Array(AssignedPartition))


@struct
class AssignedDirectory:
    id: bytes = f(UUID)
    topics: list[AssignedTopic] = f(Array(AssignedTopic))


@request(73, "0", flexible=0)
class AssignReplicasToDirsRequest:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64, default=-1)
    directories: list[AssignedDirectory] = f(Array(AssignedDirectory))


@struct
class AssignedPartitionResult:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)


@struct
class AssignedTopicResult:
    topic_id: bytes = f(UUID)
    partitions: list[AssignedPartitionResult] = f(Array(AssignedPartitionResult))


@struct
class AssignedDirectoryResult:
    id: bytes = f(UUID)
    topics: list[AssignedTopicResult] = f(Array(AssignedTopicResult))


@response(73, "0", flexible=0)
class AssignReplicasToDirsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    directories: list[AssignedDirectoryResult] = f(Array(AssignedDirectoryResult))
