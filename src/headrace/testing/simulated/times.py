"""Look-ups by time: in logs whose records were stamped by clocks that differ, and that step."""

from __future__ import annotations

from headrace.log.log import Log
from headrace.records import read_records, split
from headrace.testing.simulated.history import BrokenError

#: So many times are looked up in each log.
_SAMPLES = 3


def check_times(name: str, log: Log, data: bytes) -> None:
    """A look-up finds the first record that is not before a time; `data` is the whole log."""
    times = [(record.offset, record.timestamp) for batch in split(data) for record in read_records(batch)]
    if not times:
        return
    for offset, time_ms in times[:: -(-len(times) // _SAMPLES)]:
        for wanted_ms in (time_ms, time_ms + 1):
            expected = next((found for found in times if found[1] >= wanted_ms), None)
            told = log.find_by_time(wanted_ms)
            if (None if told is None else (told.offset, told.timestamp_ms)) != expected:
                raise BrokenError(f"{name}: at {wanted_ms} of {offset} is {told}, not {expected}")
    latest = max(time_ms for _, time_ms in times)
    first = next(offset for offset, time_ms in times if time_ms == latest)
    if (told := log.max_timestamp()).offset != first:
        raise BrokenError(f"{name}: the latest time is {latest} at {first}, not {told}")
