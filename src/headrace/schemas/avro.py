"""Avro in records, with schemas from a registry. Records are read and written by fastavro.

producer = Producer(bootstrap_servers=…, schema_registry_url=…, value_serializer=AvroSerializer(schema))
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from headrace.client.errors import SerializationError
from headrace.schemas import wire
from headrace.schemas.extras import need
from headrace.schemas.registry_client import RegisteredSchema, RegistryClient
from headrace.schemas.schema import AVRO, Schema, SchemaError
from headrace.schemas.serializing import ReadingWithSchema, WritingWithSchema, as_schema
from headrace.schemas.types import avro_schema, built, is_record_type, plain


def parsed_for_fastavro(schema: Schema, registry: RegistryClient | None) -> Any:
    """fastavro's form of a schema, with the types that it refers to."""
    fastavro_schema = need("fastavro.schema")
    named: dict[str, Any] = {}
    try:
        for text in (registry.referred(schema) if registry is not None else {}).values():
            fastavro_schema.parse_schema(json.loads(text), named)
        return fastavro_schema.parse_schema(_loaded(schema.text), named)
    except (fastavro_schema.SchemaParseException, fastavro_schema.UnknownType, ValueError) as error:
        raise SchemaError(f"fastavro cannot use the schema: {error}") from error


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip().strip('"')


class AvroSerializer(WritingWithSchema):
    """Objects to Avro. `schema`: its text, its JSON, a `Schema`, or a dataclass, TypedDict or pydantic model.

    Without one it is made of the first record's type, or `use.latest.version` takes the registry's newest. Values are
    dictionaries, or objects of such types.
    """

    type = AVRO

    def __init__(
        self,
        schema: Any = None,
        registry: RegistryClient | str | None = None,
        settings: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        if is_record_type(schema):
            schema = avro_schema(schema)
        self._schema = as_schema(schema, AVRO)
        self._writers: dict[tuple[str, Any], tuple[bytes, Any]] = {}
        super().__init__(registry, {**(settings or {}), **keywords})

    def configure(self, config: Mapping[str, Any], is_key: bool) -> None:
        self._writers.clear()
        super().configure(config, is_key)

    def serialize(self, topic: str, data: Any) -> bytes | None:
        kind = type(data) if self._schema is None and is_record_type(type(data)) else None
        writer = self._writers.get((topic, kind))
        if writer is None or self._may_change:
            writer = self._writer(topic, kind)
        prefix, schema = writer
        value = data if isinstance(data, dict) else plain(data)
        if schema == "bytes":
            # What Confluent's serializers do: bytes alone have no length before them.
            return prefix + bytes(value)
        out = io.BytesIO()
        out.write(prefix)
        try:
            _fastavro()[0](out, schema, value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise SerializationError(
                f"a record for {topic} does not match its schema {_name(schema)}: {_reason(error, schema, value)}"
            ) from error
        return out.getvalue()

    def _read_settings(self) -> None:
        super()._read_settings()
        # The newest version may be another one with every record, if it is not kept for good.
        self._may_change = self._takes_latest and float(self._settings.get("latest.cache.ttl.sec", -1)) >= 0

    def _writer(self, topic: str, kind: Any) -> tuple[bytes, Any]:
        schema = self._schema if kind is None else as_schema(avro_schema(kind), AVRO)
        name = None if schema is None else _name(parsed_for_fastavro(schema, self.registry))
        found = self.found(topic, name, schema)
        parsed = parsed_for_fastavro(found.schema, self.registry)
        made = (wire.prefix(found.id), parsed["type"] if parsed == {"type": "bytes"} else parsed)
        self._writers[topic, kind] = made
        return made


class AvroDeserializer(ReadingWithSchema):
    """Avro to dictionaries, or to objects of `type`.

    `schema` is the reader's: records of other versions are resolved to it. Without one a record has what it was
    written with.
    """

    type = AVRO

    def __init__(
        self,
        schema: Any = None,
        registry: RegistryClient | str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
        **keywords: Any,
    ) -> None:
        if is_record_type(schema):
            into, schema = schema, avro_schema(schema)
        self._into = into
        self._schema = as_schema(schema, AVRO)
        self._reader: Any = None
        self._parsed: dict[int | Any, Any] = {}
        super().__init__(registry, {**(settings or {}), **keywords})

    def column_schema(self) -> Schema | None:
        return self._schema

    def read(self, topic: str, written: RegisteredSchema, framed: wire.Framed) -> Any:
        parsed = self._parsed.get(framed.schema)
        if parsed is None:
            parsed = self._parsed[framed.schema] = parsed_for_fastavro(written.schema, self.registry)
        if self._schema is not None and self._reader is None:
            self._reader = parsed_for_fastavro(self._schema, self.registry)
        if parsed in ("bytes", {"type": "bytes"}):
            return framed.payload
        source = io.BytesIO(framed.payload)
        try:
            value = _fastavro()[1](source, parsed, self._reader)
        except _fastavro()[2] as error:
            raise SerializationError(
                f"a record of {topic} (schema {framed.schema}) cannot be read with the reader's schema: {error}"
            ) from error
        except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, StopIteration) as error:
            raise SerializationError(
                f"a record of {topic} is not what its schema {framed.schema} ({_name(parsed)}) says: "
                f"{error or type(error).__name__}"
            ) from error
        left = len(framed.payload) - source.tell()
        if left:
            raise SerializationError(
                f"a record of {topic} has {left} bytes after what its schema {framed.schema} ({_name(parsed)}) says"
            )
        return value if self._into is None else built(self._into, value)


@cache
def _fastavro() -> tuple[Any, Any, Any]:
    """Its writer, its reader, and what it raises when a reader's schema does not go with the writer's."""
    fastavro = need("fastavro")
    return fastavro.schemaless_writer, fastavro.schemaless_reader, need("fastavro.read").SchemaResolutionError


def _name(parsed: Any) -> str | None:
    if isinstance(parsed, dict):
        name = parsed.get("name", parsed.get("type"))
        return name if isinstance(name, str) else None
    return parsed if isinstance(parsed, str) else None


def _reason(error: Exception, schema: Any, value: Any) -> str:
    """The field that does not match, if it can be found; else what fastavro says."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if fields and isinstance(value, Mapping):
        validate = need("fastavro.validation").validate
        for field in fields:
            if field["name"] not in value and "default" not in field:
                return f"field {field['name']} is missing, and has no default"
            if field["name"] in value:
                try:
                    fits = validate(value[field["name"]], field["type"], raise_errors=False)
                except Exception:  # noqa: BLE001 - it only looks for a better sentence
                    return str(error)
                if not fits:
                    return f"field {field['name']} is {value[field['name']]!r}, and has to be {field['type']}"
    return f"{type(error).__name__}: {error}"
