"""The timeline of a group to which known things happen, on Headrace and on the Apache Kafka that is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import Consumer, Producer
from headrace.cli.group_history import group_log
from headrace.client.admin import Admin, NewTopic
from headrace.client.history import CauseKind, GroupTimeline, timeline
from headrace.testing.embedded import broker

ENVIRONMENT = "HEADRACE_TEST_KAFKA"
PARTITIONS = 6


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool, int]]:
    """Where, whether its coordinator writes down causes, and the shortest session that it takes."""
    if request.param == "kafka":
        address = os.environ.get(ENVIRONMENT)
        if not address:
            pytest.skip(f"{ENVIRONMENT} names no Apache Kafka")
        yield address, False, 6_000
        return
    with broker(overrides={"group.min.session.timeout.ms": "1000"}) as kafka:
        yield kafka.address, True, 2_000


class Looping:
    """A member in this process that reads and commits until it is told to stop, or holds still for a while."""

    def __init__(self, address: str, group: str, topic: str, client: str, **settings: Any) -> None:
        self._settings = {
            "bootstrap.servers": address,
            "group.id": group,
            "client.id": client,
            "auto.commit.interval.ms": 200,
            "heartbeat.interval.ms": 300,
            "auto.offset.reset": "earliest",
            **settings,
        }
        self._settings = {name: value for name, value in self._settings.items() if value is not None}
        self._topic = topic
        self._stop, self._still = threading.Event(), threading.Event()
        self.owns = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Consumer(self._settings) as consumer:
            consumer.subscribe([self._topic])
            while not self._stop.is_set():
                consumer.poll(timeout=0.1)
                self.owns = len(consumer.assignment())
                while self._still.is_set() and not self._stop.is_set():
                    self._stop.wait(0.05)

    def hold_still(self, *, yes: bool = True) -> None:
        (self._still.set if yes else self._still.clear)()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.slow
def test_killed_slow_and_restarted_members_are_told_apart(place: tuple[str, bool, int]) -> None:
    address, is_exact, session_ms = place
    group, topic = f"group-{uuid.uuid4().hex[:8]}", f"topic-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).all()

        def told() -> GroupTimeline:
            return timeline(group_log(admin, {"bootstrap.servers": address}, group))

        def of(kind: CauseKind, client: str) -> Callable[[], bool]:
            return lambda: any(
                cause.kind is kind and cause.client == client for one in told().rebalances for cause in one.causes
            )

        stop = threading.Event()
        writing = threading.Thread(target=_write, args=(address, topic, stop))
        writing.start()
        steady = Looping(address, group, topic, "steady", **{"session.timeout.ms": session_ms})
        others: list[Looping] = []
        try:
            eventually(lambda: steady.owns == PARTITIONS, "the first member has all")
            command = [sys.executable, str(Path(__file__).parent / "consuming.py")]
            killed = subprocess.Popen(
                [*command, address, group, topic, "killed", str(session_ms)], stdout=subprocess.PIPE
            )
            assert killed.stdout is not None
            killed.stdout.readline()
            eventually(of(CauseKind.JOINED, "killed"), "it has joined")
            eventually(lambda: steady.owns == PARTITIONS // 2, "both have some")
            time_of_kill = time.time() * 1000
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            killed.stdout.close()
            eventually(of(CauseKind.SESSION_OVER, "killed"), "its session is over")

            interval = {"session.timeout.ms": session_ms, "max.poll.interval.ms": session_ms + 1_000}
            slow = Looping(address, group, topic, "slow", **interval)
            others.append(slow)
            eventually(lambda: slow.owns > 0, "the slow one has some")
            eventually(lambda: steady.owns == PARTITIONS // 2, "and the steady one the rest")
            slow.hold_still()
            eventually(lambda: steady.owns == PARTITIONS, "the slow one is out")
            slow.hold_still(yes=False)
            eventually(lambda: steady.owns == PARTITIONS // 2, "the slow one is back")
            eventually(of(CauseKind.POLL_TOO_LATE, "slow"), "that it did not poll is told")

            before = told().rebalances[-1].generation
            slow.close()
            others[0] = Looping(address, group, topic, "slow", **interval)
            eventually(lambda: told().rebalances[-1].generation > before and others[0].owns > 0, "it was restarted")
        finally:
            stop.set()
            writing.join()
            for one in (steady, *others):
                one.close()
        made = told()
    assert made.is_exact is is_exact
    dead = next(
        one
        for one in made.rebalances
        if any(cause.kind is CauseKind.SESSION_OVER and cause.client == "killed" for cause in one.causes)
    )
    assert dead.at_ms >= time_of_kill
    assert (dead.members_before, dead.members) == (2, 1)
    assert {(move.before, move.after) for move in dead.moves} == {("killed", "steady")}
    assert len(dead.moves) == PARTITIONS // 2
    # It was silent for as long as its session, and its partitions were nobody's.
    assert min(dead.idle_ms[move.partition] for move in dead.moves) >= session_ms * 0.8
    restart = [cause.kind for one in made.rebalances if one.generation > before for cause in one.causes]
    assert CauseKind.LEFT in restart or CauseKind.RESTARTED in restart
    assert not any(CauseKind.SESSION_OVER is kind for kind in restart)


def _write(address: str, topic: str, stop: threading.Event) -> None:
    """So that every member has something to commit."""
    with Producer(bootstrap_servers=address) as producer:
        number = 0
        while not stop.wait(0.02):
            number += 1
            producer.send(topic, b"x", partition=number % PARTITIONS)


def test_members_that_the_coordinator_assigns_are_followed_too() -> None:
    """KIP-848: there are no generations with assignments, but members that go over one by one."""
    often = {"group.consumer.min.heartbeat.interval.ms": "200", "group.consumer.heartbeat.interval.ms": "200"}
    with broker(overrides=often) as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([NewTopic("orders", PARTITIONS, 1)]).all()
        config = {"bootstrap.servers": kafka.address}
        newer = {"group.protocol": "consumer", "heartbeat.interval.ms": None}
        first = Looping(kafka.address, "g", "orders", "first", **newer)
        eventually(lambda: first.owns == PARTITIONS, "the first has all")
        second = Looping(kafka.address, "g", "orders", "second", **newer)
        eventually(lambda: (first.owns, second.owns) == (PARTITIONS // 2, PARTITIONS // 2), "both have half")
        second.close()
        eventually(lambda: first.owns == PARTITIONS, "the first has all again")
        first.close()
        made = timeline(group_log(admin, config, "g"))
    by_client = {(cause.kind, cause.client): one for one in made.rebalances for cause in one.causes}
    joined = by_client[CauseKind.JOINED, "second"]
    assert joined.members == 2
    assert {(move.before, move.after) for move in joined.moves} == {("first", "second")}
    assert joined.took_ms is not None
    assert len(joined.idle_ms) == PARTITIONS // 2
    gone = {client for kind, client in by_client if kind in (CauseKind.LEFT, CauseKind.GONE)}
    assert gone == {"first", "second"}
    assert made.rebalances[-1].members == 0
