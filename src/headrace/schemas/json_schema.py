"""JSON in records, held against a JSON Schema from a registry. Values are checked by jsonschema-rs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.client.errors import SerializationError
from headrace.schemas import wire
from headrace.schemas.extras import need
from headrace.schemas.formats.json_schema import DEFAULT_DIALECT, loads
from headrace.schemas.registry_client import RegisteredSchema, RegistryClient
from headrace.schemas.schema import JSON, Schema, SchemaError
from headrace.schemas.serializing import ReadingWithSchema, WritingWithSchema, as_schema
from headrace.schemas.types import built, is_record_type, json_schema, plain

_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode


def validator(schema: Schema, registry: RegistryClient | None) -> Any:
    """What says whether a value matches; it knows the schemas that this one refers to."""
    rust = need("jsonschema_rs")
    raw = loads(schema.text)
    referred = registry.referred(schema) if registry is not None else {}
    base = raw.get("$id", "") if isinstance(raw, dict) else ""
    if isinstance(raw, dict):
        raw = {"$schema": DEFAULT_DIALECT, **raw}
        if referred and not base:
            raw["$id"] = "json-schema:///"
    resources = [(_joined(raw, name), loads(text)) for name, text in referred.items()]
    try:
        known = rust.Registry(resources) if resources else None
        return rust.validator_for(raw, registry=known) if known is not None else rust.validator_for(raw)
    except (rust.ValidationError, rust.ReferencingError, ValueError) as error:
        raise SchemaError(f"the JSON Schema cannot be used: {error}") from error


def _joined(raw: Any, name: str) -> str:
    from urllib.parse import urljoin

    base = raw.get("$id", "") if isinstance(raw, dict) else ""
    return urljoin(base, name) if "://" in base and "://" not in name else name


class JsonSchemaSerializer(WritingWithSchema):
    """Objects to JSON. `schema`: its text, its JSON, a `Schema`, or a dataclass, TypedDict or pydantic model."""

    type = JSON

    def __init__(
        self,
        schema: Any = None,
        registry: RegistryClient | str | None = None,
        settings: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        if is_record_type(schema):
            schema = json_schema(schema)
        self._schema = as_schema(schema, JSON)
        self._writers: dict[tuple[str, Any], tuple[bytes, Any]] = {}
        super().__init__(registry, {**(settings or {}), **keywords})

    def configure(self, config: Mapping[str, Any], is_key: bool) -> None:
        self._writers.clear()
        super().configure(config, is_key)

    def _read_settings(self) -> None:
        super()._read_settings()
        self._validates = self.flag("json.fail.invalid.schema", self.flag("validate", True))

    def serialize(self, topic: str, data: Any) -> bytes | None:
        kind = type(data) if self._schema is None and is_record_type(type(data)) else None
        writer = self._writers.get((topic, kind))
        if writer is None:
            schema = self._schema if kind is None else as_schema(json_schema(kind), JSON)
            found = self.found(topic, _title(schema), schema)
            writer = self._writers[topic, kind] = (wire.prefix(found.id), validator(found.schema, self.registry))
        try:
            text = _ENCODE(plain(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(f"{type(data).__name__} for {topic} cannot be written as JSON: {error}") from error
        if self._validates:
            _check(writer[1], json.loads(text), f"a record for {topic}")
        return writer[0] + text.encode()


class JsonSchemaDeserializer(ReadingWithSchema):
    """JSON to Python's values, or to objects of `into`."""

    type = JSON

    def __init__(
        self,
        registry: RegistryClient | str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
        **keywords: Any,
    ) -> None:
        self._into = into
        self._validators: dict[Any, Any] = {}
        super().__init__(registry, {**(settings or {}), **keywords})

    def _read_settings(self) -> None:
        self._validates = self.flag("json.fail.invalid.schema", self.flag("validate", True))

    def column_schema(self) -> Schema | None:
        return None if self._into is None else as_schema(json_schema(self._into), JSON)

    def read(self, topic: str, written: RegisteredSchema, framed: wire.Framed) -> Any:
        try:
            value = json.loads(framed.payload)
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"a record of {topic} (schema {framed.schema}) is no JSON: {error}") from error
        if self._validates:
            checks = self._validators.get(framed.schema)
            if checks is None:
                checks = self._validators[framed.schema] = validator(written.schema, self.registry)
            _check(checks, value, f"a record of {topic} (schema {framed.schema})")
        return value if self._into is None else built(self._into, value)


def _check(checks: Any, value: Any, what: str) -> None:
    if checks.is_valid(value):
        return
    error = next(iter(checks.iter_errors(value)))
    where = "/" + "/".join(str(part) for part in error.instance_path)
    raise SerializationError(f"{what} does not match its schema at {where}: {error.message}")


def _title(schema: Schema | None) -> str | None:
    raw = None if schema is None else loads(schema.text)
    return raw.get("title") if isinstance(raw, dict) else None
