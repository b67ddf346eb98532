"""What a broker finds under a name, on disk or in memory, belongs to a topic's id: only that is served or removed."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.log.crashes import stored
from tests.log.making import append_one, batch
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.cluster.decision import Decision
from headrace.cluster.image import InconsistentMetadataError, PartitionImage, partition_record
from headrace.cluster.records import ConfigRecord, MetadataRecord, RemoveTopicRecord, ResourceType, TopicRecord
from headrace.errors import KafkaStorageError
from headrace.log import Appended, Log, LogConfig, LogDirectories
from headrace.log.directory_names import DirectoryKind, partition_names
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.runtime.simulated import DiskFault, HostDiedError, Simulation, run_simulation
from headrace.topics import TopicPartition

from .sim import SimulatedBroker
from .topic_crashes import Crash, run

A, B = "/data/a", "/data/b"
BOTH = {"log.dirs": f"{A},{B}"}
METADATA_LOG = "__cluster_metadata-0/" + "0" * 20 + ".log"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def simulate(scenario: Callable[[SimulatedBroker], Coroutine[Any, Any, None]], settings: dict[str, str]) -> None:
    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation, settings)
        await machine.start()
        await scenario(machine)

    run_simulation(main, 1, time_max_s=3_600.0)


def serving(machine: SimulatedBroker) -> Broker:
    assert machine.broker is not None
    return machine.broker


async def given(result: Any) -> Any:
    return await result if hasattr(result, "__await__") else result


async def create(broker: Broker, name: str, **configs: str) -> None:
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=entries)
    answer = await broker.metadata.create(topic)
    assert answer.topics[0].error_code == 0


async def delete(broker: Broker, name: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
    answer = await broker.metadata.decide(broker.controller.delete_topics, request, 6)
    assert answer.responses[0].error_code == 0


async def write(broker: Broker, name: str, *values: bytes) -> None:
    for value in values:
        appended: Appended | Awaitable[Appended] = broker.partition(name, 0).append(batch(value))
        await given(appended)


def directories_of(broker: Broker, *names: str) -> dict[str, str]:
    return {name: broker.directories.directory_of(broker.partition(name, 0).log) for name in names}


def names(machine: SimulatedBroker, path: str, state: DirectoryKind) -> list[str]:
    found = partition_names(machine.host.disk, path)
    return [str(partition) for _, partition, its_state in found if its_state is state]


# --- the disk


@pytest.mark.slow
@pytest.mark.parametrize("crash", list(Crash), ids=lambda crash: crash.name.lower())
def test_a_crash_at_any_operation_of_creating_and_deleting_leaves_what_was_promised(crash: Crash) -> None:
    """Every seventh operation of the disk; all of them: `python -m tests.broker.topic_crashes`."""
    for operation in range(crash.name.count("_"), 5_000, 7):
        if not run(operation, crash):
            assert operation > 300
            return
    raise AssertionError("the topics' life never came to its end")


def test_a_topic_made_anew_keeps_its_records_through_a_kill() -> None:
    async def life(broker: Broker) -> None:
        await create(broker, "t", flush_messages="1")
        await write(broker, "t", *[b"%d" % number for number in range(100)])
        await broker.partition("t", 0).turns.change_log(Log.delete_records, 80)
        await asyncio.sleep(61)  # the checkpoints are written each minute
        await delete(broker, "t")
        await create(broker, "t", flush_messages="1")
        await write(broker, "t", *[b"%d" % number for number in range(50)])

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        machine.kill()
        await machine.start()
        log = serving(machine).partition("t", 0).log
        assert (log.start_offset, log.end_offset) == (0, 50)

    simulate(scenario, {})


def test_a_partition_left_offline_is_not_served_until_it_is_restored_or_deleted() -> None:
    home, first = "/data/one/t-0", "/data/one/t-0/" + "0" * 20 + ".log"

    async def life(broker: Broker) -> None:
        await create(broker, "t")
        await write(broker, "t", *[b"%d" % number * 500 for number in range(100)])
        await broker.partition("t", 0).turns.sync()
        await asyncio.sleep(61)

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        machine.kill()
        disk = machine.host.restart().disk
        good = disk.read_file(first)
        data = bytearray(good)
        second = 12 + int.from_bytes(data[8:12], "big")
        data[second : second + 61] = bytes(61)
        disk.replace_file(first, bytes(data))
        for name in disk.listdir(home):
            if name.endswith(".snapshot"):
                disk.remove(f"{home}/{name}")
        for _ in range(2):
            await machine.start()
            with pytest.raises(KafkaStorageError, match="restore the directory"):
                serving(machine).partition("t", 0)
            await machine.host.start(asyncio.sleep(61))
            assert machine.host.disk.read_file(first) == bytes(data)
            await machine.stop()
        machine.host.restart().disk.replace_file(first, good)
        await machine.start()
        assert serving(machine).partition("t", 0).log.end_offset == 100
        await machine.stop()
        machine.host.restart().disk.replace_file(first, bytes(data))
        machine.host.disk.remove("/data/one/.kafka_cleanshutdown")
        await machine.start()
        await machine.host.start(delete(serving(machine), "t"))
        await machine.host.start(create(serving(machine), "t"))
        assert serving(machine).partition("t", 0).log.end_offset == 0
        await machine.stop()
        await machine.start()
        assert serving(machine).partition("t", 0).log.end_offset == 0

    simulate(scenario, {})


def test_damaged_metadata_is_refused_and_no_topic_is_touched() -> None:
    async def life(broker: Broker) -> None:
        for name in ("one", "two", "three"):
            await create(broker, name)
            await write(broker, name, b"precious")

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        await machine.stop()
        disk = machine.host.restart().disk
        path = f"/data/one/{METADATA_LOG}"
        good = disk.read_file(path)
        data = bytearray(good)
        data[data.index(b"two")] ^= 1
        disk.replace_file(path, bytes(data))
        with pytest.raises(InconsistentMetadataError, match="the metadata log is damaged, and is left as it is"):
            await machine.start()
        assert disk.read_file(path) == bytes(data)
        machine.host.restart().disk.replace_file(path, good)
        await machine.start()
        for name in ("one", "two", "three"):
            assert serving(machine).partition(name, 0).log.end_offset == 1

    simulate(scenario, {})


async def lose_a_and_begin_anew_in_b(machine: SimulatedBroker) -> None:
    """Four topics in two directories; the one that has the metadata fails, and its owner begins with new metadata."""

    async def life(broker: Broker) -> None:
        for name in ("one", "two", "three", "four"):
            await create(broker, name, retention_ms="3600000")
            await write(broker, name, b"of " + name.encode())
        assert directories_of(broker, "one", "two", "three", "four") == {"one": A, "two": B, "three": A, "four": B}

    await machine.host.start(life(serving(machine)))
    await machine.stop()
    machine.host.restart()
    machine.host.disk.inject(DiskFault("*", errno.EIO, under=A, times=None))
    machine.settings["metadata.log.dir"] = B
    await machine.start()
    assert set(serving(machine).image.topics) == {"two", "four"}
    await machine.stop()
    machine.host.restart()
    machine.host.disk.heal()


def test_a_directory_that_comes_back_to_other_metadata_is_kept() -> None:
    async def scenario(machine: SimulatedBroker) -> None:
        await lose_a_and_begin_anew_in_b(machine)
        await machine.start()
        assert set(serving(machine).image.topics) == {"two", "four"}
        await machine.host.start(asyncio.sleep(400))
        assert names(machine, A, DirectoryKind.STRAY) == ["one-0", "three-0"]
        assert names(machine, A, DirectoryKind.PRESENT) == []
        await machine.stop()
        # Its own metadata still knows what is there. Of two, one has to be named.
        del machine.settings["metadata.log.dir"]
        machine.host.restart()
        with pytest.raises(InconsistentMetadataError, match="each hold a metadata log"):
            await machine.start()
        machine.settings["metadata.log.dir"] = A
        machine.host.restart()
        await machine.start()
        for name in ("one", "two", "three", "four"):
            (data,) = stored(serving(machine).partition(name, 0).log)
            assert b"of " + name.encode() in data
        assert names(machine, A, DirectoryKind.STRAY) == []

    simulate(scenario, BOTH)


def test_logs_that_come_without_metadata_keep_their_producer_ids() -> None:
    """A new producer with the id of one in the logs would be told that its records are there, and they would not be."""

    async def new_id(broker: Broker) -> int:
        while (producer_id := broker.producer_ids.take()) is None:
            await broker.producer_ids.fill()
        return producer_id

    async def first_life(broker: Broker) -> int:
        await create(broker, "t")
        producer_id = await new_id(broker)
        written = batch(b"one", producer=(producer_id, 0, 0), timestamp=broker.runtime.clock.now_ms())
        await given(broker.partition("t", 0).append(written))
        return producer_id

    async def scenario(machine: SimulatedBroker) -> None:
        known = await machine.host.start(first_life(serving(machine)))
        await machine.stop()
        machine.host.restart().disk.rmtree(f"{A}/__cluster_metadata-0")
        await machine.start()
        assert serving(machine).partition("t", 0).log.end_offset == 1
        assert await machine.host.start(new_id(serving(machine))) > known

    simulate(scenario, {"log.dirs": A})


def test_new_metadata_does_not_begin_beside_the_old() -> None:
    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(create(serving(machine), "t"))
        await machine.stop()
        machine.settings["metadata.log.dir"] = B
        machine.host.restart()
        with pytest.raises(InconsistentMetadataError, match=f"is in {A}, but metadata.log.dir is {B}"):
            await machine.start()
        machine.host.restart().disk.rename(f"{A}/__cluster_metadata-0", f"{B}/__cluster_metadata-0")
        await machine.start()
        assert set(serving(machine).image.topics) == {"t"}

    simulate(scenario, BOTH)


def test_a_directory_that_is_not_mounted_is_missed_and_its_partitions_are_not_made_anew() -> None:
    async def life(broker: Broker) -> None:
        await create(broker, "one")
        await create(broker, "two")
        assert directories_of(broker, "one", "two") == {"one": A, "two": B}
        await write(broker, "two", b"precious")

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        await machine.stop()
        machine.host.restart().disk.rename(B, "/data/unmounted")  # an empty directory to mount it on is made
        for _ in range(2):
            await machine.start()
            assert serving(machine).partition("one", 0).log.end_offset == 0
            with pytest.raises(KafkaStorageError, match="which was here before and is not now"):
                serving(machine).partition("two", 0)
            assert names(machine, B, DirectoryKind.PRESENT) == []
            await machine.stop()
        machine.host.restart().disk.rmtree(B)
        machine.host.disk.rename("/data/unmounted", B)
        await machine.start()
        assert serving(machine).partition("two", 0).log.end_offset == 1
        await machine.stop()
        # And where it is gone for good: without topics that miss it, it is not missed either.
        machine.host.restart().disk.rename(B, "/data/unmounted")
        await machine.start()
        await machine.host.start(delete(serving(machine), "two"))
        await machine.stop()
        await machine.start()
        await machine.host.start(create(serving(machine), "two"))
        await machine.stop()
        await machine.start()
        assert serving(machine).partition("two", 0).log.end_offset == 0
        assert len(serving(machine).image.brokers[1].directories) == 2

    simulate(scenario, BOTH)


@pytest.mark.slow
def test_a_data_directory_without_metadata_is_taken_over_whatever_interrupts_that() -> None:
    """A first start that dies at each of its operations in turn. Copies and remains of other topics are kept aside."""
    t, u, old = bytes([1]) * 16, None, bytes([3]) * 16

    async def main(simulation: Simulation, operation: int) -> bool:
        machine = SimulatedBroker(simulation)
        directories = LogDirectories.open(machine.host.runtime, ["/data/one"], node_id=1)
        directories.open_logs(lambda topic: LogConfig())
        for topic, index, topic_id in (("t", 0, t), ("t", 1, t), ("t", 7, old), ("u", 0, u), ("z-is-a-copy", 0, t)):
            log = directories.create(TopicPartition(topic, index), LogConfig(), topic_id)
            append_one(log, batch(b"v"), leader_epoch=4)
        directories.close()
        machine.host.disk.crash_after(operation)
        interrupted = False
        try:
            await machine.start()
        except HostDiedError:
            interrupted = True
            await machine.start()
        machine.host.disk.crash_after(10**9)
        for _ in range(2):
            broker = serving(machine)
            assert {name: len(topic.partitions) for name, topic in broker.image.topics.items()} == {"t": 2, "u": 1}
            assert broker.image.topics["t"].topic_id == t
            assert broker.partition("t", 0).leader_epoch >= 5
            for name, index in (("t", 0), ("t", 1), ("u", 0)):
                assert broker.partition(name, index).log.end_offset == 1
                assert broker.partition(name, index).log.topic_id == broker.image.topics[name].topic_id
            assert names(machine, "/data/one", DirectoryKind.STRAY) == ["t-7", "z-is-a-copy-0"]
            await machine.stop()
            await machine.start()
        return interrupted

    for operation in range(0, 2_000, 5):
        if not run_simulation(lambda simulation, at=operation: main(simulation, at), 1).value:
            assert operation > 100
            return
    raise AssertionError("the first start never came to its end")


def test_the_last_topic_that_was_deleted_does_not_come_back() -> None:
    async def main(simulation: Simulation, operation: int) -> bool:
        machine = SimulatedBroker(simulation)
        await machine.start()
        broker = serving(machine)
        await machine.host.start(create(broker, "t", flush_messages="1"))
        await machine.host.start(write(broker, "t", b"of the deleted topic"))
        machine.host.disk.crash_after(operation)
        try:
            await machine.host.start(delete(broker, "t"))
        except HostDiedError:
            await machine.start()
            topics = serving(machine).image.topics
            # The deletion was decided or it was not; a log is never taken over from a topic that was known once.
            if topics:
                assert serving(machine).image.config(2, "t") == {"flush.messages": "1"}
            else:
                assert names(machine, "/data/one", DirectoryKind.PRESENT) == []
                assert names(machine, "/data/one", DirectoryKind.STRAY) == []
            return True
        return False

    for operation in range(30):
        if not run_simulation(lambda simulation, at=operation: main(simulation, at), 1).value:
            assert operation > 3
            return
    raise AssertionError("the deletion never came to its end")


def test_a_topic_made_anew_while_its_directory_was_away_is_the_one_that_is_served() -> None:
    async def life(machine: SimulatedBroker) -> None:
        broker = serving(machine)
        await create(broker, "one")
        await create(broker, "two")
        assert directories_of(broker, "one", "two") == {"one": A, "two": B}
        await write(broker, "two", b"old", b"older")
        machine.host.disk.inject(DiskFault("*", errno.EIO, under=B, times=None))
        with pytest.raises(KafkaStorageError):
            await write(broker, "two", b"x")
        await asyncio.sleep(1)
        await delete(broker, "two")
        await create(broker, "two")
        await write(broker, "two", b"new")

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(machine))
        machine.kill()
        await machine.start()
        log = serving(machine).partition("two", 0).log
        assert (log.directory, log.end_offset) == (f"{A}/two-0", 1)
        # The metadata still tells that the other was deleted, so that is finished.
        assert names(machine, B, DirectoryKind.PRESENT) == []
        assert names(machine, B, DirectoryKind.DELETE) == ["two-0"]
        await machine.stop()
        await machine.start()
        assert serving(machine).partition("two", 0).log.end_offset == 1

    simulate(scenario, BOTH)


def test_topics_deleted_and_made_anew_in_one_decision_are_never_served_from_their_former_logs() -> None:
    async def life(broker: Broker) -> None:
        replicas, node = broker.replicas, (broker.node_id,)
        state = PartitionImage(replicas=node, isr=node, leader=broker.node_id, leader_epoch=0, partition_epoch=0)
        removed: list[MetadataRecord] = []
        made: list[MetadataRecord] = []
        for number, name in enumerate("ab"):
            await create(broker, name)
            await write(broker, name, b"former")
            new_id = bytes(15) + bytes((number,))
            removed.append(RemoveTopicRecord(topic_id=broker.image.topics[name].topic_id))
            made += [TopicRecord(name=name, topic_id=new_id), partition_record(new_id, 0, state)]
        change_directories = replicas.change_directories
        served: list[str] = []

        def looking(change: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            # The disk is about to be busy, and clients may know of the new topics from another broker.
            served.extend(
                name
                for (name, _), one in replicas.partitions.items()
                if one.log.topic_id != broker.cluster.topic_id(name)
            )
            return change_directories(change, *args)

        replicas.change_directories = looking  # type: ignore[method-assign]
        await broker.metadata.change(lambda image: Decision(None, [*removed, *made]))
        assert served == []
        for name in "ab":
            assert broker.partition(name, 0).log.end_offset == 0

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))

    simulate(scenario, {})


def test_a_topic_is_deleted_and_made_anew_in_one_decision() -> None:
    async def life(broker: Broker) -> None:
        await create(broker, "t")
        await write(broker, "t", b"old")
        old_id, new_id = broker.image.topics["t"].topic_id, bytes(range(16))
        node = (broker.node_id,)
        state = PartitionImage(replicas=node, isr=node, leader=broker.node_id, leader_epoch=0, partition_epoch=0)
        records = [
            RemoveTopicRecord(topic_id=old_id),
            TopicRecord(name="t", topic_id=new_id),
            partition_record(new_id, 0, state),
        ]
        await broker.metadata.change(lambda image: Decision(None, records))
        assert broker.partition("t", 0).log.topic_id == new_id
        await write(broker, "t", b"new")
        assert broker.partition("t", 0).log.end_offset == 1

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        machine.kill()
        await machine.start()
        assert serving(machine).partition("t", 0).log.end_offset == 1

    simulate(scenario, {})


def test_a_config_that_changes_while_a_log_moves_counts() -> None:
    async def life(broker: Broker) -> None:
        await create(broker, "t", retention_ms="1000")
        partition = broker.partition("t", 0)
        await write(broker, "t", *[b"x" * 1000 for _ in range(50)])
        other = next(path for path in (A, B) if path != broker.directories.directory_of(partition.log))
        await broker.replicas.move("t", 0, other)
        keep = ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value="-1")
        await broker.metadata.change(lambda image: Decision(None, [keep]))
        assert broker.directories.moves
        await becomes(lambda: not broker.directories.moves)
        assert broker.directories.directory_of(partition.log) == other
        assert partition.log.config.retention_ms == -1
        assert partition.log.leader_epoch == partition.leader_epoch

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))

    simulate(scenario, BOTH)
