"""Arguments that Python would take and misread: one name where several are wanted, a listener that hears nothing."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from operator import index
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, cast, get_args, get_origin

from headrace.functions import is_generator, name_of
from headrace.topics import TopicPartition

_LISTENER_METHODS = ("on_partitions_revoked", "on_partitions_assigned")
_OFFSET_MAX = 2**63 - 1
_SEVERAL = (Iterable, Sequence, Collection)

Arguments: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]


def check_several(given: object, call: str, name: str) -> None:
    """Refuse one name, or one partition, where several are wanted: its letters would be taken for names."""
    if isinstance(given, (str, bytes, TopicPartition)) or not isinstance(given, Iterable):
        one = f"({given!r}, 0)" if name == "partitions" and isinstance(given, str) else repr(given)
        raise TypeError(f"{call} takes several {name}, and {given!r} is not: give a list, [{one}]")


def partitions_of(given: object, call: str) -> list[TopicPartition]:
    """The partitions that a call was given; a single pair, or what is no pair, is refused."""
    if _names_a_partition(given):
        raise TypeError(f"{call} takes several partitions, and {given!r} is one: give a list, [{given!r}]")
    check_several(given, call, "partitions")
    return [_partition_of(one, call) for one in cast("Iterable[Any]", given)]


def _partition_of(given: Any, call: str) -> TopicPartition:
    topic, number = given if isinstance(given, (tuple, list)) and len(given) == 2 else (None, None)
    place = whole_number(number)
    if isinstance(topic, str) and number is not None and place is None:
        raise TypeError(f"{call} takes partitions by their numbers: {number!r} in {given!r} is none")
    if not isinstance(topic, str) or place is None:
        raise TypeError(
            f"{call} takes partitions as a list of (topic, partition): {given!r} is {type(given).__name__}, not "
            "(topic, partition)"
        )
    return TopicPartition(topic, place)


def whole_number(given: Any) -> int | None:
    """An integer, also numpy's, as Python's own; None for what is none."""
    try:
        return index(given)
    except TypeError:
        return None


def check_offset(given: Any, what: str) -> int:
    """An offset, as the protocol has them: 64 bits, and not negative."""
    offset = whole_number(given)
    if offset is None or not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"cannot {what} {given!r}: an offset is a whole number from 0 to {_OFFSET_MAX}")
    return offset


def check_mapping(given: object, call: str, name: str) -> None:
    """Refuse what is no mapping where one is wanted."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{call} takes {name} as a mapping (a dict), not {type(given).__name__}")


def argument_reader(operation: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], Arguments]:
    """What makes of a call's arguments what the operation takes, by its own annotations, or refuses them.

    `delete_topics("abc")` would otherwise delete the topics a, b and c, and `create_topics(["abc"])` fail somewhere
    inside. A partition may be given as `(topic, partition)`. The operation's first parameter, which is no argument of
    the method's, is left out.
    """
    names = list(inspect.signature(operation).parameters)[1:]
    plural: dict[str, Any] = {}

    def read(name: str, value: Any) -> Any:
        hint = plural.get(name)
        return value if hint is None or value is None else _read_plural(operation.__name__, name, value, hint)

    def read_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        if names and not plural:
            # With the first call, as it takes longer than the rest of an import.
            plural.update(_plural_hints(operation, names))
        args = [read(name, value) for name, value in zip(names, args)] + list(args[len(names) :])
        return args, {name: read(name, value) for name, value in kwargs.items()}

    return read_all


def _plural_hints(operation: Callable[..., Any], names: list[str]) -> dict[str, Any]:
    """The annotations of what takes several things; None for all else, which is left to the operation."""
    parameters = inspect.signature(operation, eval_str=True).parameters
    hints = {}
    for name in names:
        options = _options(parameters[name].annotation)
        hints[name] = next((hint for hint in options if get_origin(hint) in (*_SEVERAL, Mapping)), None)
    return hints


def _read_plural(call: str, name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Mapping:
        check_mapping(value, call, name)
    else:
        check_several(value, call, name)
    try:
        return _fitted(value, hint)
    except _MisfitError as misfit:
        given, wanted = misfit.args
        raise TypeError(
            f"{call} takes {name} as {_in_words(hint)}: {given!r} is {type(given).__name__}, not {_in_words(wanted)}"
        ) from None


class _MisfitError(Exception):
    """A value, and the annotation that it is none of."""


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fitted(value: Any, hint: Any) -> Any:
    """The value as the annotation says; `(topic, partition)` becomes a `TopicPartition`."""
    if hint is Any:
        return value
    options = _options(hint)
    if len(options) > 1:
        for option in options:
            with contextlib.suppress(_MisfitError):
                return _fitted(value, option)
        raise _MisfitError(value, hint)
    origin = get_origin(hint)
    if origin is Mapping and isinstance(value, Mapping):
        of_keys, of_values = get_args(hint)
        return {_fitted(key, of_keys): _fitted(one, of_values) for key, one in value.items()}
    if origin in _SEVERAL and isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        (of_each,) = get_args(hint)
        return [_fitted(one, of_each) for one in value]
    if hint is TopicPartition and _names_a_partition(value):
        return TopicPartition(value[0], index(value[1]))
    if hint is int and (number := whole_number(value)) is not None and not isinstance(value, bool):
        return number
    kind = NoneType if hint is None else (origin or hint)
    is_other = isinstance(kind, type) and not isinstance(value, (int, float) if kind is float else kind)
    if is_other or (isinstance(value, bool) and kind in (int, float)):
        raise _MisfitError(value, hint)
    return value


def _names_a_partition(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
    return is_pair and whole_number(value[1]) is not None


def _in_words(hint: Any) -> str:
    """An annotation for people: `NewTopic(name, …)`, `(topic, partition)`."""
    options = [option for option in _options(hint) if option not in (None, NoneType)]
    if len(options) > 1:
        return " or ".join(dict.fromkeys(map(_in_words, options)))
    (hint,) = options
    origin = get_origin(hint)
    if origin is Mapping:
        of_keys, of_values = get_args(hint)
        return f"a dict of {_in_words(of_keys)}: {_in_words(of_values)}"
    if origin in _SEVERAL:
        return f"a list of {_in_words(get_args(hint)[0])}"
    if hint is TopicPartition or origin is tuple:
        return "(topic, partition)"
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        required = [
            one.name for one in inspect.signature(hint).parameters.values() if one.default is inspect.Parameter.empty
        ]
        return f"{hint.__name__}({', '.join(required)}{', …' if is_dataclass(hint) else ''})"
    return getattr(hint, "__name__", str(hint))


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
    for name in (*_LISTENER_METHODS, "on_partitions_lost"):
        if is_generator(method := getattr(listener, name, None)):
            raise TypeError(f"{name_of(method)} is a generator function (it has a `yield`): nothing in it would run")
