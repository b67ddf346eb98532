"""Fixed shapes of messages: as nearly all clients send them, one element in every array and nothing optional.

The generated codecs make an object of every part of a message. Of a fixed shape the few values that count are read from
their places, and an answer is packed in one go, by functions that are generated from the same declarations. A reader
gives None for any other shape, and for bytes that are cut or wrong: the generated decoder says then what it is. An
answer has the bytes that the generated encoder would give.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.protocol.codec import has_flexible_header
from headrace.protocol.schema import RECORDS, Array, Field, Primitive, Schema
from headrace.protocol.source_writer import SourceWriter, is_fixed

#: Given a buffer and where the body begins in it: the wanted values, or None.
ShapeReader = Callable[[Any, int], "tuple[Any, ...] | None"]

# What is longer takes more than one byte to say how long it is; such texts are left to the decoder.
_TEXT_BYTES_MAX = 126


class Shape(NamedTuple):
    """The values of a message that differ from one to the next, by their paths; and those that are always the same.

    `"topics.topic|topics.topic_id"` is whichever of the two a version has. A text is taken, and given, as it travels,
    with its length before it. What is not named may be anything in a request, and is the default in an answer.
    """

    message: type
    wanted: tuple[str, ...]
    always: Mapping[str, Any]


class _Part(NamedTuple):
    """What stands next in a message: fixed bytes, a number or an id, bytes of no interest, a text, or records."""

    kind: str
    name: str = ""
    code: str = ""
    value: bytes = b""
    size: int = 0


def shape_reader(shape: Shape, version: int) -> ShapeReader:
    """Reads whole requests of that shape: no byte may be left."""
    return _compiled(*_ReaderWriter(shape, version).written(), "read")  # type: ignore[no-any-return]  # what was generated


def answer_writer(shape: Shape, version: int) -> Callable[..., bytes]:
    """Makes whole answers, with their length before them, of a correlation id and the wanted values."""
    return _compiled(*_AnswerWriter(shape, version).written(), "write")  # type: ignore[no-any-return]  # as above


def source(shape: Shape, version: int, verb: str) -> str:
    """The generated source, to be read by people; `verb` is "read" or "write"."""
    writer = _ReaderWriter(shape, version) if verb == "read" else _AnswerWriter(shape, version)
    return writer.written()[0]


def _compiled(text: str, scope: dict[str, Any], verb: str) -> Any:
    exec(compile(text, f"<shape {verb}>", "exec"), scope)
    return scope[verb]


class _ShapeSource(SourceWriter):
    """The parts of a shape in one version, in their order."""

    may_skip = False

    def __init__(self, shape: Shape, version: int) -> None:
        super().__init__(version, version in _schema(shape.message).flexible)
        self.shape = shape
        self.names = {path: f"v{at}" for at, paths in enumerate(shape.wanted) for path in paths.split("|")}
        self.found: set[str] = set()
        self.parts: list[_Part] = []

    def written(self) -> tuple[str, dict[str, Any]]:
        raise AssertionError("each kind knows what it writes")

    def gather(self, cls: Any, prefix: str = "") -> None:
        for field in self.plain_fields(_schema(cls)):
            self._take(field, prefix + field.name)
        if self.flexible:
            self.put(_Part("bytes", value=b"\0"))  # no tags

    def _take(self, field: Field, path: str) -> None:
        type_ = field.type
        if path in self.shape.always:
            self.put(_Part("bytes", value=self.encoded(field, self.shape.always[path])))
        elif path in self.names:
            self.found.add(self.names[path])
            kind = "value" if is_fixed(type_) else "records" if type_ is RECORDS else "text"
            self.put(_Part(kind, self.names[path], type_.struct_code or "", size=type_.size))
        elif isinstance(type_, Array) and not isinstance(type_.element, Primitive):
            if self.is_default(path):
                self.put(_Part("bytes", value=self.encoded(field, field.default_value)))
                return
            self.put(_Part("bytes", value=b"\2" if self.flexible else struct.pack(">i", 1)))
            self.gather(type_.element, path + ".")
        elif self.may_skip and is_fixed(type_):
            self.put(_Part("skip", size=type_.size))
        else:
            self.put(_Part("bytes", value=self.encoded(field, field.default_value)))

    def is_default(self, path: str) -> bool:
        """Whether nothing within it is named."""
        named = [*self.names, *self.shape.always]
        return not any(name.startswith(path + ".") for name in named)

    def put(self, part: _Part) -> None:
        last = self.parts[-1] if self.parts else None
        if last is not None and last.kind == part.kind == "bytes":
            self.parts[-1] = last._replace(value=last.value + part.value)
        else:
            self.parts.append(part)

    def encoded(self, field: Field, value: Any) -> bytes:
        """A value that is always the same, as it travels."""
        if is_fixed(field.type):
            return struct.pack(">" + field.type.struct_code, value)
        if value is not None and len(value) and isinstance(field.type, Array):
            raise ValueError(f"{field.name}: an array that is always the same has to be empty")
        data = b"" if not value else value.encode() if isinstance(value, str) else bytes(value)
        if len(data) > _TEXT_BYTES_MAX:
            raise ValueError(f"{field.name}: {len(data)} bytes that are always the same are too many")
        size = -1 if value is None else len(data)
        if self.flexible:
            return bytes((size + 1,)) + data
        is_text = isinstance(field.type, Primitive) and field.type.name == "string"
        return struct.pack(">h" if is_text else ">i", size) + data


class _ReaderWriter(_ShapeSource):
    may_skip = True

    def __init__(self, shape: Shape, version: int) -> None:
        super().__init__(shape, version)
        self.codes: list[str] = []
        self.targets: list[str] = []
        self.checks: list[str] = []

    def written(self) -> tuple[str, dict[str, Any]]:
        self.gather(self.shape.message)
        self.scope["errors"] = (struct.error, IndexError)
        self.add(0, "def read(buffer, at):", "    try:")
        for part in self.parts:
            self._read(part)
        self._flush()
        self.add(2, "if at != len(buffer):", "    return None")
        self.add(1, "except errors:", "    return None")
        results = [name if name in self.found else self.absent(name) for name in map("v{}".format, self._places())]
        self.add(1, f"return ({', '.join(results)},)")
        return "\n".join(self.lines) + "\n", self.scope

    def _places(self) -> range:
        return range(len(self.shape.wanted))

    def absent(self, name: str) -> str:
        """What is read for a value that this version does not have: its default."""
        schema, path = _schema(self.shape.message), self.shape.wanted[int(name[1:])].split("|")[0].split(".")
        for step in path[:-1]:
            schema = _schema(next(one for one in schema.fields if one.name == step).type.element)
        return self.literal(next(one for one in schema.fields if one.name == path[-1]).default_value)

    def _read(self, part: _Part) -> None:
        if part.kind == "bytes":
            name = self.local("b")
            self._next(f"{len(part.value)}s", name)
            self.checks.append(f"{name} != {part.value!r}")
        elif part.kind == "value":
            self._next(part.code, part.name)
        elif part.kind == "skip":
            self.codes.append(f"{part.size}x")
        elif part.kind == "text":
            self._next("B" if self.flexible else "h", "n")
            self.checks.append(f"not {2 if self.flexible else 1} <= n <= {_TEXT_BYTES_MAX + self.flexible}")
            self._flush()
            before = 1 if self.flexible else 2
            self.add(2, f"start = at - {before}", f"at += n{' - 1' if self.flexible else ''}")
            self.add(2, f"{part.name} = bytes(buffer[start:at])")
        else:
            self._next("B" if self.flexible else "i", "n")
            self._flush()
            if self.flexible:
                self.add(2, "if n > 127:", "    more = buffer[at]", "    at += 1", "    n += (more << 7) - 128")
                self.add(3, "if more > 127:", "    more = buffer[at]", "    at += 1", "    n += (more << 14) - 16384")
                self.add(4, "if more > 127:", "    return None")
                self.add(2, "n -= 1")
            self.add(2, "if n < 1:", "    return None")
            self.add(2, f"{part.name} = buffer[at : at + n]", "at += n")

    def _next(self, code: str, target: str) -> None:
        self.codes.append(code)
        self.targets.append(target)

    def _flush(self) -> None:
        if not self.codes:
            return
        layout = struct.Struct(">" + "".join(self.codes))
        targets = ", ".join(self.targets) + ("," if len(self.targets) == 1 else "")
        self.add(2, f"{targets} = {self.bind('unpack', layout.unpack_from)}(buffer, at)")
        if self.checks:
            self.add(2, f"if {' or '.join(self.checks)}:", "    return None")
        self.add(2, f"at += {layout.size}")
        self.codes, self.targets, self.checks = [], [], []


class _AnswerWriter(_ShapeSource):
    def __init__(self, shape: Shape, version: int) -> None:
        super().__init__(shape, version)
        self.pieces: list[str] = []
        self.codes: list[str] = ["i"]
        self.values: list[str] = ["size"]
        self.sizes: list[str] = []
        self.nbytes = 0

    def written(self) -> tuple[str, dict[str, Any]]:
        self.put(_Part("value", "correlation_id", "i", size=4))
        if has_flexible_header(self.shape.message, self.version):
            self.put(_Part("bytes", value=b"\0"))
        self.gather(self.shape.message)
        self.scope["uvarint"] = uvarint
        parameters = [f"v{at}" for at in range(len(self.shape.wanted))]
        self.add(0, f"def write({', '.join(['correlation_id', *parameters])}):")
        for part in self.parts:
            self._write(part)
        self._flush()
        self.add(1, f"size = {' + '.join([str(self.nbytes), *self.sizes])}")
        if len(self.pieces) > 3:
            self.add(1, f"return b''.join(({', '.join(self.pieces)}))")
        else:
            self.add(1, f"return {' + '.join(self.pieces)}")
        return "\n".join(self.lines) + "\n", self.scope

    def _write(self, part: _Part) -> None:
        if part.kind == "bytes":
            self.nbytes += len(part.value)
            if any(part.value):
                self.codes.append(f"{len(part.value)}s")
                self.values.append(repr(part.value))
            else:
                self.codes.append(f"{len(part.value)}x")
        elif part.kind == "value":
            self.nbytes += part.size
            self.codes.append(part.code)
            self.values.append(part.name)
        elif part.kind == "text":
            self._flush()
            self._piece(part.name)
        else:
            if self.flexible:
                self._flush()
                self.add(1, f"length = uvarint(len({part.name}) + 1)")
                self._piece("length")
            else:
                self.nbytes += 4
                self.codes.append("i")
                self.values.append(f"len({part.name})")
                self._flush()
            self._piece(part.name)

    def _piece(self, name: str) -> None:
        self.pieces.append(name)
        self.sizes.append(f"len({name})")

    def _flush(self) -> None:
        if not self.codes:
            return
        layout = struct.Struct(">" + "".join(self.codes))
        if self.values:
            self.pieces.append(f"{self.bind('pack', layout.pack)}({', '.join(self.values)})")
        else:
            self.pieces.append(repr(bytes(layout.size)))
        self.codes, self.values = [], []


def uvarint(number: int) -> bytes:
    if number < 0x80:
        return _SHORT_UVARINTS[number]
    if number < 0x80 << 7:
        return bytes((number & 0x7F | 0x80, number >> 7))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_SHORT_UVARINTS = tuple(bytes((number,)) for number in range(0x80))


def _schema(cls: Any) -> Schema:
    schema: Schema = cls.SCHEMA
    return schema
