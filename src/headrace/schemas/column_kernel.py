"""The compiled kernel that runs a column program over records: numba, with an explicit signature and a cache.

Importing this module imports numba: only `columns` does so, when it is there.
"""

from __future__ import annotations

from typing import Any

from headrace.records.compiling import (
    bytes_in,
    bytes_out,
    copy,
    helper,
    i64,
    ints_out,
    kernel,
    longs_in,
    longs_out,
    np,
)
from headrace.schemas.column_program import LOOPS_MAX, Op

_END, _LONG, _FLOAT, _DOUBLE = int(Op.END), int(Op.LONG), int(Op.FLOAT), int(Op.DOUBLE)
_LONG_AS_FLOAT, _LONG_AS_DOUBLE = int(Op.LONG_AS_FLOAT), int(Op.LONG_AS_DOUBLE)
_FLOAT_AS_DOUBLE, _BOOLEAN, _BYTES, _FIXED = (
    int(Op.FLOAT_AS_DOUBLE),
    int(Op.BOOLEAN),
    int(Op.BYTES),
    int(Op.FIXED),
)
_ENUM, _UNION, _PUT, _JUMP = int(Op.ENUM), int(Op.UNION), int(Op.PUT), int(Op.JUMP)
_LOOP, _NEXT, _FAIL = int(Op.LOOP), int(Op.NEXT), int(Op.FAIL)
_LOOPS_MAX = LOOPS_MAX

FAULT_CUT, FAULT_VALUE, FAULT_LEFT, FAULT_ITEMS = 1, 2, 3, 4
_CUT, _VALUE, _LEFT, _ITEMS = FAULT_CUT, FAULT_VALUE, FAULT_LEFT, FAULT_ITEMS
ITEMS_MAX = 100_000_000
_MAX = ITEMS_MAX


