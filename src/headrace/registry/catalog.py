"""What a registry answers and decides, out of its state alone: no network, no clock, nothing is written here.

What asks for a change gives a `PlannedChange`: the records that would make it so, and the answer once they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from headrace.registry import errors, records
from headrace.registry.records import SchemaChange, schema_record
from headrace.registry.state import RegistryState, Version
from headrace.schemas.compatibility import Finding, Level, check
from headrace.schemas.formats import ParsedSchema, parse
from headrace.schemas.schema import Schema, SchemaError
from headrace.schemas.subjects import DEFAULT_CONTEXT, Subject

REFERENCES_MAX = 500
"""How many other schemas one schema may need, counted with those that they need in turn."""
SCHEMA_CHARACTERS_MAX = 1_000_000
_PARSED_KEPT = 1_000
_MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
_CONFIG_FIELDS = ("normalize", "compatibilityGroup")
_CONFIG_UNSUPPORTED = (
    "alias",
    "aliasForDeks",
    "validateFields",
    "validateRules",
    "compatibilityPolicy",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


@dataclass(slots=True)
class PlannedChange:
    """Records to write, and what to answer when they are written."""

    result: Any
    changes: list[SchemaChange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to register: a schema, and for imports the number and version that it has elsewhere."""

    schema: Schema
    id: int | None = None
    version: int | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Request:
        try:
            return cls(Schema.from_json(body), _number(body, "id"), _number(body, "version"))
        except SchemaError as error:
            raise errors.invalid_schema(error) from error


def _number(body: Mapping[str, Any], name: str) -> int | None:
    found = body.get(name)
    if found is None or found in (-1, 0):
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 31:
        raise SchemaError(f'"{name}" is a number from 1 to {(1 << 31) - 1}, not {found!r}')
    return found


