"""Messages that a schema describes, as JSON: by a registry, where the console was told of one."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import logging
import struct
import time
import uuid
from typing import Any

from headrace.config import ConfigError
from headrace.errors import HeadraceError

log = logging.getLogger("headrace.console")

#: For how long a registry that does not answer, or a schema that is not there, is not asked for again.
FAILED_S = 30.0
_PREFIX = struct.Struct(">bI")


class SchemaDecoder:
    """Reads Avro, Protobuf and JSON Schema in Confluent's framing. May be used on any thread."""

    def __init__(self, url: str) -> None:
        from headrace.schemas.avro import AvroDeserializer
        from headrace.schemas.json_schema import JsonSchemaDeserializer
        from headrace.schemas.protobuf import ProtobufDeserializer
        from headrace.schemas.registry_client import RegistryClient

        self._registry = RegistryClient(url, {"schema.registry.timeout.ms": 3_000})
        readers = (AvroDeserializer, JsonSchemaDeserializer, ProtobufDeserializer)
        self._readers: dict[str, Any] = {one.type: one(registry=self._registry) for one in readers}
        self._failed: dict[int, float] = {}

    def __call__(self, data: bytes) -> tuple[str, str] | None:
        """The schema's kind and the message as JSON; None where it is not one that can be read."""
        if len(data) < _PREFIX.size or data[0] != 0:
            return None
        number: int = _PREFIX.unpack_from(data)[1]
        if time.monotonic() < self._failed.get(number, 0.0):
            return None
        try:
            kind = self._registry.by_id(number).schema.type
            read = self._readers[kind].deserialize("", data)
            return kind.lower(), json.dumps(_plain(read), ensure_ascii=False, default=_shown)
        except (HeadraceError, ConfigError, KeyError, ValueError, TypeError) as error:
            if len(self._failed) > 10_000:
                self._failed.clear()
            self._failed[number] = time.monotonic() + FAILED_S
            log.debug("a message of schema %d is shown as bytes: %s", number, error)
            return None


def _plain(read: Any) -> Any:
    if hasattr(read, "DESCRIPTOR"):
        from headrace.schemas.extras import need

        return need("google.protobuf.json_format").MessageToDict(read, preserving_proto_field_name=True)
    return read


def _shown(value: Any) -> Any:
    """What Avro has and JSON has not."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def decoder_of(url: str | None) -> SchemaDecoder | None:
    """A decoder of that registry; None without one, or without the packages that it needs."""
    if url is None:
        return None
    try:
        return SchemaDecoder(url)
    except (ModuleNotFoundError, ConfigError) as error:
        log.warning("messages are shown without their schemas: %s (pip install 'headrace[schemas]')", error)
        return None
