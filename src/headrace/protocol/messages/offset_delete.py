"""OffsetDelete (key 47): forget a group's committed offsets of some partitions.

Version 0, not flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, Array, f, request, response, struct


@struct
class OffsetDeleteRequestPartition:
    partition_index: int = f(INT32)


@struct
class OffsetDeleteRequestTopic:
    name: str = f(STRING)
    partitions: list[OffsetDeleteRequestPartition] = f(Array(OffsetDeleteRequestPartition))


@request(47, "0")
class OffsetDeleteRequest:
    group_id: str = f(STRING)
    topics: list[OffsetDeleteRequestTopic] = f(Array(OffsetDeleteRequestTopic))


@struct
class OffsetDeleteResponsePartition:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)


@struct
class OffsetDeleteResponseTopic:
    name: str = f(STRING)
    partitions: list[OffsetDeleteResponsePartition] = f(Array(OffsetDeleteResponsePartition))


@response(47, "0")
class OffsetDeleteResponse:
    error_code: int = f(INT16)
    throttle_time_ms: int = f(INT32)
    topics: list[OffsetDeleteResponseTopic] = f(Array(OffsetDeleteResponseTopic))