@helper
def _long(data: Any, at: Any, end: Any) -> Any:
    """A zigzag varint and the position after it, or position -1."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
        if shift > np.uint64(63):
            break
    return np.int64(0), np.int64(-1)


@helper
def _fixed_bits(data: Any, at: Any, count: Any) -> Any:
    """Little-endian bytes as bits."""
    value = np.uint64(0)
    for number in range(count):
        value |= np.uint64(data[at + number]) << np.uint64(8 * number)
    return np.int64(value)


@kernel(
    i64(
        bytes_in, longs_in, longs_in, longs_in, longs_in, longs_in, longs_in, i64,
        longs_out, longs_out, longs_out, longs_out, longs_out, longs_out,
    )
)  # fmt: skip
def run(
    data: Any,
    starts: Any,
    ends: Any,
    operations: Any,
    tables: Any,
    bases: Any,
    rooms: Any,
    null_at: Any,
    out: Any,
    counts: Any,
    faults: Any,
    saved: Any,
    bits: Any,
    frames: Any,
) -> Any:
    """Run the program for each row. Gives -1, or the slot that has no room for what there is.

    `faults` gets per row what is wrong with it; such a row is null. `bits` has one element, where floats and their
    bits change into one another; `frames` two per loop.
    """
    doubles = bits.view(np.float64)
    floats = bits.view(np.float32)
    slots = counts.shape[0]
    for row in range(starts.shape[0]):
        for slot in range(slots):
            saved[slot] = counts[slot]
        at = starts[row]
        end = ends[row]
        fault = np.int64(0)
        pc = np.int64(0) if faults[row] == 0 else null_at
        depth = np.int64(0)
        while True:
            op = operations[pc]
            slot = np.int64(-1)
            number = np.int64(0)
            if op == _END:
                if at != end and faults[row] == 0:
                    fault = np.int64(_LEFT)
                    at = end
                if fault == 0:
                    break
            elif op == _PUT:
                slot = operations[pc + 1]
                number = operations[pc + 2]
                pc += 3
            elif op in (_LONG, _LONG_AS_DOUBLE, _LONG_AS_FLOAT):
                number, at = _long(data, at, end)
                if at < 0:
                    fault = np.int64(_CUT)
                elif op == _LONG_AS_DOUBLE:
                    doubles[0] = np.float64(number)
                    number = bits[0]
                elif op == _LONG_AS_FLOAT:
                    bits[0] = 0
                    floats[0] = np.float32(number)
                    number = bits[0]
                slot = operations[pc + 1]
                pc += 2
            elif op in (_BYTES, _FIXED):
                if op == _BYTES:
                    number, at = _long(data, at, end)
                    slot = operations[pc + 1]
                    pc += 2
                else:
                    number = operations[pc + 2]
                    slot = operations[pc + 1]
                    pc += 3
                if at < 0 or number > end - at:
                    fault = np.int64(_CUT)
                elif number < 0:
                    fault = np.int64(_VALUE)
                else:
                    if slot >= 0:
                        where = counts[slot + 1]
                        if where >= rooms[slot + 1]:
                            return slot + 1
                        out[bases[slot + 1] + where] = number
                        counts[slot + 1] = where + 1
                    length = number
                    number = at
                    at += length
            elif op == _UNION:
                number, at = _long(data, at, end)
                if at < 0:
                    fault = np.int64(_CUT)
                elif number < 0 or number >= operations[pc + 2]:
                    fault = np.int64(_VALUE)
                else:
                    pc = tables[operations[pc + 1] + number]
                    continue
            elif op == _JUMP:
                pc = operations[pc + 1]
                continue
            elif op == _DOUBLE:
                if at + 8 > end:
                    fault = np.int64(_CUT)
                else:
                    number = _fixed_bits(data, at, 8)
                    at += 8
                slot = operations[pc + 1]
                pc += 2
            elif op in (_FLOAT, _FLOAT_AS_DOUBLE):
                if at + 4 > end:
                    fault = np.int64(_CUT)
                else:
                    number = _fixed_bits(data, at, 4)
                    at += 4
                    if op == _FLOAT_AS_DOUBLE:
                        bits[0] = number
                        doubles[0] = np.float64(floats[0])
                        number = bits[0]
                slot = operations[pc + 1]
                pc += 2
            elif op == _BOOLEAN:
                if at >= end:
                    fault = np.int64(_CUT)
                else:
                    number = np.int64(data[at])
                    at += 1
                    if number > 1:
                        fault = np.int64(_VALUE)
                slot = operations[pc + 1]
                pc += 2
            elif op == _ENUM:
                number, at = _long(data, at, end)
                if at < 0:
                    fault = np.int64(_CUT)
                elif number < 0 or number >= operations[pc + 3]:
                    fault = np.int64(_VALUE)
                else:
                    number = tables[operations[pc + 2] + number]
                    if number < 0:
                        fault = np.int64(_VALUE)
                slot = operations[pc + 1]
                pc += 4
            elif op == _LOOP:
                frames[2 * depth] = 0
                frames[2 * depth + 1] = 0
                depth += 1
                pc += 1
                continue
            elif op == _NEXT:
                left = frames[2 * depth - 2]
                total = frames[2 * depth - 1]
                if left == 0:
                    left, at = _long(data, at, end)
                    if at >= 0 and left < 0:
                        left = -left
                        number, at = _long(data, at, end)
                    if at < 0:
                        fault = np.int64(_CUT)
                    elif left < 0 or total + left > _MAX:
                        fault = np.int64(_ITEMS)
                if fault == 0:
                    if left == 0:
                        depth -= 1
                        slot = operations[pc + 1]
                        number = total
                        pc = operations[pc + 2]
                    else:
                        frames[2 * depth - 2] = left - 1
                        frames[2 * depth - 1] = total + 1
                        pc += 3
                        continue
            else:
                fault = np.int64(_VALUE)
            if fault != 0:
                faults[row] = fault
                fault = np.int64(0)
                for one in range(slots):
                    counts[one] = saved[one]
                pc = null_at
                depth = np.int64(0)
                continue
            if slot >= 0:
                where = counts[slot]
                if where >= rooms[slot]:
                    return slot
                out[bases[slot] + where] = number
                counts[slot] = where + 1
    return np.int64(-1)


@kernel(i64(bytes_in, longs_in, longs_in, ints_out, bytes_out))
def lay_bytes(data: Any, starts: Any, lengths: Any, ends: Any, out: Any) -> Any:
    """Bytes one after the other, with Arrow's offsets; gives how many there are."""
    at = np.int64(0)
    ends[0] = 0
    for row in range(starts.shape[0]):
        length = lengths[row]
        if length > 0:
            copy(out, at, data, starts[row], length)
        at += length
        ends[row + 1] = at
    return at
