"""Passing records of different sizes, some hundred at a time, for `walk`.

What lies before a record's key has a fixed layout as long as the timestamps take as many bytes and the offsets do, and
that is so for long stretches: one struct call reads it, and tables say what numbers of one and two bytes mean. Whatever
is written in another way, has headers or breaks a rule ends the stretch before it, and is looked at one by one.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from operator import length_hint
from typing import Any

from headrace.records.kernels_plain import MIN_BODY_BYTES

# Where offsets, counted from 0 on, take another byte; and how many are alike but for their third byte.
_TWO_BYTES_FROM, _THREE_BYTES_FROM, _FOUR_BYTES_FROM = 1 << 6, 1 << 13, 1 << 20
_NO_LENGTH = 1 << 40
_NULL = 1
_short = struct.Struct("<H").unpack_from


def _make_tables() -> tuple[list[int], list[int]]:
    """For any two bytes, as one number: how far behind a length the end of its field is, or the end of its record.

    A length below 0 is none. A record's length of one byte is looked up with the zero before it, and that counts.
    """
    numbers = range(1 << 13)
    shared = list(range(len(numbers) + 2))  # the same objects again and again, to take less memory
    of_one_byte = [shared[1 + (number >> 1)] if not number & 1 else 1 for number in range(0x80)]
    fields: list[int] = []
    records: list[int] = []
    for second in range(0x100):
        fields += of_one_byte
        size = second >> 1
        is_record = second < 0x80 and not second & 1 and size >= MIN_BODY_BYTES
        records += [shared[size + 2] if is_record else 0]
        records += [0] * 0x7F
        if second >= 0x80:
            fields += [_NO_LENGTH] * 0x80
            records += [0] * 0x80
            continue
        for number in range(second << 7, (second << 7) + 0x80):
            is_length = not number & 1
            fields.append(shared[2 + (number >> 1)] if is_length else 2)
            records.append(shared[2 + (number >> 1)] if is_length and number >> 1 >= MIN_BODY_BYTES else 0)
    return fields, records


_FIELDS, _RECORDS = _make_tables()
_ONE_BYTE = tuple(range(0, 0x80, 2))
_TWO_BYTES = tuple((2 * place & 0x7F | 0x80) | 2 * place >> 7 << 8 for place in range(_THREE_BYTES_FROM))
# The first two of three.
_OF_THREE_BYTES = tuple(number | 0x8000 for number in _TWO_BYTES)
_LAYOUTS: dict[tuple[str, str, str], tuple[Callable[..., Any], Callable[..., Any], int]] = {}


def _layout(stamp: str, offset: str, key: str) -> tuple[Callable[..., Any], Callable[..., Any], int]:
    """How records with and without a key begin, and how many bytes a record has besides its key and its value."""
    found = _LAYOUTS.get((stamp, offset, key))
    if found is None:
        keyed, keyless = struct.Struct(f"<Hx{stamp}{offset}{key}"), struct.Struct(f"<Hx{stamp}{offset}{key}H")
        found = _LAYOUTS[stamp, offset, key] = keyed.unpack_from, keyless.unpack_from, keyed.size + 1
    return found


def _numbering(place: int, count: int) -> tuple[tuple[int, ...], str, int]:
    """How the offsets from a place on are written, as far as they are written alike: their first two bytes as numbers,
    the layout of these, and the third byte, or -1 if there is none."""
    if place < _TWO_BYTES_FROM:
        return _ONE_BYTE[place : place + count], "B", -1
    if place < _THREE_BYTES_FROM:
        return _TWO_BYTES[place : place + count], "H", -1
    low = place % _THREE_BYTES_FROM
    return _OF_THREE_BYTES[low : low + count], "H", place >> 13


def pass_varied(
    raw: bytes, at: int, place: int, count: int, allows: Callable[[int], bool], *, needs_key: bool = False
) -> tuple[int, int]:
    """Pass up to so many records, the first of which lies behind another one and has that place in the batch.

    The position behind those that were passed, and how many they were. `allows` is asked about each timestamp that
    differs from the one before it, by its distance from the batch's.
    """
    if place >= _FOUR_BYTES_FROM or at == 0 or at + 2 + MIN_BODY_BYTES > len(raw):
        return at, 0
    body_at = at + 2 if raw[at] & 0x80 else at + 1
    is_wide = raw[body_at + 1] >= 0x80
    numbers, offset_layout, third = _numbering(place, count)
    # A third byte of the offset is looked at together with the length of the key.
    key_bytes, first_key = (1, 0) if third < 0 else (2, third)
    shift = 8 * key_bytes - 8
    keyed, keyless, head_bytes = _layout("H" if is_wide else "B", offset_layout, "B" if third < 0 else "H")
    is_allowed = functools.partial(_is_allowed_wide if is_wide else _is_allowed, allows)
    key_at = body_at + head_bytes - 4
    if key_at >= len(raw) or (raw[key_at] == _NULL and needs_key):
        return at, 0
    if raw[key_at] == _NULL:
        return _pass_keyless(raw, at, numbers, keyless, head_bytes, first_key | _NULL << shift, is_allowed)
    keys = {first_key | number << shift: key_bytes + (number >> 1) for number in range(0, 0x80, 2)}
    return _pass_keyed(raw, at, numbers, keyed, head_bytes - 1 - key_bytes, keys, is_allowed)


def _is_allowed(allows: Callable[[int], bool], stamp: int) -> bool:
    return stamp < 0x80 and allows(stamp >> 1 ^ -(stamp & 1))


def _is_allowed_wide(allows: Callable[[int], bool], stamp: int) -> bool:
    if stamp >= 0x8000 or not stamp & 0x80:
        return False
    number = stamp & 0x7F | stamp >> 8 << 7
    return allows(number >> 1 ^ -(number & 1))


def _pass_keyless(
    raw: bytes,
    at: int,
    numbers: tuple[int, ...],
    unpack: Callable[..., Any],
    head_bytes: int,
    null: int,
    is_allowed: Callable[[int], bool],
) -> tuple[int, int]:
    fields, records = _FIELDS, _RECORDS
    last_stamp = -1
    left = iter(numbers)
    try:
        for number in left:
            start = at
            size, stamp, found, key, value = unpack(raw, start)
            if not size & 0x80:
                # Its length has one byte: the zero that ends the record before it is looked at as another.
                start -= 1
                size, stamp, found, key, value = unpack(raw, start)
                if size & 0xFF:
                    break
            record_bytes = records[size]
            if found != number or key != null or fields[value] + head_bytes != record_bytes:
                break
            end = start + record_bytes
            if raw[end - 1]:
                break
            if stamp != last_stamp:
                if not is_allowed(stamp):
                    break
                last_stamp = stamp
            at = end
        else:
            return at, len(numbers)
    except (struct.error, IndexError):
        pass  # not all of it has come
    return at, len(numbers) - length_hint(left) - 1


def _pass_keyed(
    raw: bytes,
    at: int,
    numbers: tuple[int, ...],
    unpack: Callable[..., Any],
    head_bytes: int,
    keys: dict[int, int],
    is_allowed: Callable[[int], bool],
) -> tuple[int, int]:
    fields, records, short = _FIELDS, _RECORDS, _short
    last_stamp = -1
    left = iter(numbers)
    try:
        for number in left:
            start = at
            size, stamp, found, key = unpack(raw, start)
            if not size & 0x80:
                start -= 1
                size, stamp, found, key = unpack(raw, start)
                if size & 0xFF:
                    break
            value_at = start + head_bytes + keys[key]
            (value,) = short(raw, value_at)
            end = start + records[size]
            if found != number or value_at + fields[value] + 1 != end or raw[end - 1]:
                break
            if stamp != last_stamp:
                if not is_allowed(stamp):
                    break
                last_stamp = stamp
            at = end
        else:
            return at, len(numbers)
    except (struct.error, IndexError, KeyError):
        pass
    return at, len(numbers) - length_hint(left) - 1
