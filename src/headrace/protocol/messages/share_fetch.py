"""ShareFetch (key 78): acquire records of partitions for a member of a share group, and acknowledge earlier ones.

Versions 1-2. 2 adds the acquire mode (batches, or at most so many records) and renewed acquisition locks.
Types of acknowledgement: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
"""

from headrace.protocol.schema import (
    BOOL,
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
class AcknowledgementBatch:
    first_offset: int = f(INT64)
    last_offset: int = f(INT64)
    acknowledge_types: list[int] = f(Array(INT8))


@struct
class FetchPartition:
    partition_index: int = f(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = f(Array(AcknowledgementBatch))


@struct
class FetchTopic:
    topic_id: bytes = f(UUID)
    partitions: list[FetchPartition] = f(Array(FetchPartition))


@struct
class ForgottenTopic:
    topic_id: bytes = f(UUID)
    partitions: list[int] = f(Array(INT32))


@request(78, "1-2", flexible=1)
class ShareFetchRequest:
    group_id: str | None = f(STRING, nullable="1+", default=None)
    member_id: str | None = f(STRING, nullable="1+", default=None)
    share_session_epoch: int = f(INT32)
    max_wait_ms: int = f(INT32)
    min_bytes: int = f(INT32)
    max_bytes: int = f(INT32, default=2147483647)
    max_records: int = f(INT32)
    batch_size: int = f(INT32)
    share_acquire_mode: int = f(INT8, "2+")
    is_renew_ack: bool = f(BOOL, "2+")
    topics: list[FetchTopic] = f(Array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = f(Array(ForgottenTopic))


@struct
class LeaderIdAndEpoch:
    leader_id: int = f(INT32)
    leader_epoch: int = f(INT32)


@struct
class AcquiredRecords:
    first_offset: int = f(INT64)
    last_offset: int = f(INT64)
    delivery_count: int = f(INT16)


@struct
class PartitionData:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="1+", default=None)
    acknowledge_error_code: int = f(INT16)
    acknowledge_error_message: str | None = f(STRING, nullable="1+", default=None)
    current_leader: LeaderIdAndEpoch = f(LeaderIdAndEpoch)
    records: Buffer = f(RECORDS)
    acquired_records: list[AcquiredRecords] = f(Array(AcquiredRecords))


@struct
class ShareFetchableTopicResponse:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@struct
class NodeEndpoint:
    node_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    rack: str | None = f(STRING, nullable="1+", default=None)


@response(78, "1-2", flexible=1)
class ShareFetchResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="1+", default=None)
    acquisition_lock_timeout_ms: int = f(INT32)
    responses: list[ShareFetchableTopicResponse] = f(Array(ShareFetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = f(Array(NodeEndpoint))
