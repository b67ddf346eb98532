"""Messages of a topic: from an end, an offset or a time, filtered where they are read, a page at a time.

What is not looked at is not decoded: a text is searched in the bytes, and only what a filter asks for is parsed. A
search ends when it has a page, or has looked at so many messages, or for so long; it says where to go on.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.client.ranges import RangeReader
from headrace.console.expressions import Test
from headrace.console.masking import Masking
from headrace.errors import HeadraceError
from headrace.records import Batch, BatchHeader, CorruptBatchError, Record, read_control, read_records
from headrace.topics import TopicPartition

PAGE_MAX = 500
SCANNED_MAX = 50_000
SEARCH_S = 8.0
#: What is shown of a body in a list; the rest is asked for message by message.
PREVIEW_BYTES = 4 * 1024
WHOLE_BYTES_MAX = 8 * 1024 * 1024
_WINDOW = 200
_WINDOW_MAX = 5_000
_READ_TIMEOUT_S = 10.0

Decode = Callable[[bytes], tuple[str, str] | None]
"""Of bytes that a schema describes: its name, and the text (JSON); None: they are none."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for."""

    newest_first: bool = True
    limit: int = 50
    text: bytes | None = None
    key: bytes | None = None
    test: Test | None = None
    committed_only: bool = False
    with_markers: bool = False


