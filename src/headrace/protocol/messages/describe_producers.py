"""DescribeProducers (key 61): producers that a partition remembers, with their open transactions.

Version 0, flexible.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class TopicRequest:
    name: str = f(STRING)
    partition_indexes: list[int] = f(Array(INT32))


@request(61, "0", flexible=0)
class DescribeProducersRequest:
    topics: list[TopicRequest] = f(Array(TopicRequest))


@struct
class ProducerState:
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT32)
    last_sequence: int = f(INT32, default=-1)
    last_timestamp: int = f(INT64, default=-1)
    coordinator_epoch: int = f(INT32)
    current_txn_start_offset: int = f(INT64, default=-1)


@struct
class PartitionResponse:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    active_producers: list[ProducerState] = f(Array(ProducerState))


@struct
class TopicResponse:
    name: str = f(STRING)
    partitions: list[PartitionResponse] = f(Array(PartitionResponse))


@response(61, "0", flexible=0)
class DescribeProducersResponse:
    throttle_time_ms: int = f(INT32)
    topics: list[TopicResponse] = f(Array(TopicResponse))
