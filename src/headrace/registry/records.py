"""Records of the topic `_schemas`, byte for byte as Confluent's registry writes them: keys and values are JSON.

A key has no order of its own but this one, because compaction compares bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.schemas.schema import Schema

SCHEMA, CONFIG, MODE, NOOP = "SCHEMA", "CONFIG", "MODE", "NOOP"
DELETE_SUBJECT, CLEAR_SUBJECT, CONTEXT = "DELETE_SUBJECT", "CLEAR_SUBJECT", "CONTEXT"
TENANT = "default"


class UnreadableSchemaRecordError(ValueError):
    """A record of `_schemas` that is none of the registry's."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One record: a key of a type, for a subject and perhaps a version, and what holds now; None is a tombstone."""

    keytype: str
    subject: str | None = None
    version: int | None = None
    value: Mapping[str, Any] | None = None

    def key_bytes(self) -> bytes:
        key: dict[str, Any]
        match self.keytype:
            case "SCHEMA":
                key = {"keytype": SCHEMA, "subject": self.subject, "version": self.version, "magic": 1}
            case "CONTEXT":
                key = {"keytype": CONTEXT, "tenant": TENANT, "context": self.subject, "magic": 0}
            case "NOOP":
                key = {"keytype": NOOP, "magic": 0}
            case _:
                key = {"keytype": self.keytype, "subject": self.subject, "magic": 0}
                if self.subject is None:
                    # The registry as a whole: Confluent's leaves the field out.
                    del key["subject"]
        return _compact(key)

    def value_bytes(self) -> bytes | None:
        return None if self.value is None else _compact(self.value)


def schema_record(subject: str, version: int, number: int, schema: Schema, *, deleted: bool) -> SchemaChange:
    """A version of a subject."""
    value: dict[str, Any] = {
        "subject": subject,
        "version": version,
        "id": number,
        "md5": base64.b64encode(schema.guid.bytes).decode(),
        "schemaType": schema.type,
        **schema.to_json(),
    }
    value["schema"] = value.pop("schema")  # after what it refers to, as in Confluent's records
    value["deleted"] = deleted
    return SchemaChange(SCHEMA, subject, version, value)


def read(key: bytes | None, value: bytes | None) -> SchemaChange | None:
    """What a record says; None for keys of types that only a later registry knows, which are left alone."""
    try:
        named = json.loads(key or b"")
        said = json.loads(value) if value is not None else None
    except ValueError as error:
        raise UnreadableSchemaRecordError(f"the record is no JSON: {error}") from error
    if not isinstance(named, dict) or not (said is None or isinstance(said, dict)):
        raise UnreadableSchemaRecordError("key and value are JSON objects in records of a registry")
    match named:
        case {"keytype": "SCHEMA", "subject": str(subject), "version": int(version)}:
            return SchemaChange(SCHEMA, subject, version, said)
        case {"keytype": "CONTEXT", "context": str(context)}:
            return SchemaChange(CONTEXT, context, None, said)
        case {"keytype": "NOOP"}:
            return SchemaChange(NOOP)
        case {"keytype": "CONFIG" | "MODE" | "DELETE_SUBJECT" | "CLEAR_SUBJECT" as keytype}:
            scope = named.get("subject")
            if scope is not None and not isinstance(scope, str):
                raise UnreadableSchemaRecordError(f"the subject of a {keytype} record is {scope!r}")
            return SchemaChange(keytype, scope or None, None, said)
        case {"keytype": str(_)}:
            return None
        case _:
            raise UnreadableSchemaRecordError("the key has no keytype")


def _compact(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
