"""One record at a time, without the producer's thread: its caller sends it, waits for the answer and reads it.

Handing a record to another thread and getting the answer back takes longer than all that is to be done with it. So the
caller does it all while the thread rests, and the thread takes everything back as soon as it has something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.compiled import note_rows
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._one_record import OneRecord
from headrace.client.producer.delivery import CALLBACK, OWNER, TOPIC, Delivery
from headrace.errors import KafkaError
from headrace.net.blocking import Events, LoneConnection
from headrace.net.connection import Call

if TYPE_CHECKING:
    from headrace.client.producer._thread_sender import ThreadSender

_LOOK_S = 0.02
"""How often the resting thread looks for answers that callers were to read, as long as they send by themselves."""
_LOCK_S_MAX = 0.001
"""A look of the resting thread is over sooner; who would wait longer waits for real work, and leaves it."""
_WATCH_S_MAX = 1.0


class DirectSends:
    """A part of the thread's sender. What is said of the lock is its `core_lock`."""

    __slots__ = (
        "_is_watched",
        "_rest_s",
        "_sender",
        "_taken_at_rest",
        "_was_interrupted",
        "call",
        "is_looking",
        "one",
        "was_called_off",
    )

    def __init__(self, sender: ThreadSender) -> None:
        self._sender = sender
        self.one: OneRecord | None = None
        """Sends a record from its caller's thread; None where that may not be."""
        self.call: Call | None = None
        """What a caller's thread has sent by itself, and nobody waits for yet."""
        self.is_looking = False
        """Whether the thread looks again soon by itself, so that a caller may send a record without waking it."""
        self._is_watched = False
        """Whether a caller's thread waits for an answer by itself; `was_called_off`: and was told to leave it."""
        self.was_called_off = False
        self._was_interrupted = False
        """Whether a caller's thread was stopped (by Ctrl-C) in the middle of what is to be done at once."""
        self._taken_at_rest = 0
        settings = sender.settings
        # Before anything can be due of what a caller's thread has sent while the sender's rests, that looks again.
        self._rest_s = min(settings.request_timeout_ms / 1000, settings.delivery_timeout_s)

    # --- the caller -------------------------------------------------------------------------------------------------

    def send(self, delivery: Delivery) -> None:
        """The thread rests: send the record from here, if nothing but the socket is needed for that; else wake it."""
        sender, call = self._sender, None
        # With others about, the thread sends what they have together.
        is_alone = self.is_looking and not self._is_watched and not sender.waiting
        if is_alone and delivery[CALLBACK] is None:
            try:
                call = sender.core_lock.attempt(lambda: self._send(delivery), _LOCK_S_MAX)
            except BaseException:
                sender.wake()
                raise
        if call is None:
            sender.wake()

    def _send(self, delivery: Delivery) -> Call | None:
        """The call that it went with, if it did. With the lock."""
        try:
            self.call = self._sent(delivery)
        except BaseException:
            self._restore(delivery)
            raise
        return self.call

    def _sent(self, delivery: Delivery) -> Call | None:
        sender, one = self._sender, self.one
        core, client = sender.core, sender.client
        if one is None or core is None or client is None:
            return None
        pending = core.accumulator.pending
        # Only with the lock are records taken out, so the first one is still this one, or it is taken care of.
        if len(pending) != 1 or pending[0] is not delivery:
            return None
        if not sender.is_idle or not self.is_looking or self._is_watched or sender.requests:
            return None
        sender.drained = sender.taken
        note_rows(1)
        client.begin_alone()
        try:
            return one.send(delivery)
        finally:
            client.end_alone()

    def _restore(self, delivery: Delivery) -> None:
        """An exception came from nowhere: the thread finds out what was under way. The record itself is not lost."""
        self._was_interrupted = True
        core = self._sender.core
        owner = delivery[OWNER]
        if core is not None and owner is core.sender:
            with core.accumulator.taking:
                if all(other is not delivery for other in core.accumulator.pending):
                    core.accumulator.pending.insert(0, delivery)
        elif core is not None and not owner.is_done and owner not in core.accumulator.incomplete:
            owner.finish(-1, -1, KafkaError(f"the record for {delivery[TOPIC]} was not sent: send() was interrupted"))

    def wait(self, timeout: float | None) -> float:
        """Wait for the answer to the one request that is under way, and read it. Gives up when the thread works.

        For how many seconds it waited.
        """
        sender = self._sender
        client, clock = sender.client, sender.clock
        if client is None or not sender.is_idle:
            return 0.0
        watch = sender.core_lock.attempt(lambda: self._watch(client), _LOCK_S_MAX)
        if watch is None:
            if self.call is not None:
                # Whatever keeps the thread: that it looks for this answer too.
                sender.wake()
            return 0.0
        has_come, begun = False, clock.monotonic()
        try:
            has_come = watch.wait(_WATCH_S_MAX if timeout is None else max(0.0, min(_WATCH_S_MAX, timeout)))
        finally:
            is_news = has_come
            sender.core_lock.attempt(lambda: self._read(client, watch, is_news))
        if sender.waiting:
            with sender.lock:
                sender.changed.notify_all()
        return clock.monotonic() - begun

    def _watch(self, client: BlockingClient) -> LoneConnection | None:
        """What to wait for, if the thread rests and nobody else waits. With the lock."""
        call, self.call = self.call, None
        # Resting, the thread has nothing under way; so all there is is this call, and it has no callbacks.
        if call is None or call.done or not self._sender.is_idle or self._is_watched:
            return None
        watch = client.watch_alone(call)
        self._is_watched, self.was_called_off = watch is not None, False
        return watch

    def _read(self, client: BlockingClient, watch: LoneConnection, has_come: bool) -> None:
        """The wait is over. With the lock."""
        self._is_watched = False
        if self.was_called_off:
            # The thread works again: it may have sent records with callbacks, which are its to call.
            client.end_nudge()
        elif has_come:
            try:
                client.read_alone(watch)
            except BaseException:
                self._was_interrupted = True
                self._sender.wake()
                raise

    def is_all_done(self) -> bool:
        """Whether nothing is to be sent or under way, as far as can be seen without waiting for the thread."""
        sender = self._sender
        return sender.is_idle and sender.core_lock.attempt(self._is_all_done, _LOCK_S_MAX) is True

    def _is_all_done(self) -> bool:
        sender, core = self._sender, self._sender.core
        return core is not None and sender.is_idle and core.is_idle and not sender.requests

    # --- the thread -------------------------------------------------------------------------------------------------

    def rest(self, client: BlockingClient, wait_s: float) -> Events:
        """Wait for something to do, for so long at most: for the answers, too, that callers have left.

        As long as callers send and wait by themselves they are not disturbed.
        """
        sender = self._sender
        before, self._taken_at_rest = self._taken_at_rest, sender.taken
        self.is_looking = self.one is not None and before != sender.taken
        # Before anything can be due of what a caller's thread sends from now on, this one looks again.
        deadline = sender.clock.monotonic() + min(wait_s, self._rest_s)
        while True:
            left = max(0.0, deadline - sender.clock.monotonic())
            events = self.select(client, min(left, _LOOK_S) if self.is_looking else left)
            is_used = self._is_watched or self._taken_at_rest != sender.taken
            if events or not self.is_looking or left <= 0 or not is_used:
                return events
            self._taken_at_rest = sender.taken

    def select(self, client: BlockingClient, wait_s: float) -> Events:
        """Wait for news, without the lock. A large request goes out in pieces, for which nothing is to be decided."""
        clock, lock = self._sender.clock, self._sender.core_lock
        deadline = clock.monotonic() + wait_s
        while True:
            lock.release()
            try:
                events = client.select(wait_s)
            finally:
                lock.acquire()
            if not client.wrote(events):
                return events
            wait_s = max(0.0, deadline - clock.monotonic())

    def take_back(self, client: BlockingClient) -> None:
        """The thread works again, and reads every answer. Who waits for one in `wait` would miss it."""
        if self._is_watched and not self.was_called_off:
            self.was_called_off = True
            client.nudge()
        client.rejoin()

    def recover(self, core: ProducerCore) -> None:
        """If a caller's thread was interrupted, whatever was under way is sent again."""
        if self._was_interrupted:
            self._was_interrupted = False
            core.recover()
