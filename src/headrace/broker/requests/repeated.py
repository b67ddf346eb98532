"""Items that a request names again and again are answered once: a few bytes of request must not become megabytes.

Kafka answers each mention, and so are a few repetitions here: whoever sends those made a mistake, and no attack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any

from headrace.protocol.schema import Array, Primitive, Schema

REPETITIONS_ANSWERED_MAX = 4
"""Of one request, all of its arrays together."""

_Fields = tuple[Callable[[Any], Hashable], tuple[str, ...], bool]
_known: dict[type, _Fields] = {}


def drop_repeated(request: Any) -> None:
    """Leave each item of the request's arrays in its first place only, unless there are few to be dropped."""
    if _repetitions(request) > REPETITIONS_ANSWERED_MAX:
        _drop(request)


def _repetitions(request: Any) -> int:
    count = 0
    for name in _fields(type(request))[1]:
        value = getattr(request, name)
        if isinstance(value, list) and value:
            count += len(value) - len(_distinct(value))
            if _is_struct(value[0]) and _fields(type(value[0]))[2]:
                count += sum(map(_repetitions, value))
    return count


def _drop(request: Any) -> None:
    for name in _fields(type(request))[1]:
        value = getattr(request, name)
        if isinstance(value, list) and value:
            if _is_struct(value[0]) and _fields(type(value[0]))[2]:
                for item in value:
                    _drop(item)
            setattr(request, name, list(_distinct(value).values()))


def _distinct(items: list[Any]) -> dict[Hashable, Any]:
    """The first of those that are equal."""
    if not _is_struct(items[0]):
        return dict(zip(items, items))
    plain, others, _ = _fields(type(items[0]))
    first: dict[Hashable, Any] = {}
    for item in items:
        key = plain(item)
        for name in others:
            value = getattr(item, name)
            # Nearly all are missing, or empty.
            key = (key, _key(value) if value else value is None)
        first.setdefault(key, item)
    return first


def _fields(kind: type) -> _Fields:
    """The values of a struct's simple fields, in one go; the names of its other fields; whether any is an array."""
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = _find_fields(kind)
    return found


def _find_fields(kind: type) -> _Fields:
    schema: Schema = kind.SCHEMA  # type: ignore[attr-defined]  # set by the decorators in `schema`
    simple = [declared.name for declared in schema.fields if isinstance(declared.type, Primitive)]
    others = tuple(declared.name for declared in schema.fields if not isinstance(declared.type, Primitive))
    has_arrays = any(isinstance(declared.type, Array) for declared in schema.fields)
    return attrgetter(*simple) if simple else _nothing, others, has_arrays


def _nothing(item: Any) -> None:
    """Of a struct that has no simple field."""


def _key(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_key, value))
    if _is_struct(value):
        plain, others, _ = _fields(type(value))
        return plain(value), tuple(_key(getattr(value, name)) for name in others)
    return value  # type: ignore[no-any-return]  # a number, a string, bytes or None


def _is_struct(value: Any) -> bool:
    return isinstance(getattr(value, "SCHEMA", None), Schema)
