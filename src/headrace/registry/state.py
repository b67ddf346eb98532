"""What the records of `_schemas` amount to: subjects and their versions, schemas by number, levels, modes, contexts."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.registry import records
from headrace.registry.records import SchemaChange
from headrace.schemas.schema import Reference, Schema, SchemaError
from headrace.schemas.subjects import DEFAULT_CONTEXT, GLOBAL_CONTEXT, Subject, beside

log = logging.getLogger("headrace.registry")

DEFAULT_LEVEL = "BACKWARD"
DEFAULT_MODE = "READWRITE"


@dataclass(frozen=True, slots=True)
class Version:
    """A schema under a subject. A deleted one is still read by its number, but no longer listed."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False

    @property
    def context(self) -> str:
        return Subject.parse(self.subject).context


@dataclass(slots=True)
class RegistryState:
    """A fold over the records of the topic. Only `apply` changes it."""

    default_level: str = DEFAULT_LEVEL
    subjects: dict[str, dict[int, Version]] = field(default_factory=dict)
    configs: dict[str | None, Mapping[str, Any]] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    contexts: set[str] = field(default_factory=set)
    ids_max: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Per context: numbers are not used again, also when what had them is gone."""
    _by_id: dict[str, dict[int, dict[tuple[str, int], Version]]] = field(default_factory=lambda: defaultdict(dict))
    _by_guid: dict[uuid.UUID, dict[tuple[str, int], int]] = field(default_factory=dict)
    _referring: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))

    # --- the fold -----------------------------------------------------------------------------------------------------

    def apply(self, change: SchemaChange) -> None:
        """Take one record into account."""
        subject = change.subject
        match change.keytype:
            case records.SCHEMA if subject is not None and change.version is not None:
                self._apply_schema(subject, change.version, change.value)
            case records.DELETE_SUBJECT if subject is not None and change.value is not None:
                up_to = change.value.get("version", 0)
                for one in list(self.subjects.get(subject, {}).values()):
                    if one.version <= up_to and not one.deleted:
                        self._put(Version(one.subject, one.version, one.id, one.schema, deleted=True))
            case records.CLEAR_SUBJECT if subject is not None:
                parsed = Subject.parse(subject)
                for name in list(self.subjects):
                    if name == subject or (not parsed.name and Subject.parse(name).context == parsed.context):
                        for number in list(self.subjects[name]):
                            if self.subjects[name][number].deleted:
                                self._remove(name, number)
            case records.CONFIG:
                _set(self.configs, subject, change.value)
            case records.MODE:
                _set(self.modes, subject, None if change.value is None else str(change.value.get("mode")))
            case records.CONTEXT if subject is not None:
                if change.value is None:
                    self.contexts.discard(subject)
                else:
                    self.contexts.add(subject)

    def _apply_schema(self, subject: str, version: int, value: Mapping[str, Any] | None) -> None:
        if value is None:
            self._remove(subject, version)
            return
        number = value.get("id")
        try:
            schema = Schema.from_json(value)
        except SchemaError as error:
            log.warning("version %d of %s in the registry's topic is left out: %s", version, subject, error)
            return
        if not isinstance(number, int):
            log.warning("version %d of %s in the registry's topic is left out: it has no id", version, subject)
            return
        self._put(Version(subject, version, number, schema, value.get("deleted") is True))

    def _put(self, one: Version) -> None:
        self._remove(one.subject, one.version)
        versions = self.subjects.setdefault(one.subject, {})
        in_order = not versions or one.version > max(versions)
        versions[one.version] = one
        if not in_order:
            self.subjects[one.subject] = dict(sorted(versions.items()))
        key, context = (one.subject, one.version), one.context
        if context != DEFAULT_CONTEXT:
            self.contexts.add(context)
        self.ids_max[context] = max(self.ids_max[context], one.id)
        self._by_id[context].setdefault(one.id, {})[key] = one
        self._by_guid.setdefault(one.schema.guid, {})[key] = one.id
        for reference in one.schema.references:
            self._referring[beside(one.subject, reference.subject), reference.version].add(key)

    def _remove(self, subject: str, version: int) -> None:
        one = self.subjects.get(subject, {}).pop(version, None)
        if one is None:
            return
        if not self.subjects[subject]:
            del self.subjects[subject]
        key, by_id = (subject, version), self._by_id[one.context]
        del by_id[one.id][key]
        if not by_id[one.id]:
            del by_id[one.id]
        guid = one.schema.guid
        del self._by_guid[guid][key]
        if not self._by_guid[guid]:
            del self._by_guid[guid]
        for reference in one.schema.references:
            self._referring[beside(subject, reference.subject), reference.version].discard(key)

    # --- looking ------------------------------------------------------------------------------------------------------

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """The versions of a subject in order; with `deleted` also those that were softly deleted."""
        return [one for one in self.subjects.get(subject, {}).values() if deleted or not one.deleted]

    def latest(self, subject: str, *, deleted: bool = False) -> Version | None:
        found = self.versions(subject, deleted=deleted)
        return found[-1] if found else None

    def by_id(self, number: int, subject: str | None = None) -> Version | None:
        """A version with this number: of the subject's context, else of any other when the subject names none."""
        parsed = Subject.parse(subject or "")
        for context in dict.fromkeys([parsed.context, *([] if parsed.prefix else sorted(self.contexts))]):
            found = self._by_id[context].get(number, {}) if context in self._by_id else {}
            qualified = str(Subject(context, parsed.name))
            named = [one for one in found.values() if not parsed.name or one.subject == qualified]
            if named:
                return named[0]
        # The number is right, and only the subject is not the one it was registered under.
        found = self._by_id[parsed.context].get(number, {}) if parsed.context in self._by_id else {}
        return next(iter(found.values()), None)

    def with_id(self, number: int, context: str, *, deleted: bool = False) -> list[Version]:
        """Everything that has this number in a context."""
        found = self._by_id[context].get(number, {}) if context in self._by_id else {}
        return [one for one in found.values() if deleted or not one.deleted]

    def by_guid(self, guid: uuid.UUID) -> list[Version]:
        return [self.subjects[subject][version] for subject, version in self._by_guid.get(guid, {})]

    def same_schema(self, schema: Schema, context: str) -> Version | None:
        """A version of any subject of the context that has exactly this schema, deleted or not."""
        found = [one for one in self.by_guid(schema.guid) if one.context == context and one.schema == schema]
        return min(found, key=lambda one: one.id, default=None)

    def referring(self, subject: str, version: int, *, deleted: bool = False) -> list[Version]:
        """The versions whose schemas refer to this one."""
        found = [self.subjects[name][number] for name, number in sorted(self._referring.get((subject, version), ()))]
        return [one for one in found if deleted or not one.deleted]

    def referred(self, parent: str, reference: Reference) -> Version | None:
        """What a reference of a schema of `parent` names, deleted or not."""
        subject = beside(parent, reference.subject)
        if reference.version == -1:
            return self.latest(subject)
        return self.subjects.get(subject, {}).get(reference.version)

    # --- levels and modes ---------------------------------------------------------------------------------------------

    def config(self, subject: str | None) -> Mapping[str, Any]:
        """What holds for a subject: its own, its context's, the registry's settings, in this order."""
        own: dict[str, Any] = {"compatibilityLevel": self.default_level}
        for scope in reversed(list(_scopes(subject))):
            own.update(self.configs.get(scope, {}))
        return own

    def level(self, subject: str | None) -> str:
        return str(self.config(subject)["compatibilityLevel"])

    def mode(self, subject: str | None) -> str:
        if self.modes.get(None) == "READONLY_OVERRIDE" or self.modes.get(f":{GLOBAL_CONTEXT}:") == "READONLY":
            return "READONLY"
        return next((self.modes[scope] for scope in _scopes(subject) if scope in self.modes), DEFAULT_MODE)


def _scopes(subject: str | None) -> Iterator[str | None]:
    if subject is not None:
        parsed = Subject.parse(subject)
        if parsed.name:
            yield subject
        if parsed.prefix:
            yield parsed.prefix
        yield f":{GLOBAL_CONTEXT}:"
    yield None


def _set(table: dict[str | None, Any], key: str | None, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
