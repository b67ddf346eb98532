"""Avro to Arrow columns: the compiled way gives what fastavro gives one by one, and says what is wrong with a row."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro.utils import generate_one

import headrace
from headrace.schemas.avro import AvroDeserializer, AvroSerializer
from headrace.schemas.columns import ColumnReader
from headrace.schemas.registry_client import RegistryClient
from headrace.schemas.schema import Schema, SchemaError
from headrace.schemas.wire import prefix
from headrace.testing import EmbeddedRegistry, broker, registry

INSIDE = {"type": "record", "name": "Inside", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}]}
SCHEMAS: list[Any] = [
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string"],
    [{"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}, {"type": "fixed", "name": "F", "size": 5}],
    [{"type": "array", "items": "long"}, {"type": "map", "values": "string"}],
    [{"type": "array", "items": {"type": "array", "items": ["null", "string"]}}, INSIDE, ["null", "Inside"]],
    [{"type": "map", "values": {"type": "array", "items": INSIDE}}, {"type": "array", "items": "null"}],
    [["int", "string"], ["null", "int", "string", INSIDE], ["string", "null"]],
    [
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "int", "logicalType": "time-millis"},
    ],
]


def record(kinds: list[Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]}


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with registry() as running:
        yield running


@pytest.fixture(scope="module")
def client(schemas: EmbeddedRegistry) -> Iterator[RegistryClient]:
    made = RegistryClient(schemas.url)
    yield made
    made.close()


def written(client: RegistryClient, subject: str, schema: Any, values: list[Any]) -> list[bytes]:
    client.set_level(subject, "NONE")
    number = client.register(subject, Schema(json.dumps(schema))).id
    parsed, rows = fastavro.parse_schema(schema), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        rows.append(prefix(number) + out.getvalue())
    return rows


def both(client: RegistryClient, schema: Any, column: Any) -> tuple[Any, Any]:
    text = json.dumps(schema)
    fast, slow = ColumnReader(text, client, compiled=True), ColumnReader(text, client, compiled=False)
    return fast.read(column), slow.read(column)


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_what_is_compiled_gives_what_fastavro_gives(client: RegistryClient, number: int) -> None:
    random.seed(number)
    schema = record(SCHEMAS[number])
    dated = number == 6
    values = [generate_one(fastavro.parse_schema(schema)) for _ in range(60)]
    if dated:
        values = [{"f0": n, "f1": n * 1000, "f2": n * 7, "f3": n} for n in range(60)]
    rows = written(client, f"same-{number}", schema, values)
    column = pa.array([None, *rows, None], pa.binary())
    fast, slow = both(client, schema, column)
    fast.array.validate(full=True)
    assert fast.faults == slow.faults == {}
    assert fast.array.to_pylist() == slow.array.to_pylist()
    assert fast.array.slice(5, 9).to_pylist() == fast.array.to_pylist()[5:14]
    sliced, _ = both(client, schema, column.slice(7, 20))
    assert sliced.array.to_pylist() == fast.array.to_pylist()[7:27]


def test_records_of_several_versions_are_read_as_one(client: RegistryClient) -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "gone", "type": "string"}]}
    fields = [
        {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "c", "type": {"type": "map", "values": "int"}, "default": {"k": 1}},
        {"name": "renamed", "type": "double", "aliases": ["a"]},
        {"name": "n", "type": ["int", "null"], "default": 5},
    ]
    new = {"type": "record", "name": "R", "fields": fields}
    first = written(client, "versions", old, [{"a": n, "gone": "x" * n} for n in range(5)])
    second = written(client, "versions", new, [{"b": "q", "c": {}, "renamed": 0.5, "n": None}] * 3)
    rows = [value for pair in zip(first, second) for value in pair] + first[3:]
    fast, slow = both(client, new, pa.array(rows, pa.binary()))
    assert fast.array.to_pylist() == slow.array.to_pylist()
    assert fast.array[0].as_py() == {"b": None, "c": [("k", 1)], "renamed": 0.0, "n": 5}


def test_decimals_and_enums_with_other_symbols(client: RegistryClient) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    old = record([decimal, {"type": "enum", "name": "E", "symbols": ["A", "B", "NEW"]}])
    new = record([decimal, {"type": "enum", "name": "E", "symbols": ["B", "A"], "default": "B"}])
    from decimal import Decimal

    values = [{"f0": Decimal("-12.34"), "f1": "A"}, {"f0": Decimal("0.01"), "f1": "NEW"}]
    fast, slow = both(client, new, pa.array(written(client, "decimals", old, values), pa.binary()))
    assert fast.array.to_pylist() == slow.array.to_pylist() == [values[0], {"f0": Decimal("0.01"), "f1": "B"}]


def test_a_broken_row_is_null_and_says_why(client: RegistryClient) -> None:
    schema = record(["string", {"type": "array", "items": "string"}, "boolean"])
    (good,) = written(client, "broken", schema, [{"f0": "a", "f1": ["b"], "f2": True}])
    number = good[:5]
    other = prefix(client.register("other-kind", Schema('{"type": "object"}', "JSON")).id)
    rows = {
        "good": good,
        "cut": good[:-1],
        "left": good + b"\x00",
        "no registry": b"hello, world",
        "empty": b"",
        "boolean": good[:-1] + b"\x07",
        "text": number + b"\x02\xff" + good[7:],
        "items": number + b"\x00" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        "varint": number + b"\xff" * 11,
        "negative": number + b"\x01",
        "unknown": prefix(99_999) + good[5:],
        "kind": other + good[5:],
        "good too": good,
    }
    fast, slow = both(client, schema, pa.array(list(rows.values()), pa.binary()))
    names = list(rows)
    assert {names[row] for row in fast.faults} == set(rows) - {"good", "good too"}
    # fastavro takes any byte for a boolean.
    assert fast.faults.keys() - {names.index("boolean")} == slow.faults.keys()
    assert [names[row] for row, value in enumerate(fast.array.to_pylist()) if value] == ["good", "good too"]
    assert fast.faults[names.index("text")] == "a text is no UTF-8"
    assert "is not in the registry" in fast.faults[names.index("unknown")]


def test_no_bytes_whatever_they_are_break_the_columns(client: RegistryClient) -> None:
    random.seed(5)
    schema = record(SCHEMAS[3])
    values = [generate_one(fastavro.parse_schema(schema)) for _ in range(20)]
    rows = written(client, "hostile", schema, values)
    damaged = []
    for row in rows * 20:
        data = bytearray(row)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(5, len(data))] = random.randrange(256)
        damaged.append(bytes(data[: random.randint(5, len(data))]))
    fast, _ = both(client, schema, pa.array(damaged, pa.binary()))
    fast.array.validate(full=True)
    assert len(fast.array) == len(damaged)
    for row, value in enumerate(fast.array.to_pylist()):
        assert (value is None) == (row in fast.faults)


def test_what_contains_itself_has_no_columns(client: RegistryClient) -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"], "default": None}]}
    with pytest.raises(SchemaError, match="contains itself"):
        ColumnReader(json.dumps(tree), client)


def test_a_wrong_default_is_said_where_it_would_be_needed(client: RegistryClient) -> None:
    written_with, wrong = record(["long"]), record(["long"])
    wrong["fields"].append({"name": "added", "type": ["null", "int"], "default": "null"})
    rows = pa.array(written(client, "wrong-default", written_with, [{"f0": 7}]), pa.binary())
    found = ColumnReader(json.dumps(wrong), client, compiled=True).read(rows)
    assert found.array.to_pylist() == [None]
    assert "field added was not written, and its default does not go with its type" in found.faults[0]


def test_a_poll_gives_typed_columns(schemas: EmbeddedRegistry, client: RegistryClient) -> None:
    schema = record(["long", ["null", "string"]])
    with broker() as kafka:
        with headrace.Producer(
            bootstrap_servers=kafka.address,
            schema_registry_url=schemas.url,
            value_serializer=AvroSerializer(schema),
        ) as producer:
            for number in range(50):
                producer.send("typed", {"f0": number, "f1": None if number % 2 else "x"})
        with headrace.Producer(bootstrap_servers=kafka.address) as producer:
            producer.send("typed", b"broken").result()
        for deserializer in ("avro", AvroDeserializer(schema)):
            with headrace.Consumer(
                bootstrap_servers=kafka.address,
                schema_registry_url=schemas.url,
                value_deserializer=deserializer,
                group_id=f"typed-{deserializer}",
                auto_offset_reset="earliest",
            ) as consumer:
                consumer.subscribe(["typed"])
                found: list[Any] = []
                while sum(map(len, found)) < 51:
                    found.append(consumer.poll_arrow(20))
                table = pa.Table.from_batches(found)
            assert table["value"].combine_chunks().field("f0").to_pylist()[:50] == list(range(50))
            assert table["value"].type.field("f1").type == pa.string()
            errors = table["value_error"].to_pylist()
            assert errors[:50] == [None] * 50
            assert "was not written with a schema registry" in errors[50]
