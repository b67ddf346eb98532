"""Schemas out of Python's types (dataclasses, TypedDicts, pydantic models), and their values to plain ones and back."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Union

from headrace.schemas.schema import SchemaError

_SCALARS: dict[Any, Any] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
    datetime.datetime: {"type": "long", "logicalType": "timestamp-micros"},
    datetime.date: {"type": "int", "logicalType": "date"},
    datetime.time: {"type": "long", "logicalType": "time-micros"},
    uuid.UUID: {"type": "string", "logicalType": "uuid"},
    decimal.Decimal: {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
}
_JSON_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}


@dataclasses.dataclass(frozen=True, slots=True)
class TypeField:
    """A field of a record type."""

    name: str
    type: Any
    has_default: bool = False
    default: Any = None


def is_record_type(given: Any) -> bool:
    """Whether a type has fields: a dataclass, a TypedDict, a pydantic model."""
    return isinstance(given, type) and (
        dataclasses.is_dataclass(given) or typing.is_typeddict(given) or hasattr(given, "model_fields")
    )


def fields_of(given: type) -> list[TypeField]:
    """The fields of a record type, with what they are when they are not given."""
    if hasattr(given, "model_fields"):
        return [
            TypeField(name, one.annotation, not one.is_required(), _plain_default(one.get_default))
            for name, one in given.model_fields.items()
        ]
    hints = typing.get_type_hints(given)
    if typing.is_typeddict(given):
        needed: frozenset[str] = getattr(given, "__required_keys__", frozenset())
        return [TypeField(name, kind, name not in needed) for name, kind in hints.items()]
    found = []
    for one in dataclasses.fields(given):
        has_default = one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
        default = one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default
        found.append(TypeField(one.name, hints[one.name], has_default, default if has_default else None))
    return found


def _plain_default(get: Any) -> Any:
    try:
        return get(call_default_factory=True)
    except TypeError:
        return None


def avro_schema(given: type) -> dict[str, Any]:
    """The Avro schema of a record type. A field with a default has it in the schema, so that records evolve."""
    made = _avro(given, _namespace(given), {})
    if not isinstance(made, dict):
        raise SchemaError(f"{given!r} is no record type")
    return made


def _namespace(given: type) -> str:
    module = given.__module__
    return "" if module in ("__main__", "builtins") else module


def _avro(given: Any, namespace: str, made: dict[Any, str]) -> Any:
    origin, arguments = typing.get_origin(given), typing.get_args(given)
    if origin is typing.Annotated or origin is typing.NotRequired or origin is typing.Required:
        return _avro(arguments[0], namespace, made)
    if origin in (Union, types.UnionType):
        # A null comes first, so that a default of None is one of the union.
        parts = sorted(arguments, key=lambda one: one is not type(None))
        return [_avro(one, namespace, made) for one in parts]
    if origin in (list, tuple, set, frozenset, Sequence):
        return {"type": "array", "items": _avro(arguments[0], namespace, made)}
    if origin in (dict, Mapping):
        if arguments[0] is not str:
            raise SchemaError(f"a map of Avro has texts for keys, and {given!r} has not")
        return {"type": "map", "values": _avro(arguments[1], namespace, made)}
    if origin is typing.Literal and all(isinstance(one, str) for one in arguments):
        return "string"
    if given in _SCALARS:
        return _SCALARS[given]
    if isinstance(given, type) and issubclass(given, enum.Enum):
        if given in made:
            return made[given]
        made[given] = given.__name__
        return {"type": "enum", "name": given.__name__, "symbols": [one.name for one in given]}
    if is_record_type(given):
        return _avro_record(given, namespace, made)
    raise SchemaError(f"there is no Avro type for {given!r}: give the serializer a schema")


def _avro_record(given: type, namespace: str, made: dict[Any, str]) -> Any:
    if given in made:
        return made[given]
    made[given] = given.__name__
    fields = []
    for one in fields_of(given):
        kind = _avro(one.type, namespace, made)
        if one.has_default and one.default is None and "null" not in (kind if isinstance(kind, list) else [kind]):
            kind = ["null", *(kind if isinstance(kind, list) else [kind])]
        field = {"name": one.name, "type": kind}
        if one.has_default:
            field["default"] = _avro_default(plain(one.default), kind)
            if field["default"] is _NO_DEFAULT:
                del field["default"]
        fields.append(field)
    return {
        "type": "record",
        "name": given.__name__,
        **({"namespace": namespace} if namespace and len(made) == 1 else {}),
        "fields": fields,
    }


_NO_DEFAULT = object()


def _avro_default(value: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        if value is not None and kind[0] == "null":
            # The default of a union is one of its first type.
            kind.sort(key=lambda one: one == "null")
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, (bool, int, float, str, list, dict, type(None))) else _NO_DEFAULT


def json_schema(given: type) -> dict[str, Any]:
    """The JSON Schema of a record type; a pydantic model says its own."""
    own = getattr(given, "model_json_schema", None)
    if own is not None:
        found: dict[str, Any] = own()
        return found
    definitions: dict[str, Any] = {}
    root = _json(given, definitions)
    name = root["$ref"].rpartition("/")[2]
    made = definitions.pop(name)
    return {**made, **({"definitions": definitions} if definitions else {})}


def _json(given: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(given), typing.get_args(given)
    if origin is typing.Annotated or origin is typing.NotRequired or origin is typing.Required:
        return _json(arguments[0], definitions)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_json(one, definitions) for one in arguments]}
    if origin in (list, tuple, set, frozenset, Sequence):
        return {"type": "array", "items": _json(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _json(arguments[1], definitions)}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if given in _JSON_SCALARS:
        return dict(_JSON_SCALARS[given])
    if given is Any:
        return {}
    if isinstance(given, type) and issubclass(given, enum.Enum):
        return {"enum": [one.name for one in given]}
    if not is_record_type(given):
        raise SchemaError(f"there is no JSON Schema for {given!r}: give the serializer a schema")
    if given.__name__ not in definitions:
        definitions[given.__name__] = {}
        fields = fields_of(given)
        made = {"title": given.__name__, "type": "object", "additionalProperties": False}
        made["properties"] = {one.name: _json(one.type, definitions) for one in fields}
        made["required"] = [one.name for one in fields if not one.has_default]
        definitions[given.__name__] = made
    return {"$ref": f"#/definitions/{given.__name__}"}


def plain(value: Any) -> Any:
    """A value of record types as dictionaries, lists and scalars; enums as their names."""
    if isinstance(value, (str, int, float, bytes)) and not isinstance(value, enum.Enum):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return plain(dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    # A tuple stays: for fastavro it names the type of a union.
    if isinstance(value, (list, set, frozenset)):
        return [plain(one) for one in value]
    return value


def built(given: Any, value: Any) -> Any:
    """A value of that type, of the dictionaries and lists that were read."""
    if value is None:
        return None
    origin, arguments = typing.get_origin(given), typing.get_args(given)
    if origin in (Union, types.UnionType):
        records = [one for one in arguments if is_record_type(one)]
        others = [one for one in arguments if one is not type(None)]
        chosen = records if isinstance(value, Mapping) and records else others
        return built(chosen[0], value) if len(chosen) == 1 else value
    if origin in (list, tuple, set, frozenset) and isinstance(value, list):
        return origin(built(arguments[0], one) for one in value)
    if origin is dict and isinstance(value, Mapping):
        return {key: built(arguments[1], one) for key, one in value.items()}
    if isinstance(given, type) and issubclass(given, enum.Enum) and isinstance(value, str):
        return given[value]
    if not is_record_type(given) or not isinstance(value, Mapping):
        return value
    validate = getattr(given, "model_validate", None)
    if validate is not None:
        return validate(value)
    if typing.is_typeddict(given):
        return dict(value)
    known = {one.name: one.type for one in fields_of(given)}
    return given(**{name: built(known[name], one) for name, one in value.items() if name in known})
