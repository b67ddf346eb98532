"""What the serializers of all formats share: their configuration, and which schema stands behind a record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.errors import SerializationError
from headrace.config import ConfigError
from headrace.schemas import wire
from headrace.schemas.extras import need
from headrace.schemas.naming import SubjectName, subject_name
from headrace.schemas.registry_client import RegisteredSchema, RegistryClient, RegistryRequestError
from headrace.schemas.schema import Schema

URL = "schema.registry.url"


class RegistrySettings:
    """Settings by Kafka's names, from the client's configuration or given to the serializer itself."""

    type = ""

    def __init__(self, registry: RegistryClient | str | None, settings: Mapping[str, Any]) -> None:
        self._given = {name.replace("_", "."): value for name, value in settings.items()}
        self._registry = registry if isinstance(registry, RegistryClient) else None
        if isinstance(registry, str):
            self._given[URL] = registry
        self.is_key = False
        self._owns_registry = False
        self._settings: Mapping[str, Any] = self._given
        if self._registry is not None or URL in self._given:
            self.configure({}, False)

    def configure(self, config: Mapping[str, Any], is_key: bool) -> None:
        """Called by the client whose keys or values these are."""
        self.is_key = is_key
        self._settings = {**config, **self._given}
        if self._registry is None or (self._owns_registry and URL in config):
            if URL not in self._settings:
                raise ConfigError({URL: f"{type(self).__name__} needs {URL}, the address of a schema registry"})
            self._registry = RegistryClient(str(self._settings[URL]), self._settings)
            self._owns_registry = True
        self._read_settings()

    def _read_settings(self) -> None:
        """What a format reads of its own."""

    @property
    def registry(self) -> RegistryClient:
        if self._registry is None:
            raise ConfigError({URL: f"{type(self).__name__} needs {URL}, the address of a schema registry"})
        return self._registry

    def flag(self, name: str, default: bool) -> bool:
        given = self._settings.get(name, default)
        if isinstance(given, str):
            if given.strip().lower() not in ("true", "false"):
                raise ConfigError({name: f"{name}={given} is neither true nor false"})
            return given.strip().lower() == "true"
        return bool(given)

    def close(self) -> None:
        """Called when the client closes."""
        if self._owns_registry and self._registry is not None:
            self._registry.close()


class WritingWithSchema(RegistrySettings):
    """Finds the schema to write with: registers it, looks it up, or takes the newest one, once per topic."""

    _subject_of: SubjectName

    def _read_settings(self) -> None:
        self._subject_of = subject_name(self._settings, is_key=self.is_key)
        self._registers = self.flag("auto.register.schemas", True)
        self._normalizes = self.flag("normalize.schemas", False)
        self._takes_latest = self.flag("use.latest.version", False)
        self._number = self._settings.get("use.schema.id")
        if self._takes_latest and "auto.register.schemas" not in self._settings:
            self._registers = False
        if self._takes_latest and self._registers:
            raise ConfigError(
                {"use.latest.version": "use.latest.version=true takes a schema that is there already: it needs "
                 "auto.register.schemas=false"}
            )  # fmt: skip

    def subject(self, topic: str, record: str | None) -> str:
        """Where a record's schema is registered."""
        return self._subject_of(topic, self.is_key, record)

    def found(self, topic: str, record: str | None, schema: Schema | None) -> RegisteredSchema:
        """The schema to write a record of this topic with. `schema`: the one that the serializer has."""
        if self._number is not None:
            return self.registry.by_id(int(self._number))
        subject = self.subject(topic, record)
        try:
            if self._takes_latest:
                return self.registry.latest(subject)
            if schema is None:
                raise SerializationError(
                    f"{type(self).__name__} has no schema for {topic}: give it one, or set use.latest.version=true"
                )
            if self._registers:
                return self.registry.register(subject, schema, normalize=self._normalizes)
            return self.registry.lookup(subject, schema, normalize=self._normalizes)
        except RegistryRequestError as error:
            raise SerializationError(f"the schema for {topic} (subject {subject}): {error}") from error


