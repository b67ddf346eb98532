"""Whether a response tells an error anywhere in it, by a function that is generated from its schema.

Only those parts of a response are looked at that can have an error code; the rest, which may be long, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from headrace.protocol.schema import Array, Primitive

ERROR_FIELD = "error_code"


@cache
def error_finder(cls: type) -> Callable[[Any], bool]:
    """A function that says whether a message of this class has an error code other than 0."""
    lines = ["def tells_error(m):"]
    _look(cls, "m", 1, lines)
    lines.append("    return False")
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<errors of {cls.__name__}>", "exec"), scope)
    found: Callable[[Any], bool] = scope["tells_error"]
    return found


def _look(cls: Any, name: str, depth: int, lines: list[str]) -> None:
    indent = "    " * depth
    for field in cls.SCHEMA.fields:
        value = f"{name}.{field.name}"
        if isinstance(field.type, Primitive):
            if field.name == ERROR_FIELD:
                lines += [f"{indent}if {value}:", f"{indent}    return True"]
        elif isinstance(field.type, Array):
            if _can_tell(field.type.element):
                lines.append(f"{indent}for m{depth} in {value} or ():")
                _look(field.type.element, f"m{depth}", depth + 1, lines)
        elif _can_tell(field.type):
            lines.append(f"{indent}if {value} is not None:")
            _look(field.type, value, depth + 1, lines)


def _can_tell(type_: Any) -> bool:
    if isinstance(type_, Primitive):
        return False
    fields = type_.SCHEMA.fields
    return any(field.name == ERROR_FIELD or _can_tell(getattr(field.type, "element", field.type)) for field in fields)
