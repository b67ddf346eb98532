"""AlterShareGroupOffsets (key 91): set where a share group without members starts in partitions.

Version 0.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int = f(INT32)
    start_offset: int = f(INT64)


@struct
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = f(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = f(Array(AlterShareGroupOffsetsRequestPartition))


@request(91, "0", flexible=0)
class AlterShareGroupOffsetsRequest:
    group_id: str = f(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = f(Array(AlterShareGroupOffsetsRequestTopic))


@struct
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@struct
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = f(STRING)
    topic_id: bytes = f(UUID)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = f(Array(AlterShareGroupOffsetsResponsePartition))


@response(91, "0", flexible=0)
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = f(Array(AlterShareGroupOffsetsResponseTopic))
