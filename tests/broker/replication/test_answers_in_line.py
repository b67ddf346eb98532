"""Batches of one connection that wait for other replicas hold up no further ones, and are answered in their order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.replication.trio import NODES, TOPIC, Trio, simulated
from tests.broker.sim import METADATA_VERSION
from tests.waiting import becomes

from headrace.errors import ErrorCode
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest

VERSION = 10
MANY_RECORDS = 1_500


def batch_for(partition: int, *values: bytes, acks: int = -1) -> ProduceRequest:
    return raw.produce_request(TOPIC, partition, raw.batch(list(values)), acks=acks)


def send_to_each(client: Any, partitions: int) -> list[tuple[ProduceRequest, int]]:
    """A record to every partition, without waiting; the requests, and the numbers of their answers."""
    requests = [batch_for(number, b"%d" % number) for number in range(partitions)]
    return [(request, client.send(request, VERSION)) for request in requests]


def cut(trio: Trio) -> None:
    """Followers send nothing that arrives at the leader, and are sent nothing."""
    trio.simulation.network.partition(["b1"], ["b2", "b3"])


def test_they_are_written_while_earlier_ones_wait_and_answered_in_order() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic(partitions=13)
        client = await trio.client(1)
        cut(trio)
        sent: list[tuple[Any, int, int]] = []
        for number in range(12):
            request = batch_for(number, b"%d" % number)
            sent.append((request, VERSION, client.send(request, VERSION)))
        # Neither is known elsewhere: refused at once, and yet not answered before those that came earlier.
        unknown = batch_for(99, b"nowhere")
        sent.append((unknown, VERSION, client.send(unknown, VERSION)))
        quick = batch_for(12, b"quick", acks=1)
        sent.append((quick, VERSION, client.send(quick, VERSION)))
        behind = MetadataRequest(topics=[])
        sent.append((behind, METADATA_VERSION, client.send(behind, METADATA_VERSION)))
        await becomes(lambda: all(trio.partition(1, index).log.end_offset == 1 for index in range(13)))
        await asyncio.sleep(0.5)
        assert not client._frames, "something was answered before the first"
        trio.simulation.network.heal()
        found = [await client.answer(message, version, number, 30.0) for message, version, number in sent]
        results = [raw.produced(answer) for answer in found[:-1]]
        assert [result.error_code for result in results] == [0] * 12 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert [result.base_offset for result in results] == [0] * 12 + [-1, 0]
        assert {broker.node_id for broker in found[-1].brokers} == set(NODES)
        client.close()

    simulated(test)


@pytest.mark.parametrize("has_id", [True, False])
def test_of_a_producer_with_an_id_only_one_is_unanswered_in_a_partition(has_id: bool) -> None:
    """A broker that was restarted knows the last batch of a producer, and would take one before it for a new one."""

    async def test(trio: Trio) -> None:
        await trio.create_topic(partitions=2)
        client = await trio.client(1)
        cut(trio)
        sent = []
        for sequence, partition in ((0, 0), (0, 1), (1, 0), (1, 1)):
            value = b"%d" % sequence
            producer: dict[str, int] = {}
            if has_id:
                producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            request = raw.produce_request(TOPIC, partition, raw.batch([value], **producer))
            sent.append((request, client.send(request, VERSION)))
        ends = [trio.partition(1, index).log for index in (0, 1)]
        expected = [1, 1] if has_id else [2, 2]
        await becomes(lambda: [log.end_offset for log in ends] == expected)
        await asyncio.sleep(0.5)
        assert [log.end_offset for log in ends] == expected
        trio.simulation.network.heal()
        results = [raw.produced(await client.answer(request, VERSION, number, 30.0)) for request, number in sent]
        assert [(result.error_code, result.base_offset) for result in results] == [(0, 0), (0, 0), (0, 1), (0, 1)]
        client.close()

    simulated(test)


def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.server.answer_line.IN_LINE_MAX", 4)

    async def test(trio: Trio) -> None:
        await trio.create_topic(partitions=10)
        client = await trio.client(1)
        cut(trio)
        sent = send_to_each(client, 10)

        def written() -> int:
            return sum(trio.partition(1, index).log.end_offset for index in range(10))

        await becomes(lambda: written() >= 4)
        await asyncio.sleep(0.5)
        assert written() == 4
        trio.simulation.network.heal()
        for request, number in sent:
            result = raw.produced(await client.answer(request, VERSION, number, 30.0))
            assert (result.error_code, result.base_offset) == (0, 0)
        client.close()

    simulated(test)


def test_one_that_takes_long_to_check_is_not_overtaken() -> None:
    """It is looked into on another thread, and not in the log yet: what comes behind it has to wait."""

    async def test(trio: Trio) -> None:
        await trio.create_topic()
        client = await trio.client(1)
        first = batch_for(0, b"first")
        large = batch_for(0, *([b"x"] * MANY_RECORDS))
        last = batch_for(0, b"last")
        sent = [(request, client.send(request, VERSION)) for request in (first, large, last)]
        results = [raw.produced(await client.answer(request, VERSION, number, 60.0)) for request, number in sent]
        assert [(result.error_code, result.base_offset) for result in results] == [
            (0, 0),
            (0, 1),
            (0, 1 + MANY_RECORDS),
        ]
        client.close()

    simulated(test)


@pytest.mark.parametrize("is_leader_gone", [False, True])
def test_those_that_wait_are_given_up_with_their_connection_or_their_leader(is_leader_gone: bool) -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic(partitions=5)
        client = await trio.client(1)
        cut(trio)
        sent = send_to_each(client, 5)
        await becomes(lambda: all(trio.partition(1, index).log.end_offset == 1 for index in range(5)))
        if is_leader_gone:
            await trio.fence(1)
            for request, number in sent:
                result = raw.produced(await client.answer(request, VERSION, number, 30.0))
                assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        client.close()
        await asyncio.sleep(0.5)
        if not is_leader_gone:
            trio.simulation.network.heal()
            again = await trio.client(1)
            assert raw.produced(await again.request(batch_for(0, b"after"), VERSION, 30.0)).base_offset == 1
            again.close()

    simulated(test)
