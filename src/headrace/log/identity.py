"""Whose a log directory is: its lock, its identity on disk, and whether all directories name the same node."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence

from headrace.errors import KafkaStorageError
from headrace.log import meta_properties, partition_metadata
from headrace.log.directory import Directory
from headrace.log.meta_properties import DirectoryMismatchError, MetaProperties
from headrace.runtime import Disk, DiskError, Runtime

logger = logging.getLogger("headrace.log")

LOCK = ".lock"


def take(disk: Disk, directory: Directory) -> MetaProperties | None:
    """Make the directory if need be, lock it, read whose it is. A disk that fails takes it offline."""
    try:
        _make(disk, directory.path)
        directory.lock = disk.lock(os.path.join(directory.path, LOCK))
        return meta_properties.read(disk, directory.path)
    except DiskError as error:
        if error.operation == "lock" and error.errno is None:
            raise  # in use by another process: that is no failure of the disk
        if error.is_shortage:
            raise
        directory.offline = str(error)
        logger.error("log directory %s is offline: %s", directory.path, error)
        return None


def _make(disk: Disk, path: str) -> None:
    """Make the directory if it is missing, and its name durable: what is synced inside it is lost with its name."""
    unnamed = []
    while not disk.is_dir(path):
        unnamed.append(path)
        path = os.path.dirname(path)
    if unnamed:
        disk.makedirs(unnamed[0])
    for made in reversed(unnamed):
        disk.sync_dir(os.path.dirname(made))


def check_usable(directories: Sequence[Directory], apart: Sequence[Directory]) -> None:
    """At least one log directory has to be online, and the one of the metadata."""
    if all(directory.offline is not None for directory in directories):
        raise KafkaStorageError("no log directory can be used: " + "; ".join(d.offline or "" for d in directories))
    for directory in apart:
        if directory.offline is not None:
            raise KafkaStorageError(f"the metadata directory {directory.path} cannot be used: {directory.offline}")


def agree(
    runtime: Runtime,
    directories: Sequence[Directory],
    known: dict[str, MetaProperties | None],
    node_id: int | None,
    cluster_id: str | None,
) -> tuple[int, str]:
    """The one node and cluster that all directories and the configuration name."""
    for path, properties in known.items():
        if properties is None:
            continue
        if node_id is None:
            node_id = properties.node_id
        if cluster_id is None:
            cluster_id = properties.cluster_id
        if properties.node_id != node_id:
            raise DirectoryMismatchError(
                f"{path} belongs to node {properties.node_id}, but this is node {node_id}: "
                "correct node.id, or use another directory"
            )
        if properties.cluster_id != cluster_id:
            raise DirectoryMismatchError(
                f"{path} belongs to cluster {properties.cluster_id}, but this is cluster {cluster_id}: "
                "correct the cluster id, or use another directory"
            )
    offline = [directory.path for directory in directories if directory.offline is not None]
    if cluster_id is None and offline:
        # A cluster id made up now would be another one than theirs, and they could not be used any more.
        raise KafkaStorageError(
            f"{', '.join(offline)} cannot be used, and may be all that knows which cluster this is: repair it, or take "
            "it out of log.dirs to begin a new one"
        )
    if node_id is None:
        node_id = 1
    return node_id, cluster_id or partition_metadata.encode_id(runtime.uuid())


def identify(
    runtime: Runtime, directory: Directory, known: MetaProperties | None, node_id: int, cluster_id: str
) -> None:
    if directory.offline is not None:
        return
    if known is not None and known.directory_id is not None:
        directory.directory_id = known.directory_id
        return
    directory.directory_id = partition_metadata.encode_id(runtime.uuid())
    try:
        meta_properties.write(runtime.disk, directory.path, MetaProperties(cluster_id, node_id, directory.directory_id))
    except DiskError as error:
        directory.offline = str(error)


def unlock(directories: Iterable[Directory]) -> None:
    for directory in directories:
        if directory.lock is not None:
            directory.lock.release()
            directory.lock = None
