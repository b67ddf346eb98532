"""ListOffsets (key 2): the offset at a timestamp, or at the start or end of a partition.

Versions 1-11. 1 answers one offset with its timestamp; 2 adds the isolation level and the throttle time; 3 answers
before it throttles; 4 leader epochs; 5 may answer OFFSET_NOT_AVAILABLE; 6 is flexible; 7 knows -3, the record with
the largest timestamp; 8 knows -4, the start of the local log; 9 knows -5, the last tiered offset; 10 a time-out for
remote look-ups; 11 knows -6, the first offset that is not yet uploaded.
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class ListOffsetsPartition:
    partition_index: int = f(INT32)
    current_leader_epoch: int = f(INT32, "4+", default=-1)
    timestamp: int = f(INT64)


@struct
class ListOffsetsTopic:
    name: str = f(STRING)
    partitions: list[ListOffsetsPartition] = f(Array(ListOffsetsPartition))


@request(2, "1-11", flexible=6)
class ListOffsetsRequest:
    replica_id: int = f(INT32)
    isolation_level: int = f(INT8, "2+")
    topics: list[ListOffsetsTopic] = f(Array(ListOffsetsTopic))
    timeout_ms: int = f(INT32, "10+")


@struct
class ListOffsetsPartitionResponse:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)
    timestamp: int = f(INT64, default=-1)
    offset: int = f(INT64, default=-1)
    leader_epoch: int = f(INT32, "4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = f(STRING)
    partitions: list[ListOffsetsPartitionResponse] = f(Array(ListOffsetsPartitionResponse))


@response(2, "1-11", flexible=6)
class ListOffsetsResponse:
    throttle_time_ms: int = f(INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = f(Array(ListOffsetsTopicResponse))
