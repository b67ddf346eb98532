"""OffsetForLeaderEpoch (key 23): where a leader epoch ended, which tells a log how much of it has diverged.

Versions 2-4. 2 has the current leader epoch and the throttle time; 3 adds the replica id (-1 a consumer, -2
debugging); 4 is flexible.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class OffsetForLeaderPartition:
    partition: int = f(INT32)
    current_leader_epoch: int = f(INT32, default=-1)
    leader_epoch: int = f(INT32)


@struct
class OffsetForLeaderTopic:
    topic: str = f(STRING)
    partitions: list[OffsetForLeaderPartition] = f(Array(OffsetForLeaderPartition))


@request(23, "2-4", flexible=4)
class OffsetForLeaderEpochRequest:
    replica_id: int = f(INT32, "3+", default=-2)
    topics: list[OffsetForLeaderTopic] = f(Array(OffsetForLeaderTopic))


@struct
class EpochEndOffset:
    error_code: int = f(INT16)
    partition: int = f(INT32)
    leader_epoch: int = f(INT32, default=-1)
    end_offset: int = f(INT64, default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = f(STRING)
    partitions: list[EpochEndOffset] = f(Array(EpochEndOffset))


@response(23, "2-4", flexible=4)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = f(INT32)
    topics: list[OffsetForLeaderTopicResult] = f(Array(OffsetForLeaderTopicResult))
