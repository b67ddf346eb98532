"""OffsetForLeaderEpoch (key 23): where a leader epoch ended, by which a reader finds out that the log was cut behind
its back.

Serves versions 2-4. An epoch that wrote nothing is answered with the next lower one that did.
"""

from __future__ import annotations

from headrace.broker.partitions.leaders import Leaders
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster, on_topics
from headrace.errors import KafkaError, NotLeaderOrFollowerError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    requires=(any_of(on_topics(Operation.DESCRIBE, "topics.topic"), on_cluster(Operation.CLUSTER_ACTION)),),
)
def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: RequestContext, leaders: Leaders
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_end_of_epoch(leaders, topic.topic, part) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(leaders: Leaders, topic: str, part: OffsetForLeaderPartition) -> EpochEndOffset:
    result = EpochEndOffset(partition=part.partition)
    try:
        partition = leaders.partition_here(topic, part.partition)
        partition.check_leader(part.current_leader_epoch)
        if not partition.has_begun:
            # Where the former epochs end is not known yet; an empty log would know of none of them.
            raise NotLeaderOrFollowerError(f"{partition.key}: leader epoch {partition.leader_epoch} has yet to begin")
    except KafkaError as error:
        result.error_code = error.code
        return result
    if part.leader_epoch == partition.leader_epoch:
        # The current epoch ends where the log ends, also when it has written nothing yet.
        result.leader_epoch, result.end_offset = part.leader_epoch, partition.log.end_offset
    else:
        result.leader_epoch, result.end_offset = partition.log.end_offset_for(part.leader_epoch)
    return result
