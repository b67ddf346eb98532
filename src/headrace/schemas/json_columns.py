"""Records in JSON to Arrow columns: the types that a JSON Schema gives its values, and the values as these types.

What a schema says of a value, and Arrow has no type for (one of several, anything at all, what contains itself), is
text: its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.client.errors import SerializationError
from headrace.schemas.columns import COLUMN, ReadColumns, array_of_rows
from headrace.schemas.extras import need
from headrace.schemas.formats.json_schema import JsonNode, parse
from headrace.schemas.json_schema import JsonSchemaDeserializer
from headrace.schemas.registry_client import RegistryClient
from headrace.schemas.schema import JSON, Schema, SchemaError
from headrace.schemas.serializing import as_schema

_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
#: Keywords that narrow a value down, and say nothing of its type where another one does.
_NARROWING = ("const", "enum", "not", "conditional", "true")


@dataclass(frozen=True, slots=True)
class _Plan:
    type: Any
    """Of Arrow."""
    shaped: Callable[[Any], Any]
    """A value of JSON, not null, as Arrow takes it; ValueError if it is none of this type."""


class JsonColumns:
    """Reads a column of JSON records, each behind its schema's number, as one schema says."""

    def __init__(self, schema: Any, registry: RegistryClient | str) -> None:
        registry = RegistryClient(registry) if isinstance(registry, str) else registry
        given = as_schema(schema, JSON)
        if given is None:
            raise SchemaError("columns need the schema that records are read as")
        self.schema: Schema = given
        self._plan = _planned(parse(given.text, registry.referred(given)).root, ())
        self.type = self._plan.type
        self._one_by_one = JsonSchemaDeserializer(registry)

    def read(self, column: Any) -> ReadColumns:
        """The records of an Arrow array of binary."""
        values: list[Any] = []
        faults: dict[int, str] = {}
        for row, one in enumerate(column.to_pylist()):
            value = None
            if one is not None:
                try:
                    found = self._one_by_one.deserialize(COLUMN, one)
                    value = None if found is None else self._plan.shaped(found)
                except (SerializationError, ValueError) as error:
                    faults[row] = str(error)
            values.append(value)
        return array_of_rows(values, self.type, faults)


def _planned(node: JsonNode, inside: tuple[JsonNode, ...]) -> _Plan:
    arrow = need("pyarrow")
    if node in inside:
        return _Plan(arrow.string(), _ENCODE)
    inside = (*inside, node)
    match node.kind:
        case "string":
            return _Plan(arrow.string(), _text)
        case "boolean":
            return _Plan(arrow.bool_(), _truth)
        case "number":
            return _Plan(arrow.int64(), _whole) if node.is_integer else _Plan(arrow.float64(), _number)
        case "object" if node.properties:
            return _object({name: _planned(one, inside) for name, one in node.properties.items()})
        case "object" if node.others is not None and not node.patterns:
            return _map(_planned(node.others, inside))
        case "array" if node.each_item is not None:
            return _list(_planned(node.each_item, inside))
        case "const" | "enum":
            return _alike(node.words["enum"] if node.kind == "enum" else [node.words["const"]])
        case "combined":
            return _combined(node, inside)
        case _:
            return _Plan(arrow.string(), _ENCODE)


def _combined(node: JsonNode, inside: tuple[JsonNode, ...]) -> _Plan:
    arrow = need("pyarrow")
    left_out = _NARROWING if node.criterion == "allOf" else ("null",)
    parts = [one for one in node.parts if one.kind not in left_out]
    if len(parts) == 1:
        return _planned(parts[0], inside)
    if parts and node.criterion == "allOf" and all(one.kind == "object" and one.properties for one in parts):
        return _object({name: _planned(of, inside) for one in parts for name, of in one.properties.items()})
    if parts and node.criterion != "allOf":
        plans = [_planned(one, inside) for one in parts]
        if all(one.type == plans[0].type and one.shaped == plans[0].shaped for one in plans):
            return plans[0]
        if all(one.kind == "number" for one in parts):
            return _Plan(arrow.float64(), _number)
    return _Plan(arrow.string(), _ENCODE)


def _alike(values: Any) -> _Plan:
    """The type that all of these values have, or text."""
    arrow = need("pyarrow")
    kinds = {type(one) for one in values if one is not None} if isinstance(values, list) else set()
    if kinds == {str}:
        return _Plan(arrow.string(), _text)
    if kinds == {int}:
        return _Plan(arrow.int64(), _whole)
    if kinds == {bool}:
        return _Plan(arrow.bool_(), _truth)
    return _Plan(arrow.string(), _ENCODE)


def _mismatch(value: Any, name: str) -> ValueError:
    return ValueError(f"{_ENCODE(value)[:80]} is not {name}, as the schema that it is read as says")


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise _mismatch(value, "a text")
    return value


def _truth(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _mismatch(value, "true or false")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch(value, "a whole number")
    return value


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _mismatch(value, "a number")
    return float(value)


def _object(plans: dict[str, _Plan]) -> _Plan:
    arrow = need("pyarrow")
    fields = [(name, one.shaped) for name, one in plans.items()]

    def shaped(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(value, "an object")
        made = {}
        for name, shape in fields:
            found = value.get(name)
            if found is not None:
                try:
                    made[name] = shape(found)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
        return made

    return _Plan(arrow.struct([(name, one.type) for name, one in plans.items()]), shaped)


def _map(plan: _Plan) -> _Plan:
    arrow = need("pyarrow")

    def shaped(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(value, "an object")
        return [(name, None if one is None else plan.shaped(one)) for name, one in value.items()]

    return _Plan(arrow.map_(arrow.string(), plan.type), shaped)


def _list(plan: _Plan) -> _Plan:
    arrow = need("pyarrow")

    def shaped(value: Any) -> Any:
        if not isinstance(value, list):
            raise _mismatch(value, "an array")
        return [None if one is None else plan.shaped(one) for one in value]

    return _Plan(arrow.list_(plan.type), shaped)
