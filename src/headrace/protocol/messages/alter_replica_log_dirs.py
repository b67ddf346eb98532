"""AlterReplicaLogDirs (key 34): move replicas to other log directories of the same broker.

Versions 1-2. 1 answers before it throttles; 2 is flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, Array, f, request, response, struct


@struct
class AlterReplicaLogDirTopic:
    name: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class AlterReplicaLogDir:
    path: str = f(STRING)
    topics: list[AlterReplicaLogDirTopic] = f(Array(AlterReplicaLogDirTopic))


@request(34, "1-2", flexible=2)
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir] = f(Array(AlterReplicaLogDir))


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: str = f(STRING)
    partitions: list[AlterReplicaLogDirPartitionResult] = f(Array(AlterReplicaLogDirPartitionResult))


@response(34, "1-2", flexible=2)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = f(INT32)
    results: list[AlterReplicaLogDirTopicResult] = f(Array(AlterReplicaLogDirTopicResult))
