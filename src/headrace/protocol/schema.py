"""How a message is declared: field types, version ranges, and the decorators that turn a class body into a message.

A message is declared once, as a class whose annotations are for people and type checkers and whose values are
`f(TYPE, …)`, which say how the field travels:

    @request(12, "0-4", flexible=4)
    class HeartbeatRequest:
        group_id: str = f(STRING)
        generation_id: int = f(INT32)
        member_id: str = f(STRING)
        group_instance_id: str | None = f(STRING, "3+", nullable="3+", default=None)

Encoders and decoders are generated from that per version, on first use (`codegen`). A field that a version lacks is not
sent, and reads as its default. Names are Kafka's own, in snake case.

The descriptions are named tuples: a dataclass takes a millisecond to be made, and everyone imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple, TypeVar, dataclass_transform

VERSION_MAX = 32767
ZERO_UUID = bytes(16)

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Versions(NamedTuple):
    """An inclusive range of versions; empty when `low > high`."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    @classmethod
    def parse(cls, text: str) -> Versions:
        """`"3+"`, `"0-4"`, `"7"` or `""` (never)."""
        if not text:
            return NEVER
        low, separator, high = text.partition("-")
        if separator:
            return cls(int(low), int(high))
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        return cls(int(text), int(text))


NEVER = Versions(1, 0)
ALWAYS = Versions(0, VERSION_MAX)


class Primitive(NamedTuple):
    """A wire type. `struct_code` is set for those of a fixed size."""

    name: str
    struct_code: str | None
    size: int
    default: Any


BOOL = Primitive("bool", "?", 1, False)
INT8 = Primitive("int8", "b", 1, 0)
INT16 = Primitive("int16", "h", 2, 0)
UINT16 = Primitive("uint16", "H", 2, 0)
INT32 = Primitive("int32", "i", 4, 0)
UINT32 = Primitive("uint32", "I", 4, 0)
INT64 = Primitive("int64", "q", 8, 0)
FLOAT64 = Primitive("float64", "d", 8, 0.0)
UUID = Primitive("uuid", "16s", 16, ZERO_UUID)
STRING = Primitive("string", None, 0, "")
BYTES = Primitive("bytes", None, 0, b"")
# Like BYTES on the wire, but decoded as a memoryview of the frame and encoded as a part of its own, so that no record
# is copied.
RECORDS = Primitive("records", None, 0, None)


class Array(NamedTuple):
    element: Any  # Primitive or a declared struct class


class Shared(list[T]):
    """An array that is in many places of one message, and is encoded once. It is not changed any more."""

    __slots__ = ("encoded",)

    def __init__(self, items: Iterable[T]) -> None:
        super().__init__(items)
        #: By version.
        self.encoded: dict[int, bytes] = {}


_UNSET: Any = object()


class Field(NamedTuple):
    """One field of a message, as declared; `name` is filled in by the decorator."""

    type: Any  # Primitive, Array, or a declared struct class
    versions: Versions
    nullable: Versions
    default: Any
    tag: int | None
    tagged: Versions
    name: str = ""
    shared: bool = False  # whether one array may be in many places of a message (`Shared`)

    @property
    def makes_default(self) -> bool:
        """Whether the default is a fresh object for every message (an empty list, a struct of defaults)."""
        return self.default is _UNSET and not isinstance(self.type, Primitive)

    @property
    def default_value(self) -> Any:
        if self.default is not _UNSET:
            return self.default
        if isinstance(self.type, Primitive):
            return self.type.default
        return [] if isinstance(self.type, Array) else self.type()


def f(
    type: Any,
    versions: str = "0+",
    *,
    nullable: str = "",
    default: Any = _UNSET,
    tag: int | None = None,
    tagged: str | None = None,
    shared: bool = False,
) -> Any:
    """Declare a field: its type, the versions that have it, those in which it may be null, and its default."""
    in_versions = Versions.parse(versions)
    return Field(
        type=type,
        versions=in_versions,
        nullable=Versions.parse(nullable),
        default=default,
        tag=tag,
        tagged=NEVER if tag is None else in_versions if tagged is None else Versions.parse(tagged),
        shared=shared,
    )


