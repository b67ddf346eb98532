"""What is produced for a record that goes to another topic; in several parts where no topic takes it whole.

A record that was just small enough for its own topic is too large for another one with what the retries add to it. Its
dead letter is then packed (key, value and its own headers) and cut into parts, each a record with the letter's headers
and its number. Whoever reads dead letters puts them together again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from headrace.errors import MessageTooLargeError, RecordListTooLargeError
from headrace.parallel.retries import (
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    PREFIX,
    Header,
    Outgoing,
    diverted_headers,
    header,
)

PART = "headrace.part"
"""`2/3`: the second of three."""
TOO_LARGE = (MessageTooLargeError, RecordListTooLargeError)
PART_BYTES_MAX = 512 * 1024
PART_BYTES_MIN = 1024
_LENGTH = struct.Struct(">i")
# Anybody may write to the topic of letters: not all that counts as digits makes a number.
_COUNT = re.compile("[0-9]{1,9}")

Message = tuple[str, bytes | None, bytes | None, list[Header]]
"""Topic, value, key, headers."""


def messages_of(outgoing: Outgoing, group: str, now_ms: int) -> list[Message]:
    """The records to produce for one that goes to another topic."""
    record = outgoing.entry.record
    headers = diverted_headers(outgoing, group, now_ms)
    if not outgoing.part_bytes:
        return [(outgoing.topic, record.value, record.key, headers)]
    facts = [one for one in headers if one[0].startswith(PREFIX)]
    packed = pack(record.key, record.value, [one for one in headers if not one[0].startswith(PREFIX)])
    size = outgoing.part_bytes
    count = -(-len(packed) // size)
    # All parts have one key, so that they are in one partition, in order.
    place = "{}-{}@{}".format(*(header(facts, name) for name in (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)))
    return [
        (
            outgoing.topic,
            packed[number * size : (number + 1) * size],
            place.encode(),
            [*facts, (PART, b"%d/%d" % (number + 1, count))],
        )
        for number in range(count)
    ]


def smaller(outgoing: Outgoing) -> int:
    """Into parts of how many bytes to cut what was refused as too large; 0: they cannot be smaller."""
    before = outgoing.part_bytes or min(outgoing.entry.size, 2 * PART_BYTES_MAX)
    size = before // 2
    return size if size >= PART_BYTES_MIN else 0


def part_of(headers: Sequence[Header]) -> tuple[int, int] | None:
    """Which part of how many a record is; None: it is a whole letter."""
    number, _, count = (header(headers, PART) or "").partition("/")
    if _COUNT.fullmatch(number) and _COUNT.fullmatch(count) and 1 <= int(number) <= int(count):
        return int(number), int(count)
    return None


def pack(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bytes:
    """A record's key, value and headers as bytes: each with its length before it, -1 for none."""
    pieces: list[bytes | None] = [key, value]
    for name, content in headers:
        pieces += [name.encode("utf-8", "surrogateescape"), content]
    return b"".join(_LENGTH.pack(-1) if piece is None else _LENGTH.pack(len(piece)) + bytes(piece) for piece in pieces)


def unpack(data: bytes) -> tuple[bytes | None, bytes | None, list[Header]]:
    """The key, value and headers again. ValueError when these bytes are none."""
    pieces: list[bytes | None] = []
    position = 0
    while position < len(data):
        if position + _LENGTH.size > len(data):
            raise ValueError("a length is cut off")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length < -1 or position + max(0, length) > len(data):
            raise ValueError(f"{length} bytes at {position}, of {len(data)}")
        pieces.append(None if length < 0 else data[position : position + length])
        position += max(0, length)
    if len(pieces) < 2 or len(pieces) % 2:
        raise ValueError(f"{len(pieces)} pieces")
    names: list[Any] = pieces[2::2]
    if None in names:
        raise ValueError("a header without a name")
    headers = [(name.decode("utf-8", "surrogateescape"), value) for name, value in zip(names, pieces[3::2])]
    return pieces[0], pieces[1], headers
