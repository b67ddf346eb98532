"""Items that a request names several times are answered once: a few bytes of request must not become megabytes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from headrace.protocol.schema import Schema


def drop_repeated(request: Any) -> None:
    """Leave each item of the request's arrays in its first place only."""
    for declared in request.SCHEMA.fields:
        value = getattr(request, declared.name)
        if isinstance(value, list) and len(value) > 1:
            setattr(request, declared.name, _each_once(value))
        elif isinstance(value, list) and value and _is_struct(value[0]):
            drop_repeated(value[0])


def _each_once(items: list[Any]) -> list[Any]:
    if not _is_struct(items[0]):
        return list(dict.fromkeys(items))
    first: dict[Hashable, Any] = {}
    for item in items:
        drop_repeated(item)
        first.setdefault(_key(item), item)
    return list(first.values())


def _key(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_key, value))
    if _is_struct(value):
        return tuple(_key(getattr(value, declared.name)) for declared in value.SCHEMA.fields)
    return value  # type: ignore[no-any-return]  # a number, a string, bytes or None


def _is_struct(value: Any) -> bool:
    return isinstance(getattr(value, "SCHEMA", None), Schema)
