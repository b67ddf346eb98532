"""TxnOffsetCommit (key 28): commit offsets of a group as part of a transaction.

Versions 0-5. 1 answers before it throttles; 2 adds the leader epoch of the last record; 3 is flexible, and adds
generation, member and instance id; 4 may answer TRANSACTION_ABORTABLE; 5 adds the group to the transaction on the
way.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = f(INT32)
    committed_offset: int = f(INT64)
    committed_leader_epoch: int = f(INT32, "2+", default=-1)
    committed_metadata: str | None = f(STRING, nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: str = f(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = f(Array(TxnOffsetCommitRequestPartition))


@request(28, "0-5", flexible=3)
class TxnOffsetCommitRequest:
    transactional_id: str = f(STRING)
    group_id: str = f(STRING)
    producer_id: int = f(INT64)
    producer_epoch: int = f(INT16)
    generation_id: int = f(INT32, "3+", default=-1)
    member_id: str = f(STRING, "3+")
    group_instance_id: str | None = f(STRING, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = f(Array(TxnOffsetCommitRequestTopic))


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = f(INT32)
    error_code: int = f(INT16)


@struct
class TxnOffsetCommitResponseTopic:
    name: str = f(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = f(Array(TxnOffsetCommitResponsePartition))


@response(28, "0-5", flexible=3)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = f(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = f(Array(TxnOffsetCommitResponseTopic))
