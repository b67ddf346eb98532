"""What a registry keeps: the text of a schema, its type, and the other schemas that it refers to."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
SCHEMA_TYPES = (JSON, PROTOBUF, AVRO)
"""In the order in which Confluent's registry lists them."""


class SchemaError(ValueError):
    """A schema that cannot be used, with the place and the reason."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema of the registry that another one uses: `name` is what the other one calls it."""

    name: str
    subject: str
    version: int

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it is registered. Metadata and rules are kept as the JSON objects that the interface has for them."""

    text: str
    type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    rule_set: Mapping[str, Any] | None = field(default=None, hash=False)

    def with_text(self, text: str) -> Schema:
        return Schema(text, self.type, self.references, self.metadata, self.rule_set)

    def to_json(self) -> dict[str, Any]:
        """The body of a request that registers it, and of an answer that gives it."""
        body: dict[str, Any] = {"schema": self.text}
        if self.type != AVRO:
            body["schemaType"] = self.type
        if self.references:
            body["references"] = [reference.to_json() for reference in self.references]
        if self.metadata is not None:
            body["metadata"] = self.metadata
        if self.rule_set is not None:
            body["ruleSet"] = self.rule_set
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Schema:
        """A schema out of a request, an answer or a record of the registry's topic; `SchemaError` if it is none."""
        text, kind = body.get("schema"), body.get("schemaType") or AVRO
        if not isinstance(text, str) or not isinstance(kind, str):
            raise SchemaError('a schema has its text under "schema", and the name of its type under "schemaType"')
        return cls(
            text,
            kind,
            _references(body.get("references") or ()),
            _object_or_none(body, "metadata"),
            _object_or_none(body, "ruleSet"),
        )

    @property
    def guid(self) -> uuid.UUID:
        """The number that this schema has in every registry: an MD5 of what it says, as Confluent's makes it."""
        digest = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for reference in self.references:
            digest.update(reference.name.encode() + reference.subject.encode())
            digest.update(reference.version.to_bytes(4, "big", signed=True))
        for part, fields in ((self.metadata, _METADATA), (self.rule_set, _RULE_SET)):
            if part is not None:
                digest.update(b"\x01")
                _add(digest, part, fields)
        return uuid.UUID(bytes=digest.digest())


_METADATA = ("tags", "properties", "sensitive")
_RULE_SET = ("migrationRules", "domainRules", "encodingRules", "enableAt")
_RULE = ("name", "doc", "kind", "mode", "type", "tags", "params", "expr", "onSuccess", "onFailure", "disabled")


def _add(digest: Any, value: Any, fields: Sequence[str] = ()) -> None:
    """Texts one after the other: of objects with named fields in that order, of maps by key, of sets sorted."""
    if isinstance(value, bool):
        digest.update(b"\x01" if value else b"")
    elif isinstance(value, str):
        digest.update(value.encode())
    elif isinstance(value, Mapping):
        for name in fields or sorted(value):
            if not fields:
                digest.update(name.encode())
            found = value.get(name)
            if name in _RULE_SET and isinstance(found, list):
                for rule in found:
                    _add(digest, rule, _RULE)
            elif found is not None:
                _add(digest, found)
    elif isinstance(value, list):
        for one in sorted(map(str, value)):
            digest.update(one.encode())


def _references(given: Any) -> tuple[Reference, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise SchemaError('"references" is a list of objects with name, subject and version')
    references = []
    for one in given:
        match one:
            case {"name": str(name), "subject": str(subject), "version": int(version)}:
                references.append(Reference(name, subject, version))
            case _:
                raise SchemaError(f"a reference has name, subject and version, and {one!r} has not")
    return tuple(references)


def _object_or_none(body: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    found = body.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise SchemaError(f'"{name}" is an object, not {type(found).__name__}')
    return found
