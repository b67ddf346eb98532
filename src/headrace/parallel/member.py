"""One member of the group, shared by the poller and the workers: the core under its lock, and the producer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from headrace.client.producer.blocking import Producer
from headrace.parallel.core import ParallelCore
from headrace.parallel.letters import messages_of
from headrace.parallel.metrics import Snapshot
from headrace.parallel.retries import Outgoing
from headrace.parallel.work import WorkChunk
from headrace.runtime import Clock
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

_LOOK_AGAIN_S = 0.05


class Member:
    """The core, one lock around it, and who has to be told when something changes."""

    def __init__(self, core: ParallelCore, clock: Clock, group: str, producer: Producer | None, workers: int) -> None:
        self.core = core
        self.clock = clock
        self.group = group
        self.producer = producer
        self.workers = workers
        self.is_transactional = False
        """Whether the poller produces what is diverted, together with the offsets that pass it."""
        self.lock = threading.Lock()
        self.work_added = threading.Condition(self.lock)
        self.work_ended = threading.Condition(self.lock)
        self.idle = 0
        self.reading = 0
        """Workers within a range of offsets, which is no chunk of the core's."""
        self.is_closed = False
        self.wake_workers: Callable[[int], None] = self._notify
        """Tell so many idle workers (called with the lock held)."""
        self.wake_poller: Callable[[], None] = lambda: None
        self.poller_waits = False
        self.failure: BaseException | None = None
        """What a worker ended with, which should never happen: the poller raises it."""
        self._waiters = 0

    def _notify(self, count: int) -> None:
        self.work_added.notify(count)

    # --- for workers ------------------------------------------------------------------------------------------------

    def exchange(self, done: WorkChunk | None, worker: Any) -> WorkChunk | None:
        """Hand in what was done, get more; waits for it. None: the worker is to end."""
        with self.lock:
            if done is not None:
                self._take_in(done)
                if done.abandoned:
                    # Somebody else has this worker's place.
                    return None
            if self.is_transactional or not self.core.failures.outbox:
                return self._wait_for_work(worker)
        # What is diverted is sent outside the lock: sending may wait for room in the producer.
        self.send_diverted()
        with self.lock:
            return self._wait_for_work(worker)

    def hand_in(self, done: WorkChunk) -> None:
        """Hand in what was done, and take nothing."""
        with self.lock:
            self._take_in(done)
            self.announce()

    def _wait_for_work(self, worker: Any) -> WorkChunk | None:
        while not self.is_closed:
            chunk = self.core.take(self.clock.monotonic())
            if chunk is not None:
                chunk.worker = worker
                self._share()
                return chunk
            self.idle += 1
            try:
                self.work_added.wait()
            finally:
                self.idle -= 1
        return None

    def exchange_now(self, done: WorkChunk | None, worker: Any) -> WorkChunk | None:
        """The same without waiting: None when there is nothing to do now, and the worker counts as idle."""
        with self.lock:
            if done is not None:
                self._take_in(done)
                if done.abandoned:
                    return None
            chunk = None if self.is_closed else self.core.take(self.clock.monotonic())
            if chunk is None:
                self.idle += 1
            else:
                chunk.worker = worker
                self._share()
            if self.core.failures.outbox:
                # Sending may wait, which a loop must not: the poller does it.
                self._wake_poller()
        return chunk

    def _take_in(self, chunk: WorkChunk) -> None:
        self.core.complete(chunk, self.clock.monotonic())
        if self._waiters:
            self.work_ended.notify_all()
        if self.core.pressure.resumable:
            self._wake_poller()

    def broke(self, error: BaseException) -> None:
        """A worker cannot go on, not because of its handler but because of us."""
        log.error("a worker ended: %r", error)
        self.failure = error
        self.wake_poller()

    def _wake_poller(self) -> None:
        if self.poller_waits:
            self.poller_waits = False
            self.wake_poller()

    def _share(self) -> None:
        """There is more in line than one worker takes, and others have nothing to do."""
        if self.idle and self.core.ready:
            self.wake_workers(1)

    # --- for the poller ---------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Work has come (called with the lock held): wake as many workers as there is work for, and no more."""
        ready = self.core.ready
        if self.idle and ready:
            self.wake_workers(min(self.idle, -(-ready // self.core.chunk_runs)))

    def send_diverted(self) -> None:
        """Produce what goes to the retry topic or the dead letters. Any thread may call this."""
        outbox = self.core.failures.outbox
        while not self.is_transactional:
            with self.lock:
                if not outbox:
                    return
                outgoing = outbox.popleft()
                is_ours = outgoing.entry.tracker.alive and outgoing.entry.record is not None
            if is_ours:
                self._send(outgoing)

    def _send(self, outgoing: Outgoing) -> None:
        assert self.producer is not None, "a record was diverted, but there is no topic for it"
        messages = messages_of(outgoing, self.group, self.clock.now_ms())
        left = len(messages)
        failed: BaseException | None = None

        def delivered(error: BaseException | None, _: Any) -> None:
            nonlocal left, failed
            with self.lock:
                left -= 1
                failed = failed or error
                if left:
                    return
                self.core.failures.produced(outgoing, failed, self.clock.monotonic())
                self.announce()
                if self._waiters:
                    self.work_ended.notify_all()

        for topic, value, key, headers in messages:
            try:
                self.producer.send(topic, value, key, headers=headers, on_delivery=delivered)
            except Exception as error:  # noqa: BLE001 - a full buffer or a closed producer: tried again like any failure
                delivered(error, None)

    def drain(self, partitions: Iterable[TopicPartition], seconds: float, keep_on: Callable[[], None]) -> bool:
        """Wait until nothing of these runs, at most so long. `keep_on` is called every now and then."""
        names = list(partitions)
        deadline = self.clock.monotonic() + seconds
        with self.lock:
            self._waiters += 1
        try:
            while True:
                keep_on()
                with self.lock:
                    if self.core.is_drained(names):
                        return True
                    left = deadline - self.clock.monotonic()
                    if left <= 0:
                        return False
                    self.work_ended.wait(min(left, _LOOK_AGAIN_S))
        finally:
            with self.lock:
                self._waiters -= 1

    def close(self) -> None:
        """Workers that ask for more are told to end."""
        with self.lock:
            self.is_closed = True
            self.work_added.notify_all()
            self.wake_workers(max(1, self.idle))

    def snapshot(self) -> Snapshot:
        with self.lock:
            now = self.clock.monotonic()
            return Snapshot(
                group=self.group,
                workers=self.workers,
                busy=min(self.workers, len(self.core.running) + self.reading),
                buffered_records=self.core.pressure.records,
                buffered_bytes=self.core.pressure.bytes,
                counters=type(self.core.counters)(**_values(self.core.counters)),
                partitions=self.core.states(now),
            )


def _values(counters: Any) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__slots__}
