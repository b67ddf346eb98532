"""What clients make of arguments that Python would take and misread, or that numpy or another library gives."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import Consumer, Producer, RangeReader, aio
from headrace.client.errors import SerializationError
from headrace.client.producer._base import ProducerSetup, rows_of
from headrace.client.producer.delivery import BatchDelivery
from headrace.client.serializers import FloatSerializer, Int32Serializer, IntSerializer
from headrace.config import ConfigError
from headrace.topics import TopicPartition

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    with Consumer(bootstrap_servers=NOWHERE, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([("t3", 0), ("t", 3)])
        yield consumer
        consumer.assign([])


@pytest.fixture
def producer() -> Iterator[Producer]:
    producer = Producer(bootstrap_servers=NOWHERE, max_block_ms=50)
    yield producer
    producer.close(0)


@pytest.mark.parametrize("call", ["assign", "pause", "resume", "seek_to_beginning", "seek_to_end"])
def test_one_pair_is_not_taken_for_several_partitions(consumer: Consumer, call: str) -> None:
    for pair in (("t3", 0), TopicPartition("t3", 0), ("t3", np.int64(0))):
        with pytest.raises(TypeError, match=rf"{call} takes several partitions, and .*give a list, \["):
            getattr(consumer, call)(pair)
    assert consumer.assignment() == {("t3", 0), ("t", 3)}
    for wrong in (["t3"], [("t3",)], [("t3", "0")], [0], [(0, "t3")]):
        with pytest.raises(
            TypeError, match=rf"{call} takes partitions (as a list of \(topic, partition\)|by their num)"
        ):
            getattr(consumer, call)(wrong)


def test_one_pair_is_not_taken_for_several_partitions_by_what_asks_brokers(consumer: Consumer) -> None:
    for call in (consumer.end_offsets, consumer.beginning_offsets, consumer.committed):
        with pytest.raises(TypeError, match="list"):
            call(("t3", 0))  # type: ignore[arg-type]
    with RangeReader(bootstrap_servers=NOWHERE) as reader, pytest.raises(TypeError, match="give a list"):
        reader.end_offsets(("t3", 0))


def test_partitions_may_be_any_iterable_of_pairs(consumer: Consumer) -> None:
    consumer.pause(pair for pair in [("t3", 0)])
    assert consumer.paused() == {("t3", 0)}
    consumer.resume([["t3", 0]])  # type: ignore[list-item]
    assert consumer.paused() == set()


def test_offsets_are_64_bits(consumer: Consumer) -> None:
    for wrong in (-1, 2**63, "5", 1.5):
        with pytest.raises(ValueError, match="cannot seek to"):
            consumer.seek(("t", 3), wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot commit"):
            consumer.commit_sync({("t", 3): wrong})
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="not a time"):
            consumer.offsets_for_times({("t", 3): wrong})
    consumer.seek(("t", 3), 2**63 - 1)
    assert consumer.position(("t", 3)) == 2**63 - 1


def test_numpy_integers_are_integers(consumer: Consumer, producer: Producer) -> None:
    consumer.assign([("t", np.int32(7))])  # type: ignore[list-item]
    consumer.seek(("t", 7), np.int64(5))  # type: ignore[arg-type]
    assert type(consumer.position(("t", np.int64(7)))) is int  # type: ignore[arg-type]
    sent = producer.send("t", b"v", on_delivery=print, partition=np.int64(3), timestamp=np.uint64(9))  # type: ignore[arg-type]
    assert [type(one) for one in sent[3:5]] == [int, int]
    setup = ProducerSetup({"bootstrap.servers": NOWHERE}, {})
    for partition, read in ((np.int64(3), [3, 3]), (np.array([3, 4]), [3, 4]), ([np.int64(3), None], [3, None])):
        rows = rows_of(setup, BatchDelivery(None, "t", None), "t", [b"a", b"b"], None, partition, partition, None)  # type: ignore[arg-type]
        assert rows.partitions == rows.timestamps == read
        assert {type(one) for one in rows.timestamps} <= {int, type(None)}
    assert IntSerializer().serialize("t", np.int16(-2)) == b"\xff" * 7 + b"\xfe"


@pytest.mark.parametrize("wrong", [-1, np.int64(-1), 2**31, 1.5, "1"])
def test_what_is_no_partition_is_refused(producer: Producer, wrong: Any) -> None:
    with pytest.raises(ValueError, match="partition"):
        producer.send("t", b"v", partition=wrong)
    with pytest.raises(ValueError, match="partition"):
        producer.send_batch("t", [b"v"], partition=[wrong])


@pytest.mark.parametrize("serializer", [FloatSerializer(), IntSerializer(), Int32Serializer()])
def test_a_number_that_does_not_fit_is_named(serializer: Any) -> None:
    with pytest.raises(SerializationError, match="is not a "):
        serializer.serialize("t", 10**400)
    with pytest.raises(SerializationError, match="an integer of 33220 bits is not a"):
        serializer.serialize("t", 10**10_000)


def test_a_poll_without_a_time_says_what_it_takes(consumer: Consumer) -> None:
    for wrong in (None, "1"):
        with pytest.raises(TypeError, match="poll takes for how many seconds"):
            consumer.poll(wrong)  # type: ignore[arg-type]


async def later(error: Any, metadata: Any) -> None:
    """As one would write it on asyncio."""


def generator(error: Any, metadata: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("wrong", [5, "print", later, generator])
def test_a_callback_that_would_do_nothing_is_refused_at_once(producer: Producer, wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: producer.send("t", b"v", on_delivery=wrong),
        lambda: producer.send_batch("t", [b"v"], on_delivery=wrong),
        lambda: producer.send_arrow("t", pa.table({"value": [b"v"]}), on_delivery=wrong),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"on_delivery=…\) takes a"):
            call()
    assert producer.metrics() == {}, "nothing was begun"


def test_a_commit_callback_that_would_do_nothing_is_refused_at_once(consumer: Consumer) -> None:
    for wrong in (5, later):
        with pytest.raises(TypeError, match=r"commit_async\(callback=…\) takes a"):
            consumer.commit_async({("t", 3): 1}, callback=wrong)


def test_whatever_can_be_called_may_be_a_callback(producer: Producer) -> None:
    told: list[Any] = []
    for callback in (told.append, functools.partial(print), lambda error, _: told.append(error), dict.get, type):
        producer.send("t", b"v", on_delivery=callback)  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [[[{"key": None, "value": b"x"}]], [[None]], [[{"key": "a", "value": 5}]]])
def test_arrow_headers_without_a_name_are_refused_with_their_row(producer: Producer, headers: Any) -> None:
    with pytest.raises(SerializationError, match="the headers of row 1 are"):
        producer.send_arrow("t", pa.table({"value": [b"a", b"b"], "headers": [[], *headers]}))


def test_librdkafkas_compression_level_is_that_of_the_codec() -> None:
    def level(**config: Any) -> Any:
        return ProducerSetup({"bootstrap.servers": NOWHERE, **config}, {}).settings.level

    assert level(**{"compression.type": "zstd", "compression.level": 7}) == 7
    assert level(**{"compression.codec": "gzip", "compression.level": "2"}) == 2
    assert level(**{"compression.type": "lz4", "compression.level": -1}) == level(**{"compression.type": "lz4"})
    assert level(**{"compression.type": "snappy", "compression.level": 5}) == level(**{"compression.type": "snappy"})
    with pytest.raises(ConfigError, match=r"compression\.gzip\.level"):
        level(**{"compression.type": "gzip", "compression.level": 12})
    with pytest.raises(ConfigError, match="give only one"):
        level(**{"compression.type": "zstd", "compression.level": 7, "compression.zstd.level": 7})


def test_aio_poll_without_a_time_says_what_it_takes() -> None:
    async def main() -> None:
        async with aio.Consumer(bootstrap_servers=NOWHERE) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(TypeError, match="poll takes for how many seconds"):
                await consumer.poll(None)  # type: ignore[arg-type]

    asyncio.run(main())
