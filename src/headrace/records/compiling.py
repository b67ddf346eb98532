"""How kernels are compiled: numba's decorators and types, a memcpy, and numpy views of columns' memory.

Importing this module imports numba: only the compiled kernels do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.records.buffers import SHARED
from headrace.records.columns import BytesColumn

# What is compiled is numba's dialect of Python, with its own types: the signatures say them, mypy cannot.
np: Any = numpy
types: Any = numba.types
Array = Any
_copy_memory: Any = cgutils.raw_memcpy

bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
bytes_out = types.Array(types.uint8, 1, "C")
longs_in = types.Array(types.int64, 1, "C", readonly=True)
longs_out = types.Array(types.int64, 1, "C")
ints_in = types.Array(types.int32, 1, "C", readonly=True)
ints_out = types.Array(types.int32, 1, "C")
i64 = types.int64
triple = types.Tuple((i64, i64, i64))
quad = types.Tuple((i64, i64, i64, i64))
no_bytes, no_ints, no_longs = (np.empty(0, dtype) for dtype in (np.uint8, np.int32, np.int64))

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}


def kernel(signature: Any, *, nogil: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiled on import for one signature, or loaded from numba's cache. Without `nogil`, no other thread can change
    Python's objects meanwhile."""
    options = _OPTIONS | {"nogil": nogil}
    decorate: Callable[[Callable[..., Any]], Callable[..., Any]] = numba.njit(signature, cache=True, **options)
    return decorate


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Part of the kernels that call it, and compiled only with them: a cached kernel needs no helper to be loaded."""
    compiled: Callable[..., Any] = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled


def _copy_intrinsic(typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """memcpy between two byte arrays: a slice assignment in numba checks for overlap and costs tens of nanoseconds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_array = context.make_array(signature.args[0])(context, builder, arguments[0])
        source_array = context.make_array(signature.args[2])(context, builder, arguments[2])
        to_pointer = builder.gep(target_array.data, [arguments[1]])
        from_pointer = builder.gep(source_array.data, [arguments[3]])
        _copy_memory(builder, to_pointer, from_pointer, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


copy: Any = intrinsic(_copy_intrinsic)


def _load_intrinsic(typing_context: Any, address: Any) -> Any:
    """The 64-bit number at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(types.int64)
        return builder.load(builder.inttoptr(arguments[0], kind.as_pointer()))

    return types.int64(types.int64), generate


load: Any = intrinsic(_load_intrinsic)


def _copy_from_intrinsic(typing_context: Any, target: Any, target_at: Any, address: Any, length: Any) -> Any:
    """memcpy from an address into a byte array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_array = context.make_array(signature.args[0])(context, builder, arguments[0])
        to_pointer = builder.gep(target_array.data, [arguments[1]])
        from_pointer = builder.inttoptr(arguments[2], to_pointer.type)
        _copy_memory(builder, to_pointer, from_pointer, arguments[3], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, types.int64), generate


copy_from: Any = intrinsic(_copy_from_intrinsic)


def pooled(size: int, dtype: Any) -> Array:
    """Room for so many bytes, from the pool: fresh memory for every batch would cost more than decoding it."""
    return np.empty(0, dtype) if size == 0 else np.frombuffer(SHARED.take(size), dtype)


def as_array(numbers: Any, dtype: Any) -> Array:
    """A numpy array over the same memory; numpy refuses to wrap an empty buffer."""
    if len(numbers) == 0:
        return np.empty(0, dtype)
    view: Array = np.frombuffer(numbers, dtype)
    return view


def arrays_of(column: BytesColumn) -> tuple[Array, Array, Array]:
    return as_array(column.data, np.uint8), as_array(column.starts, np.int32), as_array(column.lengths, np.int32)
