"""Avro schemas: read into a tree of types, and printed as Avro's own Java library prints them.

fastavro reads and writes records. It keeps no tree that could be compared, and Confluent's registry tells schemas
apart by the text that Java prints, so both are done here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.schema import SchemaError

PRIMITIVES = frozenset(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
DEPTH_MAX = 200
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = {
    "record": {"type", "name", "namespace", "doc", "fields", "aliases"},
    "enum": {"type", "name", "namespace", "doc", "symbols", "default", "aliases"},
    "fixed": {"type", "name", "namespace", "doc", "size", "aliases"},
    "array": {"type", "items"},
    "map": {"type", "values"},
    "field": {"name", "type", "doc", "default", "order", "aliases"},
}
_MISSING = object()


@dataclass(eq=False, slots=True)
class AvroField:
    name: str
    type: AvroType
    aliases: list[str]
    default: Any = _MISSING
    doc: str | None = None
    order: str = "ascending"
    props: dict[str, Any] = field(default_factory=dict)

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING


@dataclass(eq=False, slots=True)
class AvroType:
    """One type of a schema. `kind` says which of the fields mean something."""

    kind: str
    name: str = ""
    """The full name of a record, an enum or a fixed."""
    aliases: list[str] = field(default_factory=list)
    doc: str | None = None
    fields: list[AvroField] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    default: str | None = None
    size: int = 0
    items: AvroType | None = None
    """Of an array; the values of a map."""
    branches: list[AvroType] = field(default_factory=list)
    props: dict[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """What a sentence calls it."""
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema that was read, with the types that it refers to in other schemas."""

    type: AvroType
    referred: Mapping[str, AvroType]
    json: Any
    wrong_default: str | None = None
    """Of the first field whose default does not go with its type. Confluent's registry takes such a schema, unless it
    is told to look."""

    @property
    def canonical(self) -> str:
        return _dumps(_printed(self.type, "", set(self.referred)))

    def normalized(self) -> str:
        return _dumps(_printed(self.type, "", set(self.referred), sort=True))

    def formatted(self, form: str) -> str:
        if not form:
            return self.canonical
        if form == "resolved":
            return _dumps(_printed(self.type, "", set()))
        raise SchemaError(f"an Avro schema has no form {form!r}, only resolved")

    def problems_reading(self, written: Any) -> list[Any]:
        from headrace.schemas.formats.avro_compatibility import problems

        return problems(self.type, written.type)


