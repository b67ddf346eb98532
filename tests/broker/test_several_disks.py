"""Log directories of brokers that are one cluster: failed, lost, damaged, or unknown to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.log.test_directories_names import damage

from headrace.broker.metadata.directory_reports import DirectoryReports
from headrace.broker.partitions.replicas import Replicas
from headrace.cluster.records import MetadataRecord, PartitionChangeRecord
from headrace.cluster.store import StoreError
from headrace.cluster.store.node_store import NodeStore
from headrace.errors import ErrorCode
from headrace.log import Log, LogDirectories
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.runtime.simulated import DiskFault

from . import raw
from .several import SeveralBrokers, create, run_several


def test_a_failed_directory_of_any_broker_is_led_by_others_and_the_broker_by_itself_again_when_it_is_back() -> None:
    """Not only of the controller: whoever decides is told, and told again after a controller that did not hear it."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "shared", partitions=6, replicas=3) == ErrorCode.NONE
        assert await create(cluster, 1, "alone", partitions=6) == ErrorCode.NONE
        failing = cluster.other_than(cluster.controller_id())
        broker, watcher = cluster.running(failing), cluster.running(cluster.other_than(failing))
        await cluster.until(lambda: len(broker.replicas.partitions) == 8)
        two = {key for key, found in broker.replicas.partitions.items() if found.log.directory.startswith("/data/two")}
        assert two

        def leaders_of(topic: str) -> set[int]:
            partitions = enumerate(watcher.image.topics[topic].partitions)
            return {state.leader for index, state in partitions if (topic, index) in two}

        cluster.brokers[failing].host.disk.inject(DiskFault("*", under="/data/two", times=None))
        for topic, index in two:
            client = cluster.client(failing)
            await client.request(raw.produce_request(topic, index, raw.batch([b"x"])), raw.PRODUCE_VERSION)
        await cluster.until(lambda: failing not in leaders_of("shared") | leaders_of("alone"))
        assert -1 not in leaders_of("shared")
        assert leaders_of("alone") == {-1}
        await cluster.brokers[failing].stop()
        cluster.brokers[failing].host.disk.heal()
        await cluster.brokers[failing].start()
        await cluster.until(lambda: leaders_of("alone") == {failing})
        for topic, index in two:
            await cluster.until(lambda t=topic, i=index: failing in watcher.image.topics[t].partitions[i].isr)  # type: ignore[misc]

    run_several(main, settings={"log.dirs": "/data/one,/data/two"})


