"""Keys and values to bytes and back: bytes, text, numbers, JSON, and the interface for others.

A serializer is an object with `serialize(topic, data) -> bytes | None`, a deserializer one with `deserialize(topic,
data)`; both may have `configure(config, is_key)` and `close()`. None never gets there: it stays None. In a
configuration a serializer is an object, the dotted name of a class, one of our short names ("string", "json", "avro"),
or Java's class name. A deserializer that has `deserialize_with_headers(topic, data, headers)` is called by that.
"""

from __future__ import annotations

import codecs
import importlib
import inspect
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from headrace.client.errors import SerializationError
from headrace.config import ConfigError, check_plain_setting


class Serializer(Protocol):
    """Turns an object into the bytes of a key or value."""

    def serialize(self, topic: str, data: Any) -> bytes | None: ...


class Deserializer(Protocol):
    """Turns the bytes of a key or value into an object."""

    def deserialize(self, topic: str, data: bytes) -> Any: ...


class BytesSerializer:
    """Bytes as they are; a bytearray or memoryview is copied, because it may change before it is sent."""

    def serialize(self, topic: str, data: Any) -> bytes | None:
        if isinstance(data, bytes):
            return data
        if isinstance(data, (bytearray, memoryview)):
            return bytes(data)
        raise SerializationError(
            f"{type(data).__name__} is not bytes: encode it, or set a serializer (string, json, int, float)"
        )


class BytesDeserializer:
    def deserialize(self, topic: str, data: bytes) -> bytes:
        return data


class _Text:
    """Reads the encoding: `key.<role>.encoding` or `value.<role>.encoding`, then `<role>.encoding`, then UTF-8."""

    _role = "serializer"

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = _known_encoding(encoding, "encoding")

    def configure(self, config: Mapping[str, Any], is_key: bool) -> None:
        for name in (f"{'key' if is_key else 'value'}.{self._role}.encoding", f"{self._role}.encoding"):
            if config.get(name) is not None:
                self.encoding = _known_encoding(config[name], name)
                return


class StringSerializer(_Text):
    """Text; UTF-8 unless configured otherwise."""

    def serialize(self, topic: str, data: Any) -> bytes | None:
        if not isinstance(data, str):
            raise SerializationError(f"the string serializer takes text, not {type(data).__name__}")
        try:
            return data.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise SerializationError(f"text for {topic} cannot be written in {self.encoding}: {error}") from error


class StringDeserializer(_Text):
    _role = "deserializer"

    def deserialize(self, topic: str, data: bytes) -> str:
        try:
            return str(data, self.encoding)
        except UnicodeDecodeError as error:
            raise SerializationError(f"bytes from {topic} are not {self.encoding}: {error}") from error


class _Number:
    """A number of fixed size, big-endian, as Java's serializers write it."""

    _layout: struct.Struct
    _what: str

    def serialize(self, topic: str, data: Any) -> bytes | None:
        if isinstance(data, bool) or not (isinstance(data, (int, float)) or hasattr(data, "__index__")):
            raise SerializationError(f"{self._what} cannot be made of {type(data).__name__}")
        try:
            return self._layout.pack(data)
        except (struct.error, OverflowError, TypeError) as error:
            shown = _shown(data)
            raise SerializationError(f"{shown} is not {self._what}: {error}") from error

    def deserialize(self, topic: str, data: bytes) -> Any:
        if len(data) != self._layout.size:
            raise SerializationError(
                f"{self._what} has {self._layout.size} bytes, and the record from {topic} has {len(data)}"
            )
        return self._layout.unpack(data)[0]


def _shown(number: Any) -> str:
    try:
        return repr(number)
    except ValueError:
        # Python writes no integer of thousands of digits.
        return f"an integer of {number.bit_length()} bits"


class IntSerializer(_Number):
    """Java's LongSerializer: 64 bits."""

    _layout, _what = struct.Struct(">q"), "a 64-bit integer"


class Int32Serializer(_Number):
    """Java's IntegerSerializer: 32 bits."""

    _layout, _what = struct.Struct(">i"), "a 32-bit integer"


class Int16Serializer(_Number):
    _layout, _what = struct.Struct(">h"), "a 16-bit integer"


class FloatSerializer(_Number):
    """Java's DoubleSerializer: 64 bits."""

    _layout, _what = struct.Struct(">d"), "a 64-bit float"


class Float32Serializer(_Number):
    _layout, _what = struct.Struct(">f"), "a 32-bit float"


IntDeserializer, Int32Deserializer, Int16Deserializer = IntSerializer, Int32Serializer, Int16Serializer
FloatDeserializer, Float32Deserializer = FloatSerializer, Float32Serializer


class JsonSerializer:
    """Compact JSON in UTF-8. `default` is what `json.dumps` calls for objects it does not know."""

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        self._encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=default).encode

    def serialize(self, topic: str, data: Any) -> bytes | None:
        try:
            return self._encode(data).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(f"{type(data).__name__} for {topic} cannot be written as JSON: {error}") from error


class JsonDeserializer:
    def deserialize(self, topic: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"bytes from {topic} are not JSON: {error}") from error


