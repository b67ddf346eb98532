"""JSON Schemas: read into a tree of nodes that says what a value has to be, keyword by keyword.

jsonschema-rs says whether a schema is one, and whether a value matches it. The tree is for comparing two schemas; its
shape (which keywords make one node, and which several that have to hold together) is that of the library that
Confluent's registry compares with, so that decisions come out alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote, urldefrag, urljoin

from headrace.schemas.extras import need
from headrace.schemas.schema import SchemaError

_NUMBER_WORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING_WORDS = ("minLength", "maxLength", "pattern", "format")
_ARRAY_WORDS = (
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "unevaluatedItems",
)
_OBJECT_WORDS = (
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
)
_NEWER = ("2019-09", "2020-12")
DEFAULT_DIALECT = "http://json-schema.org/draft-07/schema#"
"""What a schema is that does not say."""


@dataclass(eq=False, slots=True)
class JsonNode:
    """One thing that a value has to be. `kind`: true, false, string, number, boolean, null, object, array, const, enum,
    combined (with `criterion` allOf, anyOf or oneOf), not, conditional."""

    kind: str
    words: Mapping[str, Any] = field(default_factory=dict)
    """The keywords beside it."""
    criterion: str = ""
    parts: list[JsonNode] = field(default_factory=list)
    """Of a combined node; the one inside a `not`."""
    properties: dict[str, JsonNode] = field(default_factory=dict)
    patterns: list[tuple[str, JsonNode]] = field(default_factory=list)
    dependent: dict[str, JsonNode] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    others: JsonNode | None = None
    """What further properties of an object, or items of an array, have to be; None: anything."""
    others_allowed: bool = True
    unevaluated: JsonNode | None = None
    items: list[JsonNode] = field(default_factory=list)
    each_item: JsonNode | None = None
    is_integer: bool = False

    @property
    def has_default(self) -> bool:
        return "default" in self.words


@dataclass(frozen=True, slots=True)
class JsonSchemaDocument:
    """A schema that was read, with those that it refers to."""

    json: Any
    documents: Mapping[str, Any]
    root: JsonNode
    wrong_default: ClassVar[str | None] = None

    @property
    def canonical(self) -> str:
        return json.dumps(self.json, separators=(",", ":"), ensure_ascii=False)

    def normalized(self) -> str:
        return json.dumps(self.json, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def formatted(self, form: str) -> str:
        if form:
            raise SchemaError(f"a JSON Schema has no form {form!r}")
        return self.canonical

    def problems_reading(self, written: Any) -> list[Any]:
        from headrace.schemas.formats.json_compatibility import problems

        return problems(written.root, self.root)


def parse(text: str, referred: Mapping[str, str]) -> JsonSchemaDocument:
    """Read a schema; `SchemaError` says what is wrong with it and where."""
    raw = loads(text)
    documents = {name: loads(other) for name, other in referred.items()}
    rust = need("jsonschema_rs")
    try:
        rust.meta.validate({"$schema": DEFAULT_DIALECT, **raw} if isinstance(raw, dict) else raw)
    except rust.ValidationError as error:
        raise SchemaError(f"at {_pointer(error.instance_path)}: {error.message}") from error
    except (ValueError, rust.ReferencingError):
        pass  # of a dialect of its own: whatever is said there is taken
    return JsonSchemaDocument(raw, documents, _Builder(raw, documents).root())


def loads(text: str) -> Any:
    """The JSON of a schema, which is an object or a boolean."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is not JSON: {error}") from error
    if not isinstance(found, (dict, bool)):
        raise SchemaError(f"a JSON Schema is an object or a boolean, not {type(found).__name__}")
    return found


def dialect(raw: Any) -> str:
    """The version of JSON Schema, as in `2020-12`; `draft-07` where none is named."""
    named = raw.get("$schema") if isinstance(raw, dict) else None
    if not isinstance(named, str):
        return "draft-07"
    for version in (*_NEWER, "draft-07", "draft-06", "draft-04"):
        if version in named:
            return version
    return "draft-07"


def _pointer(path: Any) -> str:
    return "/" + "/".join(str(part) for part in path)


