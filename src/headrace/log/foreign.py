"""What in a log directory is Kafka's and what is somebody else's, by the names; what is not Kafka's is left alone."""

from __future__ import annotations

import logging
import os
import re

from headrace.errors import KafkaStorageError
from headrace.log import checkpoints, meta_properties
from headrace.log.directory_names import parse_name
from headrace.runtime import Disk
from headrace.words import some

logger = logging.getLogger("headrace.log")

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
# Segments, indexes, snapshots, and the same while they are made, replaced or deleted; Kafka has more kinds than we.
_LOG_FILE = re.compile(r"[0-9]{20}\.[a-z.]+|(leader-epoch-checkpoint|partition\.metadata)(\.tmp)?")
_ROOT_FILES = frozenset(
    {
        meta_properties.FILE_NAME,
        checkpoints.RECOVERY_POINT,
        checkpoints.HIGH_WATERMARK,
        checkpoints.LOG_START,
        checkpoints.CLEANER,
        CLEAN_SHUTDOWN,
    }
)
# Every new file system has it.
_NOBODYS = "lost+found"


def is_log_file(name: str) -> bool:
    """Whether a file of that name, in a partition's directory, is part of its log."""
    return _LOG_FILE.fullmatch(name) is not None


def holds_a_log(disk: Disk, path: str) -> bool:
    """Whether a directory is a partition's, rather than one whose name only looks so."""
    return any(is_log_file(name) for name in disk.listdir(path))


def is_foreign(disk: Disk, path: str) -> bool:
    """Whether something is at a partition's name that is no log. An empty directory is what a crash leaves of one."""
    if not disk.exists(path):
        return False
    if not disk.is_dir(path):
        return True
    names = disk.listdir(path)
    return bool(names) and not any(map(is_log_file, names))


def check_place(disk: Disk, path: str) -> None:
    """Before a log is made at a partition's name: what is there and is no log is neither used nor moved."""
    if is_foreign(disk, path):
        raise KafkaStorageError(
            f"{path} is not a log, and is left alone: move it elsewhere, or use another topic or log directory"
        )


def remove_log(disk: Disk, path: str) -> None:
    """Remove a log with its directory; a file in it that is not Kafka's stays, and the directory with it."""
    names = disk.listdir(path) if disk.is_dir(path) else []
    others = [name for name in names if not is_log_file(name)]
    if not others:
        disk.rmtree(path)
        return
    for name in names:
        if is_log_file(name):
            disk.remove(os.path.join(path, name))
    logger.warning("the log in %s is deleted; what else is in that directory stays: %s", path, some(others))


def strangers(disk: Disk, path: str) -> list[str]:
    """What a directory holds in which no broker's data is; nothing when there is such data, or when it is empty.

    Names that begin with a dot do not count: they are settings of tools, and `.lock` is what a start that was refused
    leaves.
    """
    if not disk.is_dir(path):
        return []
    names = sorted(disk.listdir(path))
    if any(name in _ROOT_FILES or _is_log(disk, path, name) for name in names):
        return []
    return [name for name in names if not name.startswith(".") and name != _NOBODYS]


def _is_log(disk: Disk, path: str, name: str) -> bool:
    inner = os.path.join(path, name)
    return parse_name(name) is not None and disk.is_dir(inner) and holds_a_log(disk, inner)
