"""The blocking producer's sender: one background thread, which does everything but append.

Four locks, each for one thing. `core_lock`: who works with the core and the connections, which is the thread, but not
while it waits for the sockets. `lock`: who waits for what, and how much may be taken; never held for long, nor while
code of the user's runs. `_ending`: who fails what is left at the end. The accumulator's `taking`: who takes records out
of `pending`, where a caller may make columns of them early.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.compiled import is_load_due, load_if_due, note_rows
from headrace.client.errors import BufferExhaustedError, ClientClosedError
from headrace.client.producer._base import ProducerSetup
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._core_lock import CoreLock
from headrace.client.producer._direct_sends import DirectSends
from headrace.client.producer._flushes import FlushWait
from headrace.client.producer._one_record import OneRecord
from headrace.client.producer._sender import NOTHING, Sender, SenderState
from headrace.client.producer.delivery import BatchDelivery, Delivery
from headrace.runtime import Clock

log = logging.getLogger("headrace.client.producer")

_WAKE_BYTES_MIN = 64 * 1024
_STEP_ROWS = 500
"""Below the 700 new objects after which Python's garbage collector looks at them for the first time."""
_STEP_BYTES_FIRST = 32 * 1024
_UNDRAINED_MAX = 20_000
_HANDOVER_S = 0.02
_JOIN_S = 5.0
_LOOK_S = 0.01
"""With requests under way the thread is not woken for records: it looks for them this often, and at every answer."""
_ROOM_LOOK_S = 0.1
_WAIT_LOOK_S = 1.0