class _Builder:
    """Nodes of one document and of those that it refers to; each place has one node, so that recursion ends."""

    def __init__(self, raw: Any, documents: Mapping[str, Any]) -> None:
        self._raw = raw
        self._newer = dialect(raw) in _NEWER
        self._base = str(raw.get("$id") or raw.get("id") or "") if isinstance(raw, dict) else ""
        self._documents = {**documents}
        for name, one in documents.items():
            if isinstance(one, dict) and isinstance(one.get("$id"), str):
                self._documents.setdefault(one["$id"], one)
            if self._base:
                self._documents.setdefault(urljoin(self._base, name), one)
        self._made: dict[int, JsonNode] = {}
        self._anchors: dict[str, tuple[Any, Any]] = {}
        for one in (raw, *documents.values()):
            for inside in _walk(one):
                for key in ("$id", "$anchor", "id"):
                    named = inside.get(key)
                    if isinstance(named, str):
                        self._anchors.setdefault(named if key != "$anchor" else f"#{named}", (inside, one))

    def root(self) -> JsonNode:
        return self._node(self._raw, self._raw)

    def _node(self, raw: Any, document: Any) -> JsonNode:
        if isinstance(raw, bool):
            return JsonNode("true" if raw else "false")
        if not isinstance(raw, dict):
            raise SchemaError(f"a schema is an object or a boolean, not {json.dumps(raw)[:80]}")
        if id(raw) in self._made:
            return self._made[id(raw)]
        if isinstance(raw.get("$ref"), str):
            return self._reference(raw, document)
        made = JsonNode("true")
        self._made[id(raw)] = made
        found = self._parts(raw, document)
        if len(found) == 1:
            _become(made, found[0])
        elif found:
            _become(made, JsonNode("combined", criterion="allOf", parts=found))
        made.words = raw
        return made

    def _reference(self, raw: dict[str, Any], document: Any) -> JsonNode:
        target, where = self._target(raw["$ref"], document)
        if target is raw:
            raise SchemaError(f"$ref {raw['$ref']} refers to itself")
        siblings = {name: value for name, value in raw.items() if name != "$ref"}
        node = self._node(target, where)
        if not self._newer or not self._parts(siblings, document):
            return node
        made = JsonNode("combined", raw, "allOf", [*self._parts(siblings, document), node])
        self._made[id(raw)] = made
        return made

    def _target(self, reference: str, document: Any) -> tuple[Any, Any]:
        if reference in self._anchors:
            return self._anchors[reference]
        name, fragment = urldefrag(reference)
        found: Any = document
        if name:
            joined = urljoin(self._base, name) if self._base else name
            for one in (name, joined):
                if one in self._documents:
                    found = self._documents[one]
                    break
                if one in self._anchors:
                    found = self._anchors[one][0]
                    break
            else:
                if joined != self._base.rstrip("#") and name != self._base:
                    raise SchemaError(f"$ref {reference}: there is no reference of that name")
                found = self._raw
        where = found
        for part in unquote(fragment).lstrip("/").split("/") if fragment else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            else:
                raise SchemaError(f"$ref {reference}: there is nothing at {part!r}")
        return found, where

    def _parts(self, raw: dict[str, Any], document: Any) -> list[JsonNode]:
        """The nodes that one object of keywords stands for; all of them have to hold."""
        found: list[JsonNode] = []
        kinds = raw.get("type")
        if isinstance(kinds, str):
            found.append(self._of_type(kinds, raw, document))
        elif isinstance(kinds, list):
            parts = [self._of_type(str(kind), raw, document) for kind in kinds]
            found.append(JsonNode("combined", raw, "anyOf", parts))
        else:
            for kind, words in (
                ("array", _ARRAY_WORDS),
                ("object", _OBJECT_WORDS),
                ("number", _NUMBER_WORDS),
                ("string", _STRING_WORDS),
            ):
                if any(word in raw for word in words):
                    found.append(self._of_type(kind, raw, document))
        if "const" in raw:
            found.append(JsonNode("const", raw))
        if "enum" in raw:
            found.append(JsonNode("enum", raw))
        for criterion in ("allOf", "anyOf", "oneOf"):
            if isinstance(raw.get(criterion), list):
                parts = [self._node(one, document) for one in raw[criterion]]
                found.append(JsonNode("combined", raw, criterion, parts))
        if "not" in raw:
            found.append(JsonNode("not", raw, parts=[self._node(raw["not"], document)]))
        if "if" in raw:
            found.append(JsonNode("conditional", raw))
        return found

    def _of_type(self, kind: str, raw: dict[str, Any], document: Any) -> JsonNode:
        if kind == "integer":
            return JsonNode("number", raw, is_integer=True)
        if kind == "object":
            return self._object(raw, document)
        if kind == "array":
            return self._array(raw, document)
        return JsonNode(kind, raw)

    def _object(self, raw: dict[str, Any], document: Any) -> JsonNode:
        made = JsonNode("object", raw)
        made.properties = {name: self._node(one, document) for name, one in (raw.get("properties") or {}).items()}
        made.patterns = [
            (name, self._node(one, document)) for name, one in (raw.get("patternProperties") or {}).items()
        ]
        made.required = frozenset(one for one in raw.get("required") or () if isinstance(one, str))
        made.others_allowed, made.others = self._others(raw.get("additionalProperties"), document)
        dependent = {**(raw.get("dependencies") or {}), **(raw.get("dependentSchemas") or {})}
        made.dependent = {
            name: self._node(one, document) for name, one in dependent.items() if isinstance(one, (dict, bool))
        }
        if self._newer and "unevaluatedProperties" in raw:
            made.unevaluated = self._node(raw["unevaluatedProperties"], document)
        return made

    def _array(self, raw: dict[str, Any], document: Any) -> JsonNode:
        made = JsonNode("array", raw)
        items, additional = raw.get("items"), raw.get("additionalItems")
        if "prefixItems" in raw:
            items, additional = raw["prefixItems"], raw.get("items")
        if isinstance(items, list):
            made.items = [self._node(one, document) for one in items]
            made.others_allowed, made.others = self._others(additional, document)
        elif items is not None:
            made.each_item = self._node(items, document)
        if self._newer and "unevaluatedItems" in raw:
            made.unevaluated = self._node(raw["unevaluatedItems"], document)
        return made

    def _others(self, given: Any, document: Any) -> tuple[bool, JsonNode | None]:
        if given is None or given is True:
            return True, None
        if given is False:
            return False, None
        return True, self._node(given, document)


def dependent_names(node: JsonNode) -> dict[str, frozenset[str]]:
    """Per property the names of those that have to be there with it."""
    words = {**(node.words.get("dependencies") or {}), **(node.words.get("dependentRequired") or {})}
    return {name: frozenset(found) for name, found in words.items() if isinstance(found, list)}


def _become(made: JsonNode, other: JsonNode) -> None:
    for name in JsonNode.__slots__:
        setattr(made, name, getattr(other, name))


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
