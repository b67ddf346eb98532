"""OffsetFetch (key 9): how far groups have read.

Versions 1-10. From 2 on null topics ask for all of them, and errors of the group are told at the top; 3 adds the
throttle time; 4 answers before it throttles; 5 leader epochs; 6 is flexible; 7 can require offsets that no open
transaction may change; 8 asks for several groups at once (their fields move into `groups`); 9 adds member id and
epoch; 10 names topics by id.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class OffsetFetchRequestTopic:
    name: str = f(STRING)
    partition_indexes: list[int] = f(Array(INT32))


@struct
class OffsetFetchRequestTopics:
    name: str = f(STRING, "8-9")
    topic_id: bytes = f(UUID, "10+")
    partition_indexes: list[int] = f(Array(INT32))


@struct
class OffsetFetchRequestGroup:
    group_id: str = f(STRING)
    member_id: str | None = f(STRING, "9+", nullable="9+", default=None)
    member_epoch: int = f(INT32, "9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = f(Array(OffsetFetchRequestTopics), nullable="0+")


@request(9, "1-10", flexible=6)
class OffsetFetchRequest:
    group_id: str = f(STRING, "0-7")
    topics: list[OffsetFetchRequestTopic] | None = f(Array(OffsetFetchRequestTopic), "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = f(Array(OffsetFetchRequestGroup), "8+")
    require_stable: bool = f(BOOL, "7+")


@struct
class OffsetFetchResponsePartition:
    partition_index: int = f(INT32)
    committed_offset: int = f(INT64)
    committed_leader_epoch: int = f(INT32, "5+", default=-1)
    metadata: str | None = f(STRING, nullable="0+")
    error_code: int = f(INT16)


@struct
class OffsetFetchResponseTopic:
    name: str = f(STRING)
    partitions: list[OffsetFetchResponsePartition] = f(Array(OffsetFetchResponsePartition))


@struct
class OffsetFetchResponsePartitions:
    partition_index: int = f(INT32)
    committed_offset: int = f(INT64)
    committed_leader_epoch: int = f(INT32, default=-1)
    metadata: str | None = f(STRING, nullable="0+")
    error_code: int = f(INT16)


@struct
class OffsetFetchResponseTopics:
    name: str = f(STRING, "8-9")
    topic_id: bytes = f(UUID, "10+")
    partitions: list[OffsetFetchResponsePartitions] = f(Array(OffsetFetchResponsePartitions))


@struct
class OffsetFetchResponseGroup:
    group_id: str = f(STRING)
    topics: list[OffsetFetchResponseTopics] = f(Array(OffsetFetchResponseTopics))
    error_code: int = f(INT16)


@response(9, "1-10", flexible=6)
class OffsetFetchResponse:
    throttle_time_ms: int = f(INT32, "3+")
    topics: list[OffsetFetchResponseTopic] = f(Array(OffsetFetchResponseTopic), "0-7")
    error_code: int = f(INT16, "2-7")
    groups: list[OffsetFetchResponseGroup] = f(Array(OffsetFetchResponseGroup), "8+")
