"""`partition.metadata`: the id of the topic that a partition's directory belongs to."""

from __future__ import annotations

import base64
import binascii
import os

from headrace.errors import InconsistentTopicIdError
from headrace.log.checkpoints import DamagedCheckpointError
from headrace.runtime import Disk, FileMissingError

FILE_NAME = "partition.metadata"
_ID_BYTES = 16


def encode_id(topic_id: bytes) -> str:
    """An id as Kafka prints it: 22 characters, base64 for URLs."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


def decode_id(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise DamagedCheckpointError(f"{text!r} is not an id: {error}") from None
    if len(raw) != _ID_BYTES:
        raise DamagedCheckpointError(f"{text!r} is not an id of {_ID_BYTES} bytes")
    return raw


def encode(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()


def decode(data: bytes) -> bytes:
    fields = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise DamagedCheckpointError("it does not say version 0 and a topic_id")
    return decode_id(fields["topic_id"])


def read(disk: Disk, directory: str) -> bytes | None:
    """The topic id; None when the file is missing. Raises DamagedCheckpointError."""
    try:
        return decode(disk.read_file(os.path.join(directory, FILE_NAME)))
    except FileMissingError:
        return None


def ensure(disk: Disk, directory: str, topic_id: bytes | None) -> bytes | None:
    """The id of the topic here: the one on disk, which must be `topic_id` if that is given; else it is written.

    Not synced: that is for many logs at once (`side_by_side.sync_ids`), before anything is written to them.
    """
    try:
        found = read(disk, directory)
    except DamagedCheckpointError:
        found = None
    if found is None:
        write(disk, directory, topic_id)
        return topic_id
    if topic_id is not None and found != topic_id:
        raise InconsistentTopicIdError(
            f"{directory} belongs to the topic with id {encode_id(found)}, not {encode_id(topic_id)}: "
            "the topic was deleted and made again; move the directory away"
        )
    return found


def write(disk: Disk, directory: str, topic_id: bytes | None) -> None:
    """Put the id there, if it is known, whatever was there before. Not synced, see `ensure`."""
    if topic_id is None:
        return
    file = disk.open(os.path.join(directory, FILE_NAME), create=True)
    try:
        if file.size():
            file.truncate(0)
        file.append([encode(topic_id)])
    finally:
        file.close()


def sync(disk: Disk, directory: str) -> None:
    """Make the file durable, if there is one."""
    try:
        file = disk.open(os.path.join(directory, FILE_NAME))
    except FileMissingError:
        return
    try:
        file.sync()
    finally:
        file.close()
