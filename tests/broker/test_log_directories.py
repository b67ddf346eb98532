"""Several log directories: where partitions go, and how one is moved while it is written and read."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests.waiting import becomes, eventually

from headrace.broker.partitions.replicas import MOVES_AT_ONCE
from headrace.errors import ErrorCode
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.runtime.simulated import Simulation, run_simulation
from headrace.testing import EmbeddedBroker, broker

from . import raw
from .raw import RawClient
from .sim import Client, SimulatedBroker, Story, Writer, check, create_topic

ALTER_VERSION, DESCRIBE_VERSION = 2, 3


def move_request(path: str, topic: str, partition: int) -> AlterReplicaLogDirsRequest:
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=[partition])
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])


def place_of(kafka: EmbeddedBroker, topic: str, partition: int) -> str:
    return kafka.call(lambda inside: inside.directories.directory_of(inside.partition(topic, partition).log))


def two(tmp_path: Path) -> dict[str, str]:
    return {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}


def test_new_partitions_go_where_the_fewest_are(tmp_path: Path, failures: list[str]) -> None:
    with broker(None, two(tmp_path)) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"a": 3}), raw.CREATE_TOPICS_VERSION)
        client.request(raw.create_topics_request({"b": 7}), raw.CREATE_TOPICS_VERSION)
        places = Counter(
            place_of(kafka, topic, index) for topic, count in (("a", 3), ("b", 7)) for index in range(count)
        )
        assert sorted(places.values()) == [5, 5]
    with broker(None, two(tmp_path)) as kafka:
        again = Counter(
            place_of(kafka, topic, index) for topic, count in (("a", 3), ("b", 7)) for index in range(count)
        )
        assert again == places
    assert failures == []


def test_a_move_to_a_strange_directory_is_refused(tmp_path: Path) -> None:
    with broker(None, two(tmp_path)) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        answer = client.request(move_request(str(tmp_path / "three"), "t", 0), ALTER_VERSION)
        assert answer.results[0].partitions[0].error_code == ErrorCode.LOG_DIR_NOT_FOUND
        answer = client.request(move_request(str(tmp_path / "two"), "nobody", 0), ALTER_VERSION)
        assert answer.results[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["1", "9223372036854775807"], ids=["synced", "unsynced"])
def test_a_log_moves_back_and_forth_under_load_and_loses_nothing(
    tmp_path: Path, failures: list[str], flush: str
) -> None:
    with broker(None, two(tmp_path)) as kafka, RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 1}, flush_messages=flush), raw.CREATE_TOPICS_VERSION)
        stop = threading.Event()
        acknowledged: list[int] = []
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged.append(int(message.value() or b""))
            else:
                refused.append(error)

        def load() -> None:
            producer = Producer(
                {"bootstrap.servers": kafka.address, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
            )
            number = 0
            while not stop.is_set():
                producer.produce("t", value=str(number), partition=0, on_delivery=delivered)
                number += 1
                producer.poll(0)
                if number % 20 == 0:
                    time.sleep(0.001)
            assert producer.flush(30) == 0

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for _ in range(6):
                before = len(acknowledged)
                eventually(lambda before=before: len(acknowledged) > before + 200)
                here = place_of(kafka, "t", 0)
                there = next(path for path in kafka.broker.directories.paths if path != here)
                answer = client.request(move_request(there, "t", 0), ALTER_VERSION)
                assert answer.results[0].partitions[0].error_code == 0
                eventually(lambda there=there: place_of(kafka, "t", 0) == there)
        finally:
            stop.set()
            thread.join()
        assert refused == []
        rows: list[bytes] = []
        while len(rows) < len(acknowledged):
            found = raw.fetched(client.request(raw.fetch_request("t", 0, len(rows)), raw.FETCH_VERSION))
            assert found.error_code == 0
            got = [value for offset, value in raw.values_of(found.records) if offset >= len(rows)]
            assert got, "the log ends before what was acknowledged"
            rows += got
        assert rows == [b"%d" % number for number in range(len(acknowledged))]
        described = client.request(DescribeLogDirsRequest(topics=None), DESCRIBE_VERSION)
        assert [part.is_future_key for found in described.results for t in found.topics for part in t.partitions] == [
            False
        ]
    assert failures == []


def test_a_move_that_waits_for_others_is_given_up_at_once_for_another() -> None:
    """Few logs are copied at a time, which may take hours: whoever wants another move need not wait for those."""

    async def main(simulation: Simulation) -> None:
        paths = ("/data/one", "/data/two", "/data/three")
        served = SimulatedBroker(simulation, {"log.dirs": ",".join(paths)})
        await served.start()
        client = Client(simulation, "client")
        await client.request(raw.create_topics_request({"t": 1, "u": 1}), raw.CREATE_TOPICS_VERSION)
        assert served.broker is not None
        inside = served.broker.replicas
        for _ in range(MOVES_AT_ONCE):
            await inside._moves_at_once.acquire()  # others are copied

        async def move(path: str, topic: str) -> int:
            answer = await client.request(move_request(path, topic, 0), ALTER_VERSION)
            code: int = answer.results[0].partitions[0].error_code
            return code

        here = os.path.dirname(inside.get("t", 0).log.directory)
        first, second = (path for path in paths if path != here)
        for path in (first, second, here, first, second):
            assert await move(path, "t") == ErrorCode.NONE
        assert await move(first, "u") == ErrorCode.NONE
        inside._moves_at_once.release()
        await becomes(lambda: os.path.dirname(inside.get("t", 0).log.directory) == second)
        await becomes(lambda: os.path.dirname(inside.get("u", 0).log.directory) == first)
        await becomes(lambda: not inside._moving)
        assert not inside.directories.moves
        await served.stop()

    run_simulation(main, 1, time_max_s=900.0)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 10])
def test_a_move_survives_what_happens_to_the_broker(first: int) -> None:
    """Power losses, and moves asked for again and elsewhere, while producers insist."""

    async def main(simulation: Simulation) -> None:
        rng = simulation.rng
        paths = ("/data/one", "/data/two", "/data/three")
        served = SimulatedBroker(simulation, {"log.dirs": ",".join(paths)})
        await served.start()
        story = Story("durable", partitions=2, is_durable=True)
        observer = Client(simulation, "observer")
        await create_topic(observer, story)
        writers = [Writer(simulation, f"writer-{n}", story, simulation.random_for(f"writer {n}")) for n in range(2)]
        tasks = [asyncio.ensure_future(writer.run()) for writer in writers]
        for _ in range(2):
            for _ in range(rng.randint(1, 6)):
                await observer.insist(move_request(rng.choice(paths), "durable", rng.randrange(2)), ALTER_VERSION)
                await asyncio.sleep(rng.choice((0.0, 0.002, 0.02)))
            for writer in writers:
                writer.client.may_send.clear()
            served.lose_power()
            observer.close()
            await served.start()
            await check(observer, story)
            for writer in writers:
                writer.client.may_send.set()
        for writer in writers:
            writer.stopping = True
        await asyncio.gather(*tasks)
        await check(observer, story)

    for seed in range(first, first + 10):
        run_simulation(main, seed, time_max_s=900.0)
