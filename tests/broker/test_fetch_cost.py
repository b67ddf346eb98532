"""A fetch of a session looks at what may have news, not at everything that the session remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.partitions.fetch_sessions import SessionPartition
from headrace.broker.partitions.fetching import Fetching
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from headrace.runtime.simulated import Simulation, run_simulation

from . import raw
from .raw import AsyncRawClient
from .sim import PORT, SimulatedBroker

PARTITIONS = 50
# Far below the time that a fetch here may wait.
SOON_S = 2.0
VERSION = 12


class Reader:
    """A consumer of one session."""

    def __init__(self, client: AsyncRawClient) -> None:
        self.client = client
        self.session_id = self.epoch = 0

    async def fetch(
        self, offsets: dict[int, int], *, max_wait_ms: int = 0, forget: tuple[int, ...] = ()
    ) -> dict[int, Any]:
        parts = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in offsets.items()
        ]
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            isolation_level=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic="t", partitions=parts)] if parts else [],
            forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forget))] if forget else [],
        )
        response = await self.client.request(request, VERSION, timeout_s=30.0)
        assert response.error_code == 0
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def test_a_fetch_looks_only_at_partitions_that_something_happened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look_at = Fetching._look_at

    def counted(self: Fetching, wanted: SessionPartition) -> Any:
        looked.append(wanted.partition)
        return look_at(self, wanted)

    monkeypatch.setattr(Fetching, "_look_at", counted)

    async def test(simulation: Simulation, broker: Broker) -> None:
        reader = Reader(await AsyncRawClient.connect(simulation.host("client").runtime, "broker", PORT))
        assert len(await reader.fetch(dict.fromkeys(range(PARTITIONS), 0))) == PARTITIONS
        assert await reader.fetch({}) == {}  # what came while the session was opened is seen now
        looked.clear()
        assert await reader.fetch({}) == {}
        assert looked == []
        # An append, also while the fetch waits, is seen at its partition alone.
        broker.partition("t", 7).append(raw.batch([b"one"]))
        answer = await reader.fetch({}, max_wait_ms=10_000)
        assert [value for _, value in raw.values_of(answer[7].records)] == [b"one"]
        assert looked == [7]
        waiting = asyncio.ensure_future(reader.fetch({7: 1}, max_wait_ms=10_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        looked.clear()
        broker.partition("t", 9).append(raw.batch([b"two"]))
        assert set(await waiting) == {9}
        assert sorted(looked) == [7, 9]
        # It has records until they are fetched.
        assert set(await reader.fetch({})) == {9}
        assert await reader.fetch({9: 1}) == {}
        # The start of the log is news as well, and what is forgotten is heard of no more.
        client = await AsyncRawClient.connect(simulation.host("client").runtime, "broker", PORT)
        part = DeleteRecordsPartition(partition_index=9, offset=1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])], timeout_ms=1000)
        await client.request(request, 1)
        assert (await reader.fetch({}))[9].log_start_offset == 1
        broker.partition("t", 9).append(raw.batch([b"three"]))
        assert await reader.fetch({}, forget=(9,)) == {}
        assert len(broker.partition("t", 9).watchers) == 0
        assert len(broker.partition("t", 8).watchers) == 1
        reader.epoch = -1  # the last fetch of a session ends it
        await reader.fetch({})
        assert all(len(broker.partition("t", index).watchers) == 0 for index in range(PARTITIONS))

    _run(test)


def test_a_session_that_is_ended_elsewhere_is_not_watched_for_again() -> None:
    """A client that lost its connection opens another session, and names the old one, of which a fetch still waits."""

    async def test(simulation: Simulation, broker: Broker) -> None:
        reader, other = [
            Reader(await AsyncRawClient.connect(simulation.host(name).runtime, "broker", PORT)) for name in ("a", "b")
        ]
        await reader.fetch({0: 0, 1: 0})
        assert await reader.fetch({}) == {}
        waiting = asyncio.ensure_future(reader.fetch({1: 0}, max_wait_ms=20_000))
        await asyncio.sleep(1)
        other.session_id = reader.session_id
        began = simulation.loop.time()
        await other.fetch({0: 0})
        assert await waiting == {}
        assert simulation.loop.time() - began < SOON_S, "nobody would tell it of an append"
        assert len(broker.partition("t", 1).watchers) == 0
        other.epoch = -1
        await other.fetch({})
        assert len(broker.partition("t", 0).watchers) == 0

    _run(test)


def _run(test: Callable[[Simulation, Broker], Coroutine[Any, Any, None]]) -> None:
    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(
            machine.broker.metadata.create(CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1))
        )
        await machine.host.start(test(simulation, machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=600.0)
