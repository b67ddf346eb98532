"""What DescribeLogDirs says of log directories and of the logs in them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.topics import TopicPartition


@dataclass(slots=True, frozen=True)
class LogInfo:
    """Of one log."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(slots=True, frozen=True)
class DirectoryInfo:
    """Of one directory; `offline` has the reason when it is."""

    path: str
    offline: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[LogInfo]
