"""Why a message could not be encoded: finds the field whose value does not fit. Slow, called only after a failure."""

from __future__ import annotations

from typing import Any

from headrace.protocol.schema import Array, Primitive, Schema

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
STRING_BYTES_MAX = 32767


def explain(message: Any, version: int) -> str | None:
    """What is wrong with the message, beginning with the name of the field; None when nothing seems to be."""
    schema: Schema = message.SCHEMA
    reason = _struct(message, version, version in schema.flexible, "")
    return None if reason is None else f"{schema.name} v{version}: {reason}"


def _struct(message: Any, version: int, flexible: bool, path: str) -> str | None:
    for field in message.SCHEMA.fields:
        if version not in field.versions:
            continue
        where, value = f"{path}{field.name}", getattr(message, field.name, None)
        if value is None:
            if version in field.nullable:
                continue
            return f"{where} may not be null"
        reason = _value(field.type, value, version, flexible, where)
        if reason is not None:
            return reason
    return None


def _value(type_: Any, value: Any, version: int, flexible: bool, where: str) -> str | None:
    if isinstance(type_, Array):
        if not isinstance(value, (list, tuple)):
            return f"{where} must be a list, not {type(value).__name__}"
        for index, item in enumerate(value):
            reason = _value(type_.element, item, version, flexible, f"{where}[{index}]")
            if reason is not None:
                return reason
        return None
    if isinstance(type_, Primitive):
        return _primitive(type_.name, value, flexible, where)
    if not isinstance(value, type_):
        return f"{where} must be a {type_.__name__}, not {type(value).__name__}"
    return _struct(value, version, flexible, where + ".")


def _primitive(name: str, value: Any, flexible: bool, where: str) -> str | None:
    kind = type(value).__name__
    if name in _INTEGERS:
        low, high = _INTEGERS[name]
        if not isinstance(value, int):
            return f"{where} must be an {name}, not {kind}"
        return None if low <= value <= high else f"{where} must be an {name}, which {value} does not fit"
    if name == "string":
        return _string(value, flexible, where)
    if name == "uuid":
        fits = isinstance(value, (bytes, bytearray)) and len(value) == 16
        return None if fits else f"{where} must be a uuid of 16 bytes, not {kind} {value!r}"
    if name == "records":
        fits = hasattr(value, "__len__") and not isinstance(value, (str, list, tuple, dict))
        return None if fits else f"{where} must be bytes, not {kind}"
    if name == "bytes":
        return None if isinstance(value, (bytes, bytearray, memoryview)) else f"{where} must be bytes, not {kind}"
    fits = isinstance(value, int) if name == "bool" else isinstance(value, (int, float))
    return None if fits else f"{where} must be a {name}, not {kind}"


def _string(value: Any, flexible: bool, where: str) -> str | None:
    if not isinstance(value, str):
        return f"{where} must be a string, not {type(value).__name__}"
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        return f"{where} is not valid text ({error.reason})"
    if not flexible and size > STRING_BYTES_MAX:
        return f"{where} is longer than {STRING_BYTES_MAX} bytes"
    return None
