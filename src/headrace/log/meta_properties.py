"""`meta.properties`: which cluster and node a log directory belongs to, and the directory's own id."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.config import ConfigError, format_properties, parse_properties
from headrace.errors import HeadraceError
from headrace.log.checkpoints import DamagedCheckpointError, parse_number
from headrace.runtime import Disk, FileMissingError

FILE_NAME = "meta.properties"
_VERSION = "1"


class DirectoryMismatchError(HeadraceError):
    """A log directory belongs to another cluster or node; using it would mix their data."""


@dataclass(slots=True, frozen=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: str | None

    def to_bytes(self) -> bytes:
        values = {"version": _VERSION, "cluster.id": self.cluster_id, "node.id": str(self.node_id)}
        if self.directory_id is not None:
            values["directory.id"] = self.directory_id
        return format_properties(dict(sorted(values.items()))).encode("utf-8")


def decode(data: bytes, path: str) -> MetaProperties:
    """Version 1, as Kafka 3 and 4 write it; version 0 (ZooKeeper's) has broker.id in the place of node.id."""
    try:
        values = parse_properties(data.decode("utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise DirectoryMismatchError(
            f"{path} cannot be read ({error}); restore it, or use an empty directory"
        ) from None
    node_id = values.get("node.id", values.get("broker.id", ""))
    cluster_id = values.get("cluster.id", "")
    try:
        number = parse_number(node_id, 32) if cluster_id else None
    except DamagedCheckpointError:
        number = None
    if number is None:
        raise DirectoryMismatchError(f"{path} names no cluster.id and node.id; restore it, or use an empty directory")
    return MetaProperties(cluster_id, number, values.get("directory.id"))


def read(disk: Disk, directory: str) -> MetaProperties | None:
    """What the directory says about itself; None when it says nothing."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = disk.read_file(path)
    except FileMissingError:
        return None
    return decode(data, path)


def write(disk: Disk, directory: str, properties: MetaProperties) -> None:
    disk.replace_file(os.path.join(directory, FILE_NAME), properties.to_bytes())