@pytest.mark.parametrize("trouble", ["refused", "defect"])
def test_a_failed_directory_is_told_again_whatever_came_between(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """The store did not let the controller write it down, say; or telling of it has failed by a defect."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "shared", partitions=6, replicas=3) == ErrorCode.NONE
        failing = cluster.other_than(cluster.controller_id())
        broker, watcher = cluster.running(failing), cluster.running(cluster.other_than(failing))
        await cluster.until(lambda: len(broker.replicas.partitions) == 6)
        two = {key for key, found in broker.replicas.partitions.items() if found.log.directory.startswith("/data/two")}
        failures = [1, 1, 1]
        append, report = NodeStore.append_if_epoch, DirectoryReports._report

        async def refuse(store: NodeStore, epoch: int, records: Sequence[MetadataRecord]) -> int:
            if failures and any(isinstance(one, PartitionChangeRecord) and one.directories for one in records):
                failures.pop()
                raise StoreError("not allowed for now")
            return await append(store, epoch, records)

        def fail(reports: DirectoryReports) -> AssignReplicasToDirsRequest | None:
            if failures:
                failures.pop()
                raise RuntimeError("a defect")
            return report(reports)

        if trouble == "refused":
            monkeypatch.setattr(NodeStore, "append_if_epoch", refuse)
        else:
            monkeypatch.setattr(DirectoryReports, "_report", fail)
        cluster.brokers[failing].host.disk.inject(DiskFault("*", under="/data/two", times=None))
        client = cluster.client(failing)
        for topic, index in two:
            await client.request(raw.produce_request(topic, index, raw.batch([b"x"])), raw.PRODUCE_VERSION)

        def leaders() -> set[int]:
            partitions = enumerate(watcher.image.topics["shared"].partitions)
            return {state.leader for index, state in partitions if ("shared", index) in two}

        await cluster.until(lambda: failing not in leaders())
        assert not failures

    run_several(main, settings={"log.dirs": "/data/one,/data/two"})


def test_a_replica_whose_log_could_not_be_made_is_led_by_others() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        failing = cluster.other_than(cluster.controller_id())
        watcher = cluster.running(cluster.other_than(failing))
        cluster.brokers[failing].host.disk.inject(DiskFault("*", under="/data/two", times=None))
        assert await create(cluster, cluster.other_than(failing), "new", partitions=6, replicas=3) == ErrorCode.NONE
        broker = cluster.running(failing)
        await cluster.until(lambda: bool(broker.replicas.offline))

        def is_told() -> bool:
            states = watcher.image.topics["new"].partitions
            lost = {index for topic, index in broker.replicas.offline if topic == "new"}
            return all((failing in state.isr) == (index not in lost) for index, state in enumerate(states))

        await cluster.until(is_told)
        states = watcher.image.topics["new"].partitions
        assert all(states[index].leader not in (failing, -1) for _, index in broker.replicas.offline)

    run_several(main, settings={"log.dirs": "/data/one,/data/two"})


def test_replicas_whose_directory_failed_while_their_logs_were_made_are_led_by_others() -> None:
    """Also those that were made before it did, and of which nobody had heard yet."""

    async def main(cluster: SeveralBrokers) -> None:
        failing = cluster.other_than(cluster.controller_id())
        watcher, broker = cluster.running(cluster.other_than(failing)), cluster.running(failing)
        create_log, made = LogDirectories.create, []

        def create_then_fail(directories: LogDirectories, *arguments: Any, **options: Any) -> Log:
            log = create_log(directories, *arguments, **options)
            if directories is broker.directories and log.directory.startswith("/data/two"):
                made.append(log.partition)
                cluster.brokers[failing].host.disk.inject(DiskFault("*", under="/data/two", times=None))
            return log

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogDirectories, "create", create_then_fail)
            assert await create(cluster, cluster.other_than(failing), "new", partitions=6, replicas=3) == ErrorCode.NONE
            await cluster.until(lambda: bool(broker.replicas.offline))
        states = watcher.image.topics["new"].partitions
        assert len(made) == 1
        await cluster.until(lambda: states[made[0].partition].is_lost_at(failing))
        assert all(failing not in states[index].isr for _, index in broker.replicas.offline)

    run_several(main, settings={"log.dirs": "/data/one,/data/two"})


def test_a_replica_whose_log_is_damaged_can_be_moved_away_and_back() -> None:
    """It has nothing to do with the log that could not be opened when it is made anew."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "shared", partitions=1, replicas=3) == ErrorCode.NONE
        state = cluster.running(1).image.topics["shared"].partitions[0]
        damaged = next(node_id for node_id in cluster.brokers if node_id not in (state.leader, cluster.controller_id()))
        others = [node_id for node_id in cluster.brokers if node_id != damaged]
        request = raw.produce_request("shared", 0, raw.batch([b"x" * 100]))
        written = 0
        while written < 5:  # the leader may not know yet that it is
            answer = await cluster.client(state.leader).request(request, raw.PRODUCE_VERSION)
            written += raw.produced(answer).error_code == ErrorCode.NONE
        # What it has not copied yet cannot be damaged.
        await cluster.until(lambda: cluster.running(damaged).partition("shared", 0).log.end_offset == 5)
        machine = cluster.brokers[damaged]
        # Twice: what was on its disk when it was stopped is damaged when it was killed.
        await machine.stop()
        await machine.start()
        machine.kill()
        machine.host.restart()
        damage(machine.host, "/data/shared-0")
        await machine.start()
        broker = cluster.running(damaged)
        assert broker.replicas.offline == [("shared", 0)]
        for replicas in (others, [*others, damaged]):
            topic = ReassignableTopic(
                name="shared", partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
            )
            request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=10_000)
            answer = await cluster.client(others[0]).request(request, 0, 30.0)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
            wanted = set(replicas)

            def has_moved(wanted: set[int] = wanted) -> bool:
                """Seen by the broker itself: one that is told of both moves at once has not been away."""
                state = broker.image.topics["shared"].partitions[0]
                return set(state.replicas) == set(state.isr) == wanted and not broker.replicas.offline

            await cluster.until(has_moved)
        assert broker.partition("shared", 0).log.end_offset == 5

    run_several(main, settings={"log.dirs": "/data"})


