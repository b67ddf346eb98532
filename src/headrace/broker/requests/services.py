"""What handlers need of the other rooms: found by its type, once, when the broker starts.

`broker.py` makes the table. A dataclass that is not in it, and whose fields are, is made of them: where a handler has
many helpers that need the same, it names one.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeAlias

#: By type, or by "type | None" where there may be none.
Services: TypeAlias = Mapping[Any, object]


class UnknownServiceError(Exception):
    """A handler wants something that the broker's table does not have."""


def bound(function: Callable[..., Any], services: Services, own: int) -> Callable[..., Any]:
    """The function with all its parameters but its `own` first ones given by their annotated types."""
    given = tuple(_find(wanted, services, function.__qualname__) for wanted in _wanted(function, own))
    assert isinstance(function, FunctionType), function
    # As the defaults of its parameters: that costs a call nothing.
    return FunctionType(function.__code__, function.__globals__, function.__name__, given, function.__closure__)


def _wanted(function: Callable[..., Any], own: int) -> list[Any]:
    # Only these: what the other parameters are need not be importable.
    names = list(inspect.signature(function).parameters.values())[own:]
    return [
        eval(one.annotation, function.__globals__) if isinstance(one.annotation, str) else one.annotation
        for one in names
    ]


def _find(wanted: Any, services: Services, whose: str) -> object:
    if wanted in services:
        return services[wanted]
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        hints = typing.get_type_hints(wanted)
        return wanted(
            **{one.name: _find(hints[one.name], services, wanted.__qualname__) for one in dataclasses.fields(wanted)}
        )
    raise UnknownServiceError(f"{whose} wants {wanted!r}, which the table of services in broker.py does not have")
