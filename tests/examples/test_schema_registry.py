"""The example of a schema registry: round trip, the prefix on the wire, and records that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from examples.schema_registry import ORDER, InMemoryRegistry, SchemaDeserializer, SchemaSerializer, run

import headrace.testing
from headrace import Consumer, Producer
from headrace.client.errors import SerializationError


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with headrace.testing.broker() as broker:
        yield broker.address


@pytest.mark.slow
def test_records_come_back_as_they_were_and_name_their_schema(address: str) -> None:
    registry = InMemoryRegistry()
    orders = [{"id": number, "customer": "Ada", "total": number / 2} for number in range(20)]
    assert run(address, "orders", registry, orders) == orders
    assert registry.subjects == {"orders-value": [1]}
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", 0)])
        raw = next(iter(consumer)).value
    assert raw[:5] == b"\x00\x00\x00\x00\x01"


def test_a_record_that_does_not_fit_its_schema_is_not_sent(address: str) -> None:
    serializer = SchemaSerializer(InMemoryRegistry(), ORDER)
    with Producer(bootstrap_servers=address, value_serializer=serializer) as producer:
        with pytest.raises(SerializationError, match="total is str"):
            producer.send("misfits", {"id": 1, "customer": "Ada", "total": "nine"})
        with pytest.raises(SerializationError, match="fields"):
            producer.send("misfits", {"id": 1})


def test_a_schema_that_changed_is_read_by_its_own_number() -> None:
    registry = InMemoryRegistry()
    old, new = SchemaSerializer(registry, {"id": "integer"}), SchemaSerializer(registry, {"id": "string"})
    reader = SchemaDeserializer(registry)
    written = [old.serialize("t", {"id": 1}), new.serialize("t", {"id": "one"})]
    assert [reader.deserialize("t", data) for data in written] == [{"id": 1}, {"id": "one"}]
    assert registry.subjects == {"t-value": [1, 2]}


def test_bytes_without_a_schema_are_refused() -> None:
    with pytest.raises(ValueError, match="number of a schema"):
        SchemaDeserializer(InMemoryRegistry()).deserialize("t", b"plain")
    with pytest.raises(LookupError, match="no schema 7"):
        SchemaDeserializer(InMemoryRegistry()).deserialize("t", b"\x00\x00\x00\x00\x07{}")
