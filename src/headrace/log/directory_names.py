"""The names of partitions' directories inside a log directory: in use, being deleted, being copied, set aside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import Enum

from headrace.runtime import Disk
from headrace.topics import TopicPartition

# A number is written in one way only: another directory for the same partition would be taken for its log.
_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})(\.(?P<id>[^.]+)-(?P<state>delete|future|stray))?")
_NAME_MAX = 255
_RESERVED_TOPICS = frozenset({"__cluster_metadata"})


class DirectoryKind(Enum):
    """What a partition's directory is, by its name."""

    PRESENT = ""
    DELETE = "delete"
    FUTURE = "future"
    STRAY = "stray"


def parse_name(name: str) -> tuple[TopicPartition, DirectoryKind] | None:
    """The partition that a directory's name stands for; None when it is no partition's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return TopicPartition(match["topic"], int(match["partition"])), DirectoryKind(match["state"] or "")


def temporary_name(partition: TopicPartition, unique: bytes, state: DirectoryKind) -> str:
    """`<topic>-<partition>.<unique>-<state>`; a long topic is cut so that it stays a legal file name."""
    suffix = f"-{partition.partition}.{unique.hex()}-{state.value}"
    return partition.topic[: _NAME_MAX - len(suffix)] + suffix


def partition_names(disk: Disk, path: str) -> Iterator[tuple[str, TopicPartition, DirectoryKind]]:
    """The partitions' directories below a log directory."""
    for name in disk.listdir(path):
        parsed = parse_name(name)
        if parsed is None or parsed[0].topic in _RESERVED_TOPICS or not disk.is_dir(os.path.join(path, name)):
            continue
        yield name, parsed[0], parsed[1]
