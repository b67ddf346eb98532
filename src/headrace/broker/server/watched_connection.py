"""What others look at of a connection: the acceptor's sweep, and who shares out memory and time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.server.answer_line import AnswerLine
    from headrace.net.frames import FrameReader
    from headrace.net.outbox import Outbox


class WatchedConnection:
    __slots__ = ()

    _handling: memoryview | None
    _in_line: AnswerLine
    _only_waits: bool
    _outbox: Outbox | None
    _reader: FrameReader
    _reading_paused: bool
    _task: asyncio.Task[None] | None
    _transport: asyncio.Transport | None

    @property
    def is_mid_frame(self) -> bool:
        return self._reader.is_mid_frame

    @property
    def is_reading_paused(self) -> bool:
        return self._reading_paused

    @property
    def arrived_bytes(self) -> int:
        return self._reader.arrived_bytes

    @property
    def is_lost(self) -> bool:
        """Whether nobody hears an answer any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def frame_bytes(self) -> int:
        """What the large frame under way says it will have; 0 when there is none."""
        return self._reader.frame_bytes

    @property
    def is_handling(self) -> bool:
        return self._handling is not None or bool(self._in_line)

    @property
    def is_only_waiting(self) -> bool:
        """Whether the request being handled waits for what others do, so that nothing is lost by ending it."""
        return self._task is not None and self._only_waits

    @property
    def is_backed_up(self) -> bool:
        """Whether answers wait because the client does not read them."""
        return self._outbox is not None and self._outbox.waits_for_peer
