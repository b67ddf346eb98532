"""Names of partitions, and the hash by which Java spreads names: shared by every room."""

from __future__ import annotations

import encodings.utf_16_be  # noqa: F401  # an encoding that is loaded when it is first used may meet a fork
from typing import NamedTuple

_INT32_MASK = 0xFFFFFFFF
_INT32_MIN = -(1 << 31)


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def java_string_hash(text: str) -> int:
    """What `String.hashCode` gives: a signed 32-bit number.

    It runs over UTF-16 units, so a character beyond the BMP counts as two.
    """
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (value * 31 + unit) & _INT32_MASK
    else:
        # A lone surrogate is a legal Java char, hence "surrogatepass".
        encoded = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(encoded[::2], encoded[1::2]):
            value = (value * 31 + (high << 8 | low)) & _INT32_MASK
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for_group(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` (or `__transaction_state`) that keeps what belongs to this id.

    Kafka takes the absolute value, and 0 for the one number that has none (the group "polygenelubricants").
    """
    if partitions < 1:
        raise ValueError(f"cannot place group {group_id!r} on {partitions} partitions: at least one is needed")
    value = java_string_hash(group_id)
    return 0 if value == _INT32_MIN else abs(value) % partitions
