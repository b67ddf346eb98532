"""Writes the source of encoders.

Numbers are not sent one by one: they wait in `pending` until something of unknown size comes, and then travel through
one struct call. An array of numbers waits with them; its layout depends on its length, so such calls go through a
`Layouts` table. The encoder checks no types where a wrong one fails by itself: `codec` turns the failure into an error
that names the field.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from headrace.protocol import wire
from headrace.protocol.schema import Array, Field, Primitive, Shared, item_of
from headrace.protocol.source_writer import SourceWriter, is_fixed


class _Number(NamedTuple):
    code: str
    expression: str  # empty for a padding byte


class _Numbers(NamedTuple):
    """An array of numbers, in the local variable `name`; its length is in `length`."""

    code: str
    name: str
    length: str
    compact: bool


class EncoderWriter(SourceWriter):
    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self.scope |= {"uvarint": wire.uvarint, "UVARINT": wire.UVARINT, "check_bytes": wire.check_bytes}
        self.scope["check_records"] = wire.check_records
        self.scope["check_array"] = wire.check_array
        self.put = "put"
        self.pending: list[_Number | _Numbers] = []

    def message(self, cls: type) -> None:
        self.add(0, "def encode(m, put):")
        self.struct(1, cls, "m")
        if len(self.lines) == 1:
            self.add(1, "pass")

    def struct(self, depth: int, cls: Any, m: str) -> None:
        for field in self.plain_fields(cls.SCHEMA):
            self.field(depth, field, f"{m}.{field.name}")
        if self.flexible:
            self.tags(depth, self.tagged_fields(cls.SCHEMA), m)
        self.flush(depth)

    def field(self, depth: int, field: Field, value: str) -> None:
        nullable = self.version in field.nullable
        if is_fixed(field.type):
            self.number(depth, field.type, value)
        elif isinstance(field.type, Array):
            self.array(depth, field, value, nullable)
        elif isinstance(field.type, Primitive):
            self.bytes_like(depth, field.type, value, nullable)
        else:
            self.nested(depth, field, value, nullable)

    def number(self, depth: int, type_: Primitive, value: str) -> None:
        code = type_.struct_code or ""
        if type_.name == "uuid":  # a struct call would silently pad or cut it
            name = self.local("uuid")
            self.add(depth, f"{name} = {value}", f"if len({name}) != 16:", "    raise TypeError('a uuid has 16 bytes')")
            value = name
        elif type_.name == "bool":
            code = "b"  # "?" takes anything, None included; this takes numbers
        self.pending.append(_Number(code, value))

    def flush(self, depth: int) -> None:
        """Send what is pending."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        if any(isinstance(x, _Numbers) for x in pending):
            self.flush_with_arrays(depth, pending)
            return
        numbers = [x for x in pending if isinstance(x, _Number)]
        self.add(depth, f"{self.put}({self.packed(numbers)})")

    def packed(self, numbers: list[_Number]) -> str:
        values = [x.expression for x in numbers if x.expression]
        if not values:
            return repr(bytes(len(numbers)))
        pack = self.bind("pack", struct.Struct(">" + "".join(x.code for x in numbers)).pack)
        return f"{pack}({', '.join(values)})"

    def flush_with_arrays(self, depth: int, pending: list[_Number | _Numbers]) -> None:
        layout: list[str | tuple[str, bool]] = []
        values, lengths = [], []
        for x in pending:
            if isinstance(x, _Number):
                layout.append(x.code)
                values += [x.expression] if x.expression else []
            else:
                layout.append((x.code, x.compact))
                values += [f"{x.length} + 1" if x.compact else x.length, f"*{x.name}"]
                lengths.append(x.length)
        layouts = self.bind("layouts", wire.Layouts(layout))
        self.add(depth, f"{self.put}({layouts}[{', '.join(lengths)},]({', '.join(values)}))")

    def flush_length(self, depth: int) -> None:
        """Send what is pending and, after it, the compact length in `n` (already one more than the real one)."""
        if any(isinstance(x, _Numbers) for x in self.pending):
            self.flush(depth)
        pending, self.pending = [x for x in self.pending if isinstance(x, _Number)], []
        if not pending:
            self.add(depth, f"{self.put}(UVARINT[n] if n < 128 else uvarint(n))")
            return
        self.add(depth, "if n < 128:", f"    {self.put}({self.packed([*pending, _Number('B', 'n')])})", "else:")
        self.add(depth + 1, f"{self.put}({self.packed(pending)} + uvarint(n))")

    def length(self, depth: int, value: str, nullable: bool, *, encode: bool, short: bool) -> None:
        """Put the value into `v`, its length into `n` as it travels, and send that. A null becomes an empty `v`."""
        size = "len(v) + 1" if self.flexible else "len(v)"
        encoded = ".encode()" if encode else ""
        if nullable:
            null = "0" if self.flexible else "-1"
            self.add(depth, f"v = {value}", "if v is None:", f"    v, n = b'', {null}", "else:")
            self.add(depth + 1, *([f"v = v{encoded}"] if encode else []), f"n = {size}")
        else:
            self.add(depth, f"v = {value}{encoded}", f"n = {size}")
        if self.flexible:
            self.flush_length(depth)
        else:
            self.pending.append(_Number("h" if short else "i", "n"))
            self.flush(depth)

    def bytes_like(self, depth: int, type_: Primitive, value: str, nullable: bool) -> None:
        is_string = type_.name == "string"
        if is_string and self.flexible and not self.pending:
            self.text(depth, value, nullable)
            return
        self.length(depth, value, nullable, encode=is_string, short=is_string)
        if not is_string:
            self.add(depth, "check_records(v)" if type_.name == "records" else "check_bytes(v)")
        self.add(depth, f"{self.put}(v)")

    def text(self, depth: int, value: str, nullable: bool) -> None:
        """A text with its compact length before it, in one piece: nearly all are short."""
        self.add(depth, f"v = {value}")
        if nullable:
            self.add(depth, "if v is None:", f"    {self.put}(b'\\x00')", "else:")
            depth += 1
        self.add(depth, "v = v.encode()", "n = len(v) + 1")
        self.add(depth, f"{self.put}((UVARINT[n] if n < 128 else uvarint(n)) + v)")

    def nested(self, depth: int, field: Field, value: str, nullable: bool) -> None:
        name = self.local("m")
        self.add(depth, f"{name} = {value}")
        if not nullable:
            self.struct(depth, field.type, name)
            return
        self.flush(depth)
        null = "ff" if field.tag is None else "00"
        self.add(depth, f"if {name} is None:", f"    {self.put}(b'\\x{null}')", "else:")
        self.add(depth + 1, f"{self.put}(b'\\x01')")
        self.struct(depth + 1, field.type, name)

    def array(self, depth: int, field: Field, value: str, nullable: bool) -> None:
        element = field.type.element
        if is_fixed(element) and element.name != "uuid" and not nullable:
            name, length = self.local("numbers"), self.local("n")
            self.add(depth, f"{name} = {value}", f"{length} = len({name})")
            self.pending.append(_Numbers(element.struct_code, name, length, self.flexible))
            return
        self.length(depth, value, nullable, encode=False, short=False)
        if is_fixed(element) and element.name != "uuid":
            self.add(depth, f"{self.put}(pack(f'>{{len(v)}}{element.struct_code}', *v))")
            self.scope["pack"] = struct.pack
        elif isinstance(element, Primitive):
            self.add(depth, "check_array(v)", "for item in v:")
            self.field(depth + 1, item_of(field), "item")
            self.flush(depth + 1)
        else:
            if field.shared:
                depth = self.shared(depth, element)
            self.structs(depth, element)

    def structs(self, depth: int, element: Any) -> None:
        name = self.local("m")
        self.add(depth, f"for {name} in v:")
        self.struct(depth + 1, element, name)
        if not self.lines[-1].startswith("    " * (depth + 1)):
            self.add(depth + 1, "pass")

    def shared(self, depth: int, element: Any) -> int:
        """Encode the array in `v` once, if it is one that is in many places; the depth at which to encode any other."""
        self.scope["Shared"] = Shared
        outer, known, body = self.put, self.local("shared"), self.local("body")
        self.put = self.local("put")
        self.add(depth, "if type(v) is Shared:", f"    {known} = v", f"    if {self.version} not in {known}.encoded:")
        self.add(depth + 2, f"{body} = []", f"{self.put} = {body}.append")
        self.structs(depth + 2, element)
        self.add(depth + 2, f"{known}.encoded[{self.version}] = b''.join({body})")
        self.put = outer
        self.add(depth + 1, f"{outer}({known}.encoded[{self.version}])")
        self.add(depth, "else:")
        return depth + 1

    def tags(self, depth: int, tagged: list[Field], m: str) -> None:
        """Tagged fields travel only when they differ from their defaults, in order of their tags, each with a size."""
        if not tagged:
            self.pending.append(_Number("x", ""))
            return
        self.flush(depth)
        tags, outer = self.local("tags"), self.put
        self.add(depth, f"if {' or '.join(self.differs(field, f'{m}.{field.name}') for field in tagged)}:")
        self.add(depth + 1, f"{tags} = []")
        for field in tagged:
            value, body = f"{m}.{field.name}", self.local("body")
            self.put = self.local("put")
            self.add(depth + 1, f"if {self.differs(field, value)}:")
            self.add(depth + 2, f"{body} = []", f"{self.put} = {body}.append")
            self.field(depth + 2, field, value)
            self.flush(depth + 2)
            self.add(depth + 2, f"{tags}.append(({field.tag}, b''.join({body})))")
        self.put = outer
        self.add(depth + 1, f"{outer}(UVARINT[len({tags})])", f"for tag, body in {tags}:")
        self.add(depth + 2, f"{outer}(uvarint(tag) + uvarint(len(body)) + body)")
        self.add(depth, "else:", f"    {outer}(b'\\x00')")

    def differs(self, field: Field, value: str) -> str:
        """An expression that says whether a tagged field has another value than its default."""
        default = field.default_value
        if default is None:
            return f"{value} is not None"
        if isinstance(field.type, Primitive):
            return f"{value} != {self.literal(default)}"
        nullable = self.version in field.nullable
        if isinstance(field.type, Array):
            return f"{value} is None or len({value})" if nullable else f"len({value})"
        if nullable:
            return f"{value} is None or {value} != {self.bind('default', default)}"
        inner = field.type.SCHEMA.fields
        if all(isinstance(x.type, Primitive) for x in inner):  # far faster than comparing the objects
            return " or ".join(f"{value}.{x.name} != {self.literal(x.default_value)}" for x in inner)
        return f"{value} != {self.bind('default', default)}"
