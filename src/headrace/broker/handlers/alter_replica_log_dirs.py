"""AlterReplicaLogDirs (key 34): move logs to other directories of this broker, while they are in use.

Serves versions 1-2. The answer comes when the move has begun; DescribeLogDirs shows the copy as a future log until it
takes the original's place. Each partition is answered once: its last mention counts. A partition that does not
exist yet cannot be placed in advance.
"""

from __future__ import annotations

from headrace.broker.partitions.replicas import Replicas
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.broker.view import ClusterView
from headrace.errors import InvalidTopicError, KafkaError, LogDirNotFoundError, ReplicaNotAvailableError
from headrace.log import LogDirectories
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

# Of the name of a copy: a dot, 32 hexadecimal digits and "-future".
FUTURE_SUFFIX_CHARACTERS = 40
NAME_CHARACTERS_MAX = 255


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(1, 2), requires=(on_cluster(Operation.ALTER),))
async def alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest,
    context: RequestContext,
    cluster: ClusterView,
    replicas: Replicas,
    directories: LogDirectories,
) -> AlterReplicaLogDirsResponse:
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                wanted.setdefault(topic.name, {})[index] = directory.path
    response = AlterReplicaLogDirsResponse()
    for name, paths in wanted.items():
        answer = AlterReplicaLogDirTopicResult(topic_name=name)
        response.results.append(answer)
        for index, path in paths.items():
            result = AlterReplicaLogDirPartitionResult(partition_index=index)
            answer.partitions.append(result)
            try:
                await _move(cluster, replicas, directories, name, index, path)
            except KafkaError as error:
                result.error_code = error.code
    return response


async def _move(
    cluster: ClusterView, replicas: Replicas, directories: LogDirectories, topic: str, index: int, path: str
) -> None:
    if len(f"{topic}-{index}") + FUTURE_SUFFIX_CHARACTERS > NAME_CHARACTERS_MAX:
        raise InvalidTopicError(f"The name of {topic} is too long for the directory of a copy")
    if path not in directories.paths:
        raise LogDirNotFoundError(f"{path} is not a log directory of this broker")
    state = cluster.image.partition(topic, index)
    if state is not None and cluster.node_id not in state.replicas:
        raise ReplicaNotAvailableError(f"{topic}-{index} has no replica on this broker")
    await replicas.move(topic, index, path)
