"""Records in Protobuf to Arrow columns: the types that a message's fields have, and messages as these types.

A message that is within itself stays bytes. `google.protobuf.Struct` and its like, which may be anything, are text:
their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.client.errors import SerializationError
from headrace.schemas import wire
from headrace.schemas.columns import COLUMN, ReadColumns, array_of_rows
from headrace.schemas.extras import need
from headrace.schemas.protobuf import message_class, message_named
from headrace.schemas.registry_client import RegistryClient, RegistryRequestError
from headrace.schemas.schema import PROTOBUF, Schema, SchemaError
from headrace.schemas.serializing import as_schema

_KNOWN = "google.protobuf."
_WRAPPERS = tuple(
    f"{_KNOWN}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_ANYTHING = (f"{_KNOWN}Struct", f"{_KNOWN}Value", f"{_KNOWN}ListValue")


@dataclass(frozen=True, slots=True)
class _Plan:
    type: Any
    """Of Arrow."""
    shaped: Callable[[Any], Any] | None = None
    """What Protobuf gives, as Arrow takes it; None: they are the same."""


class ProtobufColumns:
    """Reads a column of messages, each behind its schema's number, as one message type.

    That is the class `message` that protoc generated; else the message of that name in `schema`, or its first one.
    """

    def __init__(
        self, schema: Any, registry: RegistryClient | str, *, message: Any = None, name: str | None = None
    ) -> None:
        self._registry = RegistryClient(registry) if isinstance(registry, str) else registry
        given = as_schema(schema, PROTOBUF)
        if given is None and message is None:
            raise SchemaError("columns need the schema that records are read as, or the class of their message")
        self._is_given = message is not None
        if message is None:
            assert given is not None
            message = message_named(given, self._registry, name) if name else message_class(given, self._registry, (0,))
        self.schema: Schema | None = given
        self._message = message
        self._plan = _of_message(message.DESCRIPTOR, ())
        self.type = self._plan.type
        self._wrong: dict[Any, str | None] = {}

    def read(self, column: Any) -> ReadColumns:
        """The records of an Arrow array of binary."""
        decode_error = need("google.protobuf.message").DecodeError
        shaped = self._plan.shaped
        assert shaped is not None
        values: list[Any] = []
        faults: dict[int, str] = {}
        for row, one in enumerate(column.to_pylist()):
            value = None
            if one is not None:
                try:
                    framed = wire.unframe(COLUMN, one, is_key=False, has_indexes=True)
                    wrong = None if self._is_given else self._not_it(framed)
                    if wrong is None:
                        value = shaped(self._message.FromString(framed.payload))
                    else:
                        faults[row] = wrong
                except SerializationError as error:
                    faults[row] = str(error)
                except decode_error as error:
                    faults[row] = f"it is no message {self._message.DESCRIPTOR.full_name}: {error}"
            values.append(value)
        return array_of_rows(values, self.type, faults)

    def _not_it(self, framed: wire.Framed) -> str | None:
        """Why a record is of another message than the one that is read; None: it is of that one."""
        key = framed.schema, framed.indexes
        if key not in self._wrong:
            try:
                asked = self._registry
                known = asked.by_id(framed.schema) if isinstance(framed.schema, int) else asked.by_guid(framed.schema)
            except RegistryRequestError as error:
                if not error.is_not_found:
                    raise
                # It may be there later: it is not kept.
                return f"schema {framed.schema} is not in the registry: {error}"
            self._wrong[key] = self._compared(framed, known.schema)
        return self._wrong[key]

    def _compared(self, framed: wire.Framed, written: Schema) -> str | None:
        wanted = self._message.DESCRIPTOR.full_name
        if written.type != PROTOBUF:
            return f"schema {framed.schema}: it is {written.type}, and not {PROTOBUF}"
        try:
            found = message_class(written, self._registry, framed.indexes).DESCRIPTOR.full_name
        except (SchemaError, SerializationError) as error:
            return f"schema {framed.schema}: {error}"
        return None if found == wanted else f"it is a message {found}, and the column is of {wanted}"


def _of_message(descriptor: Any, inside: tuple[Any, ...]) -> _Plan:
    arrow = need("pyarrow")
    name = descriptor.full_name
    if name == f"{_KNOWN}Timestamp":
        return _Plan(arrow.timestamp("us", "UTC"), _micros)
    if name == f"{_KNOWN}Duration":
        return _Plan(arrow.duration("us"), _micros)
    if name in _ANYTHING:
        return _Plan(arrow.string(), _as_json)
    if name in _WRAPPERS:
        kind = _of_value(descriptor.fields_by_name["value"], inside).type
        return _Plan(kind, lambda message: message.value)
    if descriptor in inside:
        return _Plan(arrow.binary(), lambda message: message.SerializeToString())
    fields = [(one.name, _of_field(one, (*inside, descriptor))) for one in descriptor.fields]
    getters = [(field, plan.shaped) for field, plan in fields]

    def shaped(message: Any) -> Any:
        return {field: get(message) for field, get in getters if get is not None}

    return _Plan(arrow.struct([(field, plan.type) for field, plan in fields]), shaped)


def _of_field(field: Any, inside: tuple[Any, ...]) -> _Plan:
    """The plan of a field, whose `shaped` takes the message that it is in."""
    arrow = need("pyarrow")
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = _of_value(field.message_type.fields_by_name["key"], inside)
        plan = _of_value(field.message_type.fields_by_name["value"], inside)
        shape = plan.shaped or _same
        kind = arrow.map_(key.type, plan.type)
        return _Plan(kind, lambda message: [(one, shape(value)) for one, value in getattr(message, name).items()])
    plan = _of_value(field, inside)
    shape = plan.shaped or _same
    if field.is_repeated:
        return _Plan(arrow.list_(plan.type), lambda message: [shape(one) for one in getattr(message, name)])
    if field.has_presence:
        return _Plan(plan.type, lambda message: shape(getattr(message, name)) if message.HasField(name) else None)
    return _Plan(plan.type, lambda message: shape(getattr(message, name)))


def _of_value(field: Any, inside: tuple[Any, ...]) -> _Plan:
    arrow = need("pyarrow")
    if field.message_type is not None:
        return _of_message(field.message_type, inside)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        # A number that another version has a name for.
        return _Plan(arrow.string(), lambda number: names.get(number) or str(number))
    return _Plan(
        {
            field.CPPTYPE_INT32: arrow.int32(),
            field.CPPTYPE_INT64: arrow.int64(),
            field.CPPTYPE_UINT32: arrow.uint32(),
            field.CPPTYPE_UINT64: arrow.uint64(),
            field.CPPTYPE_DOUBLE: arrow.float64(),
            field.CPPTYPE_FLOAT: arrow.float32(),
            field.CPPTYPE_BOOL: arrow.bool_(),
            field.CPPTYPE_STRING: arrow.binary() if field.type == field.TYPE_BYTES else arrow.string(),
        }[field.cpp_type]
    )


def _same(value: Any) -> Any:
    return value


def _micros(message: Any) -> int:
    return int(message.seconds * 1_000_000 + message.nanos // 1_000)


def _as_json(message: Any) -> str:
    made = need("google.protobuf.json_format").MessageToDict(message)
    return json.dumps(made, separators=(",", ":"), ensure_ascii=False)
