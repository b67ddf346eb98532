"""Replication throttles: how fast replicas are copied that are on their way into sync, and whose copies do not wait."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker import raw
from tests.broker.replication.trio import TOPIC, TOPIC_ID, Trio, simulated
from tests.waiting import becomes

from headrace.broker.replication.throttles import Rate
from headrace.cluster.decision import Decision
from headrace.cluster.records import ConfigRecord, MetadataRecord, PartitionChangeRecord, ResourceType

BATCH = b"x" * 5_000
COUNT = 60
RATE = 10_000


def test_a_rate_is_measured_as_if_it_had_gone_on_for_all_windows() -> None:
    rate = Rate(11, 1.0)
    assert rate.measure(0.0) == 0.0
    rate.record(1000, 0.0)
    assert rate.measure(0.0) == rate.measure(5.0) == 100.0  # over ten seconds, however few have passed
    rate.record(1000, 5.5)
    assert rate.measure(10.0) == 200.0
    assert rate.measure(10.5) == pytest.approx(2000 / 10.5)
    assert rate.measure(11.0) == 100.0  # the first window is over
    assert rate.measure(17.0) == 0.0


async def fill(trio: Trio, partition: int = 0) -> None:
    client = await trio.client(1)
    for _ in range(COUNT):
        answer = await client.request(raw.produce_request(TOPIC, partition, raw.batch([BATCH])), 10)
        assert raw.produced(answer).error_code == 0
    client.close()


async def set_config(trio: Trio, *entries: tuple[ResourceType, str, str, str | None]) -> None:
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
        for kind, resource, name, value in entries
    ]
    await trio.decide(Decision(None, records))


async def add_replica(trio: Trio, partition: int = 0) -> None:
    change = PartitionChangeRecord(partition_id=partition, topic_id=TOPIC_ID, replicas=[1, 2], adding_replicas=[2])
    await trio.decide(Decision(None, [change]))


async def copied_in_s(trio: Trio, partition: int = 0) -> float:
    """How long it takes until the new replica has everything."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    source, copy = trio.partition(1, partition).log, trio.partition(2, partition).log
    await becomes(lambda: copy.end_offset >= source.end_offset, timeout_s=300)
    return loop.time() - began


def throttle(side: str, node: int, replicas: str) -> list[tuple[ResourceType, str, str, str | None]]:
    return [
        (ResourceType.BROKER, str(node), f"{side}.replication.throttled.rate", str(RATE)),
        (ResourceType.TOPIC, TOPIC, f"{side}.replication.throttled.replicas", replicas),
    ]


@pytest.mark.parametrize(
    ("side", "node", "replicas"),
    [("leader", 1, "0:1"), ("leader", 1, "*"), ("follower", 2, "0:2"), ("follower", 2, "*")],
)
def test_a_new_replica_is_copied_no_faster_than_allowed(side: str, node: int, replicas: str) -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic((1,), partitions=2)
        await fill(trio)
        await set_config(trio, *throttle(side, node, replicas))
        await add_replica(trio)
        took_s = await copied_in_s(trio)
        # Ten seconds' worth may come at once, and one answer on top of it.
        nbytes = len(BATCH) * COUNT
        assert took_s >= (nbytes - 10 * RATE - 20_000) / RATE
        assert took_s < 2 * nbytes / RATE
        # In sync it is never held back.
        await becomes(lambda: 2 in trio.state.isr, timeout_s=10)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await fill(trio)
        assert loop.time() - began < 5

    simulated(test)


@pytest.mark.parametrize(("side", "node", "replicas"), [("leader", 1, "1:1,0:2"), ("follower", 2, "1:2,0:1")])
def test_what_is_not_named_is_copied_at_once(side: str, node: int, replicas: str) -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic((1,), partitions=2)
        await fill(trio, 0)
        await fill(trio, 1)
        await set_config(trio, *throttle(side, node, replicas))
        await add_replica(trio, 1)
        await asyncio.sleep(3)
        assert trio.partition(2, 1).log.end_offset < COUNT
        await add_replica(trio, 0)
        # Also while another partition of the same leader has used up all that is allowed.
        assert await copied_in_s(trio, 0) < 3
        assert trio.partition(2, 1).log.end_offset < COUNT
        await set_config(trio, (ResourceType.BROKER, str(node), f"{side}.replication.throttled.rate", None))
        assert await copied_in_s(trio, 1) < 2

    simulated(test)


def test_a_throttle_counts_again_after_a_restart() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic((1,))
        await set_config(trio, *throttle("leader", 1, "*"))
        assert trio.broker(1).replication.throttles.leader is not None
        assert trio.broker(2).replication.throttles.leader is None
        await trio.machines[1].stop()
        await trio.machines[1].start()
        found = trio.broker(1).replication.throttles.leader
        assert found is not None
        assert found.bytes_per_s == RATE

    simulated(test)
