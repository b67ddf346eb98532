"""The same on asyncio: reading, groups, commits, listeners that are coroutines, one task at a time, nothing left."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from tests.client.consumer.conftest import WAIT_S, Cluster
from tests.waiting import becomes

from headrace.aio import Consumer
from headrace.client.consumer.errors import ConcurrentAccessError, WakeupError
from headrace.errors import RequestTimedOutError
from headrace.topics import TopicPartition

pytestmark = pytest.mark.slow


async def read(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found.extend(await consumer.poll(0.2))
    return found


def test_records_come_by_poll_columns_arrow_and_iteration(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % i for i in range(1000)])

    async def main() -> None:
        async with Consumer(kafka.config()) as consumer:
            consumer.assign([(topic, 0)])
            assert [record.offset for record in await read(consumer, 1000)] == list(range(1000))
            consumer.seek_to_beginning()
            assert await consumer.position((topic, 0)) == 0
            assert sum(len(piece) for piece in await consumer.poll_columns(60.0)) == 1000
            consumer.seek((topic, 0), 990)
            assert (await consumer.poll_arrow(60.0)).num_rows == 10
            consumer.seek((topic, 0), 5)
            async for record in consumer:
                assert await consumer.position((topic, 0)) == record.offset + 1
                if record.offset == 20:
                    break
            assert (await read(consumer, 979))[0].offset == 21

    asyncio.run(main())


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_commit_and_leave(kafka: Cluster, strategy: str) -> None:
    topic, group = kafka.topic(4), kafka.group()
    for partition in range(4):
        kafka.produce(topic, [b"x"] * 10, partition)
    heard: list[str] = []

    class Listener:
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            heard.append("assigned")

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            heard.append("revoked")

    async def main() -> None:
        config = kafka.config(group_id=group, partition_assignment_strategy=strategy)
        async with Consumer(config) as first, Consumer(config) as second:
            first.subscribe([topic], Listener())
            assert len(await read(first, 40)) == 40
            second.subscribe([topic])
            async with asyncio.timeout(WAIT_S):
                while not len(first.assignment()) == len(second.assignment()) == 2:
                    await asyncio.gather(first.poll(0.05), second.poll(0.05))
            assert "revoked" in heard
            assert heard[0] == "assigned"
            await second.close()
            async with asyncio.timeout(WAIT_S):
                while len(first.assignment()) != 4:
                    await first.poll(0.05)
            await first.commit_sync()
            found = await first.committed(first.assignment())
            assert {one.offset for one in found.values() if one is not None} == {10}
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_member_stays_while_its_application_is_busy(kafka: Cluster) -> None:
    """Heartbeats go on while nobody polls, as long as the loop is free."""
    topic, group = kafka.topic(), kafka.group()

    async def main() -> None:
        config = kafka.config(group_id=group, session_timeout_ms=6000, heartbeat_interval_ms=100)
        async with Consumer(config) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.poll(0.1)
            generation = consumer.group_metadata().generation_id
            beats = consumer.metrics()["heartbeat-total"]
            await becomes(lambda: consumer.metrics()["heartbeat-total"] >= beats + 15, "heartbeats")
            await consumer.poll(0.2)
            assert consumer.group_metadata().generation_id == generation

    asyncio.run(main())


def test_a_wakeup_from_another_thread_ends_a_poll() -> None:
    async def main(port: int) -> None:
        consumer = Consumer(bootstrap_servers=f"127.0.0.1:{port}")
        consumer.assign([("t", 0)])
        polling = asyncio.ensure_future(consumer.poll(WAIT_S))
        for _ in range(10):
            await asyncio.sleep(0)
        await asyncio.to_thread(consumer.wakeup)
        with pytest.raises(WakeupError):
            await polling
        await consumer.close(0)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        # In this mode a loop refuses what another thread may not do to it: it would not notice before its next event.
        asyncio.run(main(silent.getsockname()[1]), debug=True)


class WokenEarly(Consumer):
    """Another thread wakes it just after its first poll has looked for that, and before anything is asked of a loop."""

    is_woken = False

    def _check_wakeup(self) -> None:
        super()._check_wakeup()
        if not self.is_woken:
            self.is_woken = True
            thread = threading.Thread(target=self.wakeup)
            thread.start()
            thread.join()


def test_a_wakeup_as_the_first_poll_begins_to_wait_is_heard() -> None:
    async def main(port: int) -> None:
        consumer = WokenEarly(bootstrap_servers=f"127.0.0.1:{port}")
        consumer.assign([("t", 0)])
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(WakeupError):
                await consumer.poll(3600)
        await consumer.close(0)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(main(silent.getsockname()[1]))


def test_a_second_task_is_refused_and_wakeup_ends_a_poll(kafka: Cluster) -> None:
    topic = kafka.topic()

    async def main() -> None:
        async with Consumer(kafka.config()) as consumer:
            consumer.assign([(topic, 0)])
            polling = asyncio.create_task(consumer.poll(30.0))
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentAccessError, match="another task"):
                await consumer.poll(0)
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await polling
            polling = asyncio.create_task(consumer.poll(30.0))
            await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            kafka.produce(topic, [b"x"])
            assert len(await read(consumer, 1)) == 1

    asyncio.run(main())


def test_waits_end_without_a_broker_and_nothing_is_left() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
            consumer.subscribe(["t"])
            begun = loop.time()
            assert not await consumer.poll(0.3)
            assert loop.time() - begun < 2
            with pytest.raises(RequestTimedOutError):
                await consumer.list_topics(timeout=0.2)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_who_closes_after_cancelling_a_poll_waits_until_that_has_left(kafka: Cluster) -> None:
    topic = kafka.topic()

    async def main() -> None:
        consumer = Consumer(kafka.config(group_id=kafka.group()))
        consumer.subscribe([topic])
        polling = asyncio.create_task(consumer.poll(WAIT_S))
        await asyncio.sleep(0.1)
        with pytest.raises(ConcurrentAccessError):
            await consumer.close()
        polling.cancel()
        await consumer.close()
        with pytest.raises(asyncio.CancelledError):
            await polling

    asyncio.run(main())


def test_iterating_goes_on_after_a_time_out(kafka: Cluster) -> None:
    topic = kafka.topic()

    async def main() -> None:
        async with Consumer(kafka.config(auto_offset_reset="earliest")) as consumer:
            consumer.assign([(topic, 0)])
            records = aiter(consumer)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(records)
            await asyncio.to_thread(kafka.produce, topic, [b"a", b"b"])
            async with asyncio.timeout(WAIT_S):
                assert [(await anext(records)).value for _ in range(2)] == [b"a", b"b"]
            await consumer.close()
            with pytest.raises(StopAsyncIteration):
                await anext(records)

    asyncio.run(main())
