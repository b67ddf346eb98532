"""Produce and Fetch as nearly all small clients send them: one partition of one topic, and nothing optional.

The generated codecs make an object of every part of a message. For these shapes the few numbers that count are read
from their places, and the answer is packed in one go. Each `read_…` gives None for any other shape, and for bytes that
are cut or wrong: the generated decoder says then what it is. Each answer has the bytes that the generated encoder would
give. Only versions with the flexible encoding: Produce from 9, Fetch from 12 on.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PRODUCE_SINCE_VERSION: Final = 9
FETCH_SINCE_VERSION: Final = 12
TOPIC_IDS_SINCE_VERSION: Final = 13  # of both
_REPLICA_IN_TAGS_SINCE_VERSION = 15

_ONE = 2  # arrays, texts and bytes say their length plus one
_SHORT = 0x80  # a length below this takes one byte
_ID_BYTES = 16
_FETCH_END = b"\x00\x00\x01\x01\x00"  # no tags of partition and topic, nothing forgotten, no rack, no tags
_CONSUMER = -1  # in the place of a follower's id
_NO_SESSION_EPOCH = -1

_PRODUCE_HEAD = struct.Struct(">BhiB")  # transactional id, acks, timeout, topics
_PRODUCE_PARTITION = struct.Struct(">BiB")  # partitions; index, the first byte of the records' length
_FETCH_HEAD = struct.Struct(">iiiibiiB")  # who, wait, least and most bytes, isolation, session and epoch, topics
# Partitions; index, leader epoch, offset, last epoch, log start, most bytes; all that is behind.
_FETCH_PARTITION = struct.Struct(f">Biiqiqi{len(_FETCH_END)}s")
_FETCH_PARTITION_BYTES = _FETCH_PARTITION.size

# Length, correlation id, no tags of the header; topics.
_PRODUCE_ANSWER_HEAD = struct.Struct(">iixB")
# Partitions; index, no error, base offset, append time, log start, no errors of records, no message, no tags of
# partition and topic; no throttle time, no tags.
_PRODUCE_ANSWER = struct.Struct(">Bi2xqqqB8x")
# Length, correlation id, no tags of the header; no throttle time, no error, no session, topics.
_FETCH_ANSWER_HEAD = struct.Struct(">ii11xB")
# Partitions; index, no error, high watermark, last stable offset, log start, aborted transactions, preferred replica.
_FETCH_ANSWER = struct.Struct(">Bi2xqqqBi")
_FETCH_ANSWER_END = bytes(3)
# The kind of a request, its correlation id.
_REQUEST_BEGIN = struct.Struct(">Ii")
_unpack_request_begin = _REQUEST_BEGIN.unpack_from
LENGTH_BYTES: Final = 4  # of a request, before it
_OFFSET = struct.Struct(">q")
_unpack_offset = _OFFSET.unpack_from
_FETCH_OFFSET_TO_END = _FETCH_PARTITION_BYTES - struct.calcsize(">Bii")
_NO_TAGS = bytes(3)  # of partition, topic and request
_PRODUCE_ANSWER_END = b"\x01" + bytes(8)
_PRODUCE_ANSWER_BYTES = _PRODUCE_ANSWER_HEAD.size - 4 + _PRODUCE_ANSWER.size
_FETCH_ANSWER_BYTES = _FETCH_ANSWER_HEAD.size - 4 + _FETCH_ANSWER.size + len(_FETCH_ANSWER_END)

_unpack_produce_head, _unpack_produce_partition = _PRODUCE_HEAD.unpack_from, _PRODUCE_PARTITION.unpack_from
_unpack_fetch_head, _unpack_fetch_partition = _FETCH_HEAD.unpack_from, _FETCH_PARTITION.unpack_from
_new_tuple = tuple.__new__


class SmallProduce(NamedTuple):
    """One batch for one partition. `topic` is as it stood there: a name with its length before it, or an id."""

    topic: bytes
    acks: int
    partition: int
    records: memoryview


class SmallFetch(NamedTuple):
    """What is asked for of one partition, without a session."""

    topic: bytes
    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation: int
    partition: int
    leader_epoch: int
    offset: int
    partition_bytes_max: int


def read_small_produce(frame: memoryview, position: int, version: int) -> SmallProduce | None:
    try:
        transactional_id, acks, _, topics = _unpack_produce_head(frame, position)
        if transactional_id or topics != _ONE:
            return None
        start = position + 8
        if version < TOPIC_IDS_SINCE_VERSION:
            length = frame[start]
            if not _ONE <= length < _SHORT:
                return None
            at = start + length
        else:
            at = start + _ID_BYTES
        topic = bytes(frame[start:at])
        partitions, index, size = _unpack_produce_partition(frame, at)
        at += 6
        if size >= _SHORT:
            more = frame[at]
            size += (more << 7) - _SHORT
            at += 1
            if more >= _SHORT:
                more = frame[at]
                size += (more << 14) - (_SHORT << 7)
                at += 1
                if more >= _SHORT:
                    return None
        end = at + size - 1
        # No tags of partition, topic and request.
        if partitions != _ONE or size < _ONE or end + 3 != len(frame) or frame[end] or frame[end + 1] or frame[end + 2]:
            return None
    except (struct.error, IndexError):
        return None
    return _new_tuple(SmallProduce, (topic, acks, index, frame[at:end]))


class ProduceShape:
    """What small produces of one client to one partition have in common: all but correlation id and batch.

    Those that follow the first are compared with it, and not read again.
    """

    __slots__ = ("_answer_bytes", "_answer_middle", "_batch_at", "_head", "_kind", "_pack_answer")

    def __init__(self, frame: memoryview, position: int, topic: bytes, index: int) -> None:
        """Of a request of which `read_small_produce` has read these."""
        self._batch_at = head_bytes(position, topic)
        self._kind, _ = _unpack_request_begin(frame)
        self._head = bytes(frame[_REQUEST_BEGIN.size : self._batch_at])
        # Of an answer: its length, the correlation id, what lies between that and the offsets, those, and the end.
        head, tail = _PRODUCE_ANSWER_HEAD.pack(0, 0, _ONE), _PRODUCE_ANSWER.pack(_ONE, index, 0, 0, 0, 1)
        self._answer_middle = head[8:] + topic + tail[:7]
        self._answer_bytes = _PRODUCE_ANSWER_BYTES + len(topic)
        self._pack_answer = struct.Struct(f">ii{len(self._answer_middle)}sqqq{len(_PRODUCE_ANSWER_END)}s").pack

    def read(self, chunk: bytearray, nbytes: int) -> tuple[int, int, int] | None:
        """The correlation id of such a request, of that many bytes at the front of a buffer, and where its batch lies.

        The request has its length before it. None when it is anything else.
        """
        kind, correlation_id = _unpack_request_begin(chunk, LENGTH_BYTES)
        if kind != self._kind or not chunk.startswith(self._head, 12):
            return None
        at = self._batch_at + LENGTH_BYTES
        size = chunk[at]
        at += 1
        if size >= _SHORT:
            more = chunk[at]
            size += (more << 7) - _SHORT
            at += 1
            if more >= _SHORT:
                return None
        end = at + size - 1
        if size < _ONE or end + 3 != nbytes or not chunk.startswith(_NO_TAGS, end):
            return None
        return correlation_id, at, end

    def answer(self, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int) -> bytes:
        """As `small_produce_answer`."""
        return self._pack_answer(
            self._answer_bytes,
            correlation_id,
            self._answer_middle,
            base_offset,
            append_time_ms,
            log_start_offset,
            _PRODUCE_ANSWER_END,
        )


def head_bytes(position: int, topic: bytes) -> int:
    """Where the batch of a small produce, with its length before it, begins in the frame."""
    return position + _PRODUCE_HEAD.size + len(topic) + _PRODUCE_PARTITION.size - 1


def small_produce_answer(
    correlation_id: int, topic: bytes, index: int, base_offset: int, append_time_ms: int, log_start_offset: int
) -> bytes:
    return (
        _PRODUCE_ANSWER_HEAD.pack(_PRODUCE_ANSWER_BYTES + len(topic), correlation_id, _ONE)
        + topic
        + _PRODUCE_ANSWER.pack(_ONE, index, base_offset, append_time_ms, log_start_offset, 1)
    )


def read_small_fetch(frame: memoryview, position: int, version: int) -> SmallFetch | None:
    try:
        if version < _REPLICA_IN_TAGS_SINCE_VERSION:
            start = position + 26
            who, wait_ms, bytes_min, bytes_max, isolation, session, epoch, topics = _unpack_fetch_head(frame, position)
        else:
            start, who = position + 22, _CONSUMER
            _, wait_ms, bytes_min, bytes_max, isolation, session, epoch, topics = _unpack_fetch_head(
                frame, position - 4
            )
        if topics != _ONE or session or epoch != _NO_SESSION_EPOCH or who != _CONSUMER:
            return None
        if version < TOPIC_IDS_SINCE_VERSION:
            length = frame[start]
            if not _ONE <= length < _SHORT:
                return None
            at = start + length
        else:
            at = start + _ID_BYTES
        topic = bytes(frame[start:at])
        partitions, index, leader_epoch, offset, last_epoch, _, partition_bytes_max, end = _unpack_fetch_partition(
            frame, at
        )
        if partitions != _ONE or last_epoch >= 0 or end != _FETCH_END or at + _FETCH_PARTITION_BYTES != len(frame):
            return None
    except (struct.error, IndexError):
        return None
    return _new_tuple(
        SmallFetch,
        (topic, wait_ms, bytes_min, bytes_max, isolation, index, leader_epoch, offset, partition_bytes_max),
    )


class FetchShape:
    """What small fetches of one client from one partition have in common: all but correlation id and offset.

    Those that follow the first are compared with it, and not read again.
    """

    __slots__ = (
        "_answer_bytes", "_answer_end", "_answer_middle", "_head", "_kind", "_nbytes", "_offset_at", "_pack_answer",
        "_tail", "_tail_at",
    )  # fmt: skip

    def __init__(self, frame: memoryview, topic: bytes, index: int, *, tells_aborted: bool) -> None:
        """Of a request of which `read_small_fetch` has read these; `tells_aborted` as in `small_fetch_answer`."""
        head, self._tail = fetch_parts(frame)
        self._kind, _ = _unpack_request_begin(frame)
        self._head = head
        # In a buffer, where a request has its length before it.
        self._offset_at = LENGTH_BYTES + _REQUEST_BEGIN.size + len(head)
        self._tail_at = self._offset_at + _OFFSET.size
        self._nbytes = LENGTH_BYTES + len(frame)
        # Of an answer: its length, the correlation id, what lies between that and the offsets, those, and what is
        # before the records' length.
        head_answer = _FETCH_ANSWER_HEAD.pack(0, 0, _ONE)
        answer = _FETCH_ANSWER.pack(_ONE, index, 0, 0, 0, tells_aborted, -1)
        self._answer_middle, self._answer_end = head_answer[8:] + topic + answer[:7], answer[31:]
        self._answer_bytes = _FETCH_ANSWER_BYTES + len(topic)
        self._pack_answer = struct.Struct(f">ii{len(self._answer_middle)}sqqq{len(self._answer_end)}s").pack

    def read(self, chunk: bytearray, nbytes: int) -> tuple[int, int] | None:
        """The correlation id and the offset of such a request, of that many bytes at the front of a buffer.

        The request has its length before it. None when it is anything else.
        """
        if nbytes != self._nbytes:
            return None
        kind, correlation_id = _unpack_request_begin(chunk, LENGTH_BYTES)
        if kind != self._kind or not chunk.startswith(self._head, 12):
            return None
        if not chunk.startswith(self._tail, self._tail_at):
            return None
        return correlation_id, _unpack_offset(chunk, self._offset_at)[0]

    def answer(
        self, correlation_id: int, high_watermark: int, stable: int, log_start: int, records: bytes | bytearray
    ) -> bytes:
        """As `small_fetch_answer`."""
        size = len(records)
        length = _varint(size + 1)
        head = self._pack_answer(
            self._answer_bytes + len(length) + size,
            correlation_id,
            self._answer_middle,
            high_watermark,
            stable,
            log_start,
            self._answer_end,
        )
        return b"".join((head, length, records, _FETCH_ANSWER_END))


def fetch_parts(frame: memoryview) -> tuple[bytes, bytes]:
    """Of a small fetch what lies between the correlation id and the offset, and what is behind that."""
    offset_at = len(frame) - _FETCH_OFFSET_TO_END
    return bytes(frame[_REQUEST_BEGIN.size : offset_at]), bytes(frame[offset_at + _OFFSET.size :])


def small_fetch_answer(
    correlation_id: int,
    topic: bytes,
    index: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    *,
    tells_aborted: bool,
    records: bytes | bytearray,
) -> bytes:
    """`tells_aborted`: that there are no aborted transactions, which only readers of committed records are told."""
    size = len(records)
    length = _varint(size + 1)
    return b"".join(
        (
            _FETCH_ANSWER_HEAD.pack(_FETCH_ANSWER_BYTES + len(topic) + len(length) + size, correlation_id, _ONE),
            topic,
            _FETCH_ANSWER.pack(_ONE, index, high_watermark, last_stable_offset, log_start_offset, tells_aborted, -1),
            length,
            records,
            _FETCH_ANSWER_END,
        )
    )


def _varint(number: int) -> bytes:
    if number < _SHORT:
        return _SHORT_VARINTS[number]
    if number < _SHORT << 7:
        return bytes((number & 0x7F | 0x80, number >> 7))
    parts = bytearray()
    while number >= _SHORT:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_SHORT_VARINTS = tuple(bytes((number,)) for number in range(_SHORT))
