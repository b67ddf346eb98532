"""Which kernels run: the compiled ones when a caller asked for them and the work is large enough, else the plain ones.

Nothing here imports numba until `use_fast` is called, which the broker never does, or HEADRACE_KERNELS=fast is set.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Protocol, cast

from headrace.records import kernels_plain
from headrace.records.batch import Buffer
from headrace.records.columns import BytesColumn
from headrace.records.kernels_plain import Decoded, Stretch

FAST_FROM_ROWS = 16
"""Below this many rows the call into compiled code costs more than the plain loop."""

ENVIRONMENT = "HEADRACE_KERNELS"


class Kernels(Protocol):
    """What both sets of kernels offer; `kernels_plain` says what each does."""

    NAME: str

    def survey_batches(self, data: Buffer, position: int, bytes_max: int) -> Stretch | None: ...

    def decode_records(self, data: Buffer, table: Sequence[int], capacity: int) -> Decoded: ...

    def offset_deltas(self, offsets: memoryview, base_offset: int) -> memoryview | None: ...

    def pack(self, rows: Sequence[bytes | None]) -> BytesColumn: ...

    def running_sizes(
        self, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], overhead: int
    ) -> tuple[Sequence[int], int]: ...

    def to_list(self, column: BytesColumn) -> list[bytes | None]: ...

    def gather(self, *columns: BytesColumn) -> tuple[bytes | memoryview, memoryview, int]: ...

    def last_per_key(self, column: BytesColumn) -> memoryview: ...

    def murmur2_column(self, column: BytesColumn) -> memoryview: ...


PLAIN = cast(Kernels, kernels_plain)
_fast: Kernels | None = None
_fast_from_rows = FAST_FROM_ROWS
_environment_read = False


def _forced() -> str:
    word = os.environ.get(ENVIRONMENT, "")
    if word not in ("", "plain", "fast"):
        raise ValueError(f"{ENVIRONMENT} must be 'plain' or 'fast', got {word!r}")
    return word


def use_fast() -> bool:
    """Load the compiled kernels now, for the whole process; says whether they are there.

    False where numba or numpy is not installed or has nowhere to cache (the plain kernels serve), or with
    HEADRACE_KERNELS=plain. Loading takes the time of importing numba, about a second: clients do it once they have
    moved enough records for that to pay, and a program that wants no pause then calls this when it starts.
    """
    global _fast, _fast_from_rows
    forced = _forced()
    if forced == "plain":
        return False
    if _fast is None:
        missing = [name for name in ("numpy", "numba") if importlib.util.find_spec(name) is None]
        if missing:
            if forced == "fast":
                raise ImportError(f"{ENVIRONMENT}=fast needs {' and '.join(missing)}: pip install 'headrace[fast]'")
            return False
        try:
            _fast = cast(Kernels, importlib.import_module("headrace.records.kernels_fast"))
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            # numba found no directory to cache in: compiling for seconds in every process is worse than plain kernels.
            advice = "set NUMBA_CACHE_DIR to a directory that can be written"
            if forced == "fast":
                raise RuntimeError(f"{ENVIRONMENT}=fast, but compiled kernels cannot be cached: {advice}") from error
            import logging  # here, because it would be a third of this room's import time

            logging.getLogger(__name__).warning(
                "using the plain kernels: numba cannot cache the compiled ones (%s); %s", error, advice
            )
            return False
        _fast_from_rows = 0 if forced == "fast" else FAST_FROM_ROWS
    return True


def choose(rows: int) -> Kernels:
    """The kernels for work on this many rows."""
    global _environment_read
    if not _environment_read:
        _environment_read = True
        if _forced() == "fast":
            use_fast()
    if _fast is not None and rows >= _fast_from_rows:
        return _fast
    return PLAIN
