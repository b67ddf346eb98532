"""DeleteRecords (key 21): drop the records of partitions before an offset.

Versions 0-2. 1 answers before it throttles; 2 is flexible.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class DeleteRecordsPartition:
    partition_index: int = f(INT32)
    offset: int = f(INT64)


@struct
class DeleteRecordsTopic:
    name: str = f(STRING)
    partitions: list[DeleteRecordsPartition] = f(Array(DeleteRecordsPartition))


@request(21, "0-2", flexible=2)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = f(Array(DeleteRecordsTopic))
    timeout_ms: int = f(INT32)


@struct
class DeleteRecordsPartitionResult:
    partition_index: int = f(INT32)
    low_watermark: int = f(INT64)
    error_code: int = f(INT16)


@struct
class DeleteRecordsTopicResult:
    name: str = f(STRING)
    partitions: list[DeleteRecordsPartitionResult] = f(Array(DeleteRecordsPartitionResult))


@response(21, "0-2", flexible=2)
class DeleteRecordsResponse:
    throttle_time_ms: int = f(INT32)
    topics: list[DeleteRecordsTopicResult] = f(Array(DeleteRecordsTopicResult))
