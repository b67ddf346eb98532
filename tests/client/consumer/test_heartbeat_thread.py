"""The thread that sends heartbeats: whatever happens to it, the next one is sent."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import VirtualClock
from tests.waiting import DEADLINE_S

import headrace.client.consumer._heartbeat_thread as module
from headrace.client.configs import ConnectionConfig
from headrace.client.consumer._classic_heartbeats import ClassicHeartbeats
from headrace.client.consumer._heartbeat_thread import HeartbeatThread
from headrace.client.consumer._heartbeats import GroupIdentity
from headrace.client.consumer.config import read_consumer_config
from headrace.errors import ErrorCode, NetworkError
from headrace.net.node import Node
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.runtime.real import RealClock


@pytest.mark.parametrize("at", ["poll", "fresh"])
def test_a_shortage_of_descriptors_does_not_end_the_heartbeats(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = threading.Event()
    failures = {"poll": 1, "fresh": 3 if at == "fresh" else 0}

    class Client:
        """A client that finds no descriptor: to wait with; or, when another is to be made after that, to begin with."""

        made = 0

        def __init__(self, *_: Any, **__: Any) -> None:
            self.core = self
            self.unanswered: list[Any] = []
            Client.made += 1
            if Client.made > 1:
                self._fail("fresh")

        def _fail(self, what: str) -> None:
            if failures[what]:
                failures[what] -= 1
                raise OSError(errno.EMFILE, "no descriptors")

        def learn_node(self, node: Node) -> None: ...

        def submit(self, node_id: int, request: Any, done: Any) -> None:
            self.unanswered.append(done)
            if not any(failures.values()):
                sent.set()

        def poll(self, timeout_s: float) -> None:
            self._fail("poll")

        def wakeup(self) -> None: ...

        def close(self) -> None:
            unanswered, self.unanswered = self.unanswered, []
            for done in unanswered:
                done(SimpleNamespace(error=NetworkError("the client was closed"), response=None))

    monkeypatch.setattr(module, "BlockingClient", Client)
    monkeypatch.setattr(module, "_AFTER_FAILURE_S", 0.001)
    clock = RealClock()
    heartbeats = ClassicHeartbeats("g", interval_ms=20, session_timeout_ms=60_000, max_poll_interval_ms=600_000)
    config = ConnectionConfig.of(read_consumer_config({"bootstrap.servers": "nowhere:1"}))
    thread = HeartbeatThread(heartbeats, config, clock, lambda: None, None)  # type: ignore[arg-type]
    heartbeats.start(GroupIdentity(1, "member"), Node(1, "nowhere", 1), clock.monotonic())
    thread.start()
    assert sent.wait(DEADLINE_S / 2)
    thread.stop()


def test_news_that_comes_just_before_a_poll_waits_is_not_waited_out() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 1)
    with blocking_consumer(cluster, group_id="g", fetch_max_wait_ms=20_000) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(5):
            pass
        core = consumer._core
        assert core is not None
        heartbeats, membership, due_s = core.heartbeats, core.membership, core.due_s
        assert heartbeats is not None
        assert membership is not None

        def interrupted() -> float:
            """The last thing before the wait: then the heartbeats' thread hears of a rebalance, and says so."""
            core.due_s = due_s  # type: ignore[method-assign]  # as it was
            heartbeats._sent_to = heartbeats._node
            response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            assert heartbeats.answered(membership.identity, response, None, cluster.clock.now)
            consumer._heartbeat_news()
            return due_s()

        core.due_s = interrupted  # type: ignore[method-assign]  # once
        begun, joined = cluster.clock.now, len(cluster.names("JoinGroup"))
        consumer.poll(0.5)
        assert len(cluster.names("JoinGroup")) > joined
        assert cluster.clock.now < begun + 1
