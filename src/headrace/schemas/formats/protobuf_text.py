"""A file's descriptor as `.proto` text: what a registry shows of a schema that was registered in base64."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

_TYPES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
TYPE_GROUP, TYPE_MESSAGE, TYPE_ENUM = 10, 11, 14
LABEL_OPTIONAL, LABEL_REQUIRED, LABEL_REPEATED = 1, 2, 3
_BYTES = 12
_INDENT = "  "


def printed(file: Any) -> str:
    """The whole file. Comments are not in a descriptor, and so not in the text."""
    lines = [f'syntax = "{file.syntax or "proto2"}";']
    if file.syntax == "editions":
        lines = [f'edition = "{_edition(file.edition)}";']
    if file.package:
        lines.append(f"package {file.package};")
    lines.append("")
    public = set(file.public_dependency)
    for number, name in enumerate(file.dependency):
        lines.append(f"import {'public ' if number in public else ''}{_text(name)};")
    options = list(_options(file.options))
    lines += [f"option {one};" for one in options]
    if file.dependency or options:
        lines.append("")
    for message in file.message_type:
        lines += [*_message(message, file), ""]
    for enum in file.enum_type:
        lines += [*_enum(enum), ""]
    lines += _extensions(file.extension, file)
    for service in file.service:
        lines += [*_service(service), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def is_map_entry(message: Any) -> bool:
    """Whether a nested message is what a map is made of."""
    return bool(message.options.map_entry)


def short_type(field: Any) -> str:
    """A field's type as its name stands in text; names of messages and enums are full, with a dot before them."""
    if field.type in (TYPE_GROUP, TYPE_MESSAGE, TYPE_ENUM):
        return str(field.type_name)
    return _TYPES[field.type]


def _edition(number: int) -> str:
    return str(number) if number >= 2000 else "2023"


def _message(message: Any, file: Any) -> Iterator[str]:
    yield f"message {message.name} {{"
    for line in _body(message, file):
        yield f"{_INDENT}{line}" if line else ""
    yield "}"


def _body(message: Any, file: Any) -> Iterator[str]:
    maps = {one.name: one for one in message.nested_type if is_map_entry(one)}
    for one in _options(message.options):
        yield f"option {one};"
    yield from _reserved(message)
    fields: dict[int | None, list[Any]] = {}
    for field in message.field:
        in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        fields.setdefault(field.oneof_index if in_oneof else None, []).append(field)
    for field in fields.get(None, []):
        yield _field(field, file, maps)
    for number, oneof in enumerate(message.oneof_decl):
        if number in fields:
            yield f"oneof {oneof.name} {{"
            for field in fields[number]:
                yield f"{_INDENT}{_field(field, file, maps, in_oneof=True)}"
            yield "}"
    for scope in message.extension_range:
        yield f"extensions {_range(scope.start, scope.end - 1, 536870911)};"
    yield from _extensions(message.extension, file)
    for nested in message.nested_type:
        if not is_map_entry(nested):
            yield ""
            yield from _message(nested, file)
    for enum in message.enum_type:
        yield ""
        yield from _enum(enum)


def _field(field: Any, file: Any, maps: dict[str, Any], *, in_oneof: bool = False) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2]) if field.type == TYPE_MESSAGE else None
    options = list(_options(field.options))
    if field.HasField("default_value"):
        quoted = field.type in (9, _BYTES)
        options.insert(0, f"default = {_text(field.default_value) if quoted else field.default_value}")
    after = f" [{', '.join(options)}]" if options else ""
    if entry is not None and field.label == LABEL_REPEATED:
        key, value = (short_type(one) for one in entry.field)
        return f"map<{key}, {value}> {field.name} = {field.number}{after};"
    label = ""
    if field.label == LABEL_REPEATED:
        label = "repeated "
    elif field.label == LABEL_REQUIRED:
        label = "required "
    elif not in_oneof and (field.proto3_optional or file.syntax in ("", "proto2")):
        label = "optional "
    return f"{label}{short_type(field)} {field.name} = {field.number}{after};"


def _reserved(message: Any) -> Iterator[str]:
    ranges = [_range(one.start, one.end - 1, 536870911) for one in message.reserved_range]
    if ranges:
        yield f"reserved {', '.join(ranges)};"
    if message.reserved_name:
        yield f"reserved {', '.join(map(_text, message.reserved_name))};"


def _range(start: int, end: int, end_max: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end >= end_max else end}"


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    for one in _options(enum.options):
        yield f"{_INDENT}option {one};"
    ranges = [_range(one.start, one.end, 2147483647) for one in enum.reserved_range]
    if ranges:
        yield f"{_INDENT}reserved {', '.join(ranges)};"
    if enum.reserved_name:
        yield f"{_INDENT}reserved {', '.join(map(_text, enum.reserved_name))};"
    for value in enum.value:
        options = ", ".join(_options(value.options))
        after = f" [{options}]" if options else ""
        yield f"{_INDENT}{value.name} = {value.number}{after};"
    yield "}"


def _extensions(fields: Iterable[Any], file: Any) -> Iterator[str]:
    extended: dict[str, list[Any]] = {}
    for field in fields:
        extended.setdefault(field.extendee, []).append(field)
    for name, found in extended.items():
        yield f"extend {name} {{"
        for field in found:
            yield f"{_INDENT}{_field(field, file, {})}"
        yield "}"


def _service(service: Any) -> Iterator[str]:
    yield f"service {service.name} {{"
    for one in _options(service.options):
        yield f"{_INDENT}option {one};"
    for method in service.method:
        given = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        answered = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        yield f"{_INDENT}rpc {method.name} ({given}) returns ({answered});"
    yield "}"


def _options(options: Any) -> Iterator[str]:
    for field, value in options.ListFields():
        if field.name == "map_entry" or field.message_type is not None:
            continue
        name = f"({field.full_name})" if field.is_extension else field.name
        for one in value if field.is_repeated else [value]:
            yield f"{name} = {_value(field, one)}"


def _value(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    return json.dumps(value)
