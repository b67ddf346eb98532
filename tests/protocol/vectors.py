"""Apache Kafka's own bytes, and its JSON turned into our messages."""

import base64
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from headrace.protocol.schema import Array, Primitive

FOLDER = Path(__file__).parents[1] / "reference" / "vectors"


@cache
def load(name: str) -> list[dict[str, Any]]:
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def unbase64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def from_json(cls: type[Any], fields: dict[str, Any]) -> Any:
    """Kafka's JSON converters print camel-case names, bytes as base64, and leave out what a version lacks."""
    by_name = {field.name: field for field in cls.SCHEMA.fields}
    values = {}
    for name, value in fields.items():
        field = by_name[re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()]
        values[field.name] = _value(field.type, value)
    return cls(**values)


def _value(type_: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(type_, Array):
        return [_value(type_.element, item) for item in value]
    if not isinstance(type_, Primitive):
        return from_json(type_, value)
    if type_.name == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    return base64.b64decode(value) if type_.name in ("bytes", "records") else value
