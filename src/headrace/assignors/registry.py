"""Finds an assignor by our name, Java's class name, a dotted Python path, a class or an object."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

from headrace.assignors.base import Assignor, AssignorError
from headrace.assignors.lag import LagAssignor
from headrace.assignors.ranges import RangeAssignor
from headrace.assignors.roundrobin import RoundRobinAssignor
from headrace.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from headrace.assignors.weighted import WeightedAssignor

_JAVA_PACKAGE = "org.apache.kafka.clients.consumer."

BY_NAME: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "lag": LagAssignor,
    "weighted": WeightedAssignor,
}

JAVA_NAMES: dict[str, str] = {
    _JAVA_PACKAGE + "RangeAssignor": "range",
    _JAVA_PACKAGE + "RoundRobinAssignor": "roundrobin",
    _JAVA_PACKAGE + "StickyAssignor": "sticky",
    _JAVA_PACKAGE + "CooperativeStickyAssignor": "cooperative-sticky",
}

_METHODS = ("subscription_user_data", "assign", "on_assignment")
_VALUES = ("name", "version", "supported_protocols", "needs")


def resolve(what: str | type[Any] | Assignor, **options: Any) -> Assignor:
    """An assignor object, made for one consumer unless an object was given.

    `options` go to the constructor: `resolve("weighted", weight=3)`.
    """
    if isinstance(what, str):
        what = _find_class(what)
    if isinstance(what, type):
        try:
            return _checked(what(**options))
        except TypeError as error:
            raise AssignorError(f"cannot make an assignor from {what.__qualname__} with {options}: {error}") from error
    if options:
        raise AssignorError(f"options {sorted(options)} were given with an assignor that is made already: {what!r}")
    return _checked(what)


def _find_class(name: str) -> type[Any]:
    known = BY_NAME.get(JAVA_NAMES.get(name, name))
    if known is not None:
        return known
    module_name, _, attribute = name.replace(":", ".").rpartition(".")
    if not module_name or name.startswith(_JAVA_PACKAGE):
        raise _unknown(name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the path itself may be missing; a module that fails on an import of its own must say so.
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise _unknown(name) from error
        raise
    found = getattr(module, attribute, None)
    if not inspect.isclass(found):
        raise AssignorError(f"no assignor {name!r}: module {module_name!r} has no class {attribute!r}")
    return found


def _unknown(name: str) -> AssignorError:
    choices = [*BY_NAME, *JAVA_NAMES]
    nearest = difflib.get_close_matches(name.lower(), choices, n=1) or difflib.get_close_matches(name, choices, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return AssignorError(
        f"no assignor {name!r}: {hint}Known are {', '.join(BY_NAME)}, "
        "Java's class names, and dotted paths of Python classes"
    )


def _checked(found: Any) -> Assignor:
    missing = [part for part in (*_METHODS, *_VALUES) if not hasattr(found, part)]
    missing += [part for part in _METHODS if hasattr(found, part) and not callable(getattr(found, part))]
    if missing:
        raise AssignorError(
            f"{type(found).__qualname__} is no assignor: it lacks {', '.join(missing)} "
            "(inherit from headrace.assignors.AssignorBase to get the usual ones)"
        )
    assignor: Assignor = found
    if not isinstance(assignor.name, str) or not assignor.name:
        raise AssignorError(f"{type(found).__qualname__} needs a name: members of a group agree on it")
    return assignor
