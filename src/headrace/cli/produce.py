"""`headrace produce`: records from standard input or a file, a line each."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import typer

from headrace.cli.completing import of, topics_there
from headrace.cli.exits import Exit
from headrace.cli.options import Target, names_there, only, pairs, plain_kernels, targeted
from headrace.cli.output import CommandError, count, note, progress, silent, usage
from headrace.client.errors import SerializationError
from headrace.client.producer.blocking import Producer
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.words import did_you_mean, plural

_LINE_BYTES_MAX = 64 * 1024 * 1024
_PROGRESS_EVERY = 2_000
_LINGER_MS = 5
_COMPILED_FROM_BYTES = 64 * 1024 * 1024


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Input(StrEnum):
    LINES = "lines"
    JSON = "json"


class Line(NamedTuple):
    """One record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp: int | None = None


@targeted
def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topics_there)],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read this instead of stdin.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help=r"Lines are KEY TEXT VALUE (\t: tab).")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Lines begin with a:1,b:2 and a tab, as Kafka's parse.headers.")
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record.")
    ] = None,
    input_format: Annotated[
        Input, typer.Option("--input", help="json: an object per line, as `consume --format json` prints them.")
    ] = Input.LINES,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            dir_okay=False,
            help="Values are JSON, written by the schema in this file (.avsc, .json, .proto), which is registered.",
        ),
    ] = None,
    registry: Annotated[str | None, typer.Option("--registry", metavar="URL", help="The schema registry.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Send all to this one.")] = None,
    compression: Annotated[Compression | None, typer.Option("--compression", "-z", help="Codec.")] = None,
    acks: Annotated[
        str | None, typer.Option(help="all, 1 or 0; default: all.", autocompletion=of("all", "1", "0"))
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A key or value that reads so is null (a tombstone).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing when all is well.")] = False,
    *,
    target: Target,
) -> None:
    """Write records: a line each from standard input, or from a file."""
    config = only(target.config(), PRODUCER_CONFIGS)
    # What was chosen by an option of its own counts before a setting of the same; a default does not.
    if compression is not None:
        config["compression.type"] = compression.value
    if acks is not None:
        config["acks"] = acks
    if config.get("acks", "all") not in ("all", "-1"):
        config.setdefault("enable.idempotence", "false")
    timeout_ms = int(target.timeout_s * 1000)
    config.setdefault("max.block.ms", timeout_ms)
    if "delivery.timeout.ms" not in config:
        # It covers lingering and one request.
        config["delivery.timeout.ms"] = timeout_ms
        linger_ms = int(config.setdefault("linger.ms", min(_LINGER_MS, timeout_ms // 10)))
        config.setdefault("request.timeout.ms", max(1, timeout_ms - linger_ms))
    constant: list[tuple[str, bytes | None]] = [
        (name, value.encode()) for name, value in pairs(header or [], "--header").items()
    ]
    if input_format is Input.JSON:
        if key_separator is not None or headers:
            raise usage("--key-separator and --headers are for lines, not for --input json")
        parse: Callable[[bytes, int], Line] = _json_line
    else:
        parse = _line_parser(key_separator, headers, null_marker)
    if schema is not None:
        parse = _encoded(parse, topic, schema, registry)
    if file is None and sys.stdin.isatty() and not quiet:
        note(f"A line is a record for {topic}; Ctrl-D ends.")
    with contextlib.ExitStack() as stack:
        if file is None or file.stat().st_size < _COMPILED_FROM_BYTES:
            stack.enter_context(plain_kernels())
        source = stack.enter_context(file.open("rb")) if file is not None else sys.stdin.buffer
        bar = silent() if file is None or quiet else progress(file.name, file.stat().st_size, is_bytes=True)
        tick = stack.enter_context(bar)
        there = names_there(target)
        began = time.monotonic()
        sent, failures = _send(config, topic, _lines(source), parse, constant, partition, tick)
        took = time.monotonic() - began
    if failures:
        late = isinstance(failures[0], RequestTimedOutError)
        raise CommandError(
            f"{count(len(failures))} of {plural(sent, 'record')} not written; the first: {failures[0]}",
            Exit.TIMEOUT if late else Exit.FAILED,
        )
    if sent and there is not None and topic not in there:
        note(f"made topic {topic}{did_you_mean(topic, there)}")
    if not quiet:
        rate = f", {count(round(sent / took))} per second" if took > 0.05 and sent > 100 else ""
        note(f"{plural(sent, 'record')} written to {topic} in {took:.2f} s{rate}")


def _encoded(
    parse: Callable[[bytes, int], Line], topic: str, schema: Path, url: str | None
) -> Callable[[bytes, int], Line]:
    """The same lines, their values written by a schema."""
    from headrace.cli.schemas import connected, value_encoder

    encode = value_encoder(topic, schema, None, connected(url))

    def encoded(line: bytes, number: int) -> Line:
        record = parse(line, number)
        try:
            return record if record.value is None else record._replace(value=encode(record.value))
        except SerializationError as error:
            raise usage(f"line {number}: {error}") from error

    return encoded


def _send(
    config: dict[str, Any],
    topic: str,
    lines: Iterator[bytes],
    parse: Callable[[bytes, int], Line],
    constant: list[tuple[str, bytes | None]],
    partition: int | None,
    tick: Callable[[int], None],
) -> tuple[int, list[HeadraceError]]:
    failures: list[HeadraceError] = []

    def delivered(error: HeadraceError | None, _: Any) -> None:
        if error is not None:
            failures.append(error)

    sent = read = 0
    with Producer(config) as producer:
        for number, line in enumerate(lines, start=1):
            record = parse(line, number)
            producer.send(
                topic,
                record.value,
                record.key,
                partition if partition is not None else record.partition,
                record.timestamp,
                (record.headers or []) + constant or None,
                delivered,
            )
            sent += 1
            read += len(line) + 1
            if sent % _PROGRESS_EVERY == 0:
                tick(read)
                read = 0
                if failures:
                    break  # what comes after would most likely fail too
        producer.flush()
        tick(read)
    return sent, failures


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    while line := source.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise usage(f"a line is longer than {_LINE_BYTES_MAX} bytes")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _line_parser(key_separator: str | None, headers: bool, null_marker: str | None) -> Callable[[bytes, int], Line]:
    separator = None if key_separator is None else key_separator.encode().decode("unicode_escape").encode()
    if separator == b"":
        raise usage("--key-separator is empty")
    null = None if null_marker is None else null_marker.encode()

    def parse(line: bytes, number: int) -> Line:
        found: list[tuple[str, bytes | None]] | None = None
        if headers:
            text, tab, line = line.partition(b"\t")
            if not tab:
                raise usage(f"line {number} has no tab after its headers: {text[:60]!r}")
            found = [_header(part, number) for part in text.split(b",") if part]
        key: bytes | None = None
        value: bytes | None = line
        if separator is not None:
            key, present, value = line.partition(separator)
            if not present:
                raise usage(f"line {number} has no key separator {key_separator!r}: {line[:60]!r}")
        return Line(None if value == null else value, None if key == null else key, found)

    return parse


def _header(text: bytes, number: int) -> tuple[str, bytes]:
    name, colon, value = text.partition(b":")
    if not colon:
        raise usage(f"line {number} has a header that is not NAME:VALUE: {text[:60]!r}")
    return name.decode("utf-8", "replace"), value


def _json_line(line: bytes, number: int) -> Line:
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("it is not an object")
        headers = [(name, _json_bytes(value)) for name, value in _json_headers(record.get("headers"))]
        return Line(
            _field(record, "value"),
            _field(record, "key"),
            headers or None,
            record.get("partition"),
            record.get("timestamp"),
        )
    except (ValueError, TypeError) as error:
        raise usage(f"line {number} is no record as JSON ({error}): {line[:60]!r}") from None


def _field(record: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in record:
        return base64.b64decode(record[f"{name}_base64"])
    return _json_bytes(record.get(name))


def _json_headers(headers: Any) -> list[tuple[str, Any]]:
    if headers is None:
        return []
    return [(h[0], h[1]) for h in headers] if isinstance(headers, list) else list(headers.items())


def _json_bytes(value: Any) -> bytes | None:
    """Text as it is; anything else that JSON has, as JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
