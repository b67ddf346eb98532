"""Protobuf in records, with schemas from a registry. Messages are those of Google's library."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from headrace.client.errors import SerializationError
from headrace.schemas import wire
from headrace.schemas.extras import need
from headrace.schemas.formats.protobuf import parse
from headrace.schemas.registry_client import RegisteredSchema, RegistryClient
from headrace.schemas.schema import PROTOBUF, Reference, Schema, SchemaError
from headrace.schemas.serializing import ReadingWithSchema, WritingWithSchema

_KNOWN_EVERYWHERE = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry has by itself."""


class ProtobufSerializer(WritingWithSchema):
    """Messages of generated classes to bytes. A message knows its schema; what it imports is registered first."""

    type = PROTOBUF

    def __init__(
        self,
        registry: RegistryClient | str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        reference_subject: Callable[[str, str], str] | None = None,
        **keywords: Any,
    ) -> None:
        # (topic, file) → subject: where a file that is imported is registered.
        self._reference_subject = reference_subject or (lambda topic, file: file)
        self._prefixes: dict[tuple[str, Any], bytes] = {}
        super().__init__(registry, {**(settings or {}), **keywords})

    def configure(self, config: Mapping[str, Any], is_key: bool) -> None:
        self._prefixes.clear()
        super().configure(config, is_key)

    def _read_settings(self) -> None:
        super()._read_settings()
        self._skips_known = self.flag("skip.known.types", True)

    def serialize(self, topic: str, data: Any) -> bytes | None:
        descriptor = getattr(data, "DESCRIPTOR", None)
        if descriptor is None or not hasattr(data, "SerializeToString"):
            raise SerializationError(
                f"a record for {topic} is {type(data).__name__}, and no message of a class that protoc generated"
            )
        prefix = self._prefixes.get((topic, descriptor))
        if prefix is None:
            schema = self._schema(topic, descriptor.file)
            found = self.found(topic, descriptor.full_name, schema)
            prefix = wire.prefix(found.id) + wire.write_indexes(message_indexes(descriptor))
            self._prefixes[topic, descriptor] = prefix
        try:
            return prefix + bytes(data.SerializeToString())
        except need("google.protobuf.message").EncodeError as error:
            raise SerializationError(f"a message {descriptor.full_name} for {topic} is not whole: {error}") from error

    def _schema(self, topic: str, file: Any) -> Schema | None:
        if self._takes_latest or self._number is not None:
            return None
        references = []
        for one in file.dependencies:
            if self._skips_known and one.name.startswith(_KNOWN_EVERYWHERE):
                continue
            subject = self._reference_subject(topic, one.name)
            schema = self._schema(topic, one)
            assert schema is not None
            asked = self.registry.register if self._registers else self.registry.lookup
            version = asked(subject, schema).version
            if version is None:
                version = self.registry.lookup(subject, schema).version or self.registry.latest(subject).version
            references.append(Reference(one.name, subject, version or 1))
        text = base64.b64encode(file.serialized_pb).decode()
        return Schema(text, PROTOBUF, tuple(references))


class ProtobufDeserializer(ReadingWithSchema):
    """Bytes to messages: of the class `message`, or of one that is made of the schema that they were written with."""

    type = PROTOBUF
    has_indexes = True

    def __init__(
        self,
        message: Any = None,
        registry: RegistryClient | str | None = None,
        settings: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        self._message = message
        self._classes: dict[Any, Any] = {}
        super().__init__(registry, {**(settings or {}), **keywords})

    def own_columns(self) -> Any:
        from headrace.schemas.protobuf_columns import ProtobufColumns

        return None if self._message is None else ProtobufColumns(None, self.registry, message=self._message)

    def written(self, topic: str, framed: wire.Framed) -> RegisteredSchema:
        # Of a class that is given the schema is not needed.
        if self._message is not None:
            return RegisteredSchema(0, Schema("", PROTOBUF))
        return super().written(topic, framed)

    def read(self, topic: str, written: RegisteredSchema, framed: wire.Framed) -> Any:
        made = self._message
        if made is None:
            key = (framed.schema, framed.indexes)
            made = self._classes.get(key)
            if made is None:
                made = self._classes[key] = message_class(written.schema, self.registry, framed.indexes)
        try:
            return made.FromString(framed.payload)
        except need("google.protobuf.message").DecodeError as error:
            name = made.DESCRIPTOR.full_name
            raise SerializationError(
                f"a record of {topic} (schema {framed.schema}) is no message {name}: {error}"
            ) from error


def message_indexes(descriptor: Any) -> list[int]:
    """Where a message is in its file: its number at each level, the outermost first."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        siblings = parent.nested_types if parent is not None else descriptor.file.message_types_by_name.values()
        path.insert(0, [one.full_name for one in siblings].index(descriptor.full_name))
        descriptor = parent
    return path


def message_class(schema: Schema, registry: RegistryClient | None, indexes: tuple[int, ...]) -> Any:
    """A class for the message at these indexes of a schema."""
    found: Any = None
    messages = list(_file(schema, registry).message_types_by_name.values())
    for number in indexes or (0,):
        if not 0 <= number < len(messages):
            raise SerializationError(f"a record names message {list(indexes)} of a schema that has no such message")
        found = messages[number]
        messages = list(found.nested_types)
    return need("google.protobuf.message_factory").GetMessageClass(found)


def message_named(schema: Schema, registry: RegistryClient | None, name: str) -> Any:
    """A class for the message of a schema that has this name, with its package or without."""
    waiting = list(_file(schema, registry).message_types_by_name.values())
    known = []
    while waiting:
        one = waiting.pop(0)
        if name in (one.full_name, one.name):
            return need("google.protobuf.message_factory").GetMessageClass(one)
        known.append(one.full_name)
        waiting.extend(nested for nested in one.nested_types if not nested.GetOptions().map_entry)
    raise SchemaError(f"the schema has no message {name}: it has {', '.join(known) or 'none'}")


def _file(schema: Schema, registry: RegistryClient | None) -> Any:
    parsed = parse(schema.text, registry.referred(schema) if registry is not None else {})
    pool = need("google.protobuf.descriptor_pool").DescriptorPool()
    for file in (*parsed.imported.values(), parsed.file):
        pool.Add(file)
    return pool.FindFileByName(parsed.file.name)
