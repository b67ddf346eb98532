"""One record at a time, without the producer's thread: its caller sends it, waits for the answer and reads it.

Handing a record to another thread and getting the answer back takes longer than all that is to be done with it. So the
caller does it all while the thread rests, and the thread takes everything back as soon as it has something to do.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.compiled import note_rows
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._one_record import OneRecord
from headrace.client.producer.delivery import CALLBACK, OWNER, TOPIC, Delivery
from headrace.errors import KafkaError
from headrace.net.blocking import Events
from headrace.net.connection import Call
from headrace.runtime import Clock

_NEAR_S = 0.02
"""How often the resting thread looks for answers that callers were to read, as long as they send by themselves."""
_BATON_S_MAX = 0.001
"""A look of the resting thread is over sooner; who would wait longer waits for real work, and leaves it."""
_WATCH_S_MAX = 1.0


class DirectWay(ABC):
    """A part of `Producer`, which has the attributes and the ways to its thread that are named here."""

    _client: BlockingClient | None
    _core: ProducerCore | None
    _clock: Clock
    _lock: threading.RLock
    _changed: threading.Condition
    _requests: list[Callable[[], None]]
    _idle: bool
    _taken: int
    _drained: int
    _waiting: int
    _rest_s: float

    @abstractmethod
    def _wake(self) -> None:
        """Have the producer's thread look at what is to be done."""

    def _reset_direct(self) -> None:
        self._baton = threading.Lock()
        """Whoever works with the core or the connections holds it: the thread, but while it waits for the sockets."""
        self._call: Call | None = None
        """What a caller's thread has sent by itself, and nobody waits for yet."""
        self._one: OneRecord | None = None
        """Sends a record from its caller's thread; None where that may not be."""
        self._is_near = False
        """Whether the thread looks again soon by itself, so that a caller may send a record without waking it."""
        self._was_interrupted = False
        """Whether a caller's thread was stopped (by Ctrl-C) in the middle of what is to be done at once."""
        self._is_watched = False
        """Whether a caller's thread waits for an answer by itself; `_was_nudged`: and was told to leave it."""
        self._was_nudged = False
        self._rested_at = 0

    # --- the caller -------------------------------------------------------------------------------------------------

    def _send_now(self, delivery: Delivery) -> None:
        """The thread rests: send the record from here, if nothing but the socket is needed for that; else wake it."""
        call = None
        # With others about, the thread sends what they have together.
        is_alone = self._is_near and not self._is_watched and not self._waiting
        if is_alone and delivery[CALLBACK] is None and self._baton.acquire(True, _BATON_S_MAX):
            try:
                call = self._call = self._sent(delivery)
            except BaseException:
                self._restore(delivery)
                raise
            finally:
                self._baton.release()
        if call is None:
            self._wake()

    def _sent(self, delivery: Delivery) -> Call | None:
        """The call that it went with, if it did. Only with the baton."""
        core, client, one = self._core, self._client, self._one
        if one is None or core is None or client is None:
            return None
        pending = core.accumulator.pending
        # Only the baton's holder takes records out, so the first one is still this one, or it is taken care of.
        if len(pending) != 1 or pending[0] is not delivery:
            return None
        if not self._idle or not self._is_near or self._is_watched or self._requests:
            return None
        self._drained = self._taken
        note_rows(1)
        client.begin_alone()
        try:
            return one.send(delivery)
        finally:
            client.end_alone()

    def _restore(self, delivery: Delivery) -> None:
        """An exception came from nowhere: the thread finds out what was under way. The record itself is not lost."""
        self._was_interrupted = True
        core = self._core
        owner = delivery[OWNER]
        if core is not None and owner is self:
            with core.accumulator.taking:
                if all(other is not delivery for other in core.accumulator.pending):
                    core.accumulator.pending.insert(0, delivery)
        elif core is not None and not owner.is_done and owner not in core.accumulator.incomplete:
            owner.finish(-1, -1, KafkaError(f"the record for {delivery[TOPIC]} was not sent: send() was interrupted"))
        self._wake()

    def _wait_alone(self, timeout: float | None) -> float:
        """Wait for the answer to the one request that is under way, and read it. Gives up when the thread works.

        For how many seconds it waited.
        """
        client, watch = self._client, None
        if client is None or not self._idle:
            return 0.0
        if not self._baton.acquire(True, _BATON_S_MAX):
            # Whatever keeps the thread: that it looks for this answer too.
            self._wake()
            return 0.0
        try:
            call, self._call = self._call, None
            # Resting, the thread has nothing under way; so all there is is this call, and it has no callbacks.
            if call is not None and self._idle and not self._is_watched and not call.done:
                watch = client.watch_alone(call)
                self._is_watched, self._was_nudged = watch is not None, False
        finally:
            self._baton.release()
        if watch is None:
            return 0.0
        has_come, begun = False, self._clock.monotonic()
        try:
            has_come = watch.wait(_WATCH_S_MAX if timeout is None else max(0.0, min(_WATCH_S_MAX, timeout)))
        finally:
            with self._baton:
                self._is_watched = False
                if self._was_nudged:
                    # The thread works again: it may have sent records with callbacks, which are its to call.
                    client.end_nudge()
                elif has_come:
                    try:
                        client.read_alone(watch)
                    except BaseException:
                        self._was_interrupted = True
                        self._wake()
                        raise
        if self._waiting:
            with self._lock:
                self._changed.notify_all()
        return self._clock.monotonic() - begun

    def _is_all_done(self, core: ProducerCore) -> bool:
        """Whether nothing is to be sent or under way, as far as can be seen without waiting for the thread."""
        if not self._idle or not self._baton.acquire(True, _BATON_S_MAX):
            return False
        try:
            return self._idle and core.is_idle and not self._requests
        finally:
            self._baton.release()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _rest(self, client: BlockingClient, wait_s: float) -> Events:
        """Wait for something to do, for so long at most: for the answers, too, that callers have left.

        As long as callers send and wait by themselves they are not disturbed.
        """
        before, self._rested_at = self._rested_at, self._taken
        self._is_near = self._one is not None and before != self._taken
        # Before anything can be due of what a caller's thread sends from now on, this one looks again.
        deadline = self._clock.monotonic() + min(wait_s, self._rest_s)
        while True:
            left = max(0.0, deadline - self._clock.monotonic())
            events = self._select(client, min(left, _NEAR_S) if self._is_near else left)
            if events or not self._is_near or left <= 0 or not (self._is_watched or self._rested_at != self._taken):
                return events
            self._rested_at = self._taken

    def _select(self, client: BlockingClient, wait_s: float) -> Events:
        """Wait for news, without the baton. A large request goes out in pieces, for which nothing is to be decided."""
        deadline = self._clock.monotonic() + wait_s
        while True:
            self._baton.release()
            try:
                events = client.select(wait_s)
            finally:
                self._baton.acquire()
            if not client.wrote(events):
                return events
            wait_s = max(0.0, deadline - self._clock.monotonic())

    def _take_back(self, client: BlockingClient) -> None:
        """The thread works again, and reads every answer. Who waits for one in `_wait_alone` would miss it."""
        if self._is_watched and not self._was_nudged:
            self._was_nudged = True
            client.nudge()
        client.rejoin()