@pytest.mark.parametrize("is_there", [True, False])
def test_a_broker_that_comes_back_without_a_directory_was_not_stopped_cleanly(is_there: bool) -> None:
    """It would stay eligible as one that has all that was committed, and lead with an empty log."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "shared", partitions=6, replicas=3) == ErrorCode.NONE
        first, second = [node_id for node_id in cluster.brokers if node_id != cluster.controller_id()]
        stopped_in = cluster.running(second).broker_epoch
        for node_id in (first, second):
            await cluster.brokers[node_id].stop()
        if not is_there:
            cluster.brokers[second].settings["log.dirs"] = "/data/one"
        await cluster.brokers[second].start()
        membership = cluster.running(second).membership
        assert membership is not None
        assert membership._registration is not None
        assert membership._registration.stopped_in_epoch == (stopped_in if is_there else -1)

    run_several(main, settings={"log.dirs": "/data/one,/data/two", "min.insync.replicas": "2"})


def test_logs_that_the_shared_metadata_does_not_know_are_kept() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        broker = cluster.brokers[3]
        await broker.stop()
        # As if it had been lost from the metadata of the others, or never been in it.
        disk = broker.host.restart().disk
        disk.makedirs("/data/one/unknown-0")
        disk.replace_file("/data/one/unknown-0/00000000000000000000.log", bytes(raw.batch([b"precious"])))
        await broker.start()
        names = broker.host.disk.listdir("/data/one")
        assert "unknown-0" not in names
        assert any(name.startswith("unknown-0.") and name.endswith("-stray") for name in names)
        assert "unknown" not in cluster.running(3).image.topics

    run_several(main)


def test_a_replica_whose_log_does_not_say_whose_it_is_is_copied_again() -> None:
    """A power loss may leave an empty `partition.metadata`. Nothing is fetched by an id that is not known."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "wide", partitions=3, replicas=3) == ErrorCode.NONE
        hurt = cluster.brokers[3]
        await cluster.until(lambda: all(("wide", i) in cluster.running(3).replicas.partitions for i in range(3)))
        await hurt.stop()
        for index in range(2):
            file = hurt.host.disk.open(f"/data/one/wide-{index}/partition.metadata")
            file.truncate(0)
            file.close()
        await hurt.start()
        image = cluster.running(1).image
        await cluster.until(lambda: all(len(state.isr) == 3 for state in image.topics["wide"].partitions))
        topic_id = image.topics["wide"].topic_id
        for index, state in enumerate(image.topics["wide"].partitions):
            assert cluster.running(3).partition("wide", index).log.topic_id == topic_id
            request = raw.produce_request("wide", index, raw.batch([b"x"]))
            answer = await cluster.client(state.leader).request(request, raw.PRODUCE_VERSION, 30.0)
            assert raw.produced(answer).error_code == ErrorCode.NONE
            assert cluster.running(3).partition("wide", index).log.end_offset == 1

    run_several(main)


def hang(monkeypatch: pytest.MonkeyPatch, hanging: Replicas) -> asyncio.Event:
    """Let the log directories of a broker be changed no more until the event is set."""
    change, may_go_on = Replicas.change_directories, asyncio.Event()

    def change_when_it_may(replicas: Replicas, what: Callable[..., Any], *arguments: Any) -> Any:
        async def later() -> Any:
            await may_go_on.wait()
            return await change(replicas, what, *arguments)

        return asyncio.ensure_future(later()) if replicas is hanging else change(replicas, what, *arguments)

    monkeypatch.setattr(Replicas, "change_directories", change_when_it_may)
    return may_go_on


def test_what_is_decided_reaches_other_brokers_while_the_disk_of_the_controller_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record that waited for the in-sync replicas to be fewer waited for a disk that has nothing to do with it."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = cluster.controller_id()
        assert controller is not None
        leader = cluster.other_than(controller)
        follower = cluster.other_than(controller, leader)
        for topic, replicas in (("kept", [leader, follower]), ("gone", [controller])):
            placed = [CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)]
            wanted = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=placed)
            request = CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)
            answer = await cluster.client(leader).request(request, raw.CREATE_TOPICS_VERSION)
            assert answer.topics[0].error_code == ErrorCode.NONE
        may_go_on = hang(monkeypatch, cluster.running(controller).replicas)
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=20_000)
        deleting = asyncio.ensure_future(cluster.client(controller).request(deletion, 6, 60.0))
        await cluster.until(lambda: "gone" not in cluster.running(leader).image.topics)
        cluster.brokers[follower].kill()
        produced = await cluster.client(leader).request(
            raw.produce_request("kept", 0, raw.batch([b"x"])), raw.PRODUCE_VERSION, 60.0
        )
        assert raw.produced(produced).error_code == ErrorCode.NONE
        assert not deleting.done()
        may_go_on.set()
        assert (await deleting).responses[0].error_code == ErrorCode.NONE
        assert not cluster.running(controller).replicas.partitions

    run_several(main)


def test_one_broker_after_the_other_is_fenced_while_the_disk_of_the_controller_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first was, and the controller waited for its own disk before it looked who else was gone."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = cluster.controller_id()
        assert controller is not None
        third = cluster.other_than(controller)
        first = cluster.other_than(controller, third)
        second = cluster.other_than(controller, third, first)
        for topic, replicas in (("led", [second, third]), ("gone", [controller])):
            placed = [CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)]
            wanted = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=placed)
            request = CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)
            answer = await cluster.client(third).request(request, raw.CREATE_TOPICS_VERSION)
            assert answer.topics[0].error_code == ErrorCode.NONE
        may_go_on = hang(monkeypatch, cluster.running(controller).replicas)
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=20_000)
        deleting = asyncio.ensure_future(cluster.client(controller).request(deletion, 6, 120.0))
        image = cluster.running(third).image
        await cluster.until(lambda: "gone" not in image.topics)
        cluster.brokers[first].kill()
        await cluster.until(lambda: image.brokers[first].fenced)
        cluster.brokers[second].kill()
        await cluster.until(lambda: image.brokers[second].fenced)
        produced = await cluster.client(third).request(
            raw.produce_request("led", 0, raw.batch([b"x"])), raw.PRODUCE_VERSION, 60.0
        )
        assert raw.produced(produced).error_code == ErrorCode.NONE
        assert not deleting.done()
        may_go_on.set()
        assert (await deleting).responses[0].error_code == ErrorCode.NONE

    run_several(main, count=4)
