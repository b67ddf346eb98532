"""Small text files that map partitions to offsets, at the root of a log directory, in Kafka's format."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.errors import HeadraceError
from headrace.runtime import Disk, FileMissingError
from headrace.topics import TopicPartition

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"

_VERSION = "0"
_NUMBER = re.compile("-?[0-9]{1,19}")


class DamagedCheckpointError(HeadraceError):
    """A checkpoint that cannot be read; what it says is found out from the logs instead."""


def parse_number(text: str, bits: int = 64) -> int:
    """A signed number of so many bits. Python takes more for digits (²), and ten thousand of them for no number."""
    if _NUMBER.fullmatch(text) is None or not -(1 << bits - 1) <= (number := int(text)) < 1 << bits - 1:
        raise DamagedCheckpointError(f"not a number of {bits} bits: {text[:40]!r}")
    return number


def parse_lines(data: bytes) -> list[str]:
    """The entries of a file of the form: version, count, one entry a line."""
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DamagedCheckpointError(f"not text: {error}") from None
    if len(lines) < 2 or lines[0].strip() != _VERSION:
        raise DamagedCheckpointError("its first two lines are not version 0 and a count")
    count = parse_number(lines[1].strip(), 32)
    entries = [line.strip() for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise DamagedCheckpointError(f"it has {len(entries)} entries but says {count}")
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return f"{_VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    offsets = {}
    for line in parse_lines(data):
        fields = line.rsplit(" ", 2)
        if len(fields) != 3 or fields[1].startswith("-"):
            raise DamagedCheckpointError(f"not a topic, a partition and an offset: {line[:300]!r}")
        offsets[TopicPartition(fields[0], parse_number(fields[1], 32))] = parse_number(fields[2])
    return offsets


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """What the file says; nothing when it is missing. Raises DamagedCheckpointError."""
    try:
        data = disk.read_file(path)
    except FileMissingError:
        return {}
    return decode_offsets(data)


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    disk.replace_file(path, encode_offsets(offsets))
