"""Records with schemas: written and read one by one and in columns, next to confluent-kafka in the same run.

    python -m bench.schemas

Records per second, the best of several rounds; the ratio is ours over confluent-kafka's. Needs the development
dependencies. The registry is Headrace's own, in memory; after the first record nobody asks it any more.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow

from headrace.schemas.avro import AvroDeserializer, AvroSerializer
from headrace.schemas.columns import ColumnReader, column_reader
from headrace.schemas.protobuf import message_named
from headrace.schemas.registry_client import RegistryClient
from headrace.schemas.schema import JSON, PROTOBUF, Schema
from headrace.schemas.wire import prefix, write_indexes
from headrace.testing import registry

ROUNDS = 5
ONE_BY_ONE = 30_000
ROWS = 200_000

ORDER = {
    "type": "record",
    "name": "bench.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "count", "type": "int"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]}},
    ],
}
NESTED = {
    "type": "record",
    "name": "bench.Basket",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line",
            "fields": [{"name": "item", "type": "string"}, {"name": "price", "type": "double"}],
        }}},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
    ],
}  # fmt: skip


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "user": f"user-{number % 1000}",
        "note": None if number % 3 else f"note {number}",
        "price": number * 0.25,
        "paid": number % 2 == 0,
        "at": 1_700_000_000_000 + number,
        "count": number % 77,
        "state": ("NEW", "PAID", "SENT")[number % 3],
    }


def basket(number: int) -> dict[str, Any]:
    lines = [{"item": f"item-{n}", "price": n + 0.5} for n in range(number % 5)]
    return {"user": f"user-{number % 1000}", "lines": lines, "labels": {"k": "v", "n": str(number)}}


def best(count: int, work: Callable[[], Any]) -> float:
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - began))
    return max(rates)


def show(what: str, ours: float, theirs: float) -> None:
    print(f"{what:<42} {ours:>12,.0f} {theirs:>16,.0f} {ours / theirs:>8.2f}")


def measure(name: str, schema: dict[str, Any], make: Callable[[int], dict[str, Any]], client: RegistryClient) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from confluent_kafka.schema_registry import SchemaRegistryClient, avro
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(name, MessageField.VALUE)
    values = [make(number) for number in range(ONE_BY_ONE)]
    with SchemaRegistryClient({"url": client.urls[0]}) as theirs:
        their_writer, their_reader = avro.AvroSerializer(theirs, json.dumps(schema)), avro.AvroDeserializer(theirs)
        writer, reader = AvroSerializer(schema, client), AvroDeserializer(registry=client)
        rows = [writer.serialize(name, value) or b"" for value in values]
        assert rows[:100] == [their_writer(value, context) for value in values[:100]]
        show(
            f"{name}: write one by one",
            best(ONE_BY_ONE, lambda: [writer.serialize(name, value) for value in values]),
            best(ONE_BY_ONE, lambda: [their_writer(value, context) for value in values]),
        )
        one_by_one = best(ONE_BY_ONE, lambda: [their_reader(row, context) for row in rows])
        show(
            f"{name}: read one by one",
            best(ONE_BY_ONE, lambda: [reader.deserialize(name, row) for row in rows]),
            one_by_one,
        )
        column = pyarrow.array((rows * (ROWS // ONE_BY_ONE + 1))[:ROWS], pyarrow.binary())
        columns = ColumnReader(schema, client)
        # Numba loads what it compiled before, or compiles.
        columns.read(column[:100])
        show(f"{name}: read as columns", best(ROWS, lambda: columns.read(column)), one_by_one)


JSON_ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "user": {"type": "string"},
        "note": {"type": ["null", "string"]},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "at": {"type": "integer"},
        "count": {"type": "integer"},
        "state": {"enum": ["NEW", "PAID", "SENT"]},
    },
}
PROTO_ORDER = """syntax = "proto3";
message Order {
  enum State { NEW = 0; PAID = 1; SENT = 2; }
  int64 id = 1; string user = 2; optional string note = 3; double price = 4;
  bool paid = 5; int64 at = 6; int32 count = 7; State state = 8;
}
"""


def measure_others(client: RegistryClient) -> None:
    """JSON and Protobuf in columns; confluent-kafka makes a dictionary, or a message, of each record."""
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    values = [order(number) for number in range(ONE_BY_ONE)]
    schema = Schema(json.dumps(JSON_ORDER), JSON)
    number = client.register("json-value", schema).id
    rows = [prefix(number) + json.dumps(value).encode() for value in values]
    columns, column = column_reader(schema, client), pyarrow.array(rows, pyarrow.binary())
    assert not columns.read(column).faults
    their_json, context = JSONDeserializer(schema.text), SerializationContext("json", MessageField.VALUE)
    show(
        "JSON Schema, 8 fields: read as columns",
        best(ONE_BY_ONE, lambda: columns.read(column)),
        best(ONE_BY_ONE, lambda: [their_json(row, context) for row in rows]),
    )
    schema = Schema(PROTO_ORDER, PROTOBUF)
    number, kind = client.register("proto-value", schema).id, message_named(schema, client, "Order")
    head = prefix(number) + write_indexes([0])
    rows = [head + kind(**value).SerializeToString() for value in values]
    messages, column = column_reader(schema, client), pyarrow.array(rows, pyarrow.binary())
    assert not messages.read(column).faults
    their_proto = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    context = SerializationContext("proto", MessageField.VALUE)
    show(
        "Protobuf, 8 fields: read as columns",
        best(ONE_BY_ONE, lambda: messages.read(column)),
        best(ONE_BY_ONE, lambda: [their_proto(row, context) for row in rows]),
    )


def main() -> int:
    print(f"{'records/s':<42} {'headrace':>12} {'confluent-kafka':>16} {'ratio':>8}")
    with registry() as running:
        client = RegistryClient(running.url)
        measure("flat, 8 fields", ORDER, order, client)
        measure("nested, arrays and maps", NESTED, basket, client)
        measure_others(client)
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
