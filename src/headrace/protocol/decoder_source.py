"""Writes the source of decoders.

Numbers that follow each other are read by one struct call, together with the length of what comes after them. Every
length is held against the bytes that are left before anything is allocated for it, so a hostile frame costs no more
memory than an honest one of its size. A request's elements (and tagged fields) are counted as well, down from `room`: a
few bytes become an object of a few hundred, and somebody has to look at each.
"""

from __future__ import annotations

import struct
from typing import Any

from headrace.protocol import wire
from headrace.protocol.schema import Array, Field, MessageKind, Primitive, item_of
from headrace.protocol.source_writer import SourceWriter, is_fixed


class DecoderWriter(SourceWriter):
    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self.scope |= {
            "new": object.__new__,
            "Malformed": wire.MalformedMessageError,
            "read_uvarint": wire.read_uvarint,
        }
        self.scope |= {"read_length": wire.read_length, "read_numbers": wire.read_numbers, "skip_tags": wire.skip_tags}
        self.scope["TooMany"] = wire.TooManyElementsError
        self.has_records = self.is_request = False
        self.run: list[tuple[str, str]] = []  # (struct code, target) of numbers that wait to be read together

    def message(self, cls: type) -> None:
        self.is_request = cls.SCHEMA.kind is MessageKind.REQUEST  # type: ignore[attr-defined]  # every declared class has one
        room = f", room={wire.REQUEST_ELEMENTS_MAX}" if self.is_request else ""
        self.add(0, f"def decode(buffer, position{room}):")
        self.add(1, "size = len(buffer)")
        self.struct(1, cls, "m")
        self.add(1, "return m, position")
        if self.has_records:
            self.lines.insert(1, "    view = memoryview(buffer)  # slices of it are not copies")

    def struct(self, depth: int, cls: Any, m: str) -> None:
        self.add(depth, f"{m} = new({self.bind('Class', cls)})")
        fields, tagged = self.plain_fields(cls.SCHEMA), self.tagged_fields(cls.SCHEMA)
        for field in cls.SCHEMA.fields:
            if field not in fields:
                self.default(depth, field, f"{m}.{field.name}")
        for field in fields:
            self.field(depth, field, f"{m}.{field.name}")
        if self.flexible:
            self.tags(depth, tagged, m)
        self.flush(depth)

    def default(self, depth: int, field: Field, target: str) -> None:
        if not field.makes_default:
            self.add(depth, f"{target} = {self.literal(field.default_value)}")
        elif isinstance(field.type, Array):
            self.add(depth, f"{target} = []")
        else:
            name = self.local("m")
            self.add(depth, f"{name} = {target} = new({self.bind('Class', field.type)})")
            for inner in field.type.SCHEMA.fields:
                self.default(depth, inner, f"{name}.{inner.name}")

    def field(self, depth: int, field: Field, target: str) -> None:
        if is_fixed(field.type):
            self.run.append((field.type.struct_code, target))
            return
        nullable = self.version in field.nullable
        if isinstance(field.type, Array):
            self.array(depth, field, target, nullable)
        elif isinstance(field.type, Primitive):
            self.bytes_like(depth, field, target, nullable)
        else:
            self.nested(depth, field, target, nullable)

    def flush(self, depth: int) -> None:
        """Read the numbers that wait."""
        run, self.run = self.run, []
        if not run:
            return
        layout = struct.Struct(">" + "".join(code for code, _ in run))
        targets = ", ".join(target for _, target in run) + ("," if len(run) == 1 else "")
        self.add(depth, f"{targets} = {self.bind('unpack', layout.unpack_from)}(buffer, position)")
        self.add(depth, f"position += {layout.size}")

    def byte(self, depth: int) -> None:
        """Read the numbers that wait, and the byte after them into `n`."""
        if self.run:
            self.run.append(("B", "n"))
            self.flush(depth)
        else:
            self.add(depth, "n = buffer[position]", "position += 1")

    def length(self, depth: int, *, short: bool) -> None:
        """Read the numbers that wait, and the length after them into `n`; below 0 it stands for null."""
        if not self.flexible:
            self.run.append(("h" if short else "i", "n"))
            self.flush(depth)
            return
        self.byte(depth)
        self.add(depth, "if n < 128:", "    n -= 1", "else:", "    n, position = read_length(buffer, position - 1)")

    def null(self, depth: int, field: Field, target: str, nullable: bool) -> None:
        self.add(depth, "if n < 0:")
        self.add(depth + 1, f"{target} = None" if nullable else f"raise Malformed({f'{field.name} may not be null'!r})")

    def bytes_like(self, depth: int, field: Field, target: str, nullable: bool) -> None:
        self.length(depth, short=field.type.name == "string")
        self.null(depth, field, target, nullable)
        self.add(depth, "else:", "    end = position + n", "    if end > size:")
        self.add(depth + 2, f"raise Malformed({f'{field.name} reaches beyond the message'!r})")
        value = {
            "string": "str(buffer[position:end], 'utf-8', 'replace')",
            "bytes": "bytes(buffer[position:end])",
            "records": "view[position:end]",
        }[field.type.name]
        self.has_records |= field.type.name == "records"
        self.add(depth + 1, f"{target} = {value}", "position = end")

    def nested(self, depth: int, field: Field, target: str, nullable: bool) -> None:
        if nullable:
            self.byte(depth)
            null = "n > 127" if field.tag is None else "not n"
            self.add(depth, f"if {null}:", f"    {target} = None", "else:")
            depth += 1
        name = self.local("m")
        self.flush(depth)
        self.struct(depth, field.type, name)
        self.add(depth, f"{target} = {name}")

    def count(self, depth: int) -> None:
        """Count `n` more elements of a request; before any of them is read."""
        if self.is_request:
            self.add(depth, "room -= n", "if room < 0:", "    raise TooMany()")

    def array(self, depth: int, field: Field, target: str, nullable: bool) -> None:
        element = field.type.element
        self.length(depth, short=False)
        self.null(depth, field, target, nullable)
        if is_fixed(element) and element.name != "uuid":
            if self.is_request:
                self.add(depth, "else:")
                self.count(depth + 1)
                self.add(depth, "if n < 0:", "    pass")
            small = self.bind("unpack", wire.array_unpackers(element.struct_code))
            self.add(depth, f"elif n < {wire.SMALL_ARRAY}:", f"    {target} = list({small}[n](buffer, position))")
            self.add(depth + 1, f"position += n * {element.size}" if element.size > 1 else "position += n")
            self.add(depth, "else:")
            self.add(depth + 1, f"{target}, position = read_numbers({element.struct_code!r}, n, buffer, position)")
            return
        self.add(depth, "else:", f"    if n * {self.smallest(element)} > size - position:")
        self.add(depth + 2, f"raise Malformed({f'{field.name} has more elements than bytes are left'!r})")
        self.count(depth + 1)
        items, item = self.local("items"), self.local("m")
        self.add(depth + 1, f"{items} = {target} = []", "for _ in range(n):")
        if isinstance(element, Primitive) and element.name == "uuid":
            self.add(depth + 2, f"{item} = bytes(buffer[position : position + 16])", "position += 16")
        elif isinstance(element, Primitive):
            self.field(depth + 2, item_of(field), item)
        else:
            self.struct(depth + 2, element, item)
        self.add(depth + 2, f"{items}.append({item})")

    def smallest(self, type_: Any) -> int:
        """The fewest bytes that a value of that type can take in an array; one at least, to bound the loop over it."""
        if isinstance(type_, Primitive):
            return type_.size or (1 if self.flexible else 2 if type_.name == "string" else 4)
        if isinstance(type_, Array):
            return 1 if self.flexible else 4
        fields = self.plain_fields(type_.SCHEMA)
        size = sum(1 if self.version in x.nullable and self.flexible else self.smallest(x.type) for x in fields)
        return max(1, size + (1 if self.flexible else 0))

    def tags(self, depth: int, tagged: list[Field], m: str) -> None:
        """Read the tagged fields; unknown ones are skipped, and of one that comes twice the last counts.

        As Java reads them: a negative number of them is none, and the size of a known one is not looked at.
        """
        self.byte(depth)
        self.add(depth, "if n:")
        if not tagged and not self.is_request:
            self.add(depth + 1, "position = skip_tags(buffer, position - 1)")
            return
        start = self.local("start")
        self.add(depth + 1, f"{start} = position - 1")
        self.add(depth + 1, "if n > 127:", f"    n, position = read_uvarint(buffer, {start})")
        self.add(depth + 2, f"if n > {wire.INT32_MAX}:", "    n = 0")
        self.count(depth + 1)
        if not tagged:
            self.add(depth + 1, f"position = skip_tags(buffer, {start})")
            return
        self.add(depth + 1, "if n * 2 > size - position:", "    raise Malformed('more tagged fields than bytes left')")
        tag, end = self.local("tag"), self.local("tag_end")
        self.add(depth + 1, "for _ in range(n):", f"    {tag}, position = read_uvarint(buffer, position)")
        self.add(depth + 2, "n, position = read_uvarint(buffer, position)", f"{end} = position + n")
        for field in tagged:
            self.add(depth + 2, f"if {tag} == {field.tag}:")
            self.field(depth + 3, field, f"{m}.{field.name}")
            self.flush(depth + 3)
            self.add(depth + 3, "continue")
        self.add(depth + 2, f"if {end} > size:", "    raise Malformed('a tagged field reaches beyond the message')")
        self.add(depth + 2, f"position = {end}")
