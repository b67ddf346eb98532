"""confluent-kafka's registry client and Avro serializers against a registry whose schemas are in a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.waiting import eventually

import headrace
from headrace.testing import EmbeddedBroker, EmbeddedRegistry, broker, registry

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"], "default": None}],
}


def user(*fields: dict[str, object]) -> Schema:
    return Schema(json.dumps({**USER, "fields": [*USER["fields"], *fields]}), "AVRO")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


@pytest.fixture(scope="module")
def schemas(kafka: EmbeddedBroker) -> Iterator[EmbeddedRegistry]:
    with registry(kafka.address) as running:
        yield running


@pytest.fixture
def client(schemas: EmbeddedRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": schemas.url}) as made:
        yield made


def code_of(failed: pytest.ExceptionInfo[SchemaRegistryError]) -> tuple[int, int]:
    return failed.value.http_status_code, failed.value.error_code


def test_avro_serializers_of_confluent_register_and_find_schemas(client: SchemaRegistryClient) -> None:
    context = SerializationContext("people", MessageField.VALUE)
    data = AvroSerializer(client, json.dumps(USER))({"name": "Ann", "age": 7}, context)
    assert AvroDeserializer(client)(data, context) == {"name": "Ann", "age": 7}
    number = int.from_bytes(data[1:5], "big")
    assert client.get_latest_version("people-value").schema_id == number
    assert "people-value" in client.get_subjects()


def test_the_same_schema_has_one_number_under_all_subjects(client: SchemaRegistryClient) -> None:
    spaced = Schema(json.dumps(USER, indent=3), "AVRO")
    assert client.register_schema("one-value", user()) == client.register_schema("two-value", spaced)
    assert client.get_versions("two-value") == [1]


def test_an_incompatible_schema_is_refused_with_the_field_and_the_reason(client: SchemaRegistryClient) -> None:
    client.register_schema("refused-value", user())
    with pytest.raises(SchemaRegistryError) as failed:
        client.register_schema("refused-value", user({"name": "city", "type": "string"}))
    assert code_of(failed) == (409, 409)
    assert "field city of shop.User is not written, and has no default" in str(failed.value)
    assert client.register_schema("refused-value", user({"name": "city", "type": "string", "default": ""}))


def test_a_default_that_does_not_go_with_its_type_is_taken_unless_somebody_asks_to_look(
    kafka: EmbeddedBroker, client: SchemaRegistryClient
) -> None:
    # A usual mistake. Confluent's registry takes it, and topics with such schemas are taken over.
    usual = user({"name": "city", "type": ["null", "int"], "default": "null"})
    assert client.register_schema("usual-value", usual)
    assert client.lookup_schema("usual-value", usual).version == 1
    with pytest.raises(SchemaRegistryError) as failed:
        client.register_schema("normal-value", usual, normalize_schemas=True)
    assert code_of(failed)[1] == 42201
    assert "Invalid default for field city" in str(failed.value)
    with registry(overrides={"schema.providers.avro.validate.defaults": "true"}) as strict:
        with SchemaRegistryClient({"url": strict.url}) as asking, pytest.raises(SchemaRegistryError) as failed:
            asking.register_schema("usual-value", usual)
        assert code_of(failed)[1] == 42201


def test_levels_decide_what_is_compatible(client: SchemaRegistryClient) -> None:
    with_city = user({"name": "city", "type": "string"})
    client.register_schema("levels-value", user())
    assert not client.test_compatibility("levels-value", with_city)
    client.set_compatibility("levels-value", "FORWARD")
    assert client.get_compatibility("levels-value") == "FORWARD"
    assert client.test_compatibility("levels-value", with_city)
    client.delete_config("levels-value")
    with pytest.raises(SchemaRegistryError) as failed:
        client.get_compatibility("levels-value")
    assert code_of(failed) == (404, 40408)


def test_a_transitive_level_asks_for_all_versions(client: SchemaRegistryClient) -> None:
    subject = "transitive-value"
    client.register_schema(subject, user({"name": "a", "type": "int"}))
    client.register_schema(subject, user())
    without_default = user({"name": "a", "type": "string", "default": "-"})
    assert client.test_compatibility_all_versions(subject, without_default)
    client.set_compatibility(subject, "BACKWARD_TRANSITIVE")
    assert not client.test_compatibility_all_versions(subject, without_default)


def test_deletion_is_soft_first_and_then_for_good(client: SchemaRegistryClient) -> None:
    number = client.register_schema("gone-value", user())
    with pytest.raises(SchemaRegistryError) as failed:
        client.delete_version("gone-value", 1, permanent=True)
    assert code_of(failed) == (404, 40407)
    assert client.delete_subject("gone-value") == [1]
    with pytest.raises(SchemaRegistryError) as failed:
        client.get_latest_version("gone-value")
    assert code_of(failed) == (404, 40401)
    assert client.get_versions("gone-value", deleted=True) == [1]
    assert client.get_schema(number).schema_str  # records that were written with it can still be read
    assert client.delete_subject("gone-value", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as failed:
        client.get_versions("gone-value", deleted=True)
    assert code_of(failed) == (404, 40401)


def test_a_schema_may_use_another_and_then_that_one_stays(client: SchemaRegistryClient) -> None:
    address = Schema(
        json.dumps({"type": "record", "name": "shop.Address", "fields": [{"name": "city", "type": "string"}]}), "AVRO"
    )
    client.register_schema("address", address)
    references = [SchemaReference("shop.Address", "address", 1)]
    used = Schema(user({"name": "home", "type": "shop.Address"}).schema_str, "AVRO", references)
    with pytest.raises(SchemaRegistryError) as failed:
        client.register_schema("using-value", user({"name": "home", "type": "shop.Address"}))
    assert code_of(failed) == (422, 42201)
    number = client.register_schema("using-value", used)
    assert client.get_referenced_by("address", 1) == [number]
    with pytest.raises(SchemaRegistryError) as failed:
        client.delete_version("address", 1)
    assert code_of(failed) == (422, 42206)
    context = SerializationContext("using", MessageField.VALUE)
    data = AvroSerializer(client, used)({"name": "Ann", "age": None, "home": {"city": "Bern"}}, context)
    assert AvroDeserializer(client)(data, context)["home"] == {"city": "Bern"}


def test_a_context_has_numbers_of_its_own(client: SchemaRegistryClient) -> None:
    client.register_schema("plain-value", user({"name": "x", "type": "int", "default": 1}))
    number = client.register_schema(":.lab:value", user({"name": "y", "type": "int", "default": 1}))
    assert number == 1
    assert ".lab" in client.get_contexts()
    assert client.get_latest_version(":.lab:value").schema_id == 1


def test_only_an_import_may_name_numbers(client: SchemaRegistryClient) -> None:
    client.update_mode("imported-value", "READONLY")
    with pytest.raises(SchemaRegistryError) as failed:
        client.register_schema("imported-value", user())
    assert code_of(failed) == (422, 42205)
    client.update_mode("imported-value", "READWRITE")
    assert client.get_mode("imported-value") == "READWRITE"
    client.register_schema("imported-value", user())


def test_a_new_instance_has_what_the_former_one_wrote(kafka: EmbeddedBroker, client: SchemaRegistryClient) -> None:
    number = client.register_schema("kept-value", user({"name": "kept", "type": "int", "default": 0}))
    client.set_compatibility("kept-value", "FULL")
    with (
        registry(kafka.address, {"leader.eligibility": "false"}) as other,
        SchemaRegistryClient({"url": other.url}) as again,
    ):
        assert again.get_latest_version("kept-value").schema_id == number
        assert again.get_compatibility("kept-value") == "FULL"
        # It may not write itself: whoever may is asked.
        assert again.register_schema("forwarded-value", user()) == client.register_schema("forwarded-value", user())


def test_another_instance_writes_when_the_first_one_stops(kafka: EmbeddedBroker) -> None:
    overrides = {"schema.registry.group.id": "two", "kafkastore.topic": "_schemas-two"}
    with registry(kafka.address, overrides) as first, registry(kafka.address, overrides) as second:
        assert (first.is_leading, second.is_leading) == (True, False)
        with SchemaRegistryClient({"url": first.url}) as client:
            client.register_schema("a-value", user())
        with SchemaRegistryClient({"url": second.url}) as client:
            client.register_schema("b-value", user())
    with registry(kafka.address, overrides) as third, SchemaRegistryClient({"url": third.url}) as client:
        eventually(lambda: third.is_leading, "a new instance that writes")
        assert client.get_subjects() == ["a-value", "b-value"]
        client.register_schema("c-value", user({"name": "c", "type": "int", "default": 3}))


def test_records_are_those_of_confluents_registry(kafka: EmbeddedBroker, client: SchemaRegistryClient) -> None:
    """The keys, byte for byte, and the fields of the values."""
    client.register_schema("format-value", user())
    client.set_compatibility("format-value", "NONE")
    client.delete_subject("format-value")
    wanted = b'"subject":"format-value"'
    with headrace.Consumer(
        bootstrap_servers=kafka.address, group_id=None, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        partition = headrace.TopicPartition("_schemas", 0)
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        found: list[headrace.ConsumerRecord] = []

        def seen() -> bool:
            found.extend(record for record in consumer.poll(1.0) if wanted in (record.key or b""))
            return len(found) >= 3

        eventually(seen, "three records")
    assert [record.key for record in found] == [
        b'{"keytype":"SCHEMA","subject":"format-value","version":1,"magic":1}',
        b'{"keytype":"CONFIG","subject":"format-value","magic":0}',
        b'{"keytype":"DELETE_SUBJECT","subject":"format-value","magic":0}',
    ]
    value = json.loads(found[0].value or b"")
    assert list(value) == ["subject", "version", "id", "md5", "schemaType", "schema", "deleted"]
    assert json.loads(found[2].value or b"") == {"subject": "format-value", "version": 1}
