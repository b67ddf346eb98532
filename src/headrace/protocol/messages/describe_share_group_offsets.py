"""DescribeShareGroupOffsets (key 90): where share groups have got to in partitions.

Versions 0-1. 1 adds the lag.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@struct
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = f(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = f(
        Array(DescribeShareGroupOffsetsRequestTopic), nullable="0+"
    )


@request(90, "0-1", flexible=0)
class DescribeShareGroupOffsetsRequest:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = f(Array(DescribeShareGroupOffsetsRequestGroup))


@struct
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = f(INT32)
    start_offset: int = f(INT64)
    leader_epoch: int = f(INT32)
    lag: int = f(INT64, "1+", default=-1)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = f(STRING)
    topic_id: bytes = f(UUID)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = f(Array(DescribeShareGroupOffsetsResponsePartition))


@struct
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = f(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = f(Array(DescribeShareGroupOffsetsResponseTopic))
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@response(90, "0-1", flexible=0)
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = f(INT32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = f(Array(DescribeShareGroupOffsetsResponseGroup))
