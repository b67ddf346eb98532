"""Answers that are given again as they are: those that follow from the request and the cluster's metadata alone.

Clients ask for the metadata of the same topics again and again. As long as nothing in the metadata has changed, an
equal request gets equal bytes; only the correlation id before them is its own.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

# The listener that a request came in through, and the rights of who asks (`Rights.current_key`).
SeenBy: TypeAlias = tuple[str, object]

REQUEST_BYTES_MAX = 4 * 1024
# All together, with what each costs besides its bytes.
KEPT_BYTES_MAX = 8 * 1024 * 1024
ENTRY_BYTES = 300
_HEAD = struct.Struct(">ii")
HEAD_BYTES = _HEAD.size


class KeptAnswers:
    """By API key and version, listener, rights and request. Any change of the metadata drops them all."""

    __slots__ = ("_answers", "_bytes", "_bytes_max", "_offset")

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._answers: dict[tuple[object, SeenBy, bytes], bytes] = {}
        self._bytes = 0
        self._offset = -1

    def find(self, route: object, seen_by: SeenBy, request: bytes, metadata_offset: int) -> bytes | None:
        """What was answered to these bytes, without length and correlation id; None when it has to be found out."""
        if metadata_offset != self._offset:
            self._clear(metadata_offset)
            return None
        return self._answers.get((route, seen_by, request))

    def expect(self, metadata_offset: int) -> None:
        """An answer is about to be made of the metadata as it is at that offset; those of others are dropped."""
        if metadata_offset != self._offset:
            self._clear(metadata_offset)

    def keep(self, route: object, seen_by: SeenBy, request: bytes, answer: bytes, metadata_offset: int) -> None:
        """Keep a whole answer that was made of the metadata as it was at that offset."""
        if metadata_offset != self._offset or len(request) > REQUEST_BYTES_MAX:
            return
        self._bytes += len(request) + len(answer) + ENTRY_BYTES
        if self._bytes > self._bytes_max:
            self._clear(metadata_offset)
            return
        self._answers[route, seen_by, request] = answer[HEAD_BYTES:]

    def forget(self) -> None:
        """Something has changed that the metadata does not tell of."""
        self._clear(-1)

    def _clear(self, metadata_offset: int) -> None:
        self._answers.clear()
        self._bytes = 0
        self._offset = metadata_offset


def whole(answer: bytes, correlation_id: int) -> bytes:
    """A kept answer as it is sent."""
    return _HEAD.pack(len(answer) + 4, correlation_id) + answer
