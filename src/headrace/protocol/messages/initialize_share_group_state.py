"""InitializeShareGroupState (key 83): a group coordinator begins the state of partitions that a share group reads.

Version 0. Between brokers.
"""

from headrace.protocol.schema import INT16, INT32, INT64, STRING, UUID, Array, f, request, response, struct


@struct
class PartitionData:
    partition: int = f(INT32)
    state_epoch: int = f(INT32)
    start_offset: int = f(INT64)


@struct
class InitializeStateData:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@request(83, "0", flexible=0)
class InitializeShareGroupStateRequest:
    group_id: str = f(STRING)
    topics: list[InitializeStateData] = f(Array(InitializeStateData))


@struct
class PartitionResult:
    partition: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@struct
class InitializeStateResult:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionResult] = f(Array(PartitionResult))


@response(83, "0", flexible=0)
class InitializeShareGroupStateResponse:
    results: list[InitializeStateResult] = f(Array(InitializeStateResult))