@dataclass(slots=True)
class Page:
    """What was found. `left` says, per partition, what has not been looked at: [start, end)."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    left: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    scanned: int = 0
    is_cut: bool = False
    """Whether the search ended for the time it took or the messages it looked at."""


class MessageReader:
    """Reads one topic with one connection, for one request."""

    def __init__(self, client: Mapping[str, Any], masking: Masking, decode: Decode | None = None) -> None:
        self._client = dict(client)
        self._masking = masking
        self._decode = decode

    def search(self, ranges: Mapping[TopicPartition, tuple[int, int]], query: Query) -> Page:
        """Look through the ranges, from their end or their beginning, until a page is full."""
        page = Page(left={partition: span for partition, span in ranges.items() if span[0] < span[1]})
        found: list[tuple[tuple[int, int, int], dict[str, Any]]] = []
        deadline = time.monotonic() + SEARCH_S
        window = _WINDOW
        with RangeReader(self._settings(query)) as reader:
            while page.left and len(found) < query.limit:
                if page.scanned >= SCANNED_MAX or time.monotonic() > deadline:
                    page.is_cut = True
                    break
                step = max(1, min(window, _WINDOW_MAX, query.limit * 4 if query.test is None else window))
                spans = {one: _part(span, step, from_end=query.newest_first) for one, span in page.left.items()}
                for number, message, offset, timestamp in self._messages(reader, spans, query, page):
                    found.append(((timestamp, number, offset), message))
                for partition, (start, end) in spans.items():
                    first, last = page.left.pop(partition)
                    rest = (first, start) if query.newest_first else (end, last)
                    if rest[0] < rest[1]:
                        page.left[partition] = rest
                window *= 2
        found.sort(key=lambda one: one[0], reverse=query.newest_first)
        page.messages = [message for _, message in found[: query.limit]]
        self._give_back(page, [message for _, message in found[query.limit :]], ranges, query)
        return page

    def _give_back(
        self,
        page: Page,
        beyond: Sequence[dict[str, Any]],
        ranges: Mapping[TopicPartition, tuple[int, int]],
        query: Query,
    ) -> None:
        """What was found and did not fit the page is looked at again by the next."""
        for message in beyond:
            partition = TopicPartition(message["topic"], message["partition"])
            start, end = ranges[partition]
            offset = message["offset"]
            if query.newest_first:
                page.left[partition] = (start, max(page.left.get(partition, (start, start))[1], offset + 1))
            else:
                page.left[partition] = (min(page.left.get(partition, (end, end))[0], offset), end)

    def one(self, partition: TopicPartition, offset: int) -> dict[str, Any] | None:
        """One message, whole."""
        with RangeReader(self._settings(Query())) as reader:
            for batch, header in reader.read_batches({partition: (offset, offset + 1)}, timeout=_READ_TIMEOUT_S):
                for record in [] if header.is_control else read_records(batch):
                    if record.offset == offset:
                        return self._shown(partition, header, record, WHOLE_BYTES_MAX)
        return None

    def raw(self, partition: TopicPartition, offset: int) -> bytes | None:
        """A value as it is, for who downloads it; with what is masked gone."""
        with RangeReader(self._settings(Query())) as reader:
            for record in reader.read_records({partition: (offset, offset + 1)}, timeout=_READ_TIMEOUT_S):
                return self._masking.body("value", record.value)
        return None

    def timestamp(self, partition: TopicPartition, offset: int) -> int | None:
        """When the message at an offset (or the next one in its batch) was written."""
        with RangeReader(self._settings(Query())) as reader:
            for batch, header in reader.read_batches({partition: (offset, offset + 1)}, timeout=_READ_TIMEOUT_S):
                if header.is_control:
                    return header.max_timestamp
                for record in read_records(batch):
                    if record.offset >= offset:
                        return record.timestamp
        return None

    def _settings(self, query: Query) -> dict[str, Any]:
        return {
            **self._client,
            "isolation.level": "read_committed" if query.committed_only else "read_uncommitted",
            "max.partition.fetch.bytes": 1024 * 1024,
        }

    def _messages(
        self, reader: RangeReader, spans: Mapping[TopicPartition, tuple[int, int]], query: Query, page: Page
    ) -> Iterator[tuple[int, dict[str, Any], int, int]]:
        try:
            if query.committed_only:
                for record in reader.read_records(spans, timeout=_READ_TIMEOUT_S, fail_on_data_loss=False):
                    page.scanned += 1
                    plain = Record(record.offset, record.timestamp, record.key, record.value, record.headers)
                    partition = TopicPartition(record.topic, record.partition)
                    if self._is_wanted(partition, plain, query):
                        yield record.partition, self._shown(partition, None, plain), record.offset, record.timestamp
                return
            # One partition after the other: which one a batch is of, a batch does not say.
            for partition, span in spans.items():
                for batch, header in reader.read_batches({partition: span}, timeout=_READ_TIMEOUT_S, on_loss=_pass):
                    yield from self._of_batch(partition, span, batch, header, query, page)
        except CorruptBatchError as error:
            raise HeadraceError(f"messages cannot be read: {error}") from error

    def _of_batch(
        self,
        partition: TopicPartition,
        span: tuple[int, int],
        batch: Batch,
        header: BatchHeader,
        query: Query,
        page: Page,
    ) -> Iterator[tuple[int, dict[str, Any], int, int]]:
        if header.is_control and not query.with_markers:
            return
        for record in read_records(batch):
            if not span[0] <= record.offset < span[1]:
                continue
            page.scanned += 1
            if header.is_control:
                yield partition.partition, _marker(partition, header, record), record.offset, record.timestamp
            elif self._is_wanted(partition, record, query):
                yield partition.partition, self._shown(partition, header, record), record.offset, record.timestamp

    # --- one message

    def _is_wanted(self, partition: TopicPartition, record: Record, query: Query) -> bool:
        if query.key is not None and record.key != query.key:
            return False
        is_masked = self._masking.is_any
        if query.text is not None:
            key, value = record.key, record.value
            if is_masked:
                key, value = self._masking.body("key", key), self._masking.body("value", value)
            if query.text not in (value or b"") and query.text not in (key or b""):
                return False
        return query.test is None or bool(query.test(Parts(self, partition, record)))

    def body(self, root: str, data: bytes | None) -> tuple[str, str] | None:
        """How a key or value is shown: its format and its text."""
        if data is None:
            return None
        decoded = None
        if self._decode is not None and data[:1] == b"\0":
            decoded = self._decode(data)
        if decoded is None:
            masked = self._masking.body(root, data)
            assert masked is not None
            return _text(masked)
        masked = self._masking.body(root, decoded[1].encode())
        assert masked is not None
        return decoded[0], masked.decode()

    def headers(self, record: Record) -> list[list[Any]]:
        return [
            [name, None if value is None else _text(self._masking.header(name, value) or b"")[1]]
            for name, value in record.headers
        ]

    def _shown(
        self, partition: TopicPartition, header: BatchHeader | None, record: Record, bytes_max: int = PREVIEW_BYTES
    ) -> dict[str, Any]:
        message: dict[str, Any] = {
            "kind": "message",
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": self.headers(record),
        }
        for root, data in (("key", record.key), ("value", record.value)):
            message[root] = self._shown_body(root, data, bytes_max)
        if header is not None:
            message["compression"] = header.codec.kafka_name if header.codec_id else None
            message["leader_epoch"] = header.leader_epoch
            if header.producer_id >= 0:
                message["producer"] = {"id": header.producer_id, "epoch": header.producer_epoch}
                message["transactional"] = header.is_transactional
        return message

    def _shown_body(self, root: str, data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
        if data is None:
            return None
        shown = data
        is_cut = len(data) > bytes_max
        if is_cut and (self._masking.is_any or data[:1] == b"\0"):
            body = self.body(root, data)
        else:
            shown = data[:bytes_max]
            body = self.body(root, shown)
        assert body is not None
        kind, text = body
        return {"format": kind, "text": text[:bytes_max], "bytes": len(data), "cut": is_cut}


class Parts(Mapping[str, Any]):
    """A message as a filter sees it: each part is made when it is asked for, once."""

    def __init__(self, reader: MessageReader, partition: TopicPartition, record: Record) -> None:
        self._reader = reader
        self._partition = partition
        self._record = record
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Any:
        record = self._record
        if name == "offset":
            return record.offset
        if name == "partition":
            return self._partition.partition
        if name == "timestamp":
            return record.timestamp
        if name == "headers":
            return dict(map(tuple, self._reader.headers(record)))
        body = self._reader.body(name, record.key if name == "key" else record.value)
        if body is None:
            return None
        try:
            return json.loads(body[1])
        except (ValueError, RecursionError):
            return body[1]

    def __iter__(self) -> Iterator[str]:
        return iter(("key", "value", "headers", "offset", "partition", "timestamp"))

    def __len__(self) -> int:
        return 6


def _part(span: tuple[int, int], size: int, *, from_end: bool) -> tuple[int, int]:
    start, end = span
    return (max(start, end - size), end) if from_end else (start, min(end, start + size))


def _pass(*_: Any) -> None:
    """What retention has deleted meanwhile is not there."""


def _marker(partition: TopicPartition, header: BatchHeader, record: Record) -> dict[str, Any]:
    try:
        marker = read_control(record)
        what = {0: "abort", 1: "commit"}.get(marker.control_type, f"control {marker.control_type}")
        epoch = marker.coordinator_epoch
    except HeadraceError:
        what, epoch = "unreadable", None
    return {
        "kind": "marker",
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "marker": what,
        "coordinator_epoch": epoch,
        "producer": {"id": header.producer_id, "epoch": header.producer_epoch},
    }


def _text(data: bytes) -> tuple[str, str]:
    """How bytes without a schema are shown: JSON, text, or base64 of what is neither."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # What was cut may have been cut within a character.
        if error.start < len(data) - 3 or error.end != len(data):
            return "base64", base64.b64encode(data).decode()
        text = data[: error.start].decode()
    if text[:1] in ("{", "["):
        return "json", text
    if any(ord(char) < 32 and char not in "\t\r\n" for char in text):
        return "base64", base64.b64encode(data).decode()
    return "text", text
