"""DeleteShareGroupState (key 86): a group coordinator deletes the state of partitions that a share group read.

Version 0. Between brokers.
"""

from headrace.protocol.schema import INT16, INT32, STRING, UUID, Array, f, request, response, struct


@struct
class PartitionData:
    partition: int = f(INT32)


@struct
class DeleteStateData:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionData] = f(Array(PartitionData))


@request(86, "0", flexible=0)
class DeleteShareGroupStateRequest:
    group_id: str = f(STRING)
    topics: list[DeleteStateData] = f(Array(DeleteStateData))


@struct
class PartitionResult:
    partition: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@struct
class DeleteStateResult:
    topic_id: bytes = f(UUID)
    partitions: list[PartitionResult] = f(Array(PartitionResult))


@response(86, "0", flexible=0)
class DeleteShareGroupStateResponse:
    results: list[DeleteStateResult] = f(Array(DeleteStateResult))
