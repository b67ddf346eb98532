"""Topics that are deleted while a broker starts, between opening their logs and serving them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker import startup
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

from . import raw
from .several import SeveralBrokers, create, run_several

STARTING, TOPIC, OTHER = 2, "t", "u"


@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_broker_starts_though_a_topic_of_its_logs_is_deleted_meanwhile(
    is_made_again: bool, is_torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_torn`: a log does not say whose it is, and is known by its name alone."""
    open_logs = startup.open_logs

    async def main(cluster: SeveralBrokers) -> None:
        for name in (TOPIC, OTHER):
            assert await create(cluster, 1, name, 2, replicas=3) == 0
        states = cluster.running(1).image.topics

        def in_sync(count: int) -> bool:
            return all(len(state.isr) == count for topic in states.values() for state in topic.partitions)

        for index in range(2):
            leader = states[TOPIC].partitions[index].leader
            request = raw.produce_request(TOPIC, index, raw.batch([b"of the first one"]))
            answer = await cluster.client(leader).request(request, raw.PRODUCE_VERSION)
            assert raw.produced(answer).error_code == 0
        await cluster.until(lambda: in_sync(3))
        starting = cluster.brokers[STARTING]
        starting.kill()
        await cluster.until(lambda: in_sync(2))
        if is_torn:
            disk = starting.host.restart().disk
            disk.open(f"/data/one/{TOPIC}-0/partition.metadata").pwrite(0, b"torn")

        async def open_slowly(broker: Any) -> Any:
            logs = await open_logs(broker)
            assert len(logs) == 4
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=10_000)
            through = cluster.other_than(STARTING)
            answer = await cluster.client(through).request(deletion, 6)
            assert answer.responses[0].error_code == 0
            if is_made_again:
                assert await create(cluster, through, TOPIC, 2, replicas=3) == 0
            return logs

        monkeypatch.setattr(startup, "open_logs", open_slowly)
        await asyncio.wait_for(starting.start(), 60.0)
        await cluster.until(lambda: in_sync(3))
        partitions = cluster.running(STARTING).replicas.partitions
        expected = {(OTHER, 0), (OTHER, 1)} | ({(TOPIC, 0), (TOPIC, 1)} if is_made_again else set())
        await cluster.until(lambda: set(partitions) == expected)
        assert all(partitions[key].log.end_offset == 0 for key in expected)

    run_several(main)
