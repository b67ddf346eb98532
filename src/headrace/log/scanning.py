"""Walk the batches of a segment file: headers only where that is enough, whole and checked where it is not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.records import Batch, BatchHeader, CorruptBatchError, check
from headrace.records.batch import HEADER, HEADER_BYTES, PREFIX_BYTES

_CHUNK_BYTES = 64 * 1024
_WHOLE_CHUNK_BYTES = 1024 * 1024
_MAGIC = 2
_MAGIC_AT = 16
_MAGIC_BYTE = bytes([_MAGIC])
_new_tuple = tuple.__new__
# Base offset, length, magic, last offset delta.
_unpack_span = struct.Struct(">qi4xb6xi").unpack_from


class WouldBlockError(HeadraceError):
    """The bytes are not in memory: do the same again where waiting for the disk is allowed."""


class ReadableFile(Protocol):
    @property
    def path(self) -> str: ...
    def read(self, position: int, length: int) -> bytes: ...
    def read_nowait(self, position: int, length: int) -> bytearray | None: ...


def read_some(file: ReadableFile, position: int, length: int, nowait: bool) -> bytes | bytearray:
    """Up to `length` bytes; WouldBlockError when `nowait` and they are not in memory."""
    if not nowait:
        return file.read(position, length)
    data = file.read_nowait(position, length)
    if data is None:
        raise WouldBlockError(f"{file.path} at {position}: not in memory")
    return data


def scan_headers(
    file: ReadableFile, position: int, end: int, *, chunk_bytes: int = _CHUNK_BYTES, nowait: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch from `position`, which has to be a batch's start, to `end`.

    A batch that is cut at the end is not yielded; a header that cannot be one raises CorruptBatchError.
    """
    chunk: bytes | bytearray = b""
    chunk_at = position
    while end - position >= HEADER_BYTES:
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            chunk = read_some(file, position, min(chunk_bytes, end - position), nowait)
            chunk_at, at = position, 0
            if len(chunk) < HEADER_BYTES:
                return
        header: BatchHeader = _new_tuple(BatchHeader, HEADER.unpack_from(chunk, at))
        size = header.batch_length + PREFIX_BYTES
        if size < HEADER_BYTES or header.magic != _MAGIC:
            raise _no_batch(file, position, header.batch_length, header.magic)
        if position + size > end:
            return
        yield position, header
        position += size


def find_batch(
    file: ReadableFile, position: int, end: int, offset: int, *, chunk_bytes: int = _CHUNK_BYTES, nowait: bool = False
) -> tuple[int, int] | None:
    """(position, size) of the first batch that ends at or after `offset`, as `scan_headers` would find it: of each only
    what that takes is looked at."""
    chunk: bytes | bytearray = b""
    chunk_at = position
    while end - position >= HEADER_BYTES:
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            chunk = read_some(file, position, min(chunk_bytes, end - position), nowait)
            chunk_at, at = position, 0
            if len(chunk) < HEADER_BYTES:
                return None
        base_offset, length, magic, last_offset_delta = _unpack_span(chunk, at)
        size = length + PREFIX_BYTES
        if size < HEADER_BYTES or magic != _MAGIC:
            raise _no_batch(file, position, length, magic)
        if position + size > end:
            return None
        if base_offset + last_offset_delta >= offset:
            return position, size
        position += size
    return None


def _no_batch(file: ReadableFile, position: int, length: int, magic: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"{file.path} at byte {position}: no batch of format {_MAGIC} begins here (length {length}, magic {magic})"
    )


def scan_batches(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    """(position, batch) of each whole batch, read but not checked. What is cut at the end is not yielded."""
    chunk: bytes = b""
    chunk_at = position
    while end - position >= HEADER_BYTES:
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            chunk = file.read(position, min(_WHOLE_CHUNK_BYTES, end - position))
            chunk_at, at = position, 0
            if len(chunk) < HEADER_BYTES:
                return
        size = int.from_bytes(chunk[at + 8 : at + 12], "big", signed=True) + PREFIX_BYTES
        if size < HEADER_BYTES:
            raise CorruptBatchError(
                f"{file.path} at byte {position}: a batch of {size} bytes is smaller than its header"
            )
        if position + size > end:
            return
        if at + size > len(chunk):
            chunk = file.read(position, min(max(_WHOLE_CHUNK_BYTES, size), end - position))
            chunk_at, at = position, 0
            if len(chunk) < size:
                return
        yield position, Batch(memoryview(chunk)[at : at + size])
        position += size


def check_whole(batch: Batch) -> BatchHeader:
    """The header of a batch whose length, magic and checksum hold; CorruptBatchError otherwise."""
    check(batch)
    header = batch.header()
    if header.last_offset_delta < 0 or header.base_offset < 0:
        raise CorruptBatchError(f"batch has offsets {header.base_offset}..{header.last_offset}: they run backwards")
    return header


def find_whole_batch(data: bytes, offset_min: int) -> int | None:
    """Where in `data`, which need not begin with a batch, one is whole and of `offset_min` or later; None if nowhere.

    To tell a write that a crash tore, after which nothing can follow, from damage in the middle.
    """
    view = memoryview(data)
    at = data.find(_MAGIC_BYTE, _MAGIC_AT)
    while at >= 0:
        start = at - _MAGIC_AT
        if len(data) - start < HEADER_BYTES:
            return None
        header: BatchHeader = _new_tuple(BatchHeader, HEADER.unpack_from(data, start))
        size = header.batch_length + PREFIX_BYTES
        if HEADER_BYTES <= size <= len(data) - start and header.base_offset >= offset_min:
            try:
                check_whole(Batch(view[start : start + size]))
            except CorruptBatchError:
                pass
            else:
                return start
        at = data.find(_MAGIC_BYTE, at + 1)
    return None