_JAVA = "org.apache.kafka.common.serialization."
_SERIALIZERS: dict[str, type[Any]] = {
    "bytes": BytesSerializer,
    "string": StringSerializer,
    "int": IntSerializer,
    "int32": Int32Serializer,
    "int16": Int16Serializer,
    "float": FloatSerializer,
    "float32": Float32Serializer,
    "json": JsonSerializer,
    _JAVA + "ByteArraySerializer": BytesSerializer,
    _JAVA + "BytesSerializer": BytesSerializer,
    _JAVA + "StringSerializer": StringSerializer,
    _JAVA + "LongSerializer": IntSerializer,
    _JAVA + "IntegerSerializer": Int32Serializer,
    _JAVA + "ShortSerializer": Int16Serializer,
    _JAVA + "DoubleSerializer": FloatSerializer,
    _JAVA + "FloatSerializer": Float32Serializer,
}
_DESERIALIZERS: dict[str, type[Any]] = {
    "bytes": BytesDeserializer,
    "string": StringDeserializer,
    "json": JsonDeserializer,
    _JAVA + "ByteArrayDeserializer": BytesDeserializer,
    _JAVA + "BytesDeserializer": BytesDeserializer,
    _JAVA + "StringDeserializer": StringDeserializer,
} | {
    name.replace("Serializer", "Deserializer"): found
    for name, found in _SERIALIZERS.items()
    if issubclass(found, _Number)
}


# Those that need the extra `schemas`, loaded when they are named.
_CONFLUENT = "io.confluent.kafka.serializers."
_WITH_SCHEMAS = {
    "avro": ("avro.Avro", _CONFLUENT + "KafkaAvro"),
    "json-schema": ("json_schema.JsonSchema", _CONFLUENT + "json.KafkaJsonSchema"),
    "protobuf": ("protobuf.Protobuf", _CONFLUENT + "protobuf.KafkaProtobuf"),
}
_ELSEWHERE = {
    name: f"headrace.schemas.{ours}{role}"
    for short, (ours, java) in _WITH_SCHEMAS.items()
    for role in ("Serializer", "Deserializer")
    for name in (f"{short}{role}", java + role)
}


def make_serializer(given: Any, config: Mapping[str, Any], is_key: bool) -> Serializer | None:
    """The serializer that was configured, configured itself; None for plain bytes, which need no call per record."""
    name = "key.serializer" if is_key else "value.serializer"
    made = make(given, config, is_key, name=name, method="serialize", known=_SERIALIZERS)
    return None if made is None or type(made) is BytesSerializer else cast(Serializer, made)


def make_deserializer(given: Any, config: Mapping[str, Any], is_key: bool) -> Deserializer | None:
    """The deserializer that was configured, configured itself; None for plain bytes."""
    name = "key.deserializer" if is_key else "value.deserializer"
    made = make(given, config, is_key, name=name, method="deserialize", known=_DESERIALIZERS)
    return None if made is None or type(made) is BytesDeserializer else cast(Deserializer, made)


def make(
    given: Any, config: Mapping[str, Any], is_key: bool, *, name: str, method: str, known: Mapping[str, type[Any]]
) -> Any:
    """An object from an object, a class, a function, or a name; `configure(config, is_key)` is called if it has it."""
    if given is None:
        return None
    if isinstance(given, str):
        role = "Serializer" if method == "serialize" else "Deserializer"
        elsewhere = _ELSEWHERE.get(given) or _ELSEWHERE.get(given + role)
        made = load(elsewhere or given, name, known)
    else:
        made = given
    if isinstance(made, type):
        made = made()
    if not hasattr(made, method) and callable(made):
        check_plain_setting(name, made)
        made = _FunctionAsObject(made, method, "key" if is_key else "value")
    if not callable(getattr(made, method, None)):
        raise ConfigError({name: f"{name} is {given!r}, which has no method {method}(topic, data)"})
    check_plain_setting(name, getattr(made, method), method)
    if hasattr(made, "configure"):
        made.configure(config, is_key)
    return made


def load(dotted: str, name: str, known: Mapping[str, type[Any]]) -> Any:
    """What a name in the configuration stands for."""
    if dotted in known:
        return known[dotted]
    module, _, attribute = dotted.rpartition(".")
    if not module:
        raise ConfigError(
            {name: f"{name}={dotted} is none of {', '.join(k for k in known if '.' not in k)}, nor a dotted name"}
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError({name: f"{name}={dotted} cannot be loaded: {error}"}) from error


class SerializationContext(NamedTuple):
    """What confluent-kafka's serializers look at beside the data: `field` is "key" or "value"."""

    topic: str
    field: str
    headers: Any = None


def _takes_context(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False  # one of those in C that do not say
    named = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(named) > 1 and (named[1].name == "ctx" or named[1].default is named[1].empty)


class _FunctionAsObject:
    """A plain function `f(data)` where an object is expected; or one `f(obj, ctx)`, as confluent-kafka's are."""

    def __init__(self, function: Callable[..., Any], method: str, field: str) -> None:
        self._function = function
        self._field = field
        setattr(self, method, self._call_with_context if _takes_context(function) else self._call)

    def _call_with_context(self, topic: str, data: Any) -> Any:
        return self._function(data, SerializationContext(topic, self._field))

    def _call(self, topic: str, data: Any) -> Any:
        return self._function(data)


def _known_encoding(encoding: Any, name: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except (LookupError, TypeError) as error:
        raise ConfigError({name: f"{name}={encoding!r} is not an encoding that Python knows ({error})"}) from error
