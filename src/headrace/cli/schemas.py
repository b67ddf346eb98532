"""Schemas on the command line: where the registry is, and values that are shown and read as their schemas say."""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.output import CommandError, usage
from headrace.client.errors import SerializationError
from headrace.records import Columns
from headrace.schemas import wire
from headrace.schemas.avro import AvroDeserializer, AvroSerializer
from headrace.schemas.extras import need
from headrace.schemas.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
from headrace.schemas.protobuf import ProtobufDeserializer, message_class
from headrace.schemas.registry_client import RegistryClient
from headrace.schemas.schema import AVRO, JSON, PROTOBUF, SCHEMA_TYPES, Reference, Schema
from headrace.topics import TopicPartition
from headrace.words import visible_json

VARIABLE = "HEADRACE_REGISTRY"
DEFAULT_URL = "http://127.0.0.1:8081"
_BY_SUFFIX = {".avsc": AVRO, ".proto": PROTOBUF, ".json": JSON}

RegistryUrl = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help=f"The schema registry; else ${VARIABLE}, else {DEFAULT_URL}."),
]


def connected(url: str | None) -> RegistryClient:
    """A client of the registry that is named; who asks may be in the address, as in http://user:password@host."""
    where = url or os.environ.get(VARIABLE) or DEFAULT_URL
    scheme, separator, rest = where.partition("://")
    user, at, host = rest.rpartition("@")
    settings = {"basic.auth.user.info": user} if at else {}
    return RegistryClient(
        f"{scheme}{separator}{host}" if at else where, {**settings, "schema.registry.timeout.ms": 5_000}
    )


@contextlib.contextmanager
def registry_client(url: str | None) -> Iterator[RegistryClient]:
    """The same, closed at the end."""
    client = connected(url)
    try:
        yield client
    finally:
        client.close()


def type_of(path: Path) -> str:
    """What a file's name says of its schema."""
    found = _BY_SUFFIX.get(path.suffix)
    if found is None:
        raise usage(f"{path}: name the schema's type by --type, one of {', '.join(SCHEMA_TYPES)}")
    return found


def schema_of(path: Path, kind: str | None, references: tuple[Reference, ...] = ()) -> Schema:
    """The schema in a file."""
    chosen = type_of(path) if kind is None else kind.upper()
    if chosen not in SCHEMA_TYPES:
        raise usage(f"--type is one of {', '.join(SCHEMA_TYPES)}, not {kind!r}")
    return Schema(path.read_text("utf-8"), chosen, references)


# --- consume ----------------------------------------------------------------------------------------------------------


def decoded_writer(form: str, client: RegistryClient) -> Callable[[TopicPartition, Columns], bytes]:
    """Prints values as JSON, a line each, by the schemas that they were written with."""
    readers: Mapping[str, Any] = {
        "avro": AvroDeserializer(registry=client),
        "json-schema": JsonSchemaDeserializer(client),
        "protobuf": ProtobufDeserializer(registry=client),
    }
    read = readers[form].deserialize_with_headers

    def write(partition: TopicPartition, columns: Columns) -> bytes:
        lines = []
        for row, (offset, value) in enumerate(zip(columns.offsets, columns.values.to_list())):
            if value is None:
                lines.append("null")
                continue
            try:
                found = read(partition.topic, value, columns.headers_of(row) or ())
            except SerializationError as error:
                raise CommandError(
                    f"{partition} @{offset}: {error}. To go on behind it: --from {offset + 1}"
                ) from error
            lines.append(visible_json(json.dumps(_shown(found), ensure_ascii=False, default=_as_text)))
        return ("\n".join(lines) + "\n").encode()

    return write


def _shown(value: Any) -> Any:
    if hasattr(value, "DESCRIPTOR"):
        return need("google.protobuf.json_format").MessageToDict(value, preserving_proto_field_name=True)
    return value


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    return repr(value)


# --- produce ----------------------------------------------------------------------------------------------------------


def value_encoder(topic: str, path: Path, kind: str | None, client: RegistryClient) -> Callable[[bytes], bytes]:
    """Makes records of lines of JSON, as the schema in a file says; it is registered with the first."""
    schema = schema_of(path, kind)
    if schema.type == PROTOBUF:
        return _protobuf_encoder(topic, schema, client)
    made: Any = AvroSerializer(schema, client) if schema.type == AVRO else JsonSchemaSerializer(schema, client)

    def encode(line: bytes) -> bytes:
        try:
            return bytes(made.serialize(topic, json.loads(line)) or b"")
        except ValueError as error:
            raise usage(f"a line is no JSON ({error}): {line[:60]!r}") from error

    return encode


def _protobuf_encoder(topic: str, schema: Schema, client: RegistryClient) -> Callable[[bytes], bytes]:
    json_format = need("google.protobuf.json_format")
    number = client.register(f"{topic}-value", schema).id
    message = message_class(schema, client, (0,))
    prefix = wire.prefix(number) + wire.write_indexes([0])

    def encode(line: bytes) -> bytes:
        try:
            return prefix + bytes(json_format.Parse(line, message()).SerializeToString())
        except json_format.ParseError as error:
            raise usage(f"a line is no {message.DESCRIPTOR.full_name} ({error}): {line[:60]!r}") from error

    return encode