class ReadingWithSchema(RegistrySettings):
    """Finds the schema that a record was written with."""

    has_indexes = False
    _columns: Any = None
    _column_topics: frozenset[str] | None = None

    def to_columns(self, topics: list[str], column: Any) -> tuple[Any, Any]:
        """A whole Arrow column of records, typed, and why rows could not be read; for `poll_arrow`.

        They are read as the deserializer's schema, else as what is the topic's newest one when this is first called.
        """
        arrow = need("pyarrow")
        if self._columns is None:
            made = self.own_columns()
            if made is None:
                if not topics:
                    return column, arrow.nulls(len(column), arrow.string())
                made = self._columns_of(self._newest(topics))
                self._column_topics = frozenset(topics)
            self._columns = made
        if self._column_topics is not None and not self._column_topics.issuperset(topics):
            raise self._no_one_schema(topics)
        found = self._columns.read(column)
        if not found.faults:
            return found.array, arrow.nulls(len(column), arrow.string())
        return found.array, arrow.array([found.faults.get(row) for row in range(len(column))], arrow.string())

    def own_columns(self) -> Any:
        """What reads columns as the deserializer was told to; None where it was told nothing."""
        schema = self.column_schema()
        return None if schema is None else self._columns_of(schema)

    def column_schema(self) -> Schema | None:
        """The schema that columns are read as, where the deserializer was given one."""
        return None

    def _columns_of(self, schema: Schema) -> Any:
        from headrace.schemas.columns import column_reader

        if schema.type != self.type:
            raise SerializationError(f"the columns' schema is {schema.type}, and not {self.type}")
        return column_reader(schema, self.registry)

    def _newest(self, topics: list[str]) -> Schema:
        subject_of = subject_name(self._settings, is_key=self.is_key)
        if len(topics) > 1:
            raise self._no_one_schema(topics)
        try:
            return self.registry.latest(subject_of(topics[0], self.is_key, None)).schema
        except RegistryRequestError as error:
            raise SerializationError(
                f"the columns of {topics[0]} have no schema: give {type(self).__name__} the one to read them as "
                f"({error})"
            ) from error

    def _no_one_schema(self, topics: list[str]) -> SerializationError:
        return SerializationError(
            f"columns of {', '.join(topics)} have no one schema: give {type(self).__name__} the one to read them as"
        )

    def deserialize(self, topic: str, data: bytes) -> Any:
        return self.deserialize_with_headers(topic, data, ())

    def deserialize_with_headers(self, topic: str, data: bytes, headers: Iterable[tuple[str, bytes | None]]) -> Any:
        """Called in place of `deserialize` by clients that have the record's headers."""
        framed = wire.unframe(topic, data, is_key=self.is_key, headers=headers, has_indexes=self.has_indexes)
        return self.read(topic, self.written(topic, framed), framed)

    def written(self, topic: str, framed: wire.Framed) -> RegisteredSchema:
        try:
            if isinstance(framed.schema, int):
                found = self.registry.by_id(framed.schema)
            else:
                found = self.registry.by_guid(framed.schema)
        except RegistryRequestError as error:
            if not error.is_not_found:
                raise
            raise SerializationError(
                f"a record of {topic} was written with schema {framed.schema}, which {', '.join(self.registry.urls)} "
                f"does not have: {error}"
            ) from error
        if found.schema.type != self.type:
            raise SerializationError(
                f"a record of {topic} was written with schema {framed.schema}, which is {found.schema.type}, and not "
                f"{self.type}"
            )
        return found

    def read(self, topic: str, written: RegisteredSchema, framed: wire.Framed) -> Any:
        raise NotImplementedError


def as_schema(given: Any, kind: str) -> Schema | None:
    """A schema from its text, a parsed JSON value, or a `Schema`."""
    if given is None or isinstance(given, Schema):
        return given
    if isinstance(given, str):
        return Schema(given, kind)
    if isinstance(given, (dict, list, bool)):
        return Schema(json.dumps(given), kind)
    raise SerializationError(f"a schema is its text or its JSON, not {type(given).__name__}")
