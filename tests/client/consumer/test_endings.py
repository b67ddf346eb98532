"""close(), whatever state the consumer is in and wherever it is called: it ends, in time, and the group is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.client.consumer.conftest import WAIT_S
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import SILENCE, VirtualClock
from tests.waiting import eventually

import headrace.aio
import headrace.testing
from headrace import Consumer, Producer
from headrace.client.admin import Admin, NewTopic
from headrace.client.consumer.errors import IllegalStateError
from headrace.client.errors import ClientClosedError
from headrace.errors import ErrorCode, GroupAuthorizationFailedError
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.testing import Direction, FaultProxy
from headrace.topics import TopicPartition


def cluster_with(count: int) -> FakeGroupCluster:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, count)
    return cluster


class Listener:
    """Closes its consumer when it hears of something."""

    def __init__(self, consumer: Any, closes_at: str) -> None:
        self.consumer, self.closes_at = consumer, closes_at
        self.heard: list[str] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._hear("assigned")

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._hear("revoked")

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what == self.closes_at:
            self.consumer.close()


def refuses_the_group(node: int, name: str, request: Any) -> Any:
    if name != "FindCoordinator":
        return None
    refused = Coordinator(key=request.coordinator_keys[0], error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return FindCoordinatorResponse(coordinators=[refused])


@contextmanager
def without_a_coordinator() -> Iterator[tuple[FakeGroupCluster, Consumer]]:
    """A consumer at the beginning of its partition, who has no right to its group."""
    cluster = cluster_with(10)
    cluster.script = refuses_the_group
    with blocking_consumer(cluster, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        yield cluster, consumer


def test_a_commit_that_no_coordinator_takes_does_not_keep_close_waiting() -> None:
    told: list[Any] = []
    with without_a_coordinator() as (cluster, consumer):
        assert len(consumer.poll(5)) == 10
        consumer.commit_async(callback=lambda error, offsets: told.append(error))
        consumer.commit_async(callback=lambda error, offsets: told.append(error))
        consumer.close()
    assert [type(error) for error in told] == [GroupAuthorizationFailedError] * 2
    assert len(cluster.names("FindCoordinator")) <= 2


def test_a_poll_that_found_no_coordinator_tells_the_commits_that_waited_for_one() -> None:
    told: list[Any] = []
    with without_a_coordinator() as (_, consumer):
        consumer.commit_async(callback=lambda error, offsets: told.append(error))
        with pytest.raises(GroupAuthorizationFailedError):
            consumer.poll(5)
        assert len(consumer.poll(5)) == 10
        assert [type(error) for error in told] == [GroupAuthorizationFailedError]
        consumer.close()


def test_a_listener_may_close_the_consumer_whose_poll_called_it() -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster, group_id="g") as consumer:
        listener = Listener(consumer, "assigned")
        consumer.subscribe(["t"], listener)
        begun = cluster.clock.now
        assert not consumer.poll(20)
        assert cluster.clock.now < begun + 1
        assert listener.heard == ["assigned", "revoked"]
        assert cluster.requests[-1][1] == "LeaveGroup"
        with pytest.raises(ClientClosedError):
            consumer.poll(0)


def test_a_loop_over_records_ends_when_a_listener_closes_the_consumer() -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], Listener(consumer, "assigned"))
        assert list(consumer) == []


def test_a_commit_callback_may_close_the_consumer_whose_poll_called_it() -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster, group_id="g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(5):
            pass
        consumer.commit_async(callback=lambda error, offsets: consumer.close())
        begun = cluster.clock.now
        assert not consumer.poll(20)
        assert cluster.clock.now < begun + 1
        assert cluster.committed == {("t", 0): 10}
        assert cluster.requests[-1][1] == "LeaveGroup"


def test_a_listener_may_close_the_consumer_that_is_being_closed() -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster, group_id="g") as consumer:
        listener = Listener(consumer, "revoked")
        consumer.subscribe(["t"], listener)
        while not consumer.poll(5):
            pass
        consumer.close()
        assert listener.heard == ["assigned", "revoked"]
        assert cluster.requests[-1][1] == "LeaveGroup"


@pytest.mark.parametrize("at", ["OffsetCommit", "LeaveGroup"])
def test_a_wakeup_does_not_keep_close_from_committing_and_leaving(at: str) -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(5):
            pass

        def script(node: int, name: str, request: Any) -> None:
            if name == at:
                # From another thread, or a signal's handler: a second Ctrl-C.
                consumer.wakeup()

        cluster.script = script
        consumer.wakeup()
        consumer.close()
        assert cluster.committed == {("t", 0): 10}
        assert cluster.requests[-1][1] == "LeaveGroup"


def test_a_poll_in_a_listener_is_refused_and_the_rebalance_ends() -> None:
    """It would begin the rebalance again, which calls the listener again."""
    cluster = cluster_with(10)
    refused: list[IllegalStateError] = []
    with blocking_consumer(cluster, group_id="g") as consumer:

        class Polling:
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                with pytest.raises(IllegalStateError, match="by a rebalance listener") as raised:
                    consumer.poll(1)
                refused.append(raised.value)
                assert consumer.position(("t", 0)) == 0
                with pytest.raises(IllegalStateError):
                    next(iter(consumer))

            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None: ...

        consumer.subscribe(["t"], Polling())
        while not consumer.poll(5):
            pass
        assert len(refused) == 1
        assert len(cluster.names("SyncGroup")) == 1
        consumer.close()


@pytest.mark.parametrize("timeout", [0, 3])
@pytest.mark.parametrize("is_automatic", [True, False])
def test_the_listener_hears_of_a_close_whose_commits_are_not_answered_in_time(timeout: int, is_automatic: bool) -> None:
    cluster = cluster_with(10)
    with blocking_consumer(cluster, group_id="g", enable_auto_commit=is_automatic) as consumer:
        listener = Listener(consumer, "never")
        consumer.subscribe(["t"], listener)
        while not consumer.poll(5):
            pass
        cluster.script = lambda node, name, request: SILENCE if name == "OffsetCommit" else None
        if not is_automatic:
            consumer.commit_async()
        begun = cluster.clock.now
        consumer.close(timeout)
        assert cluster.clock.now < begun + timeout + 1
        assert listener.heard == ["assigned", "revoked"]


@pytest.mark.slow
def test_a_listener_may_close_the_asyncio_consumer_whose_poll_called_it(headrace_broker: str) -> None:
    config = {"bootstrap.servers": headrace_broker, "group.id": "closed-by-its-listener"}
    with Admin({"bootstrap.servers": headrace_broker}) as admin:
        admin.create_topics([NewTopic("closed-by-its-listener", 1)])
    heard: list[str] = []

    async def main() -> None:
        consumer = headrace.aio.Consumer(config)

        class AsyncListener:
            async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                heard.append("assigned")
                await consumer.close()

            async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                heard.append("revoked")
                await consumer.close()

        consumer.subscribe(["closed-by-its-listener"], AsyncListener())
        async with asyncio.timeout(WAIT_S):
            # It would wait for longer than the test does.
            assert not await consumer.poll(100 * WAIT_S)

    asyncio.run(main())
    assert heard == ["assigned", "revoked"]


@pytest.mark.slow
def test_an_asyncio_consumer_whose_close_is_cancelled_leaves_its_group() -> None:
    """Whoever gives it up after a while does not call it again: the others would wait for the session's end."""

    async def main(proxy: FaultProxy) -> None:
        group = {"group.id": "g", "auto.offset.reset": "earliest", "session.timeout.ms": 600_000}
        consumer = headrace.aio.Consumer({"bootstrap.servers": proxy.address, **group})
        consumer.subscribe(["t"])
        while not await consumer.poll(0.05):
            pass
        # Its last commit is not answered for a while.
        proxy.delay(1.0, Direction.TO_CLIENT)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.1)
        proxy.resume()

    with FaultProxy() as proxy, headrace.testing.broker(overrides=proxy.overrides) as kafka:
        proxy.target = kafka.address
        with Producer(bootstrap_servers=proxy.address) as producer, Admin(bootstrap_servers=proxy.address) as admin:
            producer.send("t", b"x").result(WAIT_S)
            asyncio.run(main(proxy))
            eventually(lambda: not admin.describe_groups(["g"]).all()["g"].members, "a group without members")
