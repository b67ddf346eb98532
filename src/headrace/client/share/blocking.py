"""`headrace.ShareConsumer`: the blocking share consumer. Everything runs on the caller's thread, but for heartbeats
between its calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Generic

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.consumer.errors import WakeupError
from headrace.client.share._base import ShareConsumerBase
from headrace.client.share._core import ShareCore
from headrace.client.share.records import ShareRecord
from headrace.client.typed import K, V
from headrace.client.unclosed import Watch, weakly
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.runtime import Clock
from headrace.runtime.real import RealClock
from headrace.topics import TopicPartition

_ITERATION_POLL_S = 1.0
_BETWEEN_CALLS_S = 0.5
"""How often heartbeats are looked after while the application does something else."""
_CLOSE_TIMEOUT_S = 30.0


class ShareConsumer(ShareConsumerBase, Generic[K, V]):
    """Reads records as a member of a share group (Apache Kafka 4.2 and later, and Headrace's brokers).

        with ShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "mails"}) as consumer:
            consumer.subscribe(["mails"])
            for record in consumer:
                send(record.value)

    Any number of members read each partition. A record is one member's until it is acknowledged, or its lock has ended;
    then another gets it. What a poll gave is accepted by the next one; with `share.acknowledgement.mode=explicit` it is
    to be said of each record: ACCEPT, RELEASE, REJECT or RENEW. For one thread at a time. All time-outs are in seconds.
    """

    _identify = staticmethod(get_ident)
    _kind = "thread"

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, clock: Clock | None = None, **keywords: Any
    ) -> None:
        super().__init__(config, keywords)
        self._clock = clock or RealClock()
        self._client: BlockingClient | None = None
        self._heartbeats: _BetweenCalls | None = None
        self._changed = False
        # Held by whoever moves bytes: the caller, or between its calls the thread that looks after heartbeats.
        self._moving = threading.Lock()
        self._watch: Watch | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, keep: bool = False) -> list[ShareRecord[K, V]]:
        """Records for this consumer: at once if there are some, else what comes within the time-out; perhaps none.

        `keep` is for whoever hands records on, with explicit acknowledgement: those of earlier polls stay this
        consumer's as long as their locks last.
        """
        with self._exclusive() as core:
            core.begin_poll(keeps=keep)
            return self._wait_for(core, core.take, timeout) or []

    def __iter__(self) -> Iterator[ShareRecord[K, V]]:
        """Records one by one, without end (until close). With implicit acknowledgement, all of a poll are accepted once
        the last of them was handled."""
        while not self._closed:
            yield from self.poll(_ITERATION_POLL_S)

    # --- saying what became of records --------------------------------------------------------------------------------

    def commit_sync(self, timeout: float | None = None) -> dict[TopicPartition, HeadraceError | None]:
        """Say at once what became of records, and wait for the answers: None for each partition where it counts, else
        why not. Then they are delivered again."""
        with self._exclusive() as core:
            core.begin_commit()
            wait_s = self._setup.settings.api_timeout_s if timeout is None else timeout
            if self._wait_for(core, lambda: core.is_said, wait_s) is None:
                raise RequestTimedOutError(f"what was said of records was not answered within {wait_s:g} s")
            return core.results()

    def commit_async(self) -> None:
        """Say at once what became of records; the callback hears of the answers, from within a later call."""
        with self._exclusive() as core, self._bytes_moving():
            core.begin_commit()
            core.tick(self._clock.monotonic())
            self._poll_client(0.0)

    # --- waking, ending -----------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End a `poll` or `commit_sync` that waits, from any thread: it raises WakeupError."""
        self._wakeup_asked = True
        if self._client is not None:
            self._client.wakeup()

    def close(self, timeout: float = _CLOSE_TIMEOUT_S) -> None:
        """Say what became of records, give back those that were not finished, and leave the group."""
        if self._closed:
            return
        core, client = self._core, self._client
        try:
            if core is not None and client is not None and self._pid == os.getpid():
                with self._exclusive():
                    self._wakeup_asked = False
                    deadline = self._clock.monotonic() + timeout
                    # A fetch that is under way may bring records: they are given back with the rest.
                    self._wait_for(core, lambda: core.is_quiet, timeout, is_ticking=False)
                    with self._bytes_moving():
                        calls = core.begin_close()
                    left_s = max(0.0, deadline - self._clock.monotonic())
                    self._wait_for(core, lambda: all(call.done for call in calls), left_s, is_ticking=False)
        finally:
            self._closed = True
            if self._watch is not None:
                self._watch.end()
            if self._heartbeats is not None:
                self._heartbeats.stop()
            if client is not None:
                with self._bytes_moving():
                    client.close()

    def __enter__(self) -> ShareConsumer[K, V]:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()

    # --- moving -------------------------------------------------------------------------------------------------------

    def _connected(self) -> ShareCore:
        if self._core is None:
            client = self._client = BlockingClient(self._setup.connection, clock=self._clock)
            setup = self._setup
            core = self._core = ShareCore(client.core, setup.settings, setup.deserializers, weakly(self._notify))
            core.on_commit = self._on_commit
            self._heartbeats = _BetweenCalls(client, core, self._moving, self._clock)
            self._watch = Watch(self, self._heartbeats, f"the share consumer of group {self._setup.settings.group_id}")
            self._heartbeats.start()
        return self._core

    def _notify(self) -> None:
        self._changed = True

    def _wait_for(self, core: ShareCore, look: Callable[[], Any], timeout_s: float, *, is_ticking: bool = True) -> Any:
        """What `look` gives once it gives something; None when the time is over."""
        deadline = self._clock.monotonic() + timeout_s
        with self._bytes_moving():
            while True:
                if self._wakeup_asked:
                    self._wakeup_asked = False
                    raise WakeupError("wakeup() was called")
                now = self._clock.monotonic()
                found = look()
                if found:
                    if is_ticking:
                        core.tick(now)
                    return found
                due_s = core.tick(now) if is_ticking else 60.0
                left_s = deadline - now
                if left_s <= 0:
                    return None
                self._changed = False
                self._poll_client(min(left_s, due_s))

    def _poll_client(self, wait_s: float) -> None:
        assert self._client is not None
        until = self._clock.monotonic() + max(0.0, wait_s)
        self._client.poll_for_news(max(0.0, wait_s))
        while not self._changed and not self._wakeup_asked:
            left_s = until - self._clock.monotonic()
            if left_s <= 0:
                return
            self._client.poll_for_news(left_s)

    @contextmanager
    def _bytes_moving(self) -> Iterator[None]:
        with self._moving:
            yield


class _BetweenCalls:
    """Sends heartbeats while the application is not inside the consumer. Does not hold the consumer."""

    def __init__(self, client: BlockingClient, core: ShareCore, moving: threading.Lock, clock: Clock) -> None:
        self._client, self._core, self._moving, self._clock = client, core, moving, clock
        self._ending = threading.Event()
        self._is_dropped = False
        self._thread = threading.Thread(target=self._run, name="headrace-share-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=_BETWEEN_CALLS_S * 4)

    def end_dropped(self) -> None:
        self._is_dropped = True
        self._ending.set()

    def end_at_exit(self, timeout_s: float) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(_BETWEEN_CALLS_S):
            if self._moving.acquire(blocking=False):
                try:
                    if not self._ending.is_set():
                        self._core.membership.tick(self._clock.monotonic())
                        self._client.poll(0.0)
                finally:
                    self._moving.release()
        if self._is_dropped:
            # Its connections end with it, and so do its locks.
            self._client.close()
