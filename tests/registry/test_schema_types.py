"""JSON Schema and Protobuf in a registry, by confluent-kafka's serializers; and its answers to bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.rpc import status_pb2

from headrace.testing import EmbeddedRegistry, registry

AVRO = '{"type":"record","name":"R","fields":[]}'


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with registry() as running:
        yield running


@pytest.fixture
def client(schemas: EmbeddedRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": schemas.url}) as made:
        yield made


def asked(schemas: EmbeddedRegistry, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with urllib3.PoolManager() as pool:
        answer = pool.request(method, schemas.url + path, body=data, retries=False)
    return answer.status, json.loads(answer.data)


def test_json_schema_serializers_of_confluent(client: SchemaRegistryClient) -> None:
    text = json.dumps({"title": "Order", "type": "object", "properties": {"n": {"type": "integer"}}})
    context = SerializationContext("orders", MessageField.VALUE)
    data = JSONSerializer(text, client)({"n": 3}, context)
    assert JSONDeserializer(None, schema_registry_client=client)(data, context) == {"n": 3}


def test_protobuf_serializers_of_confluent_with_their_imports(client: SchemaRegistryClient) -> None:
    context = SerializationContext("structs", MessageField.VALUE)
    value = status_pb2.Status(code=3, message="no")
    data = ProtobufSerializer(status_pb2.Status, client, {"use.deprecated.format": False})(value, context)
    again = ProtobufDeserializer(status_pb2.Status, {"use.deprecated.format": False}, client)
    assert again(data, context) == value


def test_text_and_base64_of_one_protobuf_schema_read_each_other(client: SchemaRegistryClient) -> None:
    client.register_schema("common", Schema('syntax = "proto3"; package c; message C { int32 x = 1; }', "PROTOBUF"))
    text = 'syntax = "proto3"; import "c.proto"; message M { c.C c = 1; }'
    references = [SchemaReference("c.proto", "common", 1)]
    number = client.register_schema("m-value", Schema(text, "PROTOBUF", references))
    serialized = client.get_schema(number, fmt="serialized").schema_str
    assert client.test_compatibility("m-value", Schema(serialized, "PROTOBUF", references))
    assert not client.test_compatibility("m-value", Schema(AVRO, "AVRO"))


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/subjects/none/versions", None, 40401),
        ("GET", "/subjects/there/versions/9", None, 40402),
        ("GET", "/subjects/there/versions/nine", None, 42202),
        ("GET", "/schemas/ids/999", None, 40403),
        ("GET", "/schemas/ids/many", None, 404),
        ("GET", "/schemas/guids/none", None, 40403),
        ("POST", "/subjects/there/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/there/versions", {"schema": AVRO, "schemaType": "XML"}, 42201),
        ("POST", "/subjects/there/versions", {}, 42201),
        ("POST", "/subjects/there/versions", b"{", 400),
        ("POST", "/subjects/there/versions", b"[]", 400),
        ("POST", "/subjects/there/versions", {"schema": AVRO, "references": [{"name": "x"}]}, 42201),
        ("POST", "/subjects/there/versions", {"schema": AVRO, "id": 7}, 42205),
        ("POST", "/subjects/there/versions", {"schema": '"' + "x" * 1_000_001 + '"'}, 42209),
        ("POST", "/subjects/%00/versions", {"schema": AVRO}, 42208),
        ("POST", "/subjects/there", {"schema": '"string"'}, 40403),
        ("PUT", "/config/there", {"compatibility": "SIDEWAYS"}, 42203),
        ("PUT", "/mode/there", {"mode": "SIDEWAYS"}, 42204),
        ("DELETE", "/subjects/there?permanent=true", None, 40405),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/subjects/there", None, 405),
    ],
)
def test_bad_requests_get_confluents_numbers(
    schemas: EmbeddedRegistry, method: str, path: str, body: Any, code: int
) -> None:
    asked(schemas, "POST", "/subjects/there/versions", {"schema": AVRO})
    status, answer = asked(schemas, method, path, body)
    assert (status, answer["error_code"]) == (code if code < 1000 else code // 100, code)
    assert answer["message"]


def test_a_subject_may_have_a_slash_in_its_name(schemas: EmbeddedRegistry) -> None:
    status, answer = asked(schemas, "POST", "/subjects/a%2Fb%20c/versions", {"schema": AVRO})
    assert status == 200
    assert asked(schemas, "GET", "/subjects?subjectPrefix=a/") == (200, ["a/b c"])
    assert asked(schemas, "GET", f"/schemas/ids/{answer['id']}/subjects")[0] == 200


def test_a_guid_finds_the_schema_in_every_context(schemas: EmbeddedRegistry) -> None:
    schema = {"schema": '{"type":"record","name":"G","fields":[]}'}
    first = asked(schemas, "POST", "/subjects/g-value/versions", schema)[1]
    other = asked(schemas, "POST", "/subjects/:.ctx:g-value/versions", schema)[1]
    assert first["guid"] == other["guid"]
    assert asked(schemas, "GET", f"/schemas/guids/{first['guid']}")[1]["schema"] == schema["schema"]
    ids = asked(schemas, "GET", f"/schemas/guids/{first['guid']}/ids")[1]
    assert ids == [{"context": ".", "id": first["id"]}, {"context": ".ctx", "id": other["id"]}]
