"""Encoders and decoders, generated per message and version as plain Python source and compiled on first use.

A generated decoder reads `(buffer, position)` and returns `(message, position)`; an encoder hands parts to `put`, one
after the other. Nested structs are written in line, so a message is one function whatever its depth. `source` shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.protocol.decoder_source import DecoderWriter
from headrace.protocol.encoder_source import EncoderWriter
from headrace.protocol.schema import Schema

# The decoder of a request takes how many elements it may have, too, or has a bound of its own.
Decoder = Callable[..., tuple[Any, int]]
Encoder = Callable[[Any, Callable[[Any], None]], None]

_decoders: dict[tuple[type, int], Decoder] = {}
_encoders: dict[tuple[type, int], Encoder] = {}


def decoder(cls: type, version: int) -> Decoder:
    found = _decoders.get((cls, version))
    if found is None:
        found = _decoders[cls, version] = _compile(cls, version, "decode")
    return found


def encoder(cls: type, version: int) -> Encoder:
    found = _encoders.get((cls, version))
    if found is None:
        found = _encoders[cls, version] = _compile(cls, version, "encode")
    return found


def source(cls: type, version: int, verb: str) -> str:
    """The generated source of a message's `encode` or `decode`, to be read by people."""
    return _write(cls, version, verb)[0]


def _compile(cls: type, version: int, verb: str) -> Any:
    text, scope = _write(cls, version, verb)
    exec(compile(text, f"<{cls.__name__} v{version} {verb}>", "exec"), scope)
    return scope[verb]


def _write(cls: type, version: int, verb: str) -> tuple[str, dict[str, Any]]:
    schema: Schema = cls.SCHEMA  # type: ignore[attr-defined]  # set by the decorators in `schema`
    if version not in schema.versions:
        raise ValueError(f"{schema.name} has versions {schema.versions.low}-{schema.versions.high}, not {version}")
    flexible = version in schema.flexible
    writer = DecoderWriter(version, flexible) if verb == "decode" else EncoderWriter(version, flexible)
    writer.message(cls)
    return "\n".join(writer.lines) + "\n", writer.scope
