"""Requests of any version, encoded and decoded by kio, over a plain socket: for what no client of today sends.

Fields are written once for all versions: a version that does not have a field leaves it out, a name that no version
has is an error. Times are milliseconds.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import socket
import struct
import typing
import uuid
from collections import deque
from functools import cache
from types import TracebackType, UnionType
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

API_KEYS = {name: key for key, name in api_key_map.items()}
NAMES = dict(api_key_map.items())
TIMEOUT_S = 60.0
CLIENT_ID = "kio"


@cache
def entity(api: str, version: int, kind: str) -> type[Any]:
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    for found in vars(module).values():
        if getattr(found, "__type__", None) is EntityType[kind] and found.__module__ == module.__name__:
            return found  # type: ignore[no-any-return]
    raise LookupError(f"kio has no {kind} of {api} v{version}")


@cache
def _fields(cls: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Name → (class or name of the type, is it an array)."""
    found: dict[str, tuple[Any, bool]] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = _without_none(hints[field.name])
        is_array = typing.get_origin(hint) is tuple
        if is_array:
            hint = _without_none(typing.get_args(hint)[0])
        found[field.name] = (hint if dataclasses.is_dataclass(hint) else field.metadata["kafka_type"], is_array)
    return found


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


class Builder:
    """Makes kio's messages of one version from plain values."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()

    def make(self, cls: type[Any], values: dict[str, Any]) -> Any:
        fields = _fields(cls)
        self.left_out |= values.keys() - fields.keys()
        chosen = {name: self._value(*fields[name], value) for name, value in values.items() if name in fields}
        for field in dataclasses.fields(cls):
            no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if no_default and field.name not in chosen:
                chosen[field.name] = _nothing(*fields[field.name])
        return cls(**chosen)

    def _value(self, element: Any, is_array: bool, value: Any) -> Any:
        if value is None:
            return None
        if is_array:
            return tuple(self._value(element, False, item) for item in value)
        if not isinstance(element, str):
            return self.make(element, value)
        if element.startswith("timedelta"):
            return datetime.timedelta(milliseconds=value)
        if element == "uuid":
            return value if isinstance(value, uuid.UUID) or value is None else uuid.UUID(bytes=value)
        return value


def _nothing(element: Any, is_array: bool) -> Any:
    """The value of a field that nobody named and the protocol has no default for."""
    if is_array:
        return ()
    if element == "uuid" or element in ("records", "nullable_string"):
        return None
    if element.startswith("timedelta"):
        return datetime.timedelta(0)
    return {"string": "", "bytes": b"", "bool": False}.get(element, 0)


@cache
def known_names(api: str) -> frozenset[str]:
    """Every field of a request, in any version, at any depth."""
    names: set[str] = set()
    for version in range(30):
        try:
            cls = entity(api, version, "request")
        except ModuleNotFoundError:
            continue
        stack = [cls]
        while stack:
            for name, (element, _) in _fields(stack.pop()).items():
                names.add(name)
                if not isinstance(element, str):
                    stack.append(element)
    return frozenset(names)


class Wire:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._correlation = 0
        self._waiting: deque[int] = deque()

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        self.send(api, version, **fields)
        return self.receive(api, version)

    def send(self, api: str, version: int, **fields: Any) -> None:
        request_class = entity(api, version, "request")
        builder = Builder()
        request = builder.make(request_class, fields)
        unknown = builder.left_out - known_names(api)
        if unknown:
            raise LookupError(f"no version of {api} has {sorted(unknown)}; it has {sorted(known_names(api))}")
        self._correlation += 1
        self._waiting.append(self._correlation)
        buffer = io.BytesIO()
        name = CLIENT_ID.encode()
        buffer.write(struct.pack(">hhih", API_KEYS[api], version, self._correlation, len(name)) + name)
        if request_class.__header_schema__.__flexible__:
            buffer.write(b"\x00")
        entity_writer(request_class)(buffer, request)
        frame = buffer.getvalue()
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, api: str, version: int) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        response_class = entity(api, version, "response")
        header, at = entity_reader(response_class.__header_schema__)(frame, 0)
        assert header.correlation_id == self._waiting.popleft()
        response, used = entity_reader(response_class)(frame, at)
        assert at + used == len(frame), f"{len(frame) - at - used} bytes after the answer"
        return response

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            chunk = self._socket.recv(count - len(found))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            found += chunk
        return bytes(found)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def batch(
    *values: bytes | None,
    key: bytes | None = b"key",
    timestamp_ms: int = 1_700_000_000_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    codec: int = 0,
) -> bytes:
    """One batch, built by aiokafka."""
    producer_id, epoch, sequence = producer
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer_id, epoch, sequence, 2**20)
    for number, value in enumerate(values):
        builder.append(number, timestamp_ms + number, key, value, [])
    return bytes(builder.build())
