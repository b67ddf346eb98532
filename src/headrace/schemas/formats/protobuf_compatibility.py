"""Whether one Protobuf schema reads what another wrote, decided by Confluent's rules.

On the wire a field is its number and one of a few shapes. Names may change, and numbers come and go; what may not is
the shape, a message that is gone, and fields that exclude one another where they did not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.formats.problem import Problem
from headrace.schemas.formats.protobuf import ProtobufSchema
from headrace.schemas.formats.protobuf_text import (
    LABEL_OPTIONAL,
    LABEL_REPEATED,
    LABEL_REQUIRED,
    TYPE_ENUM,
    TYPE_GROUP,
    TYPE_MESSAGE,
    is_map_entry,
    short_type,
)

_KINDS = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "number"),
    **dict.fromkeys(("sint32", "sint64"), "signed number"),
    **dict.fromkeys(("string", "bytes"), "string or bytes"),
    **dict.fromkeys(("fixed32", "sfixed32"), "4 fixed bytes"),
    **dict.fromkeys(("fixed64", "sfixed64"), "8 fixed bytes"),
    "float": "float",
    "double": "double",
}


def problems(original: ProtobufSchema, update: ProtobufSchema) -> list[Problem]:
    """Why `update` does not read all that `original` wrote; empty if it does."""
    comparison = _ProtobufComparison(_Types(original), _Types(update))
    if original.file.package != update.file.package:
        message = f"the package {original.file.package or '(none)'} became {update.file.package or '(none)'}"
        comparison.add("PACKAGE_CHANGED", "#", message)
    comparison.messages(original.file.message_type, update.file.message_type, "#")
    return comparison.found


@dataclass(slots=True)
class _Message:
    descriptor: Any
    local_name: str
    """Its name without the package."""
    file: Any
    is_own: bool
    """Whether it is in the schema's own file, and not in one that it imports."""