def parse(text: str, referred: Mapping[str, str]) -> AvroSchema:
    """Read a schema; `SchemaError` says what is wrong with it and where."""
    names: dict[str, AvroType] = {}
    for name, other in referred.items():
        try:
            _Reader(names).type(_loads(other), "", 0)
        except SchemaError as error:
            raise SchemaError(f"the schema {name}, which this one refers to: {error}") from error
    known = dict(names)
    raw = _loads(text)
    reader = _Reader(names)
    return AvroSchema(reader.type(raw, "", 0), known, raw, reader.wrong_default)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", text.strip()):
            return text.strip()  # a bare name, as older registries took
        raise SchemaError(f"it is not JSON: {error}") from error


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class _Reader:
    """Names are filled as types are read: what comes later may use them."""

    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names
        self.wrong_default: str | None = None

    def type(self, given: Any, namespace: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise SchemaError(f"it is more than {DEPTH_MAX} types deep")
        if isinstance(given, str):
            return self._named(given, namespace)
        if isinstance(given, list):
            return self._union(given, namespace, depth)
        if not isinstance(given, dict) or "type" not in given:
            raise SchemaError(
                f'No type: {_short(given)} is no schema, which is a name, a list, or an object with "type"'
            )
        kind = given["type"]
        if isinstance(kind, (dict, list)):
            return self.type(kind, namespace, depth + 1)
        if kind in ("record", "error"):
            return self._record(given, namespace, depth)
        if kind == "enum":
            return self._enum(given, namespace)
        if kind == "fixed":
            return self._fixed(given, namespace)
        if kind in ("array", "map"):
            inside = "items" if kind == "array" else "values"
            if inside not in given:
                raise SchemaError(f'{"an array" if kind == "array" else "a map"} has no "{inside}": {_short(given)}')
            items = self.type(given[inside], namespace, depth + 1)
            return AvroType(kind, items=items, props=_props(given, kind))
        if kind in PRIMITIVES:
            return AvroType(kind, props={name: value for name, value in given.items() if name != "type"})
        return self._named(kind, namespace)

    def _named(self, name: Any, namespace: str) -> AvroType:
        if not isinstance(name, str):
            raise SchemaError(f"Type not supported: {_short(name)}")
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._names.get(full) or self._names.get(name)
        if found is None:
            raise SchemaError(f'Undefined name: "{full}" is no type of Avro, and defined nowhere before')
        return found

    def _union(self, given: list[Any], namespace: str, depth: int) -> AvroType:
        branches = [self.type(one, namespace, depth + 1) for one in given]
        seen = set()
        for branch in branches:
            if branch.kind == "union":
                raise SchemaError("Nested union: a union has no union among its types")
            named = branch.name or branch.kind
            if named in seen:
                raise SchemaError(f"Duplicate in union: {named}")
            seen.add(named)
        return AvroType("union", branches=branches)

    def _record(self, given: dict[str, Any], namespace: str, depth: int) -> AvroType:
        made, inside = self._define(given, "record", namespace)
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"record {made.name} has no list of fields")
        names = set()
        for one in fields:
            found = self._field(one, made.name, inside, depth)
            if found.name in names:
                raise SchemaError(f"Duplicate field {found.name} in record {made.name}")
            names.add(found.name)
            made.fields.append(found)
        if given["type"] == "error":
            made.props["type"] = "error"
        return made

    def _field(self, given: Any, record: str, namespace: str, depth: int) -> AvroField:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str) or "type" not in given:
            raise SchemaError(f"No field name or no type: {_short(given)} in record {record}")
        name = given["name"]
        _check_name(name)
        where = f"field {name} of record {record}"
        try:
            kind = self.type(given["type"], namespace, depth + 1)
        except SchemaError as error:
            raise error if "field" in str(error) else SchemaError(f"{where}: {error}") from error
        default = given.get("default", _MISSING)
        if default is not _MISSING and self.wrong_default is None and not is_default(kind, default):
            self.wrong_default = f"Invalid default for {where}: {_short(default)} not a {_shown(kind)}"
        order = given.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ("ascending", "descending", "ignore"):
            raise SchemaError(f"{where}: the order is ascending, descending or ignore, and not {_short(order)}")
        return AvroField(
            name, kind, _texts(given, "aliases", where), default, _doc(given), order.lower(), _props(given, "field")
        )

    def _enum(self, given: dict[str, Any], namespace: str) -> AvroType:
        made, _ = self._define(given, "enum", namespace)
        symbols = _texts(given, "symbols", f"enum {made.name}")
        if "symbols" not in given:
            raise SchemaError(f"Enum has no symbols: {made.name}")
        for symbol in symbols:
            _check_name(symbol)
        if len(set(symbols)) != len(symbols):
            raise SchemaError(f"Duplicate enum symbol in {made.name}")
        default = given.get("default")
        if default is not None and default not in symbols:
            raise SchemaError(f"The Enum Default: {default} is not in the enum symbol set: {symbols}")
        made.symbols, made.default = symbols, default
        return made

    def _fixed(self, given: dict[str, Any], namespace: str) -> AvroType:
        made, _ = self._define(given, "fixed", namespace)
        size = given.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise SchemaError(f"Invalid or no size: fixed {made.name} has size {_short(size)}")
        made.size = size
        return made

    def _define(self, given: dict[str, Any], kind: str, namespace: str) -> tuple[AvroType, str]:
        """A type with a name, and the namespace inside it."""
        name, own = given.get("name"), given.get("namespace")
        if not isinstance(name, str) or not (own is None or isinstance(own, str)):
            raise SchemaError(f"No name in schema: {_short(given)}")
        if "." in name:
            full = name.lstrip(".") if name.count(".") == 1 and name.startswith(".") else name
        else:
            space = namespace if own is None else own
            full = f"{space}.{name}" if space else name
        for part in full.split("."):
            _check_name(part)
        if full in self._names:
            raise SchemaError(f"Can't redefine: {full}")
        if full in PRIMITIVES:
            raise SchemaError(f"Schemas may not be named after primitives: {full}")
        inside = full.rpartition(".")[0]
        aliases = [
            alias if "." in alias or not inside else f"{inside}.{alias}"
            for alias in _texts(given, "aliases", f"{kind} {full}")
        ]
        made = AvroType(kind, full, aliases, _doc(given), props=_props(given, kind))
        self._names[full] = made
        return made, inside


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise SchemaError(f"Illegal name {name!r}: letters, digits and _, and no digit first")


