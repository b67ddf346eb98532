"""Which records beyond a committed offset are finished, as text for the commit's metadata, and back.

Kafka keeps a note of up to 4,096 bytes with each committed offset (`offset.metadata.max.bytes`). The note says which
offsets behind the committed one need not be handled again: as runs (pairs of "so many open, so many finished") or as
one bit per offset, whichever is shorter. What does not fit is left out from the end, and handled again after a restart.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

METADATA_BYTES_MAX = 4_096
OFFSETS_DECODED_MAX = 1 << 40
"""Offsets lie within 63 bits; nobody is further ahead than this."""

_PREFIX = "headrace:1"
_RUNS, _BITS = "r", "b"
_HEAD = len(_PREFIX) + 3
_BITS_OF = bytes.maketrans(b"\x00\x01", b"01")

Interval = tuple[int, int]
"""First offset, and the one after the last."""


def encode_finished(base: int, intervals: Sequence[Interval], bytes_max: int = METADATA_BYTES_MAX) -> tuple[str, bool]:
    """A note for a commit of `base`, and whether all of it fits. Intervals ascend, behind `base`, without touching."""
    if not intervals:
        return "", True
    room = (bytes_max - _HEAD) * 3 // 4
    head = _varint(base)
    runs, runs_reach, runs_whole = _as_runs(base, intervals, room - len(head))
    span = intervals[-1][1] - base
    bits_whole = (span + 7) // 8 <= room - len(head)
    # Bits are worth building only where they are shorter, or reach further.
    if runs_whole and (len(runs) <= (span + 7) // 8 or not bits_whole):
        return _text(_RUNS, head + runs), True
    bits = _as_bits(base, intervals, room - len(head))
    if bits_whole:
        return _text(_BITS, head + bits), True
    if runs_reach >= base + 8 * len(bits):
        return (_text(_RUNS, head + runs), False) if runs else ("", False)
    return _text(_BITS, head + bits), False


def decode_finished(base: int, note: str | None) -> list[Interval] | None:
    """The finished intervals behind a committed offset. None: the note is somebody else's, or of another commit."""
    if not note:
        return []
    prefix, _, rest = note.rpartition(":")
    name, _, kind = prefix.rpartition(":")
    if name != _PREFIX or kind not in (_RUNS, _BITS):
        return None
    try:
        data = base64.urlsafe_b64decode(rest + "=" * (-len(rest) % 4))
        noted_base, position = _read_varint(data, 0)
    except (ValueError, binascii.Error):
        return None
    if noted_base != base:
        return None
    return _read_bits(base, data[position:]) if kind == _BITS else _read_runs(base, data, position)


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Ascending intervals, joined where they touch."""
    merged: list[Interval] = []
    for start, end in intervals:
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _text(kind: str, data: bytes) -> str:
    return f"{_PREFIX}:{kind}:{base64.urlsafe_b64encode(data).decode('ascii').rstrip('=')}"


# --- runs -------------------------------------------------------------------------------------------------------------


def _as_runs(base: int, intervals: Sequence[Interval], room: int) -> tuple[bytes, int, bool]:
    """The runs that fit, the offset that they reach to, and whether that is all."""
    data = bytearray()
    position = base
    for start, end in intervals:
        pair = _varint(start - position) + _varint(end - start)
        if len(data) + len(pair) > room:
            return bytes(data), position, False
        data += pair
        position = end
    return bytes(data), position, True


def _read_runs(base: int, data: bytes, position: int) -> list[Interval] | None:
    intervals: list[Interval] = []
    offset = base
    while position < len(data):
        try:
            is_open, position = _read_varint(data, position)
            finished, position = _read_varint(data, position)
        except ValueError:
            return None
        if is_open + finished > OFFSETS_DECODED_MAX or not finished:
            return None
        intervals.append((offset + is_open, offset + is_open + finished))
        offset += is_open + finished
    return intervals


# --- bits -------------------------------------------------------------------------------------------------------------


def _as_bits(base: int, intervals: Sequence[Interval], room: int) -> bytes:
    count = min(intervals[-1][1] - base, room * 8)
    flags = bytearray(count)
    for start, end in intervals:
        first, last = start - base, min(end - base, count)
        if first >= count:
            break
        flags[first:last] = b"\x01" * (last - first)
    # The first offset is the lowest bit, so that the number's length is the last finished one.
    flags.reverse()
    number = int(flags.translate(_BITS_OF), 2)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _read_bits(base: int, data: bytes) -> list[Interval]:
    flags = "".join(f"{byte:08b}"[::-1] for byte in data)
    intervals: list[Interval] = []
    start = flags.find("1")
    while start >= 0:
        end = flags.find("0", start)
        end = len(flags) if end < 0 else end
        intervals.append((base + start, base + end))
        start = flags.find("1", end)
    return intervals


# --- numbers ----------------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(position, min(len(data), position + 10)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise ValueError("a number without an end")
