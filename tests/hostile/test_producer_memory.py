"""Producer ids that clients make up take no more memory than there is for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.broker.memory import MemoryBudget
from headrace.broker.partitions import maintenance
from headrace.broker.partitions.producer_memory import PRODUCER_BYTES, ProducerMemory, largest_share
from headrace.errors import KafkaStorageError
from headrace.log.producer_state import LogProducers, ProducerEntry, WrittenBatch
from headrace.testing import broker
from headrace.topics import TopicPartition


@pytest.mark.parametrize(
    ("counts", "room", "share"),
    [
        ([], 10, 0),
        ([5, 5], 10, 5),
        ([1, 100], 10, 9),
        ([3, 4, 100, 100], 27, 10),
        ([100, 100, 100], 10, 3),
        ([7], 0, 0),
    ],
)
def test_who_has_few_keeps_them_all(counts: list[int], room: int, share: int) -> None:
    assert largest_share(counts, room) == share
    assert sum(min(count, share) for count in counts) <= room


class Turns:
    def __init__(self, log: Any) -> None:
        self.log = log

    async def change_log(self, change: Any, *arguments: Any) -> None:
        change(self.log, *arguments)


def partition(name: str, *entries: ProducerEntry) -> Any:
    producers = LogProducers(TopicPartition(name, 0))
    producers.producers = {entry.producer_id: entry for entry in entries}
    log = SimpleNamespace(producers=producers)
    return SimpleNamespace(key=TopicPartition(name, 0), log=log, turns=Turns(log))


def test_those_are_forgotten_that_wrote_longest_ago_where_there_are_most(caplog: pytest.LogCaptureFixture) -> None:
    few = partition("few", *(ProducerEntry(number, last_timestamp_ms=1) for number in range(5)))
    in_transaction = ProducerEntry(0, last_timestamp_ms=0, txn_first_offset=7)
    # The later they wrote, the older what they wrote was.
    written = {n: WrittenBatch(last_sequence=0, last_offset=n, offset_delta=0, timestamp_ms=0) for n in range(1, 200)}
    others = [ProducerEntry(n, last_timestamp_ms=1000 - n, batches=(batch,)) for n, batch in written.items()]
    many = partition("many", in_transaction, *others)
    memory = ProducerMemory(100 * PRODUCER_BYTES, lambda: [few, many], lambda: 0.0)
    asyncio.run(memory.tidy())
    assert len(few.log.producers.producers) == 5
    assert sorted(many.log.producers.producers) == [0, *range(131, 200)]
    assert "many-0" in caplog.text
    before = dict(many.log.producers.producers)
    asyncio.run(memory.tidy())
    assert many.log.producers.producers == before


def test_ids_that_were_only_asked_about_are_forgotten_before_any_that_wrote() -> None:
    """Whether they are part of a transaction is asked before anything else is known of them."""
    some = partition("some", *(ProducerEntry(number, last_timestamp_ms=1) for number in range(30)))
    producers = some.log.producers
    guards = [producers.start_verification(1000 + number, 0, 0, 0) for number in range(1000)]
    memory = ProducerMemory(100 * PRODUCER_BYTES, lambda: [some], lambda: 0.0)
    asyncio.run(memory.tidy())
    assert len(producers.producers) == 30
    assert [producers.is_verifying(guard) for guard in guards] == [False] * 955 + [True] * 45


def test_a_log_that_cannot_be_changed_keeps_no_others_from_forgetting() -> None:
    class Broken(Turns):
        async def change_log(self, change: Any, *arguments: Any) -> None:
            raise KafkaStorageError("its disk is gone")

    first, second = (partition(name, *map(ProducerEntry, range(100))) for name in ("first", "second"))
    first.turns = Broken(first.log)
    memory = ProducerMemory(100 * PRODUCER_BYTES, lambda: [first, second], lambda: 0.0)
    with pytest.raises(KafkaStorageError):
        asyncio.run(memory.tidy())
    assert len(second.log.producers.producers) < 100


def test_a_broker_remembers_no_more_producers_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_INTERVAL_S", 0.05)
    shared_out = MemoryBudget.of
    monkeypatch.setattr(
        MemoryBudget, "of", staticmethod(lambda config: replace(shared_out(config), producers=40 * PRODUCER_BYTES))
    )
    with broker(None, {}) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)

        def produce(producer_id: int, sequence: int) -> int:
            batch = raw.batch([b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            return raw.produced(client.request(raw.produce_request("t", 0, batch), raw.PRODUCE_VERSION)).error_code

        for number in range(100):
            assert produce(1000 + number, 0) == 0
        eventually(lambda: kafka.call(lambda inside: len(inside.partition("t", 0).log.producers.producers)) <= 40)
        # One that was forgotten writes on, and so does one that was not.
        assert produce(1000, 1) == 0
        assert produce(1099, 1) == 0
