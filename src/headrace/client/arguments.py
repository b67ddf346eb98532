"""Arguments that Python would take and misread: one name where several are wanted, a listener that hears nothing."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.topics import TopicPartition

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