def item_of(array: Field) -> Field:
    """What an array of primitives has in each place, as a field of its own. It is never null."""
    return Field(array.type.element, ALWAYS, NEVER, None, None, NEVER, array.name)


class MessageKind(Enum):
    STRUCT = "struct"
    REQUEST = "request"
    RESPONSE = "response"
    DATA = "data"


class Schema(NamedTuple):
    """What a declared class knows about itself. A struct has its parent's versions: its own say nothing."""

    name: str
    kind: MessageKind
    api_key: int
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]


def _build(cls: type, kind: MessageKind, api_key: int, versions: str, flexible: int | None) -> type:
    fields = []
    for name, value in list(vars(cls).items()):
        if isinstance(value, Field):
            fields.append(value._replace(name=name))
    body: dict[str, Any] = {"__slots__": tuple(field.name for field in fields), "__module__": cls.__module__}
    body |= {"__doc__": cls.__doc__, "__qualname__": cls.__qualname__, "__annotations__": cls.__annotations__}
    body |= {name: value for name, value in vars(cls).items() if callable(value) or isinstance(value, property)}
    body |= {"__init__": _make_init(fields), "__repr__": _repr, "__eq__": _eq, "__hash__": None}
    body["SCHEMA"] = Schema(
        name=cls.__name__,
        kind=kind,
        api_key=api_key,
        versions=Versions.parse(versions),
        flexible=NEVER if flexible is None else Versions(flexible, VERSION_MAX),
        fields=tuple(fields),
    )
    return type(cls.__name__, (), body)


def _make_init(fields: list[Field]) -> Any:
    """A keyword-only `__init__` with every field optional, compiled because messages are made on hot paths."""
    scope: dict[str, Any] = {"_UNSET": _UNSET}
    parameters, lines = [], []
    for field in fields:
        scope[f"default_{field.name}"] = _UNSET if field.makes_default else field.default_value
        parameters.append(f"{field.name}=default_{field.name}")
        if field.makes_default:
            scope[f"make_{field.name}"] = list if isinstance(field.type, Array) else field.type
            lines.append(f"self.{field.name} = make_{field.name}() if {field.name} is _UNSET else {field.name}")
        else:
            lines.append(f"self.{field.name} = {field.name}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    exec(head + "\n    " + "\n    ".join(lines or ["pass"]), scope)
    return scope["__init__"]


def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={_short(getattr(self, field.name))}" for field in self.SCHEMA.fields)
    return f"{self.SCHEMA.name}({shown})"


def _short(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(value)


def _eq(self: Any, other: Any) -> bool:
    if type(self) is not type(other):
        return False
    return all(getattr(self, field.name) == getattr(other, field.name) for field in self.SCHEMA.fields)


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """A part of a message. It travels in the version of the message that holds it."""
    return _build(cls, MessageKind.STRUCT, -1, "0+", None)


@dataclass_transform(kw_only_default=True)
def request(api_key: int, versions: str, *, flexible: int | None = None) -> Callable[[type[T]], type[T]]:
    """A request of that API key; `flexible` is the first version with compact lengths and tagged fields."""
    return lambda cls: _build(cls, MessageKind.REQUEST, api_key, versions, flexible)


@dataclass_transform(kw_only_default=True)
def response(api_key: int, versions: str, *, flexible: int | None = None) -> Callable[[type[T]], type[T]]:
    return lambda cls: _build(cls, MessageKind.RESPONSE, api_key, versions, flexible)


@dataclass_transform(kw_only_default=True)
def data(versions: str, *, flexible: int | None = None, record_type: int = -1) -> Callable[[type[T]], type[T]]:
    """A message that is stored, not sent: keys and values of internal topics, metadata records, protocol user data."""
    return lambda cls: _build(cls, MessageKind.DATA, record_type, versions, flexible)
