"""What others look at of a connection: the acceptor's sweep, and who shares out memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

from headrace.broker.requests.access import ANONYMOUS, Access, Rights
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.net.frames import FrameReader
from headrace.net.outbox import Outbox


class WatchedConnection:
    # Not a dictionary of each, beyond what instances share: hundreds of connections take turns in the CPU's caches.
    __slots__ = ("costly_s_per_byte", "frame_began", "last_progress", "peer_host", "slow_s")

    peer_host: str
    listener: str
    rights: Rights | None
    pipeline: RequestPipeline
    #: When something of it was read or sent last, and when the frame under way began.
    last_progress: float
    frame_began: float
    #: What its costly requests have cost of the loop's time; None before the first.
    costly_s_per_byte: float | None
    #: What its small ones take; None as long as that was of no interest.
    slow_s: float | None

    _handling: memoryview | None
    _in_line: Sized
    _only_waits: bool
    _outbox: Outbox | None
    _reader: FrameReader
    _reading_paused: bool
    _task: asyncio.Task[None] | None
    _transport: asyncio.Transport | None

    @property
    def access(self) -> Access:
        return self.pipeline.access

    @property
    def principal(self) -> str:
        return ANONYMOUS if self.rights is None else self.rights.principal

    @property
    def is_brokers(self) -> bool:
        """Whether another broker may be at the other end."""
        return self.pipeline.access.is_broker(self.listener, self.rights)

    def take_turn(self) -> None:
        """Handle a few of the requests of a client that has sent many."""
        raise NotImplementedError

    def resume(self) -> None:
        """Go on after the broker became ready, or has room again."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """End the connection once what was written is sent."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """End the connection at once, unsent answers dropped."""
        raise NotImplementedError

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
