"""CreatePartitions (key 37): give topics more partitions.

Versions 0-3. 1 answers before it throttles; 2 is flexible; 3 may answer THROTTLING_QUOTA_EXCEEDED.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = f(Array(INT32))


@struct
class CreatePartitionsTopic:
    name: str = f(STRING)
    count: int = f(INT32)
    assignments: list[CreatePartitionsAssignment] | None = f(Array(CreatePartitionsAssignment), nullable="0+")


@request(37, "0-3", flexible=2)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = f(Array(CreatePartitionsTopic))
    timeout_ms: int = f(INT32)
    validate_only: bool = f(BOOL)


@struct
class CreatePartitionsTopicResult:
    name: str = f(STRING)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+", default=None)


@response(37, "0-3", flexible=2)
class CreatePartitionsResponse:
    throttle_time_ms: int = f(INT32)
    results: list[CreatePartitionsTopicResult] = f(Array(CreatePartitionsTopicResult))
