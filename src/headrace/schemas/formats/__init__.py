"""The three kinds of schema behind one interface: read, print in one form, compare what can read what."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from headrace.schemas.schema import AVRO, JSON, PROTOBUF, SCHEMA_TYPES, Schema, SchemaError

_MODULES = {AVRO: "avro", JSON: "json_schema", PROTOBUF: "protobuf"}


class Problem(Protocol):
    """Why one schema cannot read what another wrote."""

    @property
    def kind(self) -> str:
        """A short name of it, in capitals."""

    @property
    def path(self) -> str:
        """Where it is in the schema."""

    @property
    def message(self) -> str:
        """What is wrong there."""


class ParsedSchema(Protocol):
    """A schema that was read and found to be one."""

    @property
    def canonical(self) -> str:
        """Its text in the one form in which a registry keeps it. Two texts that only look different have the same."""

    @property
    def wrong_default(self) -> str | None:
        """Of an Avro schema, what is wrong with the default of a field; it may be taken all the same."""

    def normalized(self) -> str:
        """Its text with everything in a fixed order: what `normalize=true` registers."""

    def formatted(self, form: str) -> str:
        """Its text in another form, such as `resolved` or `serialized`; `SchemaError` for a form that it has not."""

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Why it cannot read what was written with another schema of the same kind; empty if it can."""


def parse(schema: Schema, referred: Mapping[str, str] | None = None) -> ParsedSchema:
    """Read a schema. `referred` has the texts of all that it refers to, by name, those first that others refer to."""
    if schema.type not in _MODULES:
        raise SchemaError(f"Invalid schema type {schema.type}: it is one of {', '.join(SCHEMA_TYPES)}")
    if not schema.text.strip():
        raise SchemaError("Empty schema")
    module = importlib.import_module(f"headrace.schemas.formats.{_MODULES[schema.type]}")
    return cast(ParsedSchema, module.parse(schema.text, referred or {}))
