"""DescribeLogDirs (key 35): log directories of a broker, with the size of every replica in them.

Versions 1-5. 1 answers before it throttles; 2 is flexible; 3 adds an error at the top; 4 total and usable bytes; 5
whether a directory is cordoned.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, STRING, Array, f, request, response, struct


@struct
class DescribableLogDirTopic:
    topic: str = f(STRING)
    partitions: list[int] = f(Array(INT32))


@request(35, "1-5", flexible=2)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = f(Array(DescribableLogDirTopic), nullable="0+")


@struct
class DescribeLogDirsPartition:
    partition_index: int = f(INT32)
    partition_size: int = f(INT64)
    offset_lag: int = f(INT64)
    is_future_key: bool = f(BOOL)


@struct
class DescribeLogDirsTopic:
    name: str = f(STRING)
    partitions: list[DescribeLogDirsPartition] = f(Array(DescribeLogDirsPartition))


@struct
class DescribeLogDirsResult:
    error_code: int = f(INT16)
    log_dir: str = f(STRING)
    topics: list[DescribeLogDirsTopic] = f(Array(DescribeLogDirsTopic))
    total_bytes: int = f(INT64, "4+", default=-1)
    usable_bytes: int = f(INT64, "4+", default=-1)
    is_cordoned: bool = f(BOOL, "5+")


@response(35, "1-5", flexible=2)
class DescribeLogDirsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16, "3+")
    results: list[DescribeLogDirsResult] = f(Array(DescribeLogDirsResult))
