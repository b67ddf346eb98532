"""Produce (key 0): record batches to be appended to partitions, and the offsets they got.

Versions 3-13 (0-2 had older record formats and are gone; a broker still advertises 0, because older librdkafka turns
compression off otherwise). 4 may answer KAFKA_STORAGE_ERROR; 5 adds the log start offset; 7 allows zstd; 8 says which
records were at fault; 9 is flexible; 10 names the current leader in tagged fields; 11 may answer
TRANSACTION_ABORTABLE; 12 adds the partition to its transaction on the way (KIP-890); 13 names topics by id.
"""

from headrace.protocol.schema import (
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
class PartitionProduceData:
    index: int = f(INT32)
    records: Buffer | None = f(RECORDS, nullable="0+")


@struct
class TopicProduceData:
    name: str = f(STRING, "0-12")
    topic_id: bytes = f(UUID, "13+")
    partition_data: list[PartitionProduceData] = f(Array(PartitionProduceData))


@request(0, "3-13", flexible=9)
class ProduceRequest:
    transactional_id: str | None = f(STRING, nullable="0+", default=None)
    acks: int = f(INT16)
    timeout_ms: int = f(INT32)
    topic_data: list[TopicProduceData] = f(Array(TopicProduceData))


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = f(INT32)
    batch_index_error_message: str | None = f(STRING, nullable="0+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = f(INT32, default=-1)
    leader_epoch: int = f(INT32, default=-1)


@struct
class PartitionProduceResponse:
    index: int = f(INT32)
    error_code: int = f(INT16)
    base_offset: int = f(INT64)
    log_append_time_ms: int = f(INT64, default=-1)
    log_start_offset: int = f(INT64, "5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = f(Array(BatchIndexAndErrorMessage), "8+")
    error_message: str | None = f(STRING, "8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch = f(LeaderIdAndEpoch, "10+", tag=0)


@struct
class TopicProduceResponse:
    name: str = f(STRING, "0-12")
    topic_id: bytes = f(UUID, "13+")
    partition_responses: list[PartitionProduceResponse] = f(Array(PartitionProduceResponse))


@struct
class NodeEndpoint:
    node_id: int = f(INT32)
    host: str = f(STRING)
    port: int = f(INT32)
    rack: str | None = f(STRING, nullable="0+", default=None)


@response(0, "3-13", flexible=9)
class ProduceResponse:
    responses: list[TopicProduceResponse] = f(Array(TopicProduceResponse))
    throttle_time_ms: int = f(INT32)
    node_endpoints: list[NodeEndpoint] = f(Array(NodeEndpoint), "10+", tag=0)
