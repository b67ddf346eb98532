"""DescribeLogDirs (key 35): the log directories, the space they have, and the size of every log in them.

Serves versions 1-5. Null topics ask for all; 4 tells total and usable bytes.
"""

from __future__ import annotations

from headrace.broker.partitions.replicas import Replicas
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.errors import ErrorCode
from headrace.log import DirectoryInfo, LogDirectories
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5), requires=(on_cluster(Operation.DESCRIBE),), each_once=True)
async def describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext, replicas: Replicas, directories: LogDirectories
) -> DescribeLogDirsResponse:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    described = await replicas.change_directories(directories.describe)
    return DescribeLogDirsResponse(results=[_result(info, wanted) for info in described])


def _result(info: DirectoryInfo, wanted: set[tuple[str, int]] | None) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=info.path, total_bytes=info.total_bytes, usable_bytes=info.usable_bytes)
    if info.offline is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, DescribeLogDirsTopic] = {}
    for replica in info.replicas:
        name, index = replica.partition
        if wanted is not None and (name, index) not in wanted:
            continue
        topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=index,
                partition_size=replica.size_bytes,
                offset_lag=replica.offset_lag,
                is_future_key=replica.is_future,
            )
        )
    result.topics = list(topics.values())
    return result
