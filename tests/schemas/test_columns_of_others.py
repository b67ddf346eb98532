"""JSON and Protobuf to Arrow columns: what types a schema gives, and what is said of a row that does not fit."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message as protobuf_message

import headrace
from headrace.schemas.columns import column_reader
from headrace.schemas.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
from headrace.schemas.protobuf import ProtobufDeserializer, ProtobufSerializer, message_named
from headrace.schemas.registry_client import RegistryClient
from headrace.schemas.schema import JSON, PROTOBUF, Schema, SchemaError
from headrace.schemas.wire import prefix, write_indexes
from headrace.testing import EmbeddedRegistry, broker, registry

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "state": {"enum": ["new", "paid"]},
        "note": {"type": ["null", "string"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "whatever": {},
        "is_paid": {"type": "boolean"},
    },
    "required": ["id"],
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}}},
}
VALUE = {
    "id": 7,
    "amount": 3,
    "state": "paid",
    "note": "grüß",
    "lines": [{"sku": "A1", "count": 2}, {"sku": "B"}],
    "tags": {"a": 1},
    "either": 5,
    "whatever": {"x": [1]},
    "is_paid": True,
    "beside": "not in the schema",
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Before { string x = 1; }
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { string sku = 1; int32 count = 2; }
  int64 id = 1;
  double amount = 2;
  State state = 3;
  optional string note = 4;
  repeated Line lines = 5;
  map<string, int32> tags = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.Int64Value points = 8;
  google.protobuf.Struct more = 9;
  oneof paid { string card = 10; bytes cash = 11; }
  uint64 large = 12;
  Order before = 13;
}
"""


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with registry() as running:
        yield running


@pytest.fixture(scope="module")
def client(schemas: EmbeddedRegistry) -> Iterator[RegistryClient]:
    made = RegistryClient(schemas.url)
    yield made
    made.close()


def json_rows(client: RegistryClient, subject: str, schema: Any, values: list[Any]) -> list[bytes]:
    client.set_level(subject, "NONE")
    number = client.register(subject, Schema(json.dumps(schema), JSON)).id
    return [prefix(number) + json.dumps(value).encode() for value in values]


def test_values_of_a_json_schema_have_its_types(client: RegistryClient) -> None:
    rows = json_rows(client, "types-value", ORDER, [VALUE, {"id": 8}])
    read = column_reader(Schema(json.dumps(ORDER), JSON), client)
    found = read.read(pa.array([*rows, None], pa.binary()))
    assert found.faults == {}
    kind = found.array.type
    assert {field.name: str(field.type) for field in kind} == {
        "id": "int64",
        "amount": "double",
        "state": "string",
        "note": "string",
        "lines": "list<item: struct<sku: string, count: int64>>",
        "tags": "map<string, int64>",
        "either": "string",
        "whatever": "string",
        "is_paid": "bool",
    }
    first, second, third = found.array.to_pylist()
    assert first == {
        "id": 7,
        "amount": 3.0,
        "state": "paid",
        "note": "grüß",
        "lines": [{"sku": "A1", "count": 2}, {"sku": "B", "count": None}],
        "tags": [("a", 1)],
        "either": "5",
        "whatever": '{"x":[1]}',
        "is_paid": True,
    }
    assert (second["id"], second["note"], second["lines"]) == (8, None, None)
    assert third is None


def test_a_json_schema_that_contains_itself_goes_on_as_text(client: RegistryClient) -> None:
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "inside": {"$ref": "#"}}}
    value = {"name": "a", "inside": {"name": "b"}}
    found = column_reader(Schema(json.dumps(tree), JSON), client).read(
        pa.array(json_rows(client, "tree-value", tree, [value]), pa.binary())
    )
    assert found.array.to_pylist() == [{"name": "a", "inside": '{"name":"b"}'}]


def test_a_json_row_that_does_not_fit_is_null_and_says_why(client: RegistryClient) -> None:
    other = {"type": "object", "properties": {"id": {"type": ["string", "integer"]}}}
    good = json_rows(client, "faults-value", ORDER, [{"id": 1}, {"id": "one"}, {"id": 2**80}])
    bad = json_rows(client, "faults-value", other, [{"id": "seven"}])
    rows = [*good, *bad, b"junk", good[0][:5] + b"{", prefix(999_999) + b"{}"]
    found = column_reader(Schema(json.dumps(ORDER), JSON), client).read(pa.array(rows, pa.binary()))
    assert [row for row, value in enumerate(found.array.to_pylist()) if value is not None] == [0]
    assert "does not match its schema at /id" in found.faults[1]
    assert "does not go with its type" in found.faults[2]
    assert found.faults[3] == 'id: "seven" is not a whole number, as the schema that it is read as says'
    assert "was not written with a schema registry" in found.faults[4]
    assert "is no JSON" in found.faults[5]
    assert "999999" in found.faults[6]


