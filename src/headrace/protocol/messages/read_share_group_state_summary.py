"""ReadShareGroupStateSummary (key 87): where a share group has got to in partitions, without the states of records.

Versions 0-1. 1 adds how many records after the start offset are finished. Between brokers.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class PartitionData:
    partition: int = f(INT32)
    leader_epoch: int = f(INT32)


@struct
class ReadStateSummaryData:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@request(87, "0-1", flexible=0)
class ReadShareGroupStateSummaryRequest:
    group_id: str = f(STRING)
    topics: list[ReadStateSummaryData] = f(Array(ReadStateSummaryData))


@struct
class PartitionResult:
    partition: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    state_epoch: int = f(INT32)
    leader_epoch: int = f(INT32)
    start_offset: int = f(INT64)
    delivery_complete_count: int = f(INT32, "1+", default=-1)


@struct
class ReadStateSummaryResult:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionResult] = f(Array(PartitionResult))


@response(87, "0-1", flexible=0)
class ReadShareGroupStateSummaryResponse:
    results: list[ReadStateSummaryResult] = f(Array(ReadStateSummaryResult))
