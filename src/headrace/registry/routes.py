"""Confluent's REST interface: which path and method asks what of the catalogue, and how it is answered."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace._version import __version__
from headrace.registry import errors
from headrace.registry.access import ANY_SUBJECT, SubjectRight, User
from headrace.registry.catalog import Catalog, PlannedChange, Request, shown_config, shown_version
from headrace.registry.state import Version
from headrace.schemas.schema import SCHEMA_TYPES
from headrace.schemas.subjects import DEFAULT_CONTEXT, Subject, normalized

ANSWERED_MAX = 20_000
"""How many items of a list are answered at most: more are asked for with `offset`."""


class Writing(Protocol):
    """What makes a decision last. Decisions are taken one after the other, each after the one before was applied."""

    async def change(self, decide: Callable[[], PlannedChange]) -> Any: ...


@dataclass(slots=True)
class RestRequest:
    """A request, read."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: Any
    user: User

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise errors.RegistryRefusalError(400, f"{name} is a number, not {text!r}") from None

    def page(self, found: list[Any]) -> list[Any]:
        """The part of a list that was asked for."""
        offset, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return found[offset : offset + (ANSWERED_MAX if limit < 0 else min(limit, ANSWERED_MAX))]

    def object(self) -> Mapping[str, Any]:
        if not isinstance(self.body, dict):
            raise errors.RegistryRefusalError(400, "the body of this request is a JSON object")
        return self.body

    def may(self, right: SubjectRight, subject: str) -> None:
        self.user.check(right, subject)


