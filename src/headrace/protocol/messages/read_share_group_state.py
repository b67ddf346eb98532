"""ReadShareGroupState (key 84): a partition's leader reads what a share group has acknowledged of it.

Version 0. Between brokers.
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class PartitionData:
    partition: int = f(INT32)
    leader_epoch: int = f(INT32)


@struct
class ReadStateData:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@request(84, "0", flexible=0)
class ReadShareGroupStateRequest:
    group_id: str = f(STRING)
    topics: list[ReadStateData] = f(Array(ReadStateData))


@struct
class StateBatch:
    first_offset: int = f(INT64)
    last_offset: int = f(INT64)
    delivery_state: int = f(INT8)
    delivery_count: int = f(INT16)


@struct
class PartitionResult:
    partition: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)
    state_epoch: int = f(INT32)
    start_offset: int = f(INT64)
    state_batches: list[StateBatch] = f(Array(StateBatch))


@struct
class ReadStateResult:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionResult] = f(Array(PartitionResult))


@response(84, "0", flexible=0)
class ReadShareGroupStateResponse:
    results: list[ReadStateResult] = f(Array(ReadStateResult))
