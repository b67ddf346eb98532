"""All that Headrace knows of CPython's inside: whether it holds in this interpreter, and how to switch it off.

| what | what it is for | without it |
|---|---|---|
| reference counts | `send` hands out handles; those that nobody kept become columns early | every handle is kept |
| how lists and byte strings lie in memory | compiled code reads the rows of a list where they are | `map`, `join` |
| the form that `marshal` reads | many byte strings are made in one call | one is cut out after the other |

None of it is promised by Python. Each is tried on objects of our own when this module is imported, and used only where
it is what we think; HEADRACE_CPYTHON_INTERNALS=off (before the import) goes without all of them. The results are the
same, only slower. Nothing outside this module and the compiled kernels that are named after it may rely on any of it.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import struct
import sys
import sysconfig
from sys import getrefcount
from typing import Any, Final, cast

ENVIRONMENT: Final = "HEADRACE_CPYTHON_INTERNALS"


def _is_wanted() -> bool:
    word = os.environ.get(ENVIRONMENT, "on")
    if word not in ("on", "off"):
        raise ValueError(f"{ENVIRONMENT} must be 'on' or 'off', got {word!r}")
    return word == "on"


IS_CPYTHON: Final = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
USE_INTERNALS: Final = IS_CPYTHON and _is_wanted()
"""The switch: False where nothing of this may be relied on."""

# --- reference counts -------------------------------------------------------------------------------------------------


class _Probe(list[Any]):
    __slots__ = ()


def _held_by_one_list() -> int:
    """The count of references to an object that only one list holds, as `map` over that list counts it."""
    return next(map(getrefcount, [_Probe()]))


_HELD_BY_ONE_LIST: Final = _held_by_one_list()


def is_held_elsewhere(rows: list[Any], lists: int) -> bool:
    """Whether anybody holds any of these objects, besides so many lists of ours; True where nobody can say."""
    if not COUNTS_REFERENCES:
        return True
    return list(map(getrefcount, rows)).count(_HELD_BY_ONE_LIST + lists - 1) != len(rows)


def _can_count_references() -> bool:
    rows: list[Any] = [_Probe(), _Probe(), _Probe()]
    copy = rows[:]
    counts = [list(map(getrefcount, rows))]
    one = copy.pop()
    counts.append(list(map(getrefcount, rows)))
    del copy, one
    counts.append(list(map(getrefcount, rows)))
    two, alone = _HELD_BY_ONE_LIST + 1, _HELD_BY_ONE_LIST
    return counts == [[two, two, two], [two, two, two], [alone, alone, alone]]


COUNTS_REFERENCES: bool = USE_INTERNALS and _can_count_references()

# --- lists and byte strings in memory ---------------------------------------------------------------------------------
# The compiled kernels in `kernels_fast_objects` have these numbers built in: numba compiles them anew only when that
# file changes.

WORD: Final = 8
TYPE_AT: Final = 8
SIZE_AT: Final = 16
LIST_ITEMS_AT: Final = 24
BYTES_DATA_AT: Final = 32
_LIST_BYTES, _EMPTY_BYTES = 40, 33
TYPE_OF_BYTES: Final = id(bytes)
NONE: Final = id(None)


def address_of(rows: list[Any]) -> int:
    """Where the list is, for kernels; it has to live as long as they read it."""
    return id(rows)


def _can_read_lists() -> bool:
    """Whether lists and byte strings look as they do in CPython with its lock. Reads no further than they reach."""
    if (list.__basicsize__, bytes.__basicsize__, struct.calcsize("P")) != (_LIST_BYTES, _EMPTY_BYTES, WORD):
        return False
    rows = [b"", b"some", b"more of them"]
    for row in rows:
        _, kind, size, _, *data = struct.unpack(f"<qqqq{len(row) + 1}B", ctypes.string_at(id(row), 33 + len(row)))
        if (kind, size, bytes(data)) != (TYPE_OF_BYTES, len(row), row + b"\0"):
            return False
    _, kind, size, items, allocated = struct.unpack("<qqqqq", ctypes.string_at(id(rows), _LIST_BYTES))
    if (kind, size) != (id(list), len(rows)) or allocated < size:
        return False
    found = cast("tuple[int, ...]", struct.unpack("<qqq", ctypes.string_at(items, 3 * WORD)))
    return found == tuple(map(id, rows))


READS_LISTS: bool = USE_INTERNALS and _can_read_lists()

# --- marshal's form ---------------------------------------------------------------------------------------------------

LIST_CODE: Final = b"["[0]
BYTES_CODE: Final = b"s"[0]
NONE_CODE: Final = b"N"[0]
HEAD_BYTES: Final = 5
"""Of a list or a byte string: its code, and its length in four bytes, the lowest first."""


def load_list(data: bytes | bytearray | memoryview) -> list[bytes | None]:
    """A list of byte strings and None, from that form."""
    rows: list[bytes | None] = marshal.loads(data)
    return rows


def _can_load_lists() -> bool:
    rows = [b"bc", None, b"", b"x" * 300]
    form = struct.pack("<BI", LIST_CODE, len(rows))
    for row in rows:
        form += bytes([NONE_CODE]) if row is None else struct.pack("<BI", BYTES_CODE, len(row)) + row
    try:
        return load_list(form) == rows
    except (ValueError, TypeError, EOFError):
        return False


LOADS_LISTS: bool = USE_INTERNALS and _can_load_lists()