class Catalog:
    """A registry's answers about one state. Several requests may look; changes are decided one after the other."""

    def __init__(
        self,
        state: RegistryState,
        *,
        schema_characters_max: int = SCHEMA_CHARACTERS_MAX,
        validates_defaults: bool = False,
    ) -> None:
        self.state = state
        self._validates_defaults = validates_defaults
        self._characters_max = schema_characters_max
        # References name versions, and those never change, but may go away; what was parsed says what it needed.
        self._parse = lru_cache(_PARSED_KEPT)(_parsed)

    # --- schemas ------------------------------------------------------------------------------------------------------

    def parsed(self, subject: str, schema: Schema) -> ParsedSchema:
        """Read a schema with all that it refers to, or refuse it."""
        if len(schema.text) > self._characters_max:
            raise errors.schema_too_large(len(schema.text), self._characters_max)
        try:
            return self._parse(schema, tuple(self._referred(subject, schema).items()))
        except SchemaError as error:
            raise errors.invalid_schema(error) from error

    def _referred(self, subject: str, schema: Schema) -> dict[str, str]:
        """Texts of what a schema refers to by name; what others need comes before them."""
        texts: dict[str, str] = {}
        under_way: set[str] = set()

        def add(parent: str, references: Iterable[Any]) -> None:
            for one in references:
                if one.name in texts or one.name in under_way:
                    continue
                found = self.state.referred(parent, one)
                if found is None:
                    raise SchemaError(
                        f'No schema reference found for subject "{one.subject}" and version {one.version}, '
                        f"which {parent} calls {one.name}"
                    )
                if len(texts) + len(under_way) >= REFERENCES_MAX:
                    raise SchemaError(f"it needs more than {REFERENCES_MAX} other schemas")
                under_way.add(one.name)
                add(found.subject, found.schema.references)
                under_way.discard(one.name)
                texts[one.name] = found.schema.text

        add(subject, schema.references)
        return texts

    def _canonical(
        self, subject: str, schema: Schema, *, normalize: bool, is_new: bool = False
    ) -> tuple[Schema, ParsedSchema]:
        parsed = self.parsed(subject, schema)
        normalize = normalize or self.state.config(subject).get("normalize") is True
        if is_new and (normalize or self._validates_defaults) and parsed.wrong_default is not None:
            raise errors.invalid_schema(SchemaError(parsed.wrong_default))
        text = parsed.normalized() if normalize else parsed.canonical
        references = tuple(
            type(one)(one.name, one.subject, found.version)
            for one in schema.references
            if (found := self.state.referred(subject, one)) is not None
        )
        return Schema(text, schema.type, references, schema.metadata, schema.rule_set), parsed

    # --- registering --------------------------------------------------------------------------------------------------

    def register(self, subject: str, request: Request, *, normalize: bool = False) -> PlannedChange:
        """A schema becomes the subject's next version, unless it is one already."""
        check_subject(subject)
        mode = self._check_writable(subject, with_id=request.id is not None)
        schema, parsed = self._canonical(subject, request.schema, normalize=normalize, is_new=True)
        versions = self.state.versions(subject, deleted=True)
        is_import = mode in ("IMPORT", "FORWARD")
        same = self.state.same_schema(schema, Subject.parse(subject).context)
        if request.version is None:
            for one in reversed(versions):
                if not one.deleted and one.schema == schema and request.id in (None, one.id):
                    return PlannedChange(_registered(one))
        if not is_import:
            findings = self._findings(subject, parsed, schema, [one for one in versions if not one.deleted])
            if findings:
                raise errors.incompatible(subject, [str(one) for one in findings])
        version = versions[-1].version + 1 if versions else 1
        if request.version is not None:
            if request.version != version and not is_import:
                raise errors.invalid_schema("Version is not one more than previous version")
            version = request.version
        number = request.id or (same.id if same is not None else None)
        context = Subject.parse(subject).context
        if number is None:
            number = self.state.ids_max[context] + 1
        elif any(one.schema != schema for one in self.state.with_id(number, context, deleted=True)):
            raise errors.not_permitted(f"Overwrite new schema with id {number} in context {context} is not permitted.")
        changes = []
        if context != DEFAULT_CONTEXT and context not in self.state.contexts:
            value = {"tenant": records.TENANT, "context": context}
            changes.append(SchemaChange(records.CONTEXT, context, None, value))
        for one in versions:
            # The same schema comes back: its deleted version makes room.
            is_replaced = one.deleted and one.id == number and one.version < version
            if is_replaced and not self.state.referring(subject, one.version, deleted=True):
                changes.append(SchemaChange(records.SCHEMA, subject, one.version))
        changes.append(schema_record(subject, version, number, schema, deleted=False))
        return PlannedChange(_registered(Version(subject, version, number, schema)), changes)

    def _check_writable(self, subject: str, *, with_id: bool | None = None) -> str:
        mode, context = self.state.mode(subject), Subject.parse(subject).context
        where = f"Subject {subject} in context {context}"
        if mode in ("READONLY", "READONLY_OVERRIDE"):
            raise errors.not_permitted(f"{where} is in read-only mode")
        if with_id is True and mode not in ("IMPORT", "FORWARD"):
            raise errors.not_permitted(f"{where} is not in import mode")
        if with_id is False and mode != "READWRITE":
            raise errors.not_permitted(f"{where} is not in read-write mode")
        return mode

    def lookup(self, subject: str, request: Request, *, normalize: bool = False, deleted: bool = False) -> Version:
        """The version of the subject that has this schema."""
        if not self.state.versions(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        schema, _ = self._canonical(subject, request.schema, normalize=normalize)
        for one in reversed(self.state.versions(subject, deleted=deleted)):
            if one.schema == schema:
                return one
        # A client asks with the text alone; what the registry keeps beside it is no reason not to find it.
        if schema.metadata is None and schema.rule_set is None:
            for one in reversed(self.state.versions(subject, deleted=deleted)):
                if (one.schema.text, one.schema.references) == (schema.text, schema.references):
                    return one
        raise errors.schema_not_found()

    # --- compatibility ------------------------------------------------------------------------------------------------

    def compatibility(
        self, subject: str, request: Request, version: str | None, *, normalize: bool = False
    ) -> list[Finding]:
        """What stands against a schema: held against one version, or against all that its level asks for."""
        earlier = self.state.versions(subject)
        if version is not None:
            found = self._version(subject, version)
            if found is None and version not in ("latest", "-1"):
                raise errors.version_not_found(version)
            earlier = [found] if found is not None else []
        schema, parsed = self._canonical(subject, request.schema, normalize=normalize, is_new=True)
        return self._findings(subject, parsed, schema, earlier)

    def _findings(self, subject: str, new: ParsedSchema, schema: Schema, earlier: list[Version]) -> list[Finding]:
        config = self.state.config(subject)
        level = Level(str(config["compatibilityLevel"]))
        group = config.get("compatibilityGroup")
        if group:
            # Versions of other groups are another application's: they may break with each other.
            earlier = [one for one in earlier if _property(one.schema, group) == _property(schema, group)]
        if level is Level.NONE:
            return []
        needed = earlier if level.is_transitive else earlier[-1:]
        return check(new, [(one.version, self.parsed(subject, one.schema)) for one in needed], level)

    # --- looking ------------------------------------------------------------------------------------------------------

    def version(self, subject: str, version: str, *, deleted: bool = False) -> Version:
        """One version; of a subject without a context also one of that name in another context."""
        found = self._version(subject, version, deleted=deleted)
        parsed = Subject.parse(subject)
        for context in sorted(self.state.contexts) if found is None and not parsed.prefix else ():
            found = self._version(str(Subject(context, parsed.name)), version, deleted=deleted)
            if found is not None:
                return found
        if found is None and not self.state.versions(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        if found is None:
            raise errors.version_not_found(version)
        return found

    def _version(self, subject: str, version: str, *, deleted: bool = False) -> Version | None:
        if version in ("latest", "-1"):
            return self.state.latest(subject, deleted=deleted)
        if not version.isascii() or not version.isdigit() or not 0 < int(version) < 1 << 31:
            raise errors.invalid_version(version)
        found = self.state.subjects.get(subject, {}).get(int(version))
        return None if found is None or (found.deleted and not deleted) else found

    def formatted(self, one: Version, form: str) -> str:
        """A version's text, in another form if one is asked for."""
        if not form:
            return one.schema.text
        try:
            return self.parsed(one.subject, one.schema).formatted(form)
        except SchemaError as error:
            raise errors.invalid_schema(error) from error

    def subject_names(self, prefix: str, *, deleted: bool, deleted_only: bool) -> list[str]:
        """Subjects that begin with a prefix; a prefix without a context means the default one, `:*:` all of them."""
        all_contexts = prefix.startswith(":*:")
        prefix = prefix.removeprefix(":*:")
        found = []
        for name, versions in self.state.subjects.items():
            alive = any(not one.deleted for one in versions.values())
            if deleted_only and alive:
                continue
            if not alive and not (deleted or deleted_only):
                continue
            shown = Subject.parse(name).name if all_contexts else name
            if shown.startswith(prefix) and (all_contexts or prefix.startswith(":.") or not name.startswith(":.")):
                found.append(name)
        return sorted(found)

    # --- deleting -----------------------------------------------------------------------------------------------------

    def delete_subject(self, subject: str, *, permanent: bool) -> PlannedChange:
        """All versions of a subject; for good only what was softly deleted before."""
        versions = self.state.versions(subject, deleted=True)
        if not versions:
            raise errors.subject_not_found(subject)
        alive = [one for one in versions if not one.deleted]
        if not permanent and not alive:
            raise errors.subject_soft_deleted(subject)
        self._check_writable(subject)
        chosen = versions if permanent else alive
        for one in chosen:
            if any(other.subject != subject for other in self.state.referring(subject, one.version, deleted=permanent)):
                raise errors.reference_exists(subject, one.version)
        numbers = [one.version for one in chosen]
        if not permanent:
            value = {"subject": subject, "version": numbers[-1]}
            return PlannedChange(numbers, [SchemaChange(records.DELETE_SUBJECT, subject, None, value)])
        if alive:
            raise errors.subject_not_soft_deleted(subject)
        # Newest first: a later version may refer to an earlier one.
        changes = [SchemaChange(records.SCHEMA, subject, number) for number in reversed(numbers)]
        return PlannedChange(numbers, [*changes, *self._settings_gone(subject)])

    def delete_version(self, subject: str, version: str, *, permanent: bool) -> PlannedChange:
        """One version of a subject."""
        if not self.state.versions(subject, deleted=True):
            raise errors.subject_not_found(subject)
        found = self._version(subject, version, deleted=True)
        if version in ("latest", "-1"):
            found = self._version(subject, version) or found
        if found is None:
            raise errors.version_not_found(version)
        if found.deleted and not permanent:
            raise errors.version_soft_deleted(subject, found.version)
        self._check_writable(subject)
        if self.state.referring(subject, found.version, deleted=permanent):
            raise errors.reference_exists(subject, found.version)
        if not permanent:
            change = schema_record(subject, found.version, found.id, found.schema, deleted=True)
            return PlannedChange(found.version, [change])
        if not found.deleted:
            raise errors.version_not_soft_deleted(subject, found.version)
        changes = [SchemaChange(records.SCHEMA, subject, found.version)]
        if len(self.state.versions(subject, deleted=True)) == 1:
            changes += self._settings_gone(subject)
        return PlannedChange(found.version, changes)

    def _settings_gone(self, subject: str) -> list[SchemaChange]:
        gone = []
        if subject in self.state.modes:
            gone.append(SchemaChange(records.MODE, subject))
        if subject in self.state.configs:
            gone.append(SchemaChange(records.CONFIG, subject))
        return gone

    def delete_context(self, context: str) -> PlannedChange:
        """A context that has no subjects left."""
        if any(Subject.parse(name).context == context for name in self.state.subjects):
            raise errors.context_not_empty(context)
        prefix = Subject(context, "").prefix
        return PlannedChange(None, [SchemaChange(records.CONTEXT, context), *self._settings_gone(prefix)])

    # --- settings -----------------------------------------------------------------------------------------------------

    def set_config(self, subject: str | None, body: Mapping[str, Any]) -> PlannedChange:
        """The level of compatibility of a subject, a context or the registry, and what else is set there."""
        if subject is not None:
            check_subject(subject, may_be_context=True)
        unsupported = [name for name in _CONFIG_UNSUPPORTED if body.get(name) is not None]
        if unsupported:
            raise errors.not_permitted(f"this registry has no {', '.join(unsupported)}")
        value = dict(self.state.configs.get(subject, {}))
        level = body.get("compatibility", body.get("compatibilityLevel"))
        if level is not None:
            if not isinstance(level, str) or level.upper() not in Level.__members__:
                raise errors.invalid_compatibility()
            value["compatibilityLevel"] = level.upper()
        for name in _CONFIG_FIELDS:
            if body.get(name) is not None:
                value[name] = body[name]
        if not value:
            raise errors.invalid_compatibility()
        if subject is not None:
            value["subject"] = subject
        answer = {name: found for name, found in body.items() if found is not None}
        if level is not None:
            answer.pop("compatibilityLevel", None)
            answer["compatibility"] = level.upper()
        return PlannedChange(answer, [SchemaChange(records.CONFIG, subject, None, value)])

    def delete_config(self, subject: str | None) -> PlannedChange:
        found = self.state.configs.get(subject)
        if found is None:
            if subject is not None:
                raise errors.subject_not_found(subject)
            return PlannedChange({"compatibilityLevel": self.state.default_level})
        return PlannedChange(shown_config(found), [SchemaChange(records.CONFIG, subject)])

    def set_mode(self, subject: str | None, body: Mapping[str, Any], *, force: bool) -> PlannedChange:
        """READWRITE, READONLY, or IMPORT, in which numbers and versions are given by whoever registers."""
        if subject is not None:
            check_subject(subject, may_be_context=True)
        mode = body.get("mode")
        if not isinstance(mode, str) or mode.upper() not in _MODES:
            raise errors.invalid_mode()
        mode = mode.upper()
        changes: list[SchemaChange] = []
        if mode == "IMPORT" and self.state.mode(subject) != "IMPORT" and not force:
            under = [name for name in self.state.subjects if _is_under(name, subject)]
            if any(self.state.versions(name) for name in under):
                raise errors.not_permitted("Cannot import since found existing subjects")
            for name in under:
                for one in self.state.versions(name, deleted=True):
                    if self.state.referring(name, one.version, deleted=True):
                        raise errors.reference_exists(name, one.version)
                    changes.append(SchemaChange(records.SCHEMA, name, one.version))
        value: dict[str, Any] = {"mode": mode} if subject is None else {"subject": subject, "mode": mode}
        return PlannedChange({"mode": mode}, [*changes, SchemaChange(records.MODE, subject, None, value)])

    def delete_mode(self, subject: str | None, *, recursive: bool = False) -> PlannedChange:
        found = self.state.modes.get(subject)
        if found is None and subject is not None and not recursive:
            raise errors.subject_not_found(subject)
        changes = [SchemaChange(records.MODE, subject)] if found is not None else []
        if recursive and subject is not None:
            inside = [name for name in self.state.modes if name not in (None, subject) and _is_under(name, subject)]
            changes += [SchemaChange(records.MODE, name) for name in inside]
        return PlannedChange({"mode": found or self.state.mode(subject)}, changes)


def check_subject(subject: str, *, may_be_context: bool = False) -> None:
    """Refuse names that no subject may have."""
    name = Subject.parse(subject).name
    if (not name and not may_be_context) or any(ord(one) < 0x20 or ord(one) == 0x7F for one in subject):
        raise errors.invalid_subject(subject)
    if name in ("__GLOBAL", "__EMPTY"):
        raise errors.invalid_subject(subject)


def shown_config(value: Mapping[str, Any]) -> dict[str, Any]:
    """A config as it is answered: without the subject, which the question had."""
    return {name: found for name, found in value.items() if name != "subject"}


def shown_version(one: Version, text: str) -> dict[str, Any]:
    """A version as it is answered."""
    body = one.schema.with_text(text).to_json()
    return {
        "subject": one.subject,
        "version": one.version,
        "id": one.id,
        "guid": str(one.schema.guid),
        "schemaType": one.schema.type,
        **body,
    }


def _registered(one: Version) -> dict[str, Any]:
    # Without the schema: a client would keep the text, and Protobuf clients need what they sent, which is base64.
    return {"id": one.id, "version": one.version, "guid": str(one.schema.guid)}


def _property(schema: Schema, name: str) -> Any:
    return ((schema.metadata or {}).get("properties") or {}).get(name)


def _is_under(name: str | None, scope: str | None) -> bool:
    if scope is None or name is None:
        return scope is None and name is not None and not name.startswith(":.")
    parsed = Subject.parse(scope)
    return name == scope or (not parsed.name and Subject.parse(name).context == parsed.context)


def _parsed(schema: Schema, referred: tuple[tuple[str, str], ...]) -> ParsedSchema:
    return parse(schema, dict(referred))