def test_messages_have_the_types_of_their_fields(client: RegistryClient) -> None:
    schema = Schema(PROTO, PROTOBUF)
    number = client.register("proto-value", schema).id
    made = message_named(schema, client, "shop.Order")
    moment = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, datetime.UTC)
    one = made(id=7, amount=1.5, state="PAID", note="n", tags={"a": 1}, card="4111", large=2**63)
    one.lines.add(sku="A1", count=2)
    one.at.FromDatetime(moment)
    one.points.value = 0
    one.more.update({"x": 1})
    one.before.id = 6
    head = prefix(number) + write_indexes([1])
    read = column_reader(schema, client, message="Order")
    rows = [head + one.SerializeToString(), head + made().SerializeToString(), None]
    found = read.read(pa.array(rows, pa.binary()))
    assert found.faults == {}
    first, second, third = found.array.to_pylist()
    before = first.pop("before")
    assert made.FromString(before).id == 6
    assert first == {
        "id": 7,
        "amount": 1.5,
        "state": "PAID",
        "note": "n",
        "lines": [{"sku": "A1", "count": 2}],
        "tags": [("a", 1)],
        "at": moment,
        "points": 0,
        "more": '{"x":1.0}',
        "card": "4111",
        "cash": None,
        "large": 2**63,
    }
    # What has no presence is never null; what has, is.
    assert (second["id"], second["state"], second["lines"]) == (0, "NEW", [])
    assert (second["note"], second["at"], second["points"], second["before"]) == (None, None, None, None)
    assert third is None


def test_a_message_of_another_kind_or_version_is_told_apart(client: RegistryClient) -> None:
    schema = Schema(PROTO, PROTOBUF)
    number = client.register("others-value", schema).id
    newer = Schema(PROTO.replace("Order before = 13;", "Order before = 13; string added = 14;"), PROTOBUF)
    client.set_level("others-value", "NONE")
    second = client.register("others-value", newer).id
    order, before = message_named(newer, client, "shop.Order"), message_named(schema, client, "shop.Before")
    rows = [
        prefix(second) + write_indexes([1]) + order(id=3, added="new").SerializeToString(),
        prefix(number) + write_indexes([0]) + before(x="y").SerializeToString(),
        prefix(number) + write_indexes([1]) + b"\xff\xff",
        prefix(number) + write_indexes([7]) + b"",
        prefix(999_999) + b"\0",
        b"junk",
    ]
    found = column_reader(schema, client, message="shop.Order").read(pa.array(rows, pa.binary()))
    assert [None if one is None else one["id"] for one in found.array.to_pylist()] == [3, *[None] * 5]
    assert found.faults[1] == "it is a message shop.Before, and the column is of shop.Order"
    assert "it is no message shop.Order" in found.faults[2]
    assert "has no such message" in found.faults[3]
    assert "is not in the registry" in found.faults[4]
    assert "was not written with a schema registry" in found.faults[5]
    with pytest.raises(SchemaError, match=r"no message shop\.Nothing: it has shop\.Before, shop\.Order"):
        column_reader(schema, client, message="shop.Nothing")


@pytest.mark.parametrize("kind", ["json-schema", "protobuf"])
def test_a_poll_gives_typed_columns_of_json_and_protobuf(
    schemas: EmbeddedRegistry, client: RegistryClient, kind: str
) -> None:
    line = message_named(Schema(PROTO.replace("message Before { string x = 1; }", ""), PROTOBUF), client, "Order")
    values: list[Any]
    if kind == "protobuf":
        serializer: Any = ProtobufSerializer()
        values = [line(id=number, note="x") for number in range(20)]
        assert all(isinstance(one, protobuf_message.Message) for one in values)
        deserializers: list[Any] = ["protobuf", ProtobufDeserializer(line)]
    else:
        serializer = JsonSchemaSerializer(ORDER)
        values = [{"id": number, "note": "x"} for number in range(20)]
        deserializers = ["json-schema", JsonSchemaDeserializer()]
    with broker() as kafka:
        settings = {"bootstrap_servers": kafka.address, "schema_registry_url": schemas.url}
        topic = f"typed-{kind}"
        with headrace.Producer(**settings, value_serializer=serializer) as producer:
            for value in values:
                producer.send(topic, value)
        with headrace.Producer(bootstrap_servers=kafka.address) as producer:
            producer.send(topic, b"broken").result()
        for deserializer in deserializers:
            with headrace.Consumer(
                **settings,
                value_deserializer=deserializer,
                group_id=f"typed-{deserializer}",
                auto_offset_reset="earliest",
            ) as consumer:
                consumer.subscribe([topic])
                found: list[Any] = []
                while sum(map(len, found)) < 21:
                    found.append(consumer.poll_arrow(20))
            table = pa.Table.from_batches(found)
            rows = table["value"].to_pylist()
            assert [one["id"] for one in rows[:20]] == list(range(20))
            assert {one["note"] for one in rows[:20]} == {"x"}
            assert table["value_error"].null_count == 20
            assert "was not written with a schema registry" in table["value_error"][20].as_py()
