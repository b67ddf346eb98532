r"""How `headrace consume` writes records: value, key-value, json, hex, or a format of one's own (as kcat's).

In a format: %t topic, %p partition, %o offset, %k key, %s value, %T timestamp in ms, %D the same as a date, %h headers,
%K and %S bytes of key and value (-1: null), %% a percent sign; \n, \t and so on. A line break is added unless the
format has one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from headrace.cli.output import moment, usage
from headrace.records import Columns
from headrace.topics import TopicPartition
from headrace.words import visible, visible_json

Writer = Callable[[TopicPartition, Columns], bytes]
NAMES = ("value", "key-value", "json", "hex")
SCHEMA_FORMATS = ("avro", "json-schema", "protobuf")
"""Values behind a schema's number, printed as JSON (`headrace.cli.schemas`)."""
NULL = b"null"


def writer_for(name: str, separator: str) -> Writer:
    """The writer of a format's name or of a format string."""
    glue = separator.encode().decode("unicode_escape").encode()
    if name == "value":
        return _values
    if name == "key-value":
        return lambda partition, columns: _key_values(columns, glue)
    if name == "json":
        return _json
    if name == "hex":
        return _hex
    if "%" in name:
        return _formatter(name)
    raise usage(f"--format {name!r} is not one of {', '.join(NAMES)} or a format with %s in it")


def for_terminals(write: Writer) -> Writer:
    """The same, with what a terminal would act upon escaped; lines stay lines."""
    return lambda partition, columns: visible(
        write(partition, columns).decode("utf-8", "backslashreplace"), lines=True
    ).encode("utf-8", "backslashreplace")


def _values(partition: TopicPartition, columns: Columns) -> bytes:
    return b"".join([b"%b\n" % (NULL if value is None else value) for value in columns.values.to_list()])


def _key_values(columns: Columns, glue: bytes) -> bytes:
    return b"".join(
        [
            b"%b%b%b\n" % (NULL if key is None else key, glue, NULL if value is None else value)
            for key, value in zip(columns.keys.to_list(), columns.values.to_list())
        ]
    )


def _json(partition: TopicPartition, columns: Columns) -> bytes:
    lines = []
    rows = zip(columns.offsets, columns.timestamps, columns.keys.to_list(), columns.values.to_list())
    for row, (offset, timestamp, key, value) in enumerate(rows):
        record: dict[str, Any] = {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset,
            "timestamp": timestamp,
            **_field("key", key),
            **_field("value", value),
        }
        headers = columns.headers_of(row)
        if headers:
            # A list of pairs: a name may come twice.
            record["headers"] = [[name, None if v is None else v.decode("utf-8", "replace")] for name, v in headers]
        lines.append(visible_json(json.dumps(record, ensure_ascii=False)))
    return ("\n".join(lines) + "\n").encode()


def _field(name: str, data: bytes | None) -> dict[str, Any]:
    """Text where it is text, base64 under a name of its own where it is not: nothing is lost."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _hex(partition: TopicPartition, columns: Columns) -> bytes:
    lines = []
    for offset, key, value in zip(columns.offsets, columns.keys.to_list(), columns.values.to_list()):
        lines.append(f"{partition} @{offset} key {_dump(key)}value {_dump(value)}")
    return "".join(lines).encode()


def _dump(data: bytes | None) -> str:
    if data is None:
        return "null\n"
    lines = [f"({len(data)} bytes)"]
    for at in range(0, len(data), 16):
        chunk = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in chunk)
        lines.append(f"  {at:06x}  {chunk[:8].hex(' '):23}  {chunk[8:].hex(' '):23}  {text}")
    return "\n".join(lines) + "\n"


def _formatter(text: str) -> Writer:
    pieces = _pieces(text)
    wants_headers = any(piece == "h" for piece, _ in pieces)

    def write(partition: TopicPartition, columns: Columns) -> bytes:
        out: list[bytes] = []
        fixed = {"t": partition.topic.encode(), "p": str(partition.partition).encode()}
        rows = zip(columns.offsets, columns.timestamps, columns.keys.to_list(), columns.values.to_list())
        for row, (offset, timestamp, key, value) in enumerate(rows):
            fields = fixed | {
                "o": b"%d" % offset,
                "T": b"%d" % timestamp,
                "D": moment(timestamp).encode(),
                "k": NULL if key is None else key,
                "s": NULL if value is None else value,
                "K": b"%d" % (-1 if key is None else len(key)),
                "S": b"%d" % (-1 if value is None else len(value)),
            }
            if wants_headers:
                pairs = columns.headers_of(row)
                fields["h"] = b",".join(b"%b=%b" % (n.encode(), NULL if v is None else v) for n, v in pairs)
            out.extend(literal if field == "" else fields[field] for field, literal in pieces)
        return b"".join(out)

    return write


def _pieces(text: str) -> list[tuple[str, bytes]]:
    """(field, "") or ("", literal), in order."""
    plain = text.encode("utf-8").decode("unicode_escape").encode("latin-1") if "\\" in text else text.encode()
    decoded = plain.decode("utf-8", "replace")
    pieces: list[tuple[str, bytes]] = []
    at = 0
    while at < len(decoded):
        percent = decoded.find("%", at)
        if percent < 0:
            pieces.append(("", decoded[at:].encode()))
            break
        if percent > at:
            pieces.append(("", decoded[at:percent].encode()))
        field = decoded[percent + 1 : percent + 2]
        if field == "%":
            pieces.append(("", b"%"))
        elif field and field in "tpoksTDKSh":
            pieces.append((field, b""))
        else:
            raise usage(f"--format has %{field}, which means nothing; see: headrace consume --help")
        at = percent + 2
    if b"\n" not in b"".join(literal for _, literal in pieces):
        pieces.append(("", b"\n"))
    return pieces
