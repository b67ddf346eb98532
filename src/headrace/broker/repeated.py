"""Items that a request names several times are answered once: a few bytes of request must not become megabytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any

from headrace.protocol.schema import Array, Primitive, Schema


def drop_repeated(request: Any) -> None:
    """Leave each item of the request's arrays in its first place only."""
    for name in _fields(type(request))[1]:
        value = getattr(request, name)
        if isinstance(value, list) and len(value) > 1:
            setattr(request, name, _each_once(value))
        elif isinstance(value, list) and value and _is_struct(value[0]):
            drop_repeated(value[0])


def _each_once(items: list[Any]) -> list[Any]:
    kind = type(items[0])
    if not _is_struct(items[0]):
        return list(dict.fromkeys(items))
    plain, others, has_arrays = _fields(kind)
    first: dict[Hashable, Any] = {}
    for item in items:
        if has_arrays:
            drop_repeated(item)
        key = plain(item)
        for name in others:
            value = getattr(item, name)
            # Nearly all are missing, or empty.
            key = (key, _key(value) if value else value is None)
        first.setdefault(key, item)
    return list(first.values())


_known: dict[type, tuple[Callable[[Any], Hashable], tuple[str, ...], bool]] = {}


def _fields(kind: type) -> tuple[Callable[[Any], Hashable], tuple[str, ...], bool]:
    """The values of a struct's simple fields, in one go; the names of its other fields; whether any is an array."""
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = _find_fields(kind)
    return found


def _find_fields(kind: type) -> tuple[Callable[[Any], Hashable], tuple[str, ...], bool]:
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
