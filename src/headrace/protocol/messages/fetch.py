"""Fetch (key 1): read batches from partitions, as a consumer or as a follower.

Versions 4-18. 4 adds the isolation level and aborted transactions; 5 log start offsets; 6 may answer
KAFKA_STORAGE_ERROR; 7 fetch sessions; 8 answers before it throttles; 9 the leader epoch the client knows; 10 allows
zstd; 11 the rack and the preferred replica; 12 is flexible, and adds the last fetched epoch, the diverging epoch and
the current leader; 13 names topics by id; 14 may answer OFFSET_MOVED_TO_TIERED_STORAGE; 15 moves the replica's id
into a tagged field, with its epoch; 16 tells the endpoints of new leaders; 17 the replica's directory id; 18 the high
watermark the follower knows.
"""

from headrace.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    Array,
    Buffer,
    f,
    request,
    response,
    struct,
)


@struct
class ReplicaState:
    replica_id: int = f(INT32, default=-1)
    replica_epoch: int = f(INT64, default=-1)


@struct
class FetchPartition:
    partition: int = f(INT32)
    current_leader_epoch: int = f(INT32, "9+", default=-1)
    fetch_offset: int = f(INT64)
    last_fetched_epoch: int = f(INT32, "12+", default=-1)
    log_start_offset: int = f(INT64, "5+", default=-1)
    partition_max_bytes: int = f(INT32)
    replica_directory_id: bytes = f(UUID, "17+", tag=0)
    high_watermark: int = f(INT64, "18+", default=9223372036854775807, tag=1)


@struct
class FetchTopic:
    topic: str = f(STRING, "0-12")
    topic_id: bytes = f(UUID, "13+")
    partitions: list[FetchPartition] = f(Array(FetchPartition))


@struct
class ForgottenTopic:
    topic: str = f(STRING, "7-12")
    topic_id: bytes = f(UUID, "13+")
    partitions: list[int] = f(Array(INT32))


@request(1, "4-18", flexible=12)
class FetchRequest:
    cluster_id: str | None = f(STRING, "12+", nullable="12+", default=None, tag=0)
    replica_id: int = f(INT32, "0-14", default=-1)
    replica_state: ReplicaState = f(ReplicaState, "15+", tag=1)
    max_wait_ms: int = f(INT32)
    min_bytes: int = f(INT32)
    max_bytes: int = f(INT32, default=0x7FFFFFFF)
    isolation_level: int = f(INT8)
    session_id: int = f(INT32, "7+")
    session_epoch: int = f(INT32, "7+", default=-1)
    topics: list[FetchTopic] = f(Array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = f(Array(ForgottenTopic), "7+")
    rack_id: str = f(STRING, "11+")


@struct
class EpochEndOffset:
    epoch: int = f(INT32, default=-1)
    end_offset: int = f(INT64, default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = f(INT32, default=-1)
    leader_epoch: int = f(INT32, default=-1)


@struct
class SnapshotId:
    end_offset: int = f(INT64, default=-1)
    epoch: int = f(INT32, default=-1)


@struct
class AbortedTransaction:
    producer_id: int = f(INT64)
    first_offset: int = f(INT64)


@struct
class PartitionData:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    high_watermark: int = f(INT64)
    last_stable_offset: int = f(INT64, default=-1)
    log_start_offset: int = f(INT64, "5+", default=-1)
    diverging_epoch: EpochEndOffset = f(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = f(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = f(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = f(Array(AbortedTransaction), nullable="0+")
    preferred_read_replica: int = f(INT32, "11+", default=-1)
    records: Buffer | None = f(RECORDS, nullable="0+")


@struct
class FetchableTopicResponse:
    topic: str = f(STRING, "0-12")
    topic_id: bytes = f(UUID, "13+")
    partitions: list[PartitionData] = f(Array(PartitionData))


@struct
class NodeEndpoint:
    node_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    rack: str | None = f(STRING, nullable="0+", default=None)


@response(1, "4-18", flexible=12)
class FetchResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16, "7+")
    session_id: int = f(INT32, "7+")
    responses: list[FetchableTopicResponse] = f(Array(FetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = f(Array(NodeEndpoint), "16+", tag=0)
