"""Arguments that Python would take and misread: one name where several are wanted, a listener that hears nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headrace.topics import TopicPartition

_SEVERAL = ("Iterable", "Sequence", "Collection")
_LISTENER_METHODS = ("on_partitions_revoked", "on_partitions_assigned")


def check_several(given: object, call: str, name: str) -> None:
    """Refuse one name, or one partition, where several are wanted: its letters would be taken for names."""
    if isinstance(given, (str, bytes, TopicPartition)):
        one = f"({given!r}, 0)" if name == "partitions" and isinstance(given, str) else repr(given)
        raise TypeError(f"{call} takes several {name}, and {given!r} is not: give a list, [{one}]")


def check_mapping(given: object, call: str, name: str) -> None:
    """Refuse what is no mapping where one is wanted."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{call} takes {name} as a mapping (a dict), not {type(given).__name__}")


def argument_check(operation: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """What refuses arguments of a wrong kind, by the operation's own annotations: `delete_topics("abc")` would
    otherwise delete the topics a, b and c. Its first parameter, which is no argument of the method's, is left out."""
    names = list(inspect.signature(operation).parameters)[1:]
    kinds = {name: str(operation.__annotations__.get(name, "")).partition("[")[0] for name in names}

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for name, value in [*zip(names, args), *kwargs.items()]:
            if value is not None and kinds.get(name) in _SEVERAL:
                check_several(value, operation.__name__, name)
            elif value is not None and kinds.get(name) == "Mapping":
                check_mapping(value, operation.__name__, name)

    return check


def check_listener(listener: object) -> None:
    """Refuse a rebalance listener that lacks a method: it would never be called, and nobody would know."""
    if listener is None:
        return
    missing = [name for name in _LISTENER_METHODS if not callable(getattr(listener, name, None))]
    if missing:
        what = f"the class {listener.__name__}" if isinstance(listener, type) else type(listener).__name__
        raise TypeError(
            f"{what} is no rebalance listener: it has no method {' and no '.join(missing)}. A listener has both "
            "(see headrace.RebalanceListener), and may have on_partitions_lost"
        )
    if isinstance(listener, type):
        raise TypeError(f"subscribe takes a listener, not its class: {listener.__name__}()")
