"""OffsetCommit (key 8): keep how far a group has read.

Versions 2-10. 3 adds the throttle time; 4 answers before it throttles; 5 drops the retention time; 6 adds the leader
epoch of the last record; 7 the static member's instance id; 8 is flexible; 9 may be used by groups of the new
protocol, and answers GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH; 10 names topics by id.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class OffsetCommitRequestPartition:
    partition_index: int = f(INT32)
    committed_offset: int = f(INT64)
    committed_leader_epoch: int = f(INT32, "6+", default=-1)
    committed_metadata: str | None = f(STRING, nullable="0+")


@struct
class OffsetCommitRequestTopic:
    name: str = f(STRING, "0-9")
    topic_id: bytes = f(UUID, "10+")
    partitions: list[OffsetCommitRequestPartition] = f(Array(OffsetCommitRequestPartition))


@request(8, "2-10", flexible=8)
class OffsetCommitRequest:
    group_id: str = f(STRING)
    generation_id_or_member_epoch: int = f(INT32, default=-1)
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = f(INT64, "2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = f(Array(OffsetCommitRequestTopic))


@struct
class OffsetCommitResponsePartition:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)


@struct
class OffsetCommitResponseTopic:
    name: str = f(STRING, "0-9")
    topic_id: bytes = f(UUID, "10+")
    partitions: list[OffsetCommitResponsePartition] = f(Array(OffsetCommitResponsePartition))


@response(8, "2-10", flexible=8)
class OffsetCommitResponse:
    throttle_time_ms: int = f(INT32, "3+")
    topics: list[OffsetCommitResponseTopic] = f(Array(OffsetCommitResponseTopic))
