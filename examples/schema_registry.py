"""Schemas from a registry: how Avro, Protobuf or JSON Schema plug in as serializers.

    python examples/schema_registry.py localhost:9092 orders

A serializer is any object with `serialize(topic, data)`, a deserializer one with `deserialize(topic, data)`. Those of a
schema registry put a zero byte and the schema's number (four bytes) before the data; a reader looks the schema up by
that number. The registry here is a dictionary, and the format is JSON held against the schema's fields: in their place
come a registry's client and a library for the format, and nothing else changes.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any, Protocol

from headrace import Consumer, Producer

MAGIC = 0
PREFIX = struct.Struct(">bI")

Schema = dict[str, str]
"""Names of fields and of their types, as JSON calls them. For Avro it would be the parsed schema."""

TYPES: dict[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool}


class Registry(Protocol):
    """What is needed of a registry. A real one is asked over HTTP, and its answers are kept."""

    def register(self, subject: str, schema: Schema) -> int: ...

    def schema(self, number: int) -> Schema: ...


class InMemoryRegistry:
    """A registry for tests: the same schema has the same number under every subject."""

    def __init__(self) -> None:
        self._schemas: list[Schema] = []
        self.subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: Schema) -> int:
        if schema not in self._schemas:
            self._schemas.append(schema)
        number = self._schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def schema(self, number: int) -> Schema:
        if not 0 < number <= len(self._schemas):
            raise LookupError(f"the registry has no schema {number}")
        return self._schemas[number - 1]


class SchemaSerializer:
    """Writes with one schema, which is registered under the topic's subject with the first record."""

    def __init__(self, registry: Registry, schema: Schema) -> None:
        self._registry = registry
        self._schema = schema
        self._numbers: dict[str, int] = {}
        self._role = "value"

    def configure(self, config: Any, is_key: bool) -> None:
        self._role = "key" if is_key else "value"

    def serialize(self, topic: str, data: dict[str, Any]) -> bytes:
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers[topic] = self._registry.register(f"{topic}-{self._role}", self._schema)
        _check(data, self._schema)
        return PREFIX.pack(MAGIC, number) + json.dumps(data).encode()


class SchemaDeserializer:
    """Reads with whatever schema the record names."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._schemas: dict[int, Schema] = {}

    def deserialize(self, topic: str, data: bytes) -> dict[str, Any]:
        if len(data) < PREFIX.size or data[0] != MAGIC:
            raise ValueError(f"a record of {topic} does not begin with the number of a schema")
        _, number = PREFIX.unpack_from(data)
        schema = self._schemas.get(number)
        if schema is None:
            schema = self._schemas[number] = self._registry.schema(number)
        found: dict[str, Any] = json.loads(data[PREFIX.size :])
        _check(found, schema)
        return found


def _check(data: dict[str, Any], schema: Schema) -> None:
    if data.keys() != schema.keys():
        raise ValueError(f"the schema has the fields {sorted(schema)}, the record has {sorted(data)}")
    for name, kind in schema.items():
        if not isinstance(data[name], TYPES[kind]):
            raise ValueError(f"{name} is {type(data[name]).__name__}, and the schema says {kind}")


ORDER: Schema = {"id": "integer", "customer": "string", "total": "number"}


def run(address: str, topic: str, registry: Registry, orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send orders with their schema, and read them back."""
    with Producer(bootstrap_servers=address, value_serializer=SchemaSerializer(registry, ORDER)) as producer:
        for order in orders:
            producer.send(topic, order)
    found: list[dict[str, Any]] = []
    config = {"bootstrap.servers": address, "group.id": f"{topic}-readers", "auto.offset.reset": "earliest"}
    with Consumer(config, value_deserializer=SchemaDeserializer(registry)) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            found.append(record.value)
            if len(found) == len(orders):
                break
    return found


if __name__ == "__main__":
    for order in run(sys.argv[1], sys.argv[2], InMemoryRegistry(), [{"id": 1, "customer": "Ada", "total": 9.5}]):
        print(order)