class Routes:
    """All that can be asked. What only looks answers from the state as it is now."""

    def __init__(self, catalog: Catalog, writing: Writing, *, modes_may_change: bool, cluster_id: str) -> None:
        self._catalog = catalog
        self._state = catalog.state
        self._change = writing.change
        self._modes_may_change = modes_may_change
        self._cluster_id = cluster_id

    async def answer(self, asked: RestRequest) -> Any:
        """The answer as JSON; a `str` is given as it is."""
        match asked.method, asked.path:
            case "GET" | "HEAD", ():
                return {}
            case _, ("subjects", *_):
                return await self._subjects(asked)
            case "GET", ("schemas", *rest):
                return self._schemas(asked, rest)
            case "POST", ("compatibility", "subjects", subject, "versions"):
                return self._compatibility(asked, normalized(subject), None)
            case "POST", ("compatibility", "subjects", subject, "versions", version):
                return self._compatibility(asked, normalized(subject), version)
            case _, ("config",):
                return await self._config(asked, None)
            case _, ("config", subject):
                return await self._config(asked, _scope(subject))
            case _, ("mode",):
                return await self._mode(asked, None)
            case _, ("mode", subject):
                return await self._mode(asked, _scope(subject))
            case "GET", ("contexts",):
                return asked.page([DEFAULT_CONTEXT, *sorted(self._state.contexts)])
            case "DELETE", ("contexts", context):
                asked.may(SubjectRight.ADMIN, ANY_SUBJECT)
                return await self._change(lambda: self._catalog.delete_context(context.strip(":")))
            case "GET", ("v1", "metadata", "id"):
                return {"scope": {"path": [], "clusters": {"schema-registry-cluster": self._cluster_id}}}
            case "GET", ("v1", "metadata", "version"):
                return {"version": __version__, "commitId": ""}
        raise _no_such_route(asked)

    # --- subjects -----------------------------------------------------------------------------------------------------

    async def _subjects(self, asked: RestRequest) -> Any:
        match asked.method, asked.path[1:]:
            case "GET", ():
                return self._subject_names(asked)
            case "POST", (subject,):
                return self._lookup(asked, normalized(subject))
            case "DELETE", (subject,):
                return await self._delete_subject(asked, normalized(subject))
            case "GET", (subject, "versions"):
                return self._versions(asked, normalized(subject))
            case "POST", (subject, "versions"):
                return await self._register(asked, normalized(subject))
            case "GET", (subject, "metadata"):
                return self._with_metadata(asked, normalized(subject))
            case "GET", (subject, "versions", version):
                return self._version(asked, normalized(subject), version)
            case "GET", (subject, "versions", version, "schema"):
                found = self._found(asked, normalized(subject), version)
                return self._catalog.formatted(found, asked.query.get("format", ""))
            case "GET", (subject, "versions", version, "referencedby"):
                found = self._found(asked, normalized(subject), version, deleted=True)
                referring = self._state.referring(found.subject, found.version, deleted=asked.flag("deleted"))
                return asked.page(sorted({one.id for one in referring}))
            case "DELETE", (subject, "versions", version):
                return await self._delete_version(asked, normalized(subject), version)
        raise _no_such_route(asked)

    def _subject_names(self, asked: RestRequest) -> list[str]:
        prefix = asked.query.get("subjectPrefix", ":*:")
        names = self._catalog.subject_names(
            prefix, deleted=asked.flag("deleted"), deleted_only=asked.flag("deletedOnly")
        )
        return asked.page([name for name in names if asked.user.may(SubjectRight.READ, name)])

    def _lookup(self, asked: RestRequest, subject: str) -> dict[str, Any]:
        asked.may(SubjectRight.READ, subject)
        request = Request.from_json(asked.object())
        found = self._catalog.lookup(subject, request, normalize=asked.flag("normalize"), deleted=asked.flag("deleted"))
        return shown_version(found, self._catalog.formatted(found, asked.query.get("format", "")))

    async def _register(self, asked: RestRequest, subject: str) -> Any:
        asked.may(SubjectRight.WRITE, subject)
        request, normalize = Request.from_json(asked.object()), asked.flag("normalize")
        return await self._change(lambda: self._catalog.register(subject, request, normalize=normalize))

    async def _delete_subject(self, asked: RestRequest, subject: str) -> Any:
        permanent = asked.flag("permanent")
        asked.may(SubjectRight.ADMIN if permanent else SubjectRight.WRITE, subject)
        return await self._change(lambda: self._catalog.delete_subject(subject, permanent=permanent))

    async def _delete_version(self, asked: RestRequest, subject: str, version: str) -> Any:
        permanent = asked.flag("permanent")
        asked.may(SubjectRight.ADMIN if permanent else SubjectRight.WRITE, subject)
        return await self._change(lambda: self._catalog.delete_version(subject, version, permanent=permanent))

    def _versions(self, asked: RestRequest, subject: str) -> list[int]:
        asked.may(SubjectRight.READ, subject)
        deleted_only, deleted = asked.flag("deletedOnly"), asked.flag("deleted")
        found = self._state.versions(subject, deleted=deleted or deleted_only)
        if not found:
            raise errors.subject_not_found(subject)
        return asked.page([one.version for one in found if one.deleted or not deleted_only])

    def _found(self, asked: RestRequest, subject: str, version: str, *, deleted: bool = False) -> Version:
        asked.may(SubjectRight.READ, subject)
        found = self._catalog.version(subject, version, deleted=deleted or asked.flag("deleted"))
        asked.may(SubjectRight.READ, found.subject)
        return found

    def _version(self, asked: RestRequest, subject: str, version: str) -> dict[str, Any]:
        found = self._found(asked, subject, version)
        return shown_version(found, self._catalog.formatted(found, asked.query.get("format", "")))

    def _with_metadata(self, asked: RestRequest, subject: str) -> dict[str, Any]:
        asked.may(SubjectRight.READ, subject)
        wanted = {asked.query.get("key", ""): asked.query.get("value", "")}
        versions = self._state.versions(subject, deleted=asked.flag("deleted"))
        if not versions:
            raise errors.subject_not_found(subject)
        for one in reversed(versions):
            properties = (one.schema.metadata or {}).get("properties") or {}
            if all(properties.get(key) == value for key, value in wanted.items()):
                return shown_version(one, self._catalog.formatted(one, asked.query.get("format", "")))
        raise errors.schema_not_found()

    # --- schemas ------------------------------------------------------------------------------------------------------

    def _schemas(self, asked: RestRequest, rest: list[str]) -> Any:
        match rest:
            case ["types"]:
                return list(SCHEMA_TYPES)
            case []:
                return self._all_schemas(asked)
            case ["ids", number]:
                return self._by_id(asked, number)
            case ["ids", number, "schema"]:
                return self._catalog.formatted(self._with_id(asked, number), asked.query.get("format", ""))
            case ["ids", number, "subjects"]:
                return asked.page(sorted({one.subject for one in self._versions_with_id(asked, number)}))
            case ["ids", number, "versions"]:
                found = self._versions_with_id(asked, number)
                return asked.page([{"subject": one.subject, "version": one.version} for one in found])
            case ["guids", guid]:
                return self._shown_schema(self._with_guid(asked, guid)[0], asked)
            case ["guids", guid, "ids"]:
                pairs = {(one.context, one.id) for one in self._with_guid(asked, guid)}
                return [{"context": context, "id": number} for context, number in sorted(pairs)]
        raise _no_such_route(asked)

    def _all_schemas(self, asked: RestRequest) -> list[dict[str, Any]]:
        names = self._catalog.subject_names(
            asked.query.get("subjectPrefix", ":*:"), deleted=asked.flag("deleted"), deleted_only=False
        )
        found: list[Version] = []
        for name in names:
            if asked.user.may(SubjectRight.READ, name):
                versions = self._state.versions(name, deleted=asked.flag("deleted"))
                found += versions[-1:] if asked.flag("latestOnly") else versions
        return [shown_version(one, one.schema.text) for one in asked.page(found)]

    def _with_id(self, asked: RestRequest, text: str) -> Version:
        number = _id(text)
        found = self._state.by_id(number, asked.query.get("subject"))
        if found is None:
            raise errors.schema_not_found(number)
        others = self._state.with_id(number, found.context, deleted=True)
        if not any(asked.user.may(SubjectRight.READ, one.subject) for one in others):
            asked.may(SubjectRight.READ, found.subject)
        return found

    def _by_id(self, asked: RestRequest, text: str) -> dict[str, Any]:
        found = self._with_id(asked, text)
        answer = self._shown_schema(found, asked)
        if asked.query.get("subject"):
            answer |= {"subject": found.subject, "version": found.version}
        if asked.flag("fetchMaxId"):
            answer["maxId"] = self._state.ids_max[found.context]
        return answer

    def _shown_schema(self, found: Version, asked: RestRequest) -> dict[str, Any]:
        text = self._catalog.formatted(found, asked.query.get("format", ""))
        return {**found.schema.with_text(text).to_json(), "guid": str(found.schema.guid)}

    def _versions_with_id(self, asked: RestRequest, text: str) -> list[Version]:
        one = self._with_id(asked, text)
        found = self._state.with_id(one.id, one.context, deleted=asked.flag("deleted"))
        subject = asked.query.get("subject")
        return [
            each
            for each in found
            if asked.user.may(SubjectRight.READ, each.subject) and subject in (None, "", each.subject)
        ]

    def _with_guid(self, asked: RestRequest, text: str) -> list[Version]:
        try:
            found = self._state.by_guid(uuid.UUID(text))
        except ValueError:
            raise errors.schema_not_found(text) from None
        found = [one for one in found if asked.user.may(SubjectRight.READ, one.subject)]
        if not found:
            raise errors.schema_not_found(text)
        return found

    # --- compatibility, levels, modes ---------------------------------------------------------------------------------

    def _compatibility(self, asked: RestRequest, subject: str, version: str | None) -> dict[str, Any]:
        asked.may(SubjectRight.READ, subject)
        verbose = asked.flag("verbose")
        try:
            request = Request.from_json(asked.object())
            findings = self._catalog.compatibility(subject, request, version, normalize=asked.flag("normalize"))
            messages = [str(one) for one in findings]
        except errors.RegistryRefusalError as refusal:
            if refusal.status != 422 or refusal.code == 42202 or not verbose:
                raise
            messages = [refusal.message]
        return {"is_compatible": not messages, **({"messages": messages} if verbose else {})}

    async def _config(self, asked: RestRequest, subject: str | None) -> Any:
        if asked.method == "GET":
            if subject is None:
                return shown_config(self._state.config(None))
            asked.may(SubjectRight.READ, subject)
            own = self._state.configs.get(subject)
            if own is None and not asked.flag("defaultToGlobal"):
                raise errors.no_subject_config(subject)
            return shown_config(self._state.config(subject) if asked.flag("defaultToGlobal") else own or {})
        asked.may(SubjectRight.ADMIN, subject or ANY_SUBJECT)
        if asked.method == "PUT":
            body = asked.object()
            return await self._change(lambda: self._catalog.set_config(subject, body))
        if asked.method == "DELETE":
            return await self._change(lambda: self._catalog.delete_config(subject))
        raise _no_such_route(asked)

    async def _mode(self, asked: RestRequest, subject: str | None) -> Any:
        if asked.method == "GET":
            if subject is not None:
                asked.may(SubjectRight.READ, subject)
                if subject not in self._state.modes and not asked.flag("defaultToGlobal"):
                    raise errors.no_subject_mode(subject)
            return {"mode": self._state.mode(subject)}
        asked.may(SubjectRight.ADMIN, subject or ANY_SUBJECT)
        if not self._modes_may_change:
            raise errors.not_permitted("Mode changes are not allowed")
        if asked.method == "PUT":
            body, force = asked.object(), asked.flag("force")
            return await self._change(lambda: self._catalog.set_mode(subject, body, force=force))
        if asked.method == "DELETE":
            recursive = asked.flag("recursive")
            return await self._change(lambda: self._catalog.delete_mode(subject, recursive=recursive))
        raise _no_such_route(asked)


def _scope(subject: str) -> str | None:
    """A subject or a context; the default context without a subject is the registry as a whole."""
    parsed = Subject.parse(subject)
    return None if parsed == Subject(DEFAULT_CONTEXT, "") else str(parsed)


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 31:
        raise errors.RegistryRefusalError(404, "HTTP 404 Not Found")
    return int(text)


def _no_such_route(asked: RestRequest) -> errors.RegistryRefusalError:
    if asked.path[:1] in (("subjects",), ("schemas",), ("config",), ("mode",), ("compatibility",), ("contexts",)):
        return errors.RegistryRefusalError(405, f"HTTP 405 Method Not Allowed: {asked.method}")
    return errors.RegistryRefusalError(404, "HTTP 404 Not Found")