class ThreadSender(Sender):
    """See the module. In a forked child it is of no use: the thread did not come along (`pid` says whose it is)."""

    __slots__ = (
        "_blocked",
        "_ending",
        "_setup",
        "_step_bytes",
        "_taking",
        "_wake_bytes",
        "_wake_limit",
        "changed",
        "client",
        "clock",
        "core_lock",
        "direct",
        "is_dropped",
        "lock",
        "pid",
        "requests",
        "thread",
        "waiting",
    )

    def __init__(self, setup: ProducerSetup, clock: Clock, state: SenderState = SenderState.NEW) -> None:
        super().__init__(setup.settings, state, clock)
        self._setup = setup
        self.clock = clock
        self.client: BlockingClient | None = None
        self.thread: threading.Thread | None = None
        self.pid = os.getpid()
        self.core_lock = CoreLock()
        self._ending = CoreLock()
        """Who fails what is left."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting = 0
        """How many threads wait for something that a turn may bring about; `_blocked`: for memory."""
        self._blocked = 0
        self.requests: list[Callable[[], None]] = []
        """What the thread is to do, besides sending."""
        self.direct = DirectSends(self)
        self._taking: threading.Lock | None = None
        self._wake_bytes = max(_WAKE_BYTES_MIN, self.settings.batch_size)
        self._wake_limit = NOTHING
        self._step_bytes = _STEP_BYTES_FIRST
        self.is_dropped = False
        """Nobody has the producer any more: this ends once everything is delivered."""

    # --- the callers' threads -----------------------------------------------------------------------------------------

    @property
    def waiting_for_room(self) -> int:
        return self._blocked

    @property
    def is_on_thread(self) -> bool:
        """Whether a delivery callback asks, or something else that runs on the sender's own thread."""
        return threading.current_thread() is self.thread

    def started(self) -> ProducerCore:
        """The core, with the thread running."""
        with self.lock:
            self._start()
            return self.open_core()

    def _start(self) -> None:
        """Make the connections' core and start the thread, once."""
        if self.state is not SenderState.NEW:
            return
        client = BlockingClient(self._setup.connection, clock=self.clock)
        core = ProducerCore(client.core, self.settings, self._setup.partitioner, self)
        self.client, self.core = client, core
        self.append = core.accumulator.pending.append
        self._taking = core.accumulator.taking = threading.Lock()
        # One record may be sent by its caller's thread: where nothing lingers, and no code of the user's is called.
        if client.can_be_alone and not (
            self.settings.linger_s or self._setup.partitioner or self.settings.transactional_id
        ):
            self.direct.one = OneRecord(core)
        name = f"headrace-{self._setup.connection.client_id}"
        self.thread = threading.Thread(target=self._run, args=(client, core), name=name, daemon=True)
        self.state = SenderState.OPEN
        self.thread.start()

    def send_now(self, delivery: Delivery) -> None:
        self.direct.send(delivery)

    def wake(self) -> None:
        self.is_idle = False
        client = self.client
        if client is not None:
            client.wakeup()
        # Looked at last: what is appended after the thread's last look is failed by who finds the state so, or by us.
        if self.state >= SenderState.ENDING:
            self.is_idle = True
            self._fail_rest(0.0)

    def _fail_rest(self, *timeout_s: float) -> None:
        """Without a thread, whatever is there has failed. Who cannot have the lock for that leaves it to who has.

        Callbacks are called meanwhile: they may wait for what another thread holds that has just appended, and must
        neither find a lock of the producer's held that `send` takes, nor be waited for by it.
        """
        core = self.core
        if core is not None:
            while self._ending.attempt(lambda: self._abort(core), *timeout_s) and core.accumulator.pending:
                # Appended since, by somebody who found the lock taken.
                pass
        with self.lock:
            self.changed.notify_all()

    def _abort(self, core: ProducerCore) -> bool:
        core.abort(self.why_closed())
        return True

    def make_room(self, size: int) -> None:
        """Start the thread, or wake it, or wait for room."""
        if self.taken <= self._wake_limit:
            self._compact(size)
            return
        if not self.is_on_thread:
            load_if_due()
        with self.lock:
            try:
                core = self.started()
                if core.transaction is not None:
                    core.transaction.check_send()
                if self.used_bytes(core) > self.settings.buffer_memory and self.used_bytes(core) > size:
                    self._wait_for_room(core, size)
                self._set_limit(core)
            except BaseException:
                self.taken -= size
                raise
            self.wake()
            if len(core.accumulator.pending) > _UNDRAINED_MAX and not self.is_on_thread:
                # Hand over to the sender now, not when the interpreter's switch interval ends: what is not drained yet
                # are objects, which the garbage collector walks over again and again while they are alive.
                self.waiting += 1
                try:
                    self.changed.wait(_HANDOVER_S)
                finally:
                    self.waiting -= 1

    def _compact(self, size: int) -> None:
        """Now and then on the way to a batch's worth: see `Accumulator.compact`."""
        core, taking = self.core, self._taking
        # Not tried for with `acquire`: Ctrl-C right behind that would leave it locked. Nobody holds it for long.
        if core is not None and taking is not None and not taking.locked():
            with taking:
                rows = core.accumulator.compact()
            note_rows(rows)
            # By the sizes of records that happen to come by, the next time is about so many records away.
            self._step_bytes = max(_STEP_ROWS, (3 * self._step_bytes + size * _STEP_ROWS) // 4)
        with self.lock:
            self.limit = min(self._wake_limit, self.taken + self._step_bytes)

    def refuse_records(self) -> None:
        """From now on `send` goes the slow way, and is refused there if the state says so."""
        with self.lock:
            self.limit = self._wake_limit = NOTHING

    def _set_limit(self, core: ProducerCore) -> None:
        """How much may be taken before somebody has to look again: enough to wake the sender for, or all there is."""
        is_refusing = core.transaction is not None and not core.transaction.accepts_records
        if self.state is not SenderState.OPEN or is_load_due() or is_refusing:
            self.limit = self._wake_limit = NOTHING
            return
        left = self.settings.buffer_memory - core.accumulator.buffered_bytes
        taken = max(self.taken, self.drained)
        self._wake_limit = taken + max(0, min(self._wake_bytes, left))
        self.limit = min(self._wake_limit, taken + self._step_bytes)

    def _wait_for_room(self, core: ProducerCore, size: int) -> None:
        if self.is_on_thread:
            raise BufferExhaustedError(
                "buffer.memory is full, and send() was called from a delivery callback, which cannot wait for room: "
                "hand the record to another thread, or raise buffer.memory"
            )
        deadline = self.clock.monotonic() + self.settings.max_block_ms / 1000
        # Some room at once: waking for every acknowledged batch would cost more than it moves.
        enough = self.settings.buffer_memory * 3 // 4
        self._blocked += 1
        try:
            while self.used_bytes(core) > enough and self.used_bytes(core) > size:
                left = deadline - self.clock.monotonic()
                if left <= 0:
                    if self.used_bytes(core) <= self.settings.buffer_memory:
                        return
                    raise BufferExhaustedError(
                        f"buffer.memory={self.settings.buffer_memory} stayed full for max.block.ms="
                        f"{self.settings.max_block_ms}: the brokers take less than is sent, or cannot be reached. "
                        "The record was not sent"
                    )
                self.wake()
                self.changed.wait(min(left, _ROOM_LOOK_S))
                core = self.open_core()
        finally:
            self._blocked -= 1

    def run_soon(self, request: Callable[[], None], what: str) -> None:
        """Have something done by the thread, by who is going to wait for it."""
        # Before anything is asked: what is refused is not to be done all the same.
        self._refuse_on_thread(what)
        self.requests.append(request)
        self.wake()

    def _refuse_on_thread(self, what: str) -> None:
        if self.is_on_thread:
            raise RuntimeError(
                f"{what} was called from a delivery callback, on the thread that would have to do the work"
            )

    def wait(self, condition: Callable[[], bool], timeout: float | None, what: str, waited: float = 0.0) -> None:
        """Until it holds, or for so many seconds, of which some are over; `TimeoutError` says what did not come."""
        self._refuse_on_thread(what)
        deadline = None if timeout is None else self.clock.monotonic() + timeout - waited
        with self.lock:
            self.waiting += 1
            try:
                while not condition():
                    if self.state >= SenderState.CLOSED:
                        self.open_core()
                        raise ClientClosedError(f"the producer was closed while {what} was waited for")
                    left = _WAIT_LOOK_S if deadline is None else deadline - self.clock.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{what} did not end within {timeout} s")
                    self.changed.wait(min(left, _WAIT_LOOK_S))
            finally:
                self.waiting -= 1

    def wait_for(self, delivery: Delivery | BatchDelivery, timeout: float | None) -> None:
        """Until it is delivered, or has failed."""
        waited = 0.0
        if self.direct.call is not None and isinstance(delivery, Delivery):
            waited = self.direct.wait(timeout)
            if delivery.done():
                return
        self.wait(delivery.done, timeout, "the delivery", waited)

    def delivery_future(self, delivery: Any) -> Any:
        raise TypeError("a blocking producer's delivery cannot be awaited: use result(), or headrace.aio.Producer")

    def flush(self, timeout: float | None) -> None:
        """Until everything that was appended before is delivered, or has failed."""
        if self.state is SenderState.NEW:
            return
        core = self.open_core()
        waited = 0.0 if self.direct.call is None else self.direct.wait(timeout)
        if self.direct.is_all_done():
            return
        waits: list[FlushWait] = []
        self.run_soon(lambda: waits.append(core.flush()), "flush")
        self.wait(lambda: bool(waits) and waits[0].is_done, timeout, "flush", waited)

    def close(self) -> None:
        """Take nothing more, and end the thread: what it has not delivered by now has failed."""
        with self.lock:
            self.advance(SenderState.CLOSED if self.state is SenderState.NEW else SenderState.CLOSING)
            self.limit = self._wake_limit = NOTHING
        if self.thread is None:
            return
        self.wake()
        if not self.is_on_thread:
            self.thread.join(_JOIN_S)
        with self.lock:
            self.changed.notify_all()

    def end_dropped(self) -> None:
        """See `Worker`."""
        self.is_dropped = True
        client = self.client
        if client is not None:
            client.wakeup()

    def end_at_exit(self, timeout_s: float) -> None:
        """See `Worker`. The thread still runs."""
        if self.pid != os.getpid() or self.state is not SenderState.OPEN:
            return
        try:
            self.flush(timeout_s)
        except TimeoutError:
            log.error("the program ends, and records were not delivered within %.0f s: close the producer", timeout_s)
        except ClientClosedError:
            pass  # what is left has failed, and is said below
        self.close()
        if (error := self.failures.hear_all()) is not None:
            log.error("%s", error)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, client: BlockingClient, core: ProducerCore) -> None:
        try:
            self._loop(client, core)
        except BaseException as error:
            log.exception("the producer's thread failed")
            self.error = error
        finally:
            with self.core_lock:
                self._end(client)

    def _end(self, client: BlockingClient) -> None:
        """The thread is about to end: nothing may be left waiting for it, now or later."""
        try:
            self.direct.take_back(client)
            with self.lock:
                self.limit = self._wake_limit = NOTHING
                # First the state, then the look, as in `_loop`.
                self.advance(SenderState.ENDING)
                self.is_idle = True
            self._fail_rest()
        finally:
            with self.lock:
                self.advance(SenderState.CLOSED if self.error is None else SenderState.FAILED)
                self.changed.notify_all()
            client.close()
            if self.is_dropped:
                self._setup.close()

    def _loop(self, client: BlockingClient, core: ProducerCore) -> None:
        opened = self.clock.monotonic()
        was_idle = True
        with self.core_lock:
            while self.state is SenderState.OPEN:
                # Records that came since the last drain are as old as that; after a rest, the first one has just come.
                now = self.clock.monotonic()
                wait_s = client.prepare(self._turn(core, now if was_idle else opened))
                opened = now
                was_idle = not core.has_work
                if was_idle:
                    # First the flag, then the look: whoever appends looks at the flag afterwards, so one of both
                    # notices.
                    self.is_idle = True
                    if core.accumulator.pending or self.requests or self.state is not SenderState.OPEN:
                        self.is_idle = False
                        continue
                    if self.is_dropped:
                        self.advance(SenderState.CLOSING)
                        continue
                if was_idle:
                    events = self.direct.rest(client, wait_s)
                else:
                    events = self.direct.select(client, min(wait_s, _LOOK_S))
                self.is_idle = False
                self.direct.take_back(client)
                client.serve(events)

    def _turn(self, core: ProducerCore, created: float) -> float:
        """One turn of the core, with all that was asked of the thread; seconds until something is due by itself."""
        self.direct.recover(core)
        while self.requests:
            self.requests.pop(0)()
        self.drained = self.taken
        note_rows(len(core.accumulator.pending))
        core.memory_is_short = self._blocked > 0
        due = core.turn(created)
        core.settle_flushes()
        ended, core.accumulator.interruption = core.accumulator.interruption, None
        if ended is not None:
            log.error("a delivery callback raised %r, which does not end the producer's thread", ended)
        with self.lock:
            self._set_limit(core)
            if self.waiting or self._blocked:
                self.changed.notify_all()
        return due
