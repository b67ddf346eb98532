"""The same random message twice: as ours and as kio's, so that both codecs can be held against each other.

kio has a class per version, so a message is built by walking both declarations side by side, which also holds names,
order, tags and nullability of ours against kio's. Where kio has its own types (time spans, error codes, UUIDs) the
value is drawn from what they can express.
"""

import dataclasses
import datetime
import importlib
import io
import random
import typing
import uuid
from functools import cache
from types import UnionType
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.protocol.messages.api_versions import OWN_TAGS
from headrace.protocol.schema import Array, Field, Primitive

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
INTEGERS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}
TEXTS = ("", "a", "topic-1", "x" * 126, "x" * 127, "x" * 128, "x" * 300, "ä€😀", "\x00", "ø" * 64)
ERROR_CODES = list(ErrorCode)


@cache
def kio_class(api: str, version: int, kind: str) -> type[Any]:
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    for value in vars(module).values():
        if getattr(value, "__type__", None) is EntityType[kind] and value.__module__ == module.__name__:
            return value  # type: ignore[no-any-return]
    raise KeyError(f"{api} v{version} {kind}")


@cache
def kio_fields(cls: type[Any]) -> tuple[tuple[dataclasses.Field[Any], Any, bool, bool], ...]:
    """(field, its element's class or type name, is it an array, may it be null) in the order of travel."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        hint, nullable = _without_none(hints[field.name])
        is_array = typing.get_origin(hint) is tuple
        if is_array:
            hint, _ = _without_none(typing.get_args(hint)[0])
        element = hint if dataclasses.is_dataclass(hint) else field.metadata["kafka_type"]
        if element == "datetime_i64" and nullable:
            element = "datetime_i64 or none"
        found.append((field, element, is_array, nullable))
    return tuple(found)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return next(x for x in typing.get_args(hint) if x is not type(None)), True
    return hint, False


def pair(ours: type[Any], theirs: type[Any], version: int, rng: random.Random) -> tuple[Any, Any]:
    """One message as both."""
    # Tags of our own are no part of Kafka's messages.
    fields = [field for field in ours.SCHEMA.fields if version in field.versions and (field.tag or 0) < OWN_TAGS]
    kio = kio_fields(theirs)
    assert len(fields) == len(kio), f"{ours.__name__} v{version} has {len(fields)} fields, kio's has {len(kio)}"
    our_values, kio_values = {}, {}
    for field, (kio_field, element, is_array, nullable) in zip(fields, kio, strict=True):
        where = f"{ours.__name__}.{field.name} v{version}"
        assert _same_name(field.name, kio_field.name), f"{where} is called {kio_field.name} by kio"
        flexible = theirs.__flexible__
        tag = field.tag if flexible and version in field.tagged else None
        assert tag == kio_field.metadata.get("tag"), f"{where}: another tag"
        assert isinstance(field.type, Array) == is_array, f"{where}: array or not"
        if is_array or element not in ("uuid", "datetime_i64 or none"):
            assert nullable == (version in field.nullable), f"{where}: may it be null?"
        if tag is not None and rng.random() < 0.4:
            continue  # both have their default, which is not sent
        our_values[field.name], kio_values[kio_field.name] = _values(field, element, is_array, version, rng)
    return ours(**our_values), theirs(**kio_values)


def _same_name(ours: str, kio: str) -> bool:
    """kio leaves the unit out where it has a type of its own, and sets digits apart."""
    plain = ours.replace("_", "")
    return kio.replace("_", "") in (plain, plain.removesuffix("ms"))


def _values(field: Field, element: Any, is_array: bool, version: int, rng: random.Random) -> tuple[Any, Any]:
    if version in field.nullable and rng.random() < 0.25:
        return None, None
    if not is_array:
        return _one(field.type, element, version, rng)
    count = rng.choice((0, 1, 1, 2, 3)) if rng.random() < 0.97 or not isinstance(field.type.element, Primitive) else 130
    pairs = [_one(field.type.element, element, version, rng) for _ in range(count)]
    return [ours for ours, _ in pairs], tuple(kio for _, kio in pairs)


def _one(type_: Any, element: Any, version: int, rng: random.Random) -> tuple[Any, Any]:
    if not isinstance(type_, Primitive):
        return pair(type_, element, version, rng)
    if element == "error_code":
        code = rng.choice(ERROR_CODES)
        return int(code), code
    if element in ("timedelta_i32", "timedelta_i64"):
        milliseconds = rng.choice((0, 1, -1, 86_400_000, rng.randrange(2**31)))
        return milliseconds, datetime.timedelta(milliseconds=milliseconds)
    if element in ("datetime_i64", "datetime_i64 or none"):
        milliseconds = rng.choice((0 if element == "datetime_i64" else -1, rng.randrange(2**42)))
        return milliseconds, None if milliseconds == -1 else EPOCH + datetime.timedelta(milliseconds=milliseconds)
    assert type_.name == element
    return _primitive(type_.name, rng)


def _primitive(name: str, rng: random.Random) -> tuple[Any, Any]:
    if name in INTEGERS:
        bits = INTEGERS[name]
        low = 0 if name.startswith("u") else -(2**bits)
        number = rng.choice((0, 1, low, 2**bits - 1, rng.randrange(low, 2**bits)))
        return number, number
    if name == "uuid":
        raw = rng.choice((bytes(16), rng.randbytes(16)))
        return raw, uuid.UUID(bytes=raw) if any(raw) else None
    value: Any
    if name == "bool":
        value = rng.random() < 0.5
    elif name == "float64":
        value = rng.choice((0.0, -1.5, rng.random() * 1e12))
    elif name == "string":
        value = rng.choice(TEXTS)
    else:
        value = rng.randbytes(rng.choice((0, 1, 126, 127, 128, 200)))
    return value, value


def kio_encode(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def kio_decode(cls: type[Any], raw: bytes) -> tuple[Any, int]:
    message, size = entity_reader(cls)(raw, 0)
    return message, size
