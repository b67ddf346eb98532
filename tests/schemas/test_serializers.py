"""Serializers: the same bytes as confluent-kafka's, both ways, and what they say when something does not fit."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import pickle
import typing
import uuid
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.avro import AvroDeserializer as ConfluentAvroDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentAvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer as ConfluentProtobufDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as ConfluentProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, struct_pb2
from google.rpc import error_details_pb2, status_pb2

import headrace
from headrace import aio
from headrace.schemas.avro import AvroDeserializer, AvroSerializer
from headrace.schemas.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
from headrace.schemas.protobuf import ProtobufDeserializer, ProtobufSerializer
from headrace.schemas.registry_client import RegistryClient, RegistryUnavailableError
from headrace.schemas.schema import Reference, Schema
from headrace.schemas.wire import read_indexes, write_indexes
from headrace.testing import EmbeddedBroker, EmbeddedRegistry, broker, free_port, registry

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ],
}
VALUE = {"id": 7, "note": "grüß", "lines": [1.5, -2.0], "tags": {"a": 1}, "state": "PAID", "at": 1_700_000_000_000}


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with registry() as running:
        yield running


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


@pytest.fixture
def ours(schemas: EmbeddedRegistry) -> Iterator[RegistryClient]:
    client = RegistryClient(schemas.url)
    yield client
    client.close()


@pytest.fixture
def theirs(schemas: EmbeddedRegistry) -> Iterator[confluent.SchemaRegistryClient]:
    with confluent.SchemaRegistryClient({"url": schemas.url}) as client:
        yield client


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.parametrize(
    ("schema", "value"),
    [(ORDER, VALUE), ("string", "text"), ("long", -9), ("bytes", b"\x00raw"), (["null", "int", "string"], "x")],
)
def test_avro_is_written_as_confluent_writes_it(
    ours: RegistryClient, theirs: confluent.SchemaRegistryClient, schema: Any, value: Any
) -> None:
    topic = f"avro-{abs(hash(json.dumps(schema)))}"
    text = json.dumps(schema)
    expected = ConfluentAvroSerializer(theirs, text)(value, value_of(topic))
    made = AvroSerializer(text, ours).serialize(topic, value)
    assert made == expected
    assert AvroDeserializer(registry=ours).deserialize(topic, expected) == ConfluentAvroDeserializer(theirs)(
        made, value_of(topic)
    )


def test_json_is_written_as_confluent_writes_it(ours: RegistryClient, theirs: confluent.SchemaRegistryClient) -> None:
    text = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
    value = {"id": 3, "note": "grüß", "deep": {"a": [1.5, None, True]}}
    expected = JSONSerializer(text, theirs)(value, value_of("json"))
    made = JsonSchemaSerializer(text, ours).serialize("json", value)
    assert made == expected
    assert JsonSchemaDeserializer(ours).deserialize("json", expected) == value
    assert JSONDeserializer(None, schema_registry_client=theirs)(made, value_of("json")) == value


@pytest.mark.parametrize(
    "message",
    [
        status_pb2.Status(code=5, message="no"),
        error_details_pb2.QuotaFailure(violations=[error_details_pb2.QuotaFailure.Violation(subject="a")]),
        error_details_pb2.Help.Link(url="x"),
    ],
)
def test_protobuf_is_written_as_confluent_writes_it(
    ours: RegistryClient, theirs: confluent.SchemaRegistryClient, message: Any
) -> None:
    topic = message.DESCRIPTOR.name
    plain = {"use.deprecated.format": False}
    expected = ConfluentProtobufSerializer(type(message), theirs, plain)(message, value_of(topic))
    made = ProtobufSerializer(ours).serialize(topic, message)
    assert made == expected
    assert ProtobufDeserializer(type(message), ours).deserialize(topic, expected) == message
    # Without a class one is made of the schema.
    found = ProtobufDeserializer(registry=ours).deserialize(topic, expected)
    assert found.SerializeToString() == message.SerializeToString()
    assert found.DESCRIPTOR.full_name == message.DESCRIPTOR.full_name
    assert ConfluentProtobufDeserializer(type(message), plain, theirs)(made, value_of(topic)) == message


def test_what_a_protobuf_file_imports_is_registered_first(ours: RegistryClient) -> None:
    serializer = ProtobufSerializer(ours, {"skip.known.types": False})
    data = serializer.serialize("with-imports", status_pb2.Status(code=1))
    assert data is not None
    number = int.from_bytes(data[1:5], "big")
    (reference,) = ours.by_id(number).schema.references
    assert reference == Reference("google/protobuf/any.proto", "google/protobuf/any.proto", 1)


def test_indexes_name_the_message_of_a_file() -> None:
    assert write_indexes([0]) == b"\x00"
    assert write_indexes([1, 0]) == b"\x04\x02\x00"
    for indexes in ([0], [1], [2, 0, 300]):
        assert read_indexes(write_indexes(indexes), 0) == (tuple(indexes), len(write_indexes(indexes)))
    with pytest.raises(headrace.SerializationError, match="ends"):
        read_indexes(b"\x80", 0)


def test_records_go_through_both_clients_with_kafkas_names(
    kafka: EmbeddedBroker, schemas: EmbeddedRegistry, theirs: confluent.SchemaRegistryClient
) -> None:
    with headrace.Producer(
        bootstrap_servers=kafka.address,
        schema_registry_url=schemas.url,
        value_serializer=AvroSerializer(ORDER),
        key_serializer=AvroSerializer("string"),
    ) as producer:
        producer.send("orders", VALUE, key="k").result()
        producer.send("orders", None, key="gone").result()
    config = {
        "bootstrap.servers": kafka.address,
        "schema.registry.url": schemas.url,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "key.deserializer": "avro",
        "value.deserializer": "io.confluent.kafka.serializers.KafkaAvroDeserializer",
    }

    async def read() -> list[tuple[Any, Any]]:
        async with aio.Consumer(config) as consumer:
            consumer.subscribe(["orders"])
            found: list[tuple[Any, Any]] = []
            while len(found) < 2:
                found += [(record.key, record.value) for record in await consumer.poll(5)]
            return found

    (first, second) = asyncio.run(read())
    assert first[0] == "k"
    assert first[1]["id"] == 7
    assert second == ("gone", None)
    assert {"orders-key", "orders-value"} <= set(theirs.get_subjects())


def test_a_guid_in_a_header_names_the_schema(
    kafka: EmbeddedBroker, schemas: EmbeddedRegistry, ours: RegistryClient, theirs: confluent.SchemaRegistryClient
) -> None:
    headers: list[tuple[str, bytes]] = []
    settings = {"schema.id.serializer": confluent.header_schema_id_serializer}
    context = SerializationContext("guided", MessageField.VALUE, headers)
    payload = ConfluentAvroSerializer(theirs, json.dumps(ORDER), None, settings)(VALUE, context)
    with headrace.Producer(bootstrap_servers=kafka.address) as producer:
        producer.send("guided", payload, headers=headers).result()
    with headrace.Consumer(
        bootstrap_servers=kafka.address,
        schema_registry_url=schemas.url,
        value_deserializer="avro",
        group_id="guided",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["guided"])
        (record,) = consumer.poll(20)
    assert record.value["id"] == 7


def test_a_reader_has_a_schema_of_its_own(ours: RegistryClient) -> None:
    old = AvroSerializer({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, ours)
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "b", "type": "string", "default": "-"}, {"name": "a", "type": "long"}],
    }
    data = old.serialize("evolving", {"a": 1})
    assert data is not None
    assert AvroDeserializer(new, ours).deserialize("evolving", data) == {"a": 1, "b": "-"}


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "named-value"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.Order"),
        ("TopicRecordNameStrategy", "named-shop.Order"),
        (lambda topic, is_key, record: f"mine-{topic}-{record}", "mine-named-shop.Order"),
    ],
)
def test_subjects_are_named_by_a_strategy(ours: RegistryClient, strategy: Any, subject: str) -> None:
    AvroSerializer(ORDER, ours, {"value.subject.name.strategy": strategy}).serialize("named", VALUE)
    assert subject in ours.subjects()


def test_a_schema_need_not_be_registered_by_who_writes(ours: RegistryClient) -> None:
    settings = {"auto.register.schemas": "false"}
    with pytest.raises(headrace.SerializationError, match="Subject 'given-value' not found"):
        AvroSerializer(ORDER, ours, settings).serialize("given", VALUE)
    number = ours.register("given-value", Schema(json.dumps(ORDER))).id
    made = AvroSerializer(ORDER, ours, settings).serialize("given", VALUE)
    latest = AvroSerializer(registry=ours, settings={"use.latest.version": True}).serialize("given", VALUE)
    named = AvroSerializer(registry=ours, settings={"use.schema.id": number}).serialize("elsewhere", VALUE)
    assert made == latest == named
    assert AvroSerializer(ORDER, settings={"schema.registry.url": ours.urls[0]}).serialize("given", VALUE) == made
    with pytest.raises(headrace.ConfigError, match=r"auto\.register\.schemas=false"):
        AvroSerializer(registry=ours, settings={"use.latest.version": True, "auto.register.schemas": True})


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Part:
    name: str
    weight: float = 0.5


@dataclasses.dataclass
class Machine:
    id: int
    parts: list[Part]
    colour: Colour
    spare: Part | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


class Reading(typing.TypedDict):
    sensor: str
    value: float


class Person(pydantic.BaseModel):
    name: str
    age: int | None = None
    friends: list[str] = []


@pytest.mark.parametrize(
    "value",
    [
        Machine(1, [Part("a"), Part("b", 2.0)], Colour.BLUE, Part("c"), {"x": "y"}),
        Machine(2, [], Colour.RED),
        Person(name="Ann", friends=["Bob"]),
    ],
)
def test_objects_of_types_need_no_schema(ours: RegistryClient, value: Any) -> None:
    kind = type(value)
    data = AvroSerializer(registry=ours).serialize(f"typed-{kind.__name__}", value)
    assert data is not None
    assert AvroDeserializer(registry=ours, into=kind).deserialize("t", data) == value
    assert AvroDeserializer(kind, ours).deserialize("t", data) == value
    data = JsonSchemaSerializer(registry=ours).serialize(f"typed-json-{kind.__name__}", value)
    assert data is not None
    assert JsonSchemaDeserializer(ours, into=kind).deserialize("t", data) == value


def test_a_typed_dictionary_has_a_schema(ours: RegistryClient) -> None:
    value: Reading = {"sensor": "s", "value": 1.5}
    data = AvroSerializer(Reading, ours).serialize("readings", value)
    assert data is not None
    assert AvroDeserializer(registry=ours).deserialize("readings", data) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "was not written with a schema registry"),
        (b"\x07abcdef", "07616263"),
        (b"\x00\x00\x00\xff\xff", "does not have"),
        (b"\x01abcdef", "ends within its schema's GUID"),
        (b"\x00ID__\x02", "is not what its schema"),
        (b"\x00ID__" + b"\x02\x00\x00\x00\x00\x00\x00", "after what its schema"),
    ],
)
def test_bytes_that_are_none_say_why(ours: RegistryClient, data: bytes, reason: str) -> None:
    number = ours.register("bad-value", Schema(json.dumps(ORDER))).id
    data = data.replace(b"ID__", number.to_bytes(4, "big"))
    with pytest.raises(headrace.SerializationError, match=reason):
        AvroDeserializer(registry=ours).deserialize("bad", data)


def test_values_that_do_not_fit_say_which_field(ours: RegistryClient) -> None:
    serializer = AvroSerializer(ORDER, ours)
    with pytest.raises(headrace.SerializationError, match="field lines is missing"):
        serializer.serialize("fit", {"id": 1})
    with pytest.raises(headrace.SerializationError, match="field id is 'x'"):
        serializer.serialize("fit", {**VALUE, "id": "x"})
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    with pytest.raises(headrace.SerializationError, match="at /id: "):
        JsonSchemaSerializer(schema, ours).serialize("fit-json", {"id": "x"})
    with pytest.raises(headrace.SerializationError, match="no message of a class"):
        ProtobufSerializer(ours).serialize("fit", {"id": 1})


def test_a_schema_of_another_kind_says_so(ours: RegistryClient) -> None:
    data = JsonSchemaSerializer({"type": "object"}, ours).serialize("kinds", {})
    assert data is not None
    with pytest.raises(headrace.SerializationError, match="which is JSON, and not AVRO"):
        AvroDeserializer(registry=ours).deserialize("kinds", data)


def test_json_schemas_may_refer_to_others(ours: RegistryClient) -> None:
    ours.register("part", Schema('{"type": "object", "properties": {"n": {"type": "integer"}}}', "JSON"))
    whole = Schema('{"type": "array", "items": {"$ref": "part.json"}}', "JSON", (Reference("part.json", "part", 1),))
    serializer = JsonSchemaSerializer(whole, ours)
    assert serializer.serialize("whole", [{"n": 1}])
    with pytest.raises(headrace.SerializationError, match="/0/n"):
        serializer.serialize("whole", [{"n": "x"}])


def test_while_a_registry_is_away_what_is_kept_goes_on_and_the_rest_waits_with_a_bound() -> None:
    settings = {"schema.registry.timeout.ms": 300}
    with registry() as running:
        client = RegistryClient(f"http://127.0.0.1:{free_port()},{running.url}", settings)
        data = AvroSerializer(ORDER, client).serialize("kept", VALUE)
        reader = AvroDeserializer(registry=client)
        assert data is not None
        assert reader.deserialize("kept", data)["id"] == 7
    assert reader.deserialize("kept", data)["id"] == 7
    assert AvroSerializer(ORDER, client).serialize("kept", VALUE) == data
    with pytest.raises(RegistryUnavailableError, match=r"within 0 s \(schema\.registry\.timeout\.ms\)"):
        reader.deserialize("kept", b"\x00\x00\x00\x00\x63")
    client.close()


def test_a_record_that_cannot_be_read_stays_where_it_is(kafka: EmbeddedBroker, schemas: EmbeddedRegistry) -> None:
    with headrace.Producer(bootstrap_servers=kafka.address) as producer:
        producer.send("broken", b"\x00\x00\x00\xff\xff").result()
    with headrace.Consumer(
        bootstrap_servers=kafka.address,
        schema_registry_url=schemas.url,
        value_deserializer="avro",
        group_id="broken",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["broken"])
        for _ in range(2):
            with pytest.raises(headrace.RecordDeserializationError, match="does not have") as failed:
                consumer.poll(20)
            assert failed.value.offset == 0


def test_serializers_travel_to_other_processes(ours: RegistryClient) -> None:
    data = AvroSerializer(ORDER, ours).serialize("moved", VALUE)
    again = pickle.loads(pickle.dumps(AvroDeserializer(registry=ours)))
    assert again.deserialize("moved", data)["id"] == 7


def test_a_registry_finds_a_guid(ours: RegistryClient) -> None:
    found = ours.register("guid-value", Schema(json.dumps(ORDER)))
    assert found.guid is not None
    assert ours.by_guid(found.guid).schema.text == ours.by_id(found.id).schema.text
    assert isinstance(ours.by_id(found.id).guid, uuid.UUID)


def test_builtin_messages_are_read_back(ours: RegistryClient) -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": [1, "x", None]})
    data = ProtobufSerializer(ours).serialize("structs", struct)
    assert data is not None
    assert ProtobufDeserializer(struct_pb2.Struct, ours).deserialize("structs", data) == struct
    file = descriptor_pb2.FileDescriptorProto(name="n")
    data = ProtobufSerializer(ours).serialize("files", file)
    assert data is not None
    assert data[5:7] == b"\x02\x02"
