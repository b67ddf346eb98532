"""What parallel consumers promise: every record is finished, those of a key in order, and no commit passes one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.testing.simulated.history import BrokenError, Handled
from headrace.testing.simulated.plans import KEYED
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.testing.simulated.checks import Contents

_NEVER = 1 << 62


class _Ends:
    """When the last of the records before an offset was finished for the first time."""

    def __init__(self, ends: list[tuple[int, int]]) -> None:
        self._offsets = [offset for offset, _ in ends]
        self._latest = list(accumulate((tick for _, tick in ends), max, initial=0))

    def before(self, offset: int) -> int:
        return self._latest[bisect_left(self._offsets, offset)]


def not_handled(handled: Handled, found: Mapping[TopicPartition, Contents]) -> str | None:
    """A record that no parallel consumer has finished; None when all are."""
    for partition, held in found.items():
        if partition.topic == KEYED:
            for offset, (value, _) in held.rows.items():
                if value not in handled.ends:
                    return f"{partition}: {value!r} at {offset} was finished by no parallel consumer"
    return None


def check_handled(handled: Handled, found: Mapping[TopicPartition, Contents]) -> None:
    """Raise for a record that was begun before an earlier one of its key was finished, or a commit that passed one."""
    of_partition: dict[TopicPartition, list[tuple[int, int]]] = {}
    of_key: dict[tuple[TopicPartition, str], list[tuple[int, int]]] = {}
    for partition, held in found.items():
        if partition.topic == KEYED:
            for offset, (value, _) in sorted(held.rows.items()):
                end = offset, handled.ends.get(value, _NEVER)
                of_partition.setdefault(partition, []).append(end)
                of_key.setdefault((partition, _key(value)), []).append(end)
    by_partition = {partition: _Ends(ends) for partition, ends in of_partition.items()}
    by_key = {key: _Ends(ends) for key, ends in of_key.items()}
    for partition, offset, value, tick in handled.begins:
        ends = by_key.get((partition, _key(value)))
        if ends is None or ends.before(offset) > tick:
            raise BrokenError(f"{partition}: {value!r} at {offset} was begun before an earlier one of its key was done")
    for partition, offset, tick in handled.commits:
        if partition in by_partition and by_partition[partition].before(offset) > tick:
            raise BrokenError(f"{partition}: a commit of {offset} passed a record that was not finished")


def _key(value: str) -> str:
    return value.split(":")[2]
