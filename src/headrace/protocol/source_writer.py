"""What the writers of encoders and decoders share: lines of source, the names they refer to, a struct's fields."""

from __future__ import annotations

from typing import Any

from headrace.protocol.schema import ZERO_UUID, Field, Primitive, Schema


class SourceWriter:
    """Source lines under construction for one message in one version."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self._names = 0

    def message(self, cls: type) -> None:
        raise AssertionError("each writer knows how to write a message")

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def local(self, prefix: str) -> str:
        """A name that nothing else in the function has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def bind(self, prefix: str, value: Any) -> str:
        """A name in the function's globals for a value that cannot be written as a literal."""
        name = self.local(prefix)
        self.scope[name] = value
        return name

    def literal(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        return self.bind("ZERO_UUID_" if value == ZERO_UUID else "value", value)

    def is_tagged(self, field: Field) -> bool:
        return self.flexible and field.tag is not None and self.version in field.tagged

    def plain_fields(self, schema: Schema) -> list[Field]:
        return [x for x in schema.fields if self.version in x.versions and not self.is_tagged(x)]

    def tagged_fields(self, schema: Schema) -> list[Field]:
        fields = [x for x in schema.fields if self.version in x.versions and self.is_tagged(x)]
        return sorted(fields, key=lambda x: -1 if x.tag is None else x.tag)


def is_fixed(type_: Any) -> bool:
    """Whether every value of that type takes the same number of bytes and travels through a struct call."""
    return isinstance(type_, Primitive) and type_.struct_code is not None
