"""Finds assignors of the broker by name: ours, by our names or Java's class names, and those of entry points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points

from headrace.assignors.server.base import ServerAssignor, ServerAssignorError
from headrace.assignors.server.ranges import ServerRangeAssignor
from headrace.assignors.server.uniform import UniformAssignor

ENTRY_POINTS = "headrace.server_assignors"
_JAVA_PACKAGE = "org.apache.kafka.coordinator.group.assignor."

BUILT_IN: Mapping[str, ServerAssignor] = {"uniform": UniformAssignor(), "range": ServerRangeAssignor()}
_JAVA_NAMES = {_JAVA_PACKAGE + "UniformAssignor": "uniform", _JAVA_PACKAGE + "RangeAssignor": "range"}


def server_assignors(names: Iterable[str]) -> dict[str, ServerAssignor]:
    """The assignors of these names, by the names that members know them by, in this order: the first is the default."""
    found: dict[str, ServerAssignor] = {}
    for name in names:
        assignor = BUILT_IN.get(_JAVA_NAMES.get(name, name)) or _from_entry_point(name)
        if assignor.name in found:
            raise ServerAssignorError(f"group.consumer.assignors has two that are called {assignor.name!r}")
        found[assignor.name] = assignor
    return found


def _from_entry_point(name: str) -> ServerAssignor:
    known = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    entry = known.get(name)
    if entry is None:
        choices = ", ".join([*BUILT_IN, *known])
        raise ServerAssignorError(
            f"group.consumer.assignors names {name!r}, which is none of {choices}: install the package that has it as "
            f"an entry point of {ENTRY_POINTS!r}"
        )
    try:
        assignor: ServerAssignor = entry.load()()
    except Exception as error:
        raise ServerAssignorError(
            f"the assignor {name!r} of group.consumer.assignors cannot be made: {error!r}"
        ) from error
    if not isinstance(getattr(assignor, "name", None), str) or not callable(getattr(assignor, "assign", None)):
        raise ServerAssignorError(f"{entry.value!r} of group.consumer.assignors needs a name and a method assign")
    return assignor
