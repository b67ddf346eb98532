"""Threads, forks, leaks, and waits that end: what must hold when things are used wrongly or a broker is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.consumer.conftest import Cluster, poll_until, read
from tests.waiting import eventually

from headrace import Consumer
from headrace.client.consumer.errors import ConcurrentAccessError, ConsumerForkedError
from headrace.client.errors import ClientClosedError
from headrace.errors import RequestTimedOutError
from headrace.testing import BrokerProcess

SLACK_S = 20.0
"""For a busy machine; what a call would wait for without its time-out is 30 s and more."""


def test_a_second_thread_is_refused_at_once_and_the_first_goes_on(kafka: Cluster) -> None:
    topic = kafka.topic()
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        started = threading.Event()
        found: list[object] = []

        def poll() -> None:
            started.set()
            while not found:
                found.extend(consumer.poll(60.0))

        thread = threading.Thread(target=poll)
        thread.start()
        assert started.wait(60)

        def refused() -> bool:
            begun = time.monotonic()
            try:
                consumer.assignment()
            except ConcurrentAccessError as error:
                assert time.monotonic() - begun < SLACK_S
                return "another thread" in str(error)
            return False

        eventually(refused)
        kafka.produce(topic, [b"x"])
        thread.join(60)
        assert len(found) == 1
        assert consumer.position((topic, 0)) == 1


def test_a_consumer_in_use_before_a_fork_says_so_in_the_child(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 5)
    used = Consumer(kafka.config(group_id=kafka.group()))
    fresh = Consumer(kafka.config())
    used.subscribe([topic])
    read(used, 5)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run in the child: it reports through the pipe and is gone.
        words = b"no error"
        try:
            used.poll(0.1)
        except ConsumerForkedError:
            used.close()
            fresh.assign([(topic, 0)])
            words = b"%d" % len(read(fresh, 5))
            fresh.close()
        except BaseException:  # noqa: BLE001  # told to the parent, whose assertion shows it
            words = traceback.format_exc().encode()
        finally:
            os.write(writer, words)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"5"
    os.waitpid(child, 0)
    # The parent's own is as it was.
    kafka.produce(topic, [b"y"])
    assert [record.value for record in read(used, 1)] == [b"y"]
    used.close()
    fresh.close()


def test_no_thread_is_started_before_a_group_is_joined(kafka: Cluster) -> None:
    topic = kafka.topic()
    before = {thread.name for thread in threading.enumerate()}
    with Consumer(kafka.config(group_id=kafka.group())) as consumer:
        consumer.assign([(topic, 0)])
        consumer.poll(0.1)
        assert {thread.name for thread in threading.enumerate()} - before == set()
        consumer.unsubscribe()
        consumer.subscribe([topic])
        poll_until([consumer], lambda: consumer.assignment())
        new = {thread.name for thread in threading.enumerate()} - before
        assert [name.startswith("headrace-heartbeat") for name in new] == [True]
    assert {thread.name for thread in threading.enumerate()} - before == set()


def test_a_closed_consumer_says_so_and_close_may_be_called_again(kafka: Cluster) -> None:
    consumer = Consumer(kafka.config())
    consumer.close()
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll(0)


@pytest.fixture
def paused_broker(tmp_path: Path) -> Iterator[tuple[Cluster, BrokerProcess]]:
    with BrokerProcess(tmp_path / "data") as process:
        try:
            yield Cluster(process.address, True), process
        finally:
            os.kill(process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_every_wait_ends_at_its_time_out_while_the_broker_is_paused(
    paused_broker: tuple[Cluster, BrokerProcess],
) -> None:
    kafka, process = paused_broker
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 3)
    part = (topic, 0)
    consumer = Consumer(kafka.config(group_id=kafka.group()))
    consumer.subscribe([topic])
    read(consumer, 3)
    os.kill(process.pid, signal.SIGSTOP)

    def within(seconds: float, call: object) -> None:
        begun = time.monotonic()
        with pytest.raises(RequestTimedOutError):
            call()  # type: ignore[operator]  # a callable of each kind
        assert seconds - 0.05 <= time.monotonic() - begun < seconds + SLACK_S

    begun = time.monotonic()
    assert not consumer.poll(0.3)
    assert time.monotonic() - begun < SLACK_S
    within(0.3, lambda: consumer.commit_sync({part: 2}, timeout=0.3))
    within(0.3, lambda: consumer.committed([part], timeout=0.3))
    within(0.3, lambda: consumer.end_offsets([part], timeout=0.3))
    within(0.3, lambda: consumer.offsets_for_times({part: 5}, timeout=0.3))
    within(0.3, lambda: consumer.list_topics(timeout=0.3))
    begun = time.monotonic()
    consumer.close(timeout=0.5)
    assert time.monotonic() - begun < SLACK_S


@pytest.mark.slow
def test_a_consumer_goes_on_after_its_broker_was_restarted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        kafka = Cluster(process.address, True)
        topic = kafka.topic()
        kafka.produce(topic, [b"1"])
        with Consumer(kafka.config(group_id=kafka.group(), reconnect_backoff_max_ms=200)) as consumer:
            consumer.subscribe([topic])
            assert read(consumer, 1)[0].value == b"1"
            consumer.commit_sync()
            process.kill()
            assert not consumer.poll(0.3)
            process.start()
            kafka.produce(topic, [b"2"])
            assert [record.value for record in read(consumer, 1)] == [b"2"]
            consumer.commit_sync()
            found = consumer.committed([(topic, 0)])[(topic, 0)]
            assert found is not None
            assert found.offset == 2


def test_the_time_out_of_a_poll_holds_without_any_broker() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        consumer.subscribe(["t"])
        begun = time.monotonic()
        assert not consumer.poll(0.5)
        assert 0.45 <= time.monotonic() - begun < SLACK_S
        with pytest.raises(RequestTimedOutError, match="did not end within"):
            consumer.list_topics(timeout=0.3)
