"""DescribeQuorum (key 55): who keeps the metadata log, who follows it, and how far each of them is.

Versions 0-2, all flexible. 1 adds when each was last heard of and caught up, 2 directories, addresses and words.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, UINT16, UUID, Array, f, request, response, struct


@struct
class QuorumPartition:
    partition_index: int = f(INT32)


@struct
class QuorumTopic:
    topic_name: str = f(STRING)
    partitions: list[QuorumPartition] = f(Array(QuorumPartition))


@request(55, "0-2", flexible=0)
class DescribeQuorumRequest:
    topics: list[QuorumTopic] = f(Array(QuorumTopic))


@struct
class QuorumReplica:
    replica_id: int = f(INT32)
    replica_directory_id: bytes = f(UUID, "2+")
    log_end_offset: int = f(INT64)
    last_fetch_timestamp: int = f(INT64, "1+", default=-1)
    last_caught_up_timestamp: int = f(INT64, "1+", default=-1)


@struct
class QuorumPartitionState:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, "2+", nullable="2+", default=None)
    leader_id: int = f(INT32)
    leader_epoch: int = f(INT32)
    high_watermark: int = f(INT64)
    current_voters: list[QuorumReplica] = f(Array(QuorumReplica))
    observers: list[QuorumReplica] = f(Array(QuorumReplica))


@struct
class QuorumTopicState:
    topic_name: str = f(STRING)
    partitions: list[QuorumPartitionState] = f(Array(QuorumPartitionState))


@struct
class QuorumListener:
    name: str = f(STRING)
    host: str = f(STRING)
    port: int = f(UINT16)


@struct
class QuorumNode:
    node_id: int = f(INT32)
    listeners: list[QuorumListener] = f(Array(QuorumListener))


@response(55, "0-2", flexible=0)
class DescribeQuorumResponse:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, "2+", nullable="2+", default=None)
    topics: list[QuorumTopicState] = f(Array(QuorumTopicState))
    nodes: list[QuorumNode] = f(Array(QuorumNode), "2+")