def _texts(given: Mapping[str, Any], key: str, where: str) -> list[str]:
    found = given.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SchemaError(f'{where}: "{key}" is a list of names, not {_short(found)}')
    return list(found)


def _doc(given: Mapping[str, Any]) -> str | None:
    doc = given.get("doc")
    return doc if isinstance(doc, str) else None


def _props(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _RESERVED[kind]}


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _shown(kind: AvroType) -> str:
    return _short(_printed(kind, "", set()))


def is_default(kind: AvroType, value: Any, depth: int = 0) -> bool:
    """Whether a JSON value is one of the type; of a union, one of any of its types."""
    if depth > DEPTH_MAX:
        return False
    match kind.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = 31 if kind.kind == "int" else 63
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return is_whole and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits
        case "float" | "double":
            return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in (
                "NaN",
                "Infinity",
                "-Infinity",
            )
        case "string" | "bytes" | "enum" | "fixed":
            return isinstance(value, str)
        case "array":
            assert kind.items is not None
            return isinstance(value, list) and all(is_default(kind.items, one, depth + 1) for one in value)
        case "map":
            assert kind.items is not None
            return isinstance(value, dict) and all(is_default(kind.items, one, depth + 1) for one in value.values())
        case "union":
            return any(is_default(branch, value, depth + 1) for branch in kind.branches)
        case _:
            return isinstance(value, dict) and all(
                is_default(one.type, value.get(one.name, one.default if one.has_default else None), depth + 1)
                for one in kind.fields
            )


# --- printing ---------------------------------------------------------------------------------------------------------


def _printed(kind: AvroType, namespace: str, defined: set[str], *, sort: bool = False) -> Any:
    """The type as JSON, in Java's order; a name that is defined already stands for its type."""
    match kind.kind:
        case "union":
            return [_printed(branch, namespace, defined, sort=sort) for branch in kind.branches]
        case "array" | "map":
            assert kind.items is not None
            inside = "items" if kind.kind == "array" else "values"
            printed: dict[str, Any] = {
                "type": kind.kind,
                inside: _printed(kind.items, namespace, defined, sort=sort),
            }
            return {**printed, **_ordered(kind.props, sort)}
        case "record" | "enum" | "fixed":
            return _printed_named(kind, namespace, defined, sort=sort)
        case _:
            return {"type": kind.kind, **_ordered(kind.props, sort)} if kind.props else kind.kind


def _printed_named(kind: AvroType, namespace: str, defined: set[str], *, sort: bool) -> Any:
    inside, short = kind.name.rpartition(".")[0], kind.short_name
    if kind.name in defined:
        return short if inside == namespace else kind.name
    defined.add(kind.name)
    printed: dict[str, Any] = {"type": kind.props.get("type", kind.kind), "name": short}
    if inside != namespace:
        printed["namespace"] = inside
    if kind.doc is not None:
        printed["doc"] = kind.doc
    if kind.kind == "record":
        printed["fields"] = [
            {
                "name": one.name,
                "type": _printed(one.type, inside, defined, sort=sort),
                **({"doc": one.doc} if one.doc is not None else {}),
                **({"default": one.default} if one.has_default else {}),
                **({"order": one.order} if one.order != "ascending" else {}),
                **({"aliases": one.aliases} if one.aliases else {}),
                **_ordered(one.props, sort),
            }
            for one in kind.fields
        ]
    elif kind.kind == "enum":
        printed["symbols"] = kind.symbols
        if kind.default is not None:
            printed["default"] = kind.default
    else:
        printed["size"] = kind.size
    printed.update(_ordered({name: value for name, value in kind.props.items() if name != "type"}, sort))
    if kind.aliases:
        printed["aliases"] = list(_relative(kind.aliases, inside))
    return printed


def _relative(aliases: list[str], namespace: str) -> Iterator[str]:
    for alias in aliases:
        space, _, short = alias.rpartition(".")
        yield short if space == namespace else alias


def _ordered(props: Mapping[str, Any], sort: bool) -> dict[str, Any]:
    return dict(sorted(props.items())) if sort else dict(props)
