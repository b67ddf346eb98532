"""`headrace.Consumer` itself over a cluster in memory, under virtual time: its sockets and its thread are replaced."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.client.consumer.fake_group import FakeGroupCluster

import headrace.client.consumer.blocking as consumer_module
import headrace.client.ranges as ranges_module
from headrace.client.cluster.core import ClientCore, coordinator_key
from headrace.client.consumer._heartbeats import Heartbeats
from headrace.client.consumer.blocking import Consumer


class FakeClient:
    """What `Consumer` asks of a `BlockingClient`. The clock moves when nothing else can happen."""

    def __init__(self, cluster: FakeGroupCluster, config: Any) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        self.core = ClientCore(config, cluster.clock, random.Random(5), cluster)
        self.beats: Heartbeats | None = None
        self.closed = False
        cluster.client = self.core

    def poll(self, timeout_s: float) -> None:
        self.cluster.client = self.core
        # A little in any case: times that differ by less than a number can say would be waited for for ever.
        self.clock.now += 0.000001
        until = self.clock.now + timeout_s
        failures = self.core.failures
        due = self.core.tick()
        if self.core.failures != failures:
            return
        while True:
            due = min(due, self._beat(), self.cluster.release() - self.clock.now)
            if self.cluster.events:
                # As the real driver does: interrupted from here on, what was read of an answer is gone.
                was_moving, self.core.is_moving = self.core.is_moving, True
                self.cluster.events.popleft()()
                self.core.is_moving = was_moving
                break
            if self.clock.now >= until:
                break
            self.clock.now = min(until, self.clock.now + max(0.001, due))
            due = self.core.tick()
        self.core.tick()

    poll_for_news = poll

    def _beat(self) -> float:
        beats = self.beats
        if beats is None:
            return 5.0
        due = beats.next_request(self.clock.now)
        if due is not None:
            node, request, identity = due
            self.core.learn_node(node)

            def done(call: Any) -> None:
                beats.answered(identity, call.response, call.error, self.clock.now)

            self.core.submit(coordinator_key(node.id), request, done)
        return max(0.0, beats.due_at() - self.clock.now)

    def wakeup(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        self.core.close()

    def abandon(self) -> None:
        pass


@contextmanager
def range_clients(cluster: FakeGroupCluster) -> Iterator[None]:
    """Range readers that are made in here read from the cluster."""
    with patch.object(ranges_module, "BlockingClient", lambda config, **_: FakeClient(cluster, config)):
        yield


class _NoWatch:
    def __init__(self, *_: Any) -> None:
        pass

    def end(self) -> None:
        pass


class _NoThread:
    def __init__(self, heartbeats: Heartbeats, *_: Any) -> None:
        self.heartbeats = heartbeats

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


@contextmanager
def blocking_consumer(cluster: FakeGroupCluster, **config: Any) -> Iterator[Consumer]:
    """A consumer over the cluster; it is closed by the caller, or forgotten."""
    made: list[FakeClient] = []

    def client(config: Any, **_: Any) -> FakeClient:
        made.append(FakeClient(cluster, config))
        return made[-1]

    def thread(heartbeats: Heartbeats, *rest: Any) -> _NoThread:
        made[-1].beats = heartbeats
        return _NoThread(heartbeats)

    config.setdefault("bootstrap_servers", ",".join(f"fake:{9000 + b}" for b in cluster.brokers))
    config.setdefault("auto_offset_reset", "earliest")
    with (
        patch.object(consumer_module, "BlockingClient", client),
        patch.object(consumer_module, "HeartbeatThread", thread),
        patch.object(consumer_module, "Watch", _NoWatch),
    ):
        yield Consumer(clock=cluster.clock, **config)
