"""How coordinators frame their records: a key is an int16 type and a body, a value an int16 version and a body.

A log may hold records of types and versions that were written by a newer broker, or for features not spoken here.
They come back as `Unknown`, for a loader to skip; damaged bytes are a `MalformedMessageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.protocol.codec import decode, encode
from headrace.protocol.schema import Buffer, Schema
from headrace.protocol.wire import MalformedMessageError, pack_int16, read_int16


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record to be skipped. `name` is set when its type is one of Kafka's; `version` when that is what is unknown."""

    record_type: int
    version: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class KeyAndValue:
    """A key and its value; the value is None when the record is a tombstone."""

    key: Any
    value: Any | None


@dataclass(frozen=True, slots=True)
class RecordTypes:
    """The records of one internal topic: the classes of key and value by type, and the names of types left alone."""

    topic: str
    classes: Mapping[int, tuple[type[Any], type[Any]]]
    names: Mapping[int, str]

    def encode(self, key: Any, value: Any | None, version: int) -> tuple[bytes, bytes | None]:
        """Key and value as they stand in the log, the value in that version; without a value it is a tombstone."""
        record_type: int = key.SCHEMA.api_key
        key_class, value_class = self.classes[record_type]
        if type(key) is not key_class or not (value is None or type(value) is value_class):
            raise ValueError(f"{key!r} and {value!r} are not a record of {self.topic}")
        key_bytes = pack_int16(record_type) + encode(key, 0)
        if value is None:
            return key_bytes, None
        if version not in value.SCHEMA.versions:
            raise ValueError(f"{value.SCHEMA.name} has no version {version}")
        return key_bytes, pack_int16(version) + encode(value, version)

    def decode(self, key: Buffer, value: Buffer | None) -> KeyAndValue | Unknown:
        record_type = _int16(key, "key")
        if record_type not in self.classes:
            return Unknown(record_type, name=self.names.get(record_type))
        key_class, value_class = self.classes[record_type]
        key_message = decode(key_class, 0, key, 2)
        if value is None:
            return KeyAndValue(key_message, None)
        version = _int16(value, "value")
        schema: Schema = value_class.SCHEMA
        if version not in schema.versions:
            return Unknown(record_type, version, self.names.get(record_type))
        return KeyAndValue(key_message, decode(value_class, version, value, 2))


def _int16(buffer: Buffer, what: str) -> int:
    if len(buffer) < 2:
        raise MalformedMessageError(f"a stored {what} of {len(buffer)} bytes has no room for its first two")
    number: int = read_int16(buffer, 0)[0]
    return number