class _Types:
    """The messages of a schema and of what it imports, by their full names."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self.own = schema.file
        self.messages: dict[str, _Message] = {}
        for file in (*schema.imported.values(), schema.file):
            prefix = f".{file.package}" if file.package else ""
            self._add(file.message_type, prefix, "", file, is_own=file is schema.file)

    def _add(self, found: Iterable[Any], prefix: str, local: str, file: Any, *, is_own: bool) -> None:
        for one in found:
            name = f"{local}.{one.name}".lstrip(".")
            self.messages[f"{prefix}.{one.name}"] = _Message(one, name, file, is_own)
            self._add(one.nested_type, f"{prefix}.{one.name}", name, file, is_own=is_own)


@dataclass(slots=True)
class _ProtobufComparison:
    original: _Types
    update: _Types
    found: list[Problem] = field(default_factory=list)
    _under_way: set[tuple[int, int]] = field(default_factory=set)

    def add(self, kind: str, path: str, message: str) -> None:
        self.found.append(Problem(kind, path, message))

    def messages(self, original: Iterable[Any], update: Iterable[Any], path: str) -> None:
        after = {one.name: one for one in update}
        for one in original:
            where = f"{path}/{one.name}"
            if one.name not in after:
                if not is_map_entry(one):
                    self.add("MESSAGE_REMOVED", where, f"message {one.name} is gone")
            else:
                self.message(one, after[one.name], where)

    def message(self, original: Any, update: Any, path: str) -> None:
        pair = (id(original), id(update))
        if pair in self._under_way:
            return
        self._under_way.add(pair)
        before, after = _fields(original), _fields(update)
        before_oneofs, after_oneofs = _oneofs(original), _oneofs(update)
        self._exclusive(original, after_oneofs, before, before_oneofs, path)
        gone = {
            name
            for name, members in before_oneofs.items()
            if name not in after_oneofs and not any(number in after for number in members)
        }
        owner = {number: name for name, members in before_oneofs.items() for number in members}
        for number in sorted(before.keys() | after.keys()):
            where = f"{path}/{number}"
            if number not in after:
                self._removed(before[number], owner.get(number), gone, where)
            elif number not in before:
                if after[number].label == LABEL_REQUIRED:
                    self.add("REQUIRED_FIELD_ADDED", where, f"{after[number].name} is required")
            else:
                self.field(before[number], after[number], where)
        self.messages(original.nested_type, update.nested_type, path)
        self._under_way.discard(pair)

    def _removed(self, one: Any, oneof: str | None, gone: set[str], path: str) -> None:
        if oneof is not None:
            if oneof not in gone:
                self.add("ONEOF_FIELD_REMOVED", path, f"{one.name} is gone from oneof {oneof}")
        elif one.label == LABEL_REQUIRED:
            self.add("REQUIRED_FIELD_REMOVED", path, f"{one.name} was required, and is gone")

    def _exclusive(
        self,
        original: Any,
        after: Mapping[str, list[int]],
        before: Mapping[int, Any],
        before_oneofs: Mapping[str, list[int]],
        path: str,
    ) -> None:
        owner = {number: name for name, members in before_oneofs.items() for number in members}
        for name, members in after.items():
            groups = {
                f"oneof {owner[number]}" if number in owner else str(number) for number in members if number in before
            }
            if len(groups) > 1:
                alone = sum(1 for number in members if number in before and number not in owner)
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if alone > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                message = f"fields of oneof {name} could be set together before"
                self.add(kind, f"{path}/{name}", message)

    def field(self, original: Any, update: Any, path: str) -> None:
        labels = (_label(original, self.original.own), _label(update, self.update.own))
        self._types(original, update, labels, path)

    def _types(self, original: Any, update: Any, labels: tuple[int, int], path: str) -> None:
        before, after = self._kind(original, self.original), self._kind(update, self.update)
        if before != after:
            self.add("FIELD_KIND_CHANGED", path, f"{update.name} was a {before}, and is a {after}")
        elif before == "scalar":
            self._scalars(original, update, labels, path)
        elif before == "map":
            entries = (self.original.messages[original.type_name], self.update.messages[update.type_name])
            for one, other in zip(entries[0].descriptor.field, entries[1].descriptor.field):
                self._types(one, other, (0, 0), path)
        else:
            self._named(original, update, path)

    def _kind(self, one: Any, types: _Types) -> str:
        if one.type not in (TYPE_MESSAGE, TYPE_GROUP):
            return "scalar"
        found = types.messages.get(one.type_name)
        return "map" if found is not None and is_map_entry(found.descriptor) else "message"

    def _scalars(self, original: Any, update: Any, labels: tuple[int, int], path: str) -> None:
        before, after = _scalar(original), _scalar(update)
        if _KINDS[before] != _KINDS[after]:
            self.add("FIELD_SCALAR_KIND_CHANGED", path, f"{update.name} was {before}, and is {after}")
        elif all(labels) and labels[0] != labels[1] and _KINDS[before] != "string or bytes":
            self.add("FIELD_NUMERIC_LABEL_CHANGED", path, f"{update.name} is repeated, optional or required otherwise")

    def _named(self, original: Any, update: Any, path: str) -> None:
        before = self.original.messages.get(original.type_name)
        after = self.update.messages.get(update.type_name)
        if before is None or after is None or before.local_name != after.local_name:
            message = f"{update.name} was {short_type(original)}, and is {short_type(update)}"
            self.add("FIELD_NAMED_TYPE_CHANGED", path, message)
        elif not (before.is_own and after.is_own):
            told = len(self.found)
            self.message(before.descriptor, after.descriptor, path)
            if len(self.found) > told:
                self.add("FIELD_NAMED_TYPE_CHANGED", path, f"{short_type(update)} is not what it was")


def _fields(message: Any) -> dict[int, Any]:
    return {one.number: one for one in message.field}


def _oneofs(message: Any) -> dict[str, list[int]]:
    """Numbers of the fields of each oneof; one that only says that a field is optional is none."""
    found: dict[str, list[int]] = {}
    for one in message.field:
        if one.HasField("oneof_index") and not one.proto3_optional:
            found.setdefault(message.oneof_decl[one.oneof_index].name, []).append(one.number)
    return found


def _label(one: Any, file: Any) -> int:
    """The label as it is written; 0 where none is."""
    if one.label in (LABEL_REPEATED, LABEL_REQUIRED):
        return int(one.label)
    if one.HasField("oneof_index") and not one.proto3_optional:
        return 0
    return LABEL_OPTIONAL if one.proto3_optional or file.syntax in ("", "proto2") else 0


def _scalar(one: Any) -> str:
    return "enum" if one.type == TYPE_ENUM else short_type(one)
