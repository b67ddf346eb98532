"""Items that a request names again and again are answered once: a few bytes of request must not become megabytes.

Kafka answers each mention, and so are a few repetitions here: whoever sends those made a mistake, and no attack.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from headrace.protocol.schema import Schema

REPETITIONS_ANSWERED_MAX = 4
"""Of one request, all of its arrays together."""


def drop_repeated(request: Any) -> None:
    """Leave each item of the request's arrays in its first place only, unless there are few to be dropped."""
    if _repetitions(request) > REPETITIONS_ANSWERED_MAX:
        _drop(request)


def _repetitions(request: Any) -> int:
    count = 0
    for declared in request.SCHEMA.fields:
        value = getattr(request, declared.name)
        if isinstance(value, list) and value:
            count += len(value) - len(set(map(_key, value)))
            if _is_struct(value[0]):
                count += sum(map(_repetitions, value))
    return count


def _drop(request: Any) -> None:
    for declared in request.SCHEMA.fields:
        value = getattr(request, declared.name)
        if isinstance(value, list) and value:
            setattr(request, declared.name, _each_once(value))


def _each_once(items: list[Any]) -> list[Any]:
    if not _is_struct(items[0]):
        return list(dict.fromkeys(items))
    first: dict[Hashable, Any] = {}
    for item in items:
        _drop(item)
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
