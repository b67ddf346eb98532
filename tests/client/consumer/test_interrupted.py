"""Signals whose handlers raise in the middle of one function: at each of its places in turn, and all goes on as it was.

`test_handing_out` interrupts whole polls at some of all places, and the model at places by chance; here are those where
something was once left half done.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.consumer.interrupts import Interruption, InterruptionError
from tests.client.fake import VirtualClock

from headrace.client.consumer._classic_heartbeats import ClassicHeartbeats
from headrace.client.consumer._classic_membership import ClassicMembership
from headrace.client.consumer._fetch_session import FetchSessionHandler, _topics
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._heartbeat_thread import HeartbeatThread
from headrace.client.consumer._subscription import Subscriptions, TopicPartitionState
from headrace.client.consumer.blocking import Consumer
from headrace.client.errors import ClientClosedError
from headrace.client.flows import Task, UserCode
from headrace.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_POLLS = 20


class Signal(BaseException):
    """As `KeyboardInterrupt`: what catches every `Exception` does not catch it."""


def cluster_with(count: int, batches: int = 1, partitions: int = 1) -> FakeGroupCluster:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": partitions})
    for partition in range(partitions):
        for _ in range(batches):
            cluster.write("t", partition, count // batches)
    return cluster


def all_that_comes(consumer: Any, polls: int = _POLLS) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for _ in range(polls) for record in consumer.poll(1)]


def at_every_place(within: Callable[..., Any], run: Callable[[Interruption], None]) -> int:
    """Run it once for each place of a function; how many there were."""
    at = 0
    while True:
        at += 1
        interruption = Interruption(at, Signal(f"at place {at} of {within.__qualname__}"), within=within)
        run(interruption)
        if not interruption.raised:
            return at - 1


@contextlib.contextmanager
def interrupted_by(interruption: Interruption) -> Iterator[None]:
    with contextlib.suppress(Signal), interruption:
        yield


# --- what was fetched and handed out ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "within", [TopicPartitionState.append, Subscriptions.move_to_end, Fetcher._drop, Fetcher._take]
)
def test_what_was_fetched_is_handed_out_once(within: Callable[..., Any]) -> None:
    def run(interruption: Interruption) -> None:
        cluster = cluster_with(20, batches=2, partitions=2)
        seen: list[tuple[int, int]] = []
        with blocking_consumer(cluster, max_poll_records=50) as consumer:
            consumer.assign([T0, T1])
            with interrupted_by(interruption):
                for _ in range(3):
                    seen += all_that_comes(consumer, 1)
            # The answer to a fetch of what is buffered comes when that was handed out.
            seen += all_that_comes(consumer)
            assert consumer.assignment() == {T0, T1}
        assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(20)]

    assert at_every_place(within, run)


def test_what_an_interrupted_poll_took_is_taken_back_once_however_often_that_is_interrupted() -> None:
    def run(interruption: Interruption) -> None:
        # Two fetches of one partition, both taken by one poll.
        cluster = cluster_with(10)
        with blocking_consumer(cluster) as consumer:
            consumer.assign([T0])
            consumer.poll(1, max_records=1)
            cluster.write("t", 0, 5)
            state = consumer._core.subscriptions.state(T0)
            for _ in range(_POLLS):
                if len(state.chunks) == 2:
                    break
                consumer.pause([T0])
                consumer.resume([T0])
                consumer._client.poll(0.1)
                consumer._core.fetcher.send(cluster.clock.now)
            chunks = list(state.chunks)
            assert len(chunks) == 2
            core = consumer._core
            assert len(core.collector.collect(500)) == 14
            with interrupted_by(interruption):
                core.fetcher.take_back()
            core.fetcher.take_back()
            assert list(state.chunks) == chunks
            assert [offset for _, offset in all_that_comes(consumer, 5)] == list(range(1, 15))

    assert at_every_place(Fetcher.take_back, run)


@pytest.mark.slow
@pytest.mark.parametrize("within", [FetchSessionHandler.build, _topics, Fetcher._send_to, FetchSessionHandler.told])
def test_a_fetch_that_was_not_sent_is_asked_for_whole_the_next_time(within: Callable[..., Any]) -> None:
    """Otherwise the broker's half of the session keeps the old offset, and what it sends is taken for the new one's."""

    def run(interruption: Interruption) -> None:
        cluster = cluster_with(30, batches=3)
        with blocking_consumer(cluster) as consumer:
            consumer.assign([T0])
            assert len(all_that_comes(consumer, 3)) == 30
            consumer.seek(T0, 5)
            cluster.write("t", 0, 10)
            seen: list[tuple[int, int]] = []
            with interrupted_by(interruption):
                for _ in range(3):
                    seen += all_that_comes(consumer, 1)
            seen += all_that_comes(consumer)
            assert [offset for _, offset in seen] == list(range(5, 40))

    assert at_every_place(within, run)


def test_an_assignment_is_changed_whole_or_not_at_all() -> None:
    def run(interruption: Interruption) -> None:
        subscriptions = Subscriptions()
        subscriptions.assign([T0])
        kept = subscriptions.state(T0)
        with interrupted_by(interruption):
            subscriptions.assign([T1, T0])
        assert subscriptions.assigned() in ([T0], [T1, T0])
        assert subscriptions.state(T0) is kept

    assert at_every_place(Subscriptions.assign, run)


# --- the group --------------------------------------------------------------------------------------------------------


class Listener:
    """Knows what it was told, and that nothing is revoked, or lost, that it was not told of."""

    def __init__(self) -> None:
        self.owned: set[TopicPartition] = set()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.owned |= set(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.owned -= set(partitions)


def unknown_member(cluster: FakeGroupCluster, consumer: Any) -> None:
    """The coordinator knows this member no more, until it joins again."""
    generation = cluster.generation

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Heartbeat" and cluster.generation == generation:
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return None

    cluster.script = script


def rebalancing(cluster: FakeGroupCluster, consumer: Any) -> None:
    generation = cluster.generation

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Heartbeat" and cluster.generation == generation:
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return None

    cluster.script = script


def polled_too_late(cluster: FakeGroupCluster, consumer: Any) -> None:
    """The thread that sends heartbeats left the group, because nobody polled."""
    cluster.clock.now += 301
    assert consumer._core.heartbeats.next_request(cluster.clock.now) is not None


def new_coordinator(cluster: FakeGroupCluster, consumer: Any) -> None:
    """It is told of the next rebalance by heartbeats to the new one only."""
    cluster.coordinator = 2
    rebalancing(cluster, consumer)
    script = cluster.script
    cluster.script = lambda node, name, request: script(node, name, request) if node == 2 else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("happens", "within"),
    [
        (unknown_member, ClassicMembership.check),
        (unknown_member, ClassicMembership._lose),
        (unknown_member, ClassicMembership.rebalance),
        (polled_too_late, ClassicMembership.check),
        (polled_too_late, ClassicMembership._lose),
        (rebalancing, ClassicMembership._take_news),
        (rebalancing, ClassicMembership.rebalance),
        (rebalancing, ClassicMembership._prepare),
        (rebalancing, ClassicMembership._complete),
        (rebalancing, ClassicMembership._tell),
        (rebalancing, ClassicHeartbeats.stop),
        (rebalancing, ClassicHeartbeats.start),
        (rebalancing, Task.resume),
        (new_coordinator, ClassicMembership._take_news),
        (new_coordinator, ClassicHeartbeats.forget),
        (new_coordinator, ClassicHeartbeats.moved),
    ],
)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_that_is_interrupted_in_a_rebalance_takes_part_in_it_later(
    strategy: str, happens: Callable[[FakeGroupCluster, Any], None], within: Callable[..., Any]
) -> None:
    def run(interruption: Interruption) -> None:
        cluster = FakeGroupCluster(VirtualClock(), 2, {"t": 2})
        for name in (T0, T1):
            cluster.leaders[name] = (1, 0)
            cluster.write(*name, 5)
        listener = Listener()
        config = {"group_id": "g", "enable_auto_commit": False, "partition_assignment_strategy": strategy}
        with blocking_consumer(cluster, **config) as consumer:
            consumer.subscribe(["t"], listener)
            assert len(all_that_comes(consumer, 10)) == 10
            consumer.commit_sync()
            generation = cluster.generation
            happens(cluster, consumer)
            with interrupted_by(interruption):
                for _ in range(8):
                    consumer.poll(1)
            for _ in range(20):
                consumer.poll(1)
            assert cluster.generation > generation
            assert consumer._core.membership.is_settled
            assert consumer._core.heartbeats.is_running
            assert listener.owned == consumer.assignment() == {T0, T1}
            for name in (T0, T1):
                cluster.write(*name, 5)
            assert sorted(all_that_comes(consumer, 10)) == [(p, offset) for p in (0, 1) for offset in range(5, 10)]
            cluster.script = None

    at_every_place(within, run)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(
    "within", [ClassicMembership._complete, ClassicMembership._tell, Task.advance, Subscriptions.assign]
)
def test_the_listener_hears_of_partitions_though_the_rebalance_was_interrupted_before(
    strategy: str, within: Callable[..., Any]
) -> None:
    def run(interruption: Interruption) -> None:
        cluster = cluster_with(5, partitions=2)
        listener = Listener()
        with blocking_consumer(cluster, group_id="g", partition_assignment_strategy=strategy) as consumer:
            consumer.subscribe(["t"], listener)
            seen: list[tuple[int, int]] = []
            with interrupted_by(interruption):
                seen += all_that_comes(consumer, 1)
            seen += all_that_comes(consumer)
            assert listener.owned == consumer.assignment() == {T0, T1}
            assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(5)]

    assert at_every_place(within, run)


def test_the_code_of_the_user_is_run_once_though_the_report_of_its_end_was_interrupted() -> None:
    def flow() -> Any:
        yield UserCode(lambda: None)

    task: Task[None] = Task(flow())
    code = task.advance(0.0)
    assert code is not None
    with contextlib.suppress(InterruptionError), Interruption(1, within=Task.resume):
        task.resume(code.function(*code.arguments))
    assert task.advance(0.0) is None
    assert task.done


@pytest.mark.parametrize("within", [Consumer._begin_heartbeats, HeartbeatThread.start])
def test_heartbeats_begin_though_the_start_of_their_thread_was_interrupted(within: Callable[..., Any]) -> None:
    def run(interruption: Interruption) -> None:
        consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g")
        consumer.subscribe(["t"])
        with interrupted_by(interruption):
            consumer._begin_heartbeats()
        consumer._begin_heartbeats()
        thread = consumer._heartbeat_thread
        assert thread is not None
        assert thread._thread.is_alive()
        consumer.close(0)
        assert not thread._thread.is_alive()

    assert at_every_place(within, run)


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [inspect.unwrap(Consumer.close), Consumer._begin_closing])
def test_a_consumer_is_closed_by_the_next_who_closes_it_though_the_first_was_interrupted(
    within: Callable[..., Any],
) -> None:
    def run(interruption: Interruption) -> None:
        with blocking_consumer(cluster_with(5)) as consumer:
            consumer.assign([T0])
            assert len(all_that_comes(consumer, 2)) == 5
            with interrupted_by(interruption):
                consumer.close()
            consumer.close()
            client: Any = consumer._client
            assert client.core.closed
            with pytest.raises(ClientClosedError):
                consumer.poll(0)

    assert at_every_place(within, run)
