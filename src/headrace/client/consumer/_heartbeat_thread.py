"""The blocking consumer's one background thread: it sends heartbeats, on a connection of its own, and nothing else.

It shares no socket with the caller's thread, so a heartbeat never waits for a poll, nor a poll for a heartbeat.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.configs import ConnectionConfig
from headrace.client.consumer._heartbeats import GroupIdentity, Heartbeats
from headrace.errors import HeadraceError
from headrace.net.connection import Call
from headrace.net.node import Node
from headrace.runtime import Clock

log = logging.getLogger("headrace.client.consumer")

_WAIT_S_MAX = 5.0
_JOIN_S = 5.0
_AFTER_FAILURE_S = 0.5
_LEAVE_S = 1.0


class HeartbeatThread:
    """Runs while the consumer is in use; rests on its selector while no heartbeat is due."""

    def __init__(
        self,
        heartbeats: Heartbeats,
        config: ConnectionConfig,
        clock: Clock,
        on_news: Callable[[], None],
        reading: BlockingClient,
    ) -> None:
        """`reading` is the consumer's own connections, which this closes if nobody has the consumer any more."""
        self._heartbeats = heartbeats
        self._config = config
        self._clock = clock
        self._on_news = on_news
        self._reading = reading
        self._stopping = False
        self._stopped = threading.Event()
        self._client: BlockingClient | None = None
        self._broken = False
        self._is_leaving = False
        self._begun = threading.Lock()
        """Taken by the thread when it begins, for good."""
        self._thread = threading.Thread(target=self._run, name=f"headrace-heartbeat-{config.client_id}", daemon=True)
        self._client = self._fresh()
        heartbeats.on_change = self._wake

    def start(self) -> None:
        """Idempotent: whoever was interrupted here, or on the way here, does it again."""
        if not self._begun.locked():
            # It can be on its way already, without having begun.
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection. Never waits for a broker."""
        self._stopping = True
        self._stopped.set()
        self._wake()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def end_dropped(self) -> None:
        """See `Worker`: the member leaves its group. What it has read and not committed is for others to read again."""
        self._is_leaving = self._stopping = True
        self._wake()

    def end_at_exit(self, timeout_s: float) -> None:
        """See `Worker`."""
        if self._thread.is_alive():
            self.end_dropped()
            self._thread.join(min(timeout_s, _LEAVE_S))

    def abandon(self) -> None:
        """In a child after fork: the thread did not come along; its socket is closed here, without a word."""
        self._stopping = True
        if self._client is not None:
            self._client.abandon()

    def _wake(self) -> None:
        client = self._client
        if client is not None:
            client.wakeup()

    def _fresh(self) -> BlockingClient:
        return BlockingClient(self._config, clock=self._clock)

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        while not self._stopping:
            try:
                self._turn()
            except Exception:
                # As when the process has no descriptors left for now. Nobody would start another thread: without this
                # one the member would be removed from its group again and again.
                log.exception("a heartbeat could not be sent; the next one is tried with a new connection")
                self._broken = True
                self._stopped.wait(_AFTER_FAILURE_S)
        if self._client is not None:
            if self._is_leaving:
                self._leave(self._client)
                self._reading.close()
            self._client.close()

    def _leave(self, client: BlockingClient) -> None:
        found = self._heartbeats.farewell("the consumer was never closed")
        if found is not None:
            node, request = found
            with contextlib.suppress(HeadraceError):
                client.core.learn_node(node)
                client.request(node.id, request, timeout_ms=_LEAVE_S * 1000)

    def _turn(self) -> None:
        """Send what is due, and wait for the answer, or until something is due again."""
        client = self._client
        assert client is not None
        if self._broken:
            # A new client rather than a new connection: this one would begin to ask for metadata.
            client.close()
            client = self._client = self._fresh()
            self._broken = False
        now = self._clock.monotonic()
        due = self._heartbeats.next_request(now)
        if due is not None:
            self._send(client, *due)
        if self._heartbeats.has_news:
            self._on_news()
        left = min(self._heartbeats.due_at() - self._clock.monotonic(), _WAIT_S_MAX)
        client.poll(max(0.0, left))

    def _send(self, client: BlockingClient, node: Node, request: Any, identity: GroupIdentity) -> None:
        def done(call: Call) -> None:
            if call.error is not None:
                self._broken = True
                log.info("a heartbeat to %s failed: %s", node, call.error)
            if self._heartbeats.answered(identity, call.response, call.error, self._clock.monotonic()):
                self._on_news()

        client.core.learn_node(node)
        client.submit(node.id, request, done)
