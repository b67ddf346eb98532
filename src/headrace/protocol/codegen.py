"""Encoders and decoders, generated per message and version as plain Python source and compiled on first use.

A generated decoder reads `(buffer, position)` and returns `(message, position)`; an encoder appends parts to a list through
`put`. Runs of fixed-size fields become one struct call. Every length is held against the bytes that are left before
anything is allocated for it, so a hostile frame costs no more memory than its own size.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable
from typing import Any

from headrace.protocol import wire
from headrace.protocol.schema import ALWAYS, Array, Field, Primitive, Schema, Versions

Decoder = Callable[[Any, int], tuple[Any, int]]
Encoder = Callable[[Any, Callable[[Any], None]], None]

_decoders: dict[tuple[type, int, bool], Decoder] = {}
_encoders: dict[tuple[type, int, bool], Encoder] = {}


def decoder(cls: type, version: int, flexible: bool) -> Decoder:
    key = (cls, version, flexible)
    found = _decoders.get(key)
    if found is None:
        found = _decoders[key] = _compile(cls, version, flexible, _DecoderWriter())
    return found


def encoder(cls: type, version: int, flexible: bool) -> Encoder:
    key = (cls, version, flexible)
    found = _encoders.get(key)
    if found is None:
        found = _encoders[key] = _compile(cls, version, flexible, _EncoderWriter())
    return found


def _compile(cls: type, version: int, flexible: bool, writer: _Writer) -> Any:
    schema: Schema = cls.SCHEMA  # type: ignore[attr-defined]  # set by the decorators in `schema`
    writer.version, writer.flexible, writer.scope["CLASS"] = version, flexible, cls
    writer.message(schema)
    source = "\n".join(writer.lines)
    exec(compile(source, f"<{schema.name} v{version} {writer.verb}>", "exec"), writer.scope)
    return writer.scope[writer.verb]


def _is_tagged(field: Field, version: int, flexible: bool) -> bool:
    return flexible and field.tag is not None and version in field.tagged


def _plain_fields(schema: Schema, version: int, flexible: bool) -> list[Field]:
    return [x for x in schema.fields if version in x.versions and not _is_tagged(x, version, flexible)]


def _tagged_fields(schema: Schema, version: int, flexible: bool) -> list[Field]:
    fields = [x for x in schema.fields if version in x.versions and _is_tagged(x, version, flexible)]
    return sorted(fields, key=lambda x: -1 if x.tag is None else x.tag)


class _Writer:
    """Source lines under construction, with the names they refer to."""

    verb = ""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"wire": wire, "new": object.__new__, "Malformed": wire.MalformedMessage}
        self.version = 0
        self.flexible = False
        self.names = 0

    def message(self, schema: Schema) -> None:
        raise AssertionError("a writer knows how to write a message")

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def bind(self, prefix: str, value: Any) -> str:
        self.names += 1
        name = f"{prefix}{self.names}"
        self.scope[name] = value
        return name

    def is_compact(self, field: Field) -> bool:
        return self.flexible and self.version in (field.flexible or ALWAYS)

    def fixed_run(self, fields: list[Field], start: int) -> list[Field]:
        """The fixed-size fields from `start` on, which travel through one struct call."""
        run = []
        for field in fields[start:]:
            if not (isinstance(field.type, Primitive) and field.type.struct_code):
                break
            run.append(field)
        return run


class _DecoderWriter(_Writer):
    verb = "decode"

    def message(self, schema: Schema) -> None:
        self.add(0, "def decode(buffer, position):")
        self.add(1, "m = new(CLASS)")
        fields = _plain_fields(schema, self.version, self.flexible)
        tagged = _tagged_fields(schema, self.version, self.flexible)
        for field in schema.fields:
            if field not in fields:
                self.default(field)
        index = 0
        while index < len(fields):
            run = self.fixed_run(fields, index)
            if run:
                self.fixed(run)
                index += len(run)
            else:
                self.variable(1, fields[index], f"m.{fields[index].name}")
                index += 1
        if self.flexible:
            self.tags(tagged)
        self.add(1, "return m, position")

    def default(self, field: Field) -> None:
        if field.makes_default:
            make = self.bind("make", list if isinstance(field.type, Array) else field.type)
            self.add(1, f"m.{field.name} = {make}()")
        else:
            self.add(1, f"m.{field.name} = {self.bind('value', field.default_value)}")

    def fixed(self, run: list[Field]) -> None:
        layout = _struct.Struct(">" + "".join(x.type.struct_code for x in run))
        unpack = self.bind("unpack", layout.unpack_from)
        targets = ", ".join(f"m.{x.name}" for x in run)
        self.add(1, f"{targets}{',' if len(run) == 1 else ''} = {unpack}(buffer, position)", f"position += {layout.size}")

    def variable(self, depth: int, field: Field, target: str) -> None:
        nullable = self.version in field.nullable
        compact = self.is_compact(field)
        if isinstance(field.type, Array):
            self.array(depth, field, target, nullable, compact)
        elif isinstance(field.type, Primitive):
            if field.type.struct_code:  # only as a tagged field: elsewhere these travel in runs
                layout = _struct.Struct(">" + field.type.struct_code)
                unpack = self.bind("unpack", layout.unpack_from)
                self.add(depth, f"{target}, = {unpack}(buffer, position)", f"position += {layout.size}")
            else:
                self.length(depth, field, compact)
                self.bytes_like(depth, field, target, nullable)
        else:
            self.struct(depth, field, target, nullable)

    def length(self, depth: int, field: Field, compact: bool) -> None:
        """Read the length into `n`; -1 or less stands for null."""
        if compact:
            self.add(depth, "n = buffer[position]", "if n < 128:", "    position += 1", "else:")
            self.add(depth, "    n, position = wire.read_uvarint(buffer, position)", "n -= 1")
        elif isinstance(field.type, Primitive) and field.type.name == "string":
            self.add(depth, "n = wire.read_int16(buffer, position)[0]", "position += 2")
        else:
            self.add(depth, "n = wire.read_int32(buffer, position)[0]", "position += 4")

    def bytes_like(self, depth: int, field: Field, target: str, nullable: bool) -> None:
        self.add(depth, "if n < 0:")
        self.add(depth + 1, f"{target} = None" if nullable else f"raise Malformed({f'{field.name} may not be null'!r})")
        self.add(depth, "else:", "    end = position + n", "    if end > len(buffer):")
        self.add(depth + 2, f"raise Malformed({f'{field.name}: length reaches beyond the message'!r})")
        text = {
            "string": "str(buffer[position:end], 'utf-8', 'replace')",
            "bytes": "bytes(buffer[position:end])",
            "records": "buffer[position:end]",
        }[field.type.name]
        self.add(depth + 1, f"{target} = {text}", "position = end")

    def struct(self, depth: int, field: Field, target: str, nullable: bool) -> None:
        decode = self.bind("decode", decoder(field.type, self.version, self.flexible))
        if nullable:
            self.add(depth, "present = buffer[position]", "position += 1", "if present >= 128:", f"    {target} = None", "else:")
            depth += 1
        self.add(depth, f"{target}, position = {decode}(buffer, position)")

    def array(self, depth: int, field: Field, target: str, nullable: bool, compact: bool) -> None:
        self.length(depth, field, compact)
        self.add(depth, "if n < 0:")
        self.add(depth + 1, f"{target} = None" if nullable else f"raise Malformed({f'{field.name} may not be null'!r})")
        self.add(depth, "else:", "    if n > len(buffer) - position:")
        self.add(depth + 2, f"raise Malformed({f'{field.name}: more elements than bytes left'!r})")
        element = field.type.element
        if isinstance(element, Primitive) and element.struct_code:
            self.add(depth + 1, f"end = position + n * {element.size}", "if end > len(buffer):")
            self.add(depth + 2, f"raise Malformed({f'{field.name}: more elements than bytes left'!r})")
            if element.name == "uuid":
                self.add(depth + 1, f"{target} = [bytes(buffer[i:i + 16]) for i in range(position, end, 16)]")
            else:
                self.add(depth + 1, f"{target} = list(wire.unpack_from(f'>{{n}}{element.struct_code}', buffer, position))")
            self.add(depth + 1, "position = end")
            return
        self.add(depth + 1, f"items = {target} = []", "for _ in range(n):")
        if isinstance(element, Primitive):
            item = Field(element, ALWAYS, Versions(1, 0), None, None, Versions(1, 0), field.flexible, field.name)
            self.variable(depth + 2, item, "item")
        else:
            decode = self.bind("decode", decoder(element, self.version, self.flexible))
            self.add(depth + 2, f"item, position = {decode}(buffer, position)")
        self.add(depth + 2, "items.append(item)")

    def tags(self, tagged: list[Field]) -> None:
        for field in tagged:
            self.default(field)
        self.add(1, "n = buffer[position]", "position += 1", "if n:")
        self.add(2, "if n > 127:", "    n, position = wire.read_uvarint(buffer, position - 1)")
        self.add(2, "if n > len(buffer) - position:", "    raise Malformed('more tagged fields than bytes left')")
        self.add(2, "for _ in range(n):", "    tag, position = wire.read_uvarint(buffer, position)")
        self.add(3, "size, position = wire.read_uvarint(buffer, position)", "tag_end = position + size")
        self.add(3, "if tag_end > len(buffer):", "    raise Malformed('a tagged field reaches beyond the message')")
        for field in tagged:
            self.add(3, f"if tag == {field.tag}:")
            self.variable(4, field, f"m.{field.name}")
            self.add(4, "if position != tag_end:", f"    raise Malformed({f'tagged field {field.name} has a wrong size'!r})")
        self.add(3, "position = tag_end")


class _EncoderWriter(_Writer):
    verb = "encode"

    def message(self, schema: Schema) -> None:
        self.add(0, "def encode(m, put):")
        fields = _plain_fields(schema, self.version, self.flexible)
        index = 0
        while index < len(fields):
            run = self.fixed_run(fields, index)
            if run:
                layout = _struct.Struct(">" + "".join(x.type.struct_code for x in run))
                values = ", ".join(f"m.{x.name}" for x in run)
                self.add(1, f"put({self.bind('pack', layout.pack)}({values}))")
                index += len(run)
            else:
                self.variable(1, fields[index], f"m.{fields[index].name}")
                index += 1
        if self.flexible:
            self.tags(_tagged_fields(schema, self.version, self.flexible))
        elif not fields:
            self.add(1, "pass")

    def variable(self, depth: int, field: Field, value: str) -> None:
        nullable = self.version in field.nullable
        compact = self.is_compact(field)
        self.add(depth, f"v = {value}")
        if isinstance(field.type, Primitive) and field.type.struct_code:  # only as a tagged field
            layout = _struct.Struct(">" + field.type.struct_code)
            self.add(depth, f"put({self.bind('pack', layout.pack)}(v))")
            return
        self.add(depth, "if v is None:")
        self.null(depth + 1, field, nullable, compact)
        self.add(depth, "else:")
        if isinstance(field.type, Array):
            self.array(depth + 1, field, compact)
        elif isinstance(field.type, Primitive):
            self.bytes_like(depth + 1, field, compact)
        else:
            if nullable:
                self.add(depth + 1, "put(b'\\x01')")
            self.add(depth + 1, f"{self.bind('encode', encoder(field.type, self.version, self.flexible))}(v, put)")

    def null(self, depth: int, field: Field, nullable: bool, compact: bool) -> None:
        is_struct = not isinstance(field.type, (Primitive, Array))
        if not nullable:
            self.add(depth, f"raise ValueError({f'{field.name} may not be null in version {self.version}'!r})")
        elif is_struct:
            self.add(depth, "put(b'\\xff')")
        elif compact:
            self.add(depth, "put(b'\\x00')")
        elif isinstance(field.type, Primitive) and field.type.name == "string":
            self.add(depth, "put(b'\\xff\\xff')")
        else:
            self.add(depth, "put(b'\\xff\\xff\\xff\\xff')")

    def bytes_like(self, depth: int, field: Field, compact: bool) -> None:
        is_string = field.type.name == "string"
        if is_string:
            self.add(depth, "v = v.encode()")
        self.add(depth, "n = len(v)")
        if compact:
            self.add(depth, "put(wire.UVARINT[n + 1] if n < 127 else wire.uvarint(n + 1))")
        elif is_string:
            self.add(depth, "if n > 32767:", f"    raise ValueError({f'{field.name} is longer than 32767 bytes'!r})")
            self.add(depth, "put(wire.pack_int16(n))")
        else:
            self.add(depth, "put(wire.pack_int32(n))")
        self.add(depth, "put(v)")

    def array(self, depth: int, field: Field, compact: bool) -> None:
        self.add(depth, "n = len(v)")
        self.add(depth, "put(wire.UVARINT[n + 1] if n < 127 else wire.uvarint(n + 1))" if compact else "put(wire.pack_int32(n))")
        element = field.type.element
        if isinstance(element, Primitive) and element.struct_code:
            if element.name == "uuid":
                self.add(depth, "for item in v:", "    put(item)")
            else:
                self.add(depth, f"put(wire.pack(f'>{{n}}{element.struct_code}', *v))")
        elif isinstance(element, Primitive):
            item = Field(element, ALWAYS, Versions(1, 0), None, None, Versions(1, 0), field.flexible, field.name)
            self.add(depth, "for item in v:")
            self.variable(depth + 1, item, "item")
        else:
            encode = self.bind("encode", encoder(element, self.version, self.flexible))
            self.add(depth, "for item in v:", f"    {encode}(item, put)")

    def tags(self, tagged: list[Field]) -> None:
        """Tagged fields travel only when they differ from their defaults, in order of their tags, each with its size."""
        if not tagged:
            self.add(1, "put(b'\\x00')")
            return
        self.add(1, "tags = []", "outer = put")
        for field in tagged:
            default = self.bind("default", field.default_value)
            self.add(1, f"if m.{field.name} != {default}:", "    body = []", "    put = body.append")
            self.variable(2, field, f"m.{field.name}")
            self.add(2, f"tags.append(({field.tag}, b''.join(body)))")
        self.add(1, "put = outer", "put(wire.uvarint(len(tags)))", "for tag, body in tags:")
        self.add(2, "put(wire.uvarint(tag) + wire.uvarint(len(body)))", "put(body)")
