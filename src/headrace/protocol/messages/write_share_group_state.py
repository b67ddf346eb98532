"""WriteShareGroupState (key 85): a partition's leader stores what a share group has acknowledged of it.

Versions 0-1. 1 adds how many records after the start offset are finished, from which the lag is computed. Between
brokers.
"""

from headrace.protocol.schema import INT8, INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class StateBatch:
    first_offset: int = f(INT64)
    last_offset: int = f(INT64)
    delivery_state: int = f(INT8)
    delivery_count: int = f(INT16)


@struct
class PartitionData:
    partition: int = f(INT32)
    state_epoch: int = f(INT32)
    leader_epoch: int = f(INT32)
    start_offset: int = f(INT64)
    delivery_complete_count: int = f(INT32, "1+", default=-1)
    state_batches: list[StateBatch] = f(Array(StateBatch))


@struct
class WriteStateData:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@request(85, "0-1", flexible=0)
class WriteShareGroupStateRequest:
    group_id: str = f(STRING)
    topics: list[WriteStateData] = f(Array(WriteStateData))


@struct
class PartitionResult:
    partition: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@struct
class WriteStateResult:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionResult] = f(Array(PartitionResult))


@response(85, "0-1", flexible=0)
class WriteShareGroupStateResponse:
    results: list[WriteStateResult] = f(Array(WriteStateResult))
