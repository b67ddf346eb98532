"""AlterReplicaLogDirs (key 34): move logs to other directories of this broker, while they are in use.

Serves versions 1-2. The answer comes when the move has begun; DescribeLogDirs shows the copy as a future log until it
takes the original's place. A partition that does not exist yet cannot be placed in advance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_cluster
from headrace.errors import KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(1, 2), requires=(on_cluster(Operation.ALTER),))
async def alter_replica_log_dirs(
    broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            answer = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                result = AlterReplicaLogDirPartitionResult(partition_index=index)
                answer.partitions.append(result)
                try:
                    await broker.replicas.move(topic.name, index, directory.path)
                except KafkaError as error:
                    result.error_code = error.code
    return AlterReplicaLogDirsResponse(results=list(results.values()))
