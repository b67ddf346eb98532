"""Coordinators gain and lose partitions, in leader epochs: at every step of loading, of writing and of waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.coordinators.write_order import begin_append
from headrace.broker.partitions.leadership import Leadership
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode, KafkaStorageError
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.runtime.simulated import Simulation, run_simulation
from headrace.testing import broker

from . import raw
from .coordinators import TOPIC, Machine, answer, commit_request, context, turns
from .sim import SimulatedBroker

STEPS_MAX = 200


def on_a_machine(test: Callable[[Machine], Awaitable[Any]], *, version: int = 0) -> Any:
    async def run() -> Any:
        machine = await Machine(version=version).ready()
        try:
            return await test(machine)
        finally:
            await machine.close()

    return asyncio.run(run())


async def until_loaded(machine: Machine, topic: str = CONSUMER_OFFSETS) -> None:
    await becomes(lambda: machine.service(topic).coordinator.is_loaded(0), every_s=0)


def resign(machine: Machine, topic: str = CONSUMER_OFFSETS, *, kept: int | None = None) -> None:
    """Another broker leads from now on. Of what is under way, so many appends were in the log then."""
    partition = machine.partitions[topic, 0]
    partition.lead(partition.leader_epoch + 1, is_leader=False, kept=kept)
    machine.service(topic).resign(0, partition.leader_epoch)


async def lead(machine: Machine, topic: str = CONSUMER_OFFSETS, *, kept: int | None = None) -> None:
    partition = machine.partitions[topic, 0]
    partition.lead(partition.leader_epoch + 1, kept=kept)
    machine.service(topic).lead(0, partition.leader_epoch)
    await until_loaded(machine, topic)


def nothing_is_left(machine: Machine, topic: str = CONSUMER_OFFSETS) -> None:
    service = machine.service(topic)
    assert not service.coordinator.is_loaded(0)
    assert not service._timers
    assert all(answer.done() for answer in service._waiting.values()), "someone still waits"
    assert not service._led


def errors_of(response: Any) -> set[int]:
    """All errors of an answer, wherever they are in it."""
    if hasattr(response, "topics"):
        return {one.error_code for topic in response.topics for one in topic.partitions}
    if hasattr(response, "results"):
        return {one.error_code for one in response.results}
    return {response.error_code}


# --- loading


@pytest.mark.parametrize("topic", [CONSUMER_OFFSETS, TRANSACTION_STATE])
def test_a_partition_that_is_lost_at_whatever_step_of_its_loading_is_not_served(topic: str) -> None:
    async def test(machine: Machine) -> int:
        who = await machine.started("tid")
        await machine.add_offsets("tid", who, "g")
        for offset in range(4):
            await machine.commit("g", {offset: offset})
        for steps in range(STEPS_MAX):
            partition, service = machine.partitions[topic, 0], machine.service(topic)
            partition.lead(partition.leader_epoch + 1)
            service.lead(0, partition.leader_epoch)
            await turns(steps)
            was_loaded = service.coordinator.is_loaded(0)
            resign(machine, topic)
            nothing_is_left(machine, topic)
            await turns(30)
            nothing_is_left(machine, topic)
            if topic == CONSUMER_OFFSETS:
                assert errors_of(await machine.commit("g", {7: 7})) == {ErrorCode.NOT_COORDINATOR}
            else:
                assert (await machine.end("tid", who, True)).error_code == ErrorCode.NOT_COORDINATOR
            if was_loaded:
                break
        await lead(machine, topic)
        assert await machine.fetch("g") == {0: 0, 1: 1, 2: 2, 3: 3} if topic == CONSUMER_OFFSETS else True
        return steps

    assert 5 < on_a_machine(test) < STEPS_MAX


def test_a_partition_is_served_when_all_of_it_is_below_the_high_watermark() -> None:
    """What is told of it must not have to be taken back."""

    async def test(machine: Machine) -> None:
        for offset in range(3):
            await machine.commit("g", {offset: offset})
        log = machine.offsets_log
        for committed_max in range(3):
            log.committed_max = committed_max
            log.lead(log.leader_epoch + 1)
            machine.groups.lead(0, log.leader_epoch)
            await turns(50)
            assert errors_of(await machine.commit("g", {0: 9})) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        log.committed_max = None
        log.watchers.wake_all()
        await turns(3)
        assert await machine.fetch("g") == {0: 0, 1: 1, 2: 2}

    on_a_machine(test)


def test_news_of_an_epoch_that_is_over_changes_nothing() -> None:
    async def test(machine: Machine) -> None:
        await machine.commit("g", {0: 5})
        machine.offsets_log.lead(7)
        machine.groups.lead(0, 7)
        await until_loaded(machine)
        shard = machine.groups.coordinator._shards.get(0)
        for old in (6, 7):
            machine.groups.lead(0, old)
        machine.groups.resign(0, 6)
        assert machine.groups.coordinator._shards.get(0) is shard
        machine.groups.resign(0, 8)
        for old in (7, 8):
            machine.groups.lead(0, old)
        nothing_is_left(machine)
        machine.groups.lead(0, 9)
        machine.offsets_log.lead(9)
        await until_loaded(machine)
        assert await machine.fetch("g") == {0: 5}

    on_a_machine(test)


def test_the_metadata_says_what_is_led() -> None:
    def topic(topic_id: bytes, leader: int, leader_epoch: int) -> Any:
        return SimpleNamespace(
            topic_id=topic_id, partitions=[SimpleNamespace(leader=leader, leader_epoch=leader_epoch)]
        )

    async def test(machine: Machine) -> None:
        groups, log = machine.groups, machine.offsets_log
        groups.resign(0)
        me, other = machine.node_id, machine.node_id + 1
        for topic_id, leader, epoch, is_led in (
            (b"one", me, 4, True),
            (b"one", me, 4, True),
            (b"one", other, 5, False),
            (b"one", me, 6, True),
            (b"one", me, 7, True),
            (b"two", me, 0, True),  # it was deleted, and made anew
            (b"two", -1, 1, False),
        ):
            log.lead(epoch, is_leader=leader == me)
            groups.follow(topic(topic_id, leader, epoch))
            assert {index: led.leader_epoch for index, led in groups._led.items()} == ({0: epoch} if is_led else {})
            await turns(50)
            assert groups.coordinator.is_loaded(0) == is_led
        groups.follow(topic(b"two", me, 2))
        groups.follow(None)
        nothing_is_left(machine)

    on_a_machine(test)


# --- writing

ALL_KEPT, NONE_KEPT = None, 0


@pytest.mark.parametrize("kept", [ALL_KEPT, NONE_KEPT])
@pytest.mark.parametrize("is_lost", [True, False], ids=["led elsewhere", "the next epoch"])
@pytest.mark.parametrize("how", ["succeeds", "fails", "is cancelled"])
def test_whoever_waits_for_a_write_is_told_when_the_partition_is_lost(
    kept: int | None, is_lost: bool, how: str
) -> None:
    """At every step, with so many appends ended. What becomes of the others afterwards nobody believes any more."""

    async def test(machine: Machine, ended: int) -> bool:
        await machine.commit("d", {0: 1})
        log = machine.offsets_log
        log.holds = True
        asked = [machine.commit("g", {0: 1}), machine.commit("g", {1: 2}), machine.commit("h", {0: 3})]
        asked += [machine.ask_group("delete_groups", DeleteGroupsRequest(groups_names=["d"]), 2)]
        asked += [machine.commit("g", {0: 4})]
        under_way = list(log.under_way)
        for append in under_way[:ended]:
            append.end()
        await turns()
        answered = [one for one in asked if one.done()]
        assert len(answered) == ended
        if is_lost:
            resign(machine, kept=kept)
            nothing_is_left(machine)
        else:
            log.lead(log.leader_epoch + 1, kept=kept)
            machine.groups.lead(0, log.leader_epoch)
        await turns(2)
        for one in asked:
            assert one.done(), "someone still waits for a coordinator that is gone"
            assert errors_of(one.result()) == {ErrorCode.NONE if one in answered else ErrorCode.NOT_COORDINATOR}
        log.holds = False
        for append in under_way[ended:]:  # the disk is done with them, at last
            match how:
                case "succeeds":
                    append.end()
                case "fails":
                    append.fail(KafkaStorageError("broken"))
                case _:
                    append.cancel()
        await turns()
        await lead(machine)
        known = {group: await machine.fetch(group) for group in "dgh"}
        other = await Machine(partitions=machine.partitions).ready()
        assert known == {group: await other.fetch(group) for group in "dgh"}
        await other.close()
        if kept == NONE_KEPT:
            assert known["h"] == ({0: 3} if ended > 2 else {})
        else:
            assert known == {"d": {}, "g": {0: 4, 1: 2}, "h": {0: 3}}
        return ended == len(under_way)

    for ended in range(STEPS_MAX):
        if on_a_machine(lambda machine: test(machine, ended)):  # noqa: B023 - called at once
            break
    assert ended == 5


@pytest.mark.parametrize("kept", [ALL_KEPT, NONE_KEPT])
@pytest.mark.parametrize("version", [3, 5])
def test_a_transaction_whose_coordinator_is_lost_at_whatever_step_ends_all_the_same(
    kept: int | None, version: int
) -> None:
    async def test(machine: Machine, steps: int) -> bool:
        """A transaction with an offset in it, whose coordinator moves after so many appends to its partition."""
        state = machine.partitions[TRANSACTION_STATE, 0]
        appends, is_lost = 0, False

        def look() -> None:
            """Every append to the partition waits; the last that does sees the coordinator go."""
            nonlocal appends, is_lost
            for append in list(state.under_way):
                appends += 1
                if appends == steps + 1:
                    is_lost = True
                    resign(machine, TRANSACTION_STATE, kept=kept)
                append.end()

        async def story() -> list[int]:
            told = []
            init = InitProducerIdRequest(transactional_id="tid", transaction_timeout_ms=60_000)
            answer = await machine.ask_transactions("init_producer_id", init, 4)
            told.append(answer.error_code)
            who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
            if version < 5:
                told.append(await machine.add_offsets("tid", who, "g"))
            told += errors_of(await machine.commit_in_transaction("tid", who, "g", {0: 7}, version))
            told.append((await machine.end("tid", who, True, version)).error_code)
            return told

        state.holds = True
        task = asyncio.ensure_future(story())
        for _ in range(STEPS_MAX):
            await turns(1)
            look()
        told = await asyncio.wait_for(task, 30)
        if is_lost:
            nothing_is_left(machine, TRANSACTION_STATE)
            wanted = {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
            assert set(told) <= wanted
        else:
            assert set(told) == {ErrorCode.NONE}
        state.holds = False
        await lead(machine, TRANSACTION_STATE)
        await turns(50)
        # A successor ends whatever was open.
        for _ in range(STEPS_MAX):
            init = InitProducerIdRequest(transactional_id="tid", transaction_timeout_ms=60_000)
            answer = await machine.ask_transactions("init_producer_id", init, 4)
            if answer.error_code == ErrorCode.NONE:
                break
            assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            await asyncio.sleep(0.001)
        else:
            pytest.fail("the successor never ends what was open")
        group = machine.groups.coordinator._shards.groups.get("g")
        assert group is None or not group.offsets.pending, "the offsets hang"
        if told == [ErrorCode.NONE] * len(told):
            assert await machine.fetch("g") == {0: 7}
        return not is_lost

    for steps in range(STEPS_MAX):
        if on_a_machine(lambda machine: test(machine, steps), version=2 if version == 5 else 0):  # noqa: B023
            break
    assert 3 <= steps <= 6


def test_what_concerns_other_partitions_too_waits_for_them_and_says_which_failed() -> None:
    async def test() -> None:
        machine = await Machine(group_partitions=2).ready()
        one, third = [name for name in "abcdefgh" if machine.groups.coordinator.partition_of(name) == 0][:2]
        two = next(name for name in "abcdefgh" if machine.groups.coordinator.partition_of(name) == 1)
        for group in (one, two):
            await machine.commit(group, {0: 5})
        logs = [machine.partitions[CONSUMER_OFFSETS, index] for index in range(2)]
        for log in logs:
            log.holds = True
        asked = machine.ask_group("delete_groups", DeleteGroupsRequest(groups_names=[one, two]), 2)
        behind = machine.commit(third, {0: 6})
        resign(machine)
        await turns()
        assert not asked.done()
        assert behind.done(), "it waits for no other partition"
        assert errors_of(behind.result()) == {ErrorCode.NOT_COORDINATOR}
        logs[1].under_way[0].end()
        errors = {result.group_id: result.error_code for result in (await asked).results}
        assert errors == {one: ErrorCode.NOT_COORDINATOR, two: ErrorCode.NONE}
        assert await machine.fetch(two) == {}
        await machine.close()

    asyncio.run(test())


# --- waiting


def join_request(member_id: str) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols,
    )


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["join", "sync", "stored"])
def test_members_that_wait_for_each_other_are_told_when_the_partition_is_lost(phase: str) -> None:
    async def test(machine: Machine) -> None:
        first = await machine.ask_group("join_group", join_request(""), 9)
        second = await machine.ask_group("join_group", join_request(""), 9)
        members = [first.member_id, second.member_id]
        joining = [machine.ask_group("join_group", join_request(member_id), 9) for member_id in members]
        await turns()
        waiting = joining
        if phase != "join":
            join_timer = next(timer for timer in machine.groups._timers if timer.kind.name == "JOIN")
            machine.runtime.clock.shift_s += 30
            machine.groups._on_timer(join_timer)
            joined = [await one for one in joining]
            leader = joined[0].leader
            assignments = [SyncGroupRequestAssignment(member_id=leader, assignment=b"all")]
            machine.offsets_log.holds = True
            waiting = [
                machine.ask_group(
                    "sync_group",
                    SyncGroupRequest(
                        group_id="g",
                        generation_id=joined[0].generation_id,
                        member_id=member_id,
                        assignments=assignments if member_id == leader else [],
                    ),
                    5,
                )
                for member_id in members
                if phase == "stored" or member_id != leader
            ]
        await turns()
        assert not any(one.done() for one in waiting)
        under_way = list(machine.offsets_log.under_way)
        resign(machine)
        nothing_is_left(machine)
        assert [errors_of(await one) for one in waiting] == [{ErrorCode.NOT_COORDINATOR}] * len(waiting)
        for append in under_way:
            append.end()
        await turns()
        nothing_is_left(machine)

    on_a_machine(test)


# --- an append of an epoch that is over


def test_an_append_that_seems_to_succeed_in_an_epoch_that_is_over_has_failed() -> None:
    """Lost and gained again while it was under way: it may have been cut off, and nobody would know of its loss."""

    async def test(machine: Machine) -> None:
        log = machine.offsets_log
        log.holds = True
        asked = machine.commit("g", {0: 1})
        (append,) = log.under_way
        log.lead(1, is_leader=False, kept=0)
        log.lead(2)  # of which the coordinator has not heard yet
        append.end()
        await turns()
        assert errors_of(await asked) == {ErrorCode.NOT_COORDINATOR}
        again = machine.commit("g", {0: 2})
        assert errors_of(await again) == {ErrorCode.NOT_COORDINATOR}, "it was loaded for another epoch"
        assert not log.log.batches
        log.holds = False
        machine.groups.lead(0, 2)
        await until_loaded(machine)
        assert errors_of(await machine.commit("g", {0: 3})) == {ErrorCode.NONE}

    on_a_machine(test)


def test_an_append_that_waits_for_its_turn_is_refused_when_its_epoch_is_over_by_then() -> None:
    """In a partition whose log is moved to another directory meanwhile, lost and gained again."""

    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1))
        partition = broker.partition(TOPIC, 0)
        may_end = asyncio.Event()
        exchange = asyncio.ensure_future(partition.turns.exchange(may_end.wait))  # type: ignore[arg-type]
        await becomes(lambda: partition.turns.held is not None)
        began_in = partition.leadership
        ended = {}
        for leader_epoch in (began_in.leader_epoch, began_in.leader_epoch + 2):
            append = begin_append(broker, TOPIC, 0, lambda: raw.batch([b"x"]), leader_epoch=leader_epoch)
            append.when_done(lambda append=append, at=leader_epoch: ended.update({at: append.error}))  # type: ignore[misc]
        for later, leader_id in enumerate((99, broker.node_id), start=1):
            epochs = began_in.leader_epoch + later, began_in.partition_epoch + later
            partition.lead(Leadership(leader_id, epochs[0], began_in.replicas, began_in.isr, epochs[1]))
        may_end.set()
        await exchange
        await becomes(lambda: len(ended) >= 2, every_s=0)
        assert ended == {
            began_in.leader_epoch: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            began_in.leader_epoch + 2: ErrorCode.NONE,
        }
        assert partition.log.end_offset == 1

    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(test(machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=600.0)


def test_what_an_earlier_epoch_asked_for_and_comes_to_the_log_late_is_read(tmp_path: Path) -> None:
    """Its writer has not come to it when the next epoch begins: in the log it is all the same, before that."""

    async def story(inside: Broker) -> None:
        await inside.metadata.ensure_internal(CONSUMER_OFFSETS)
        await inside.metadata.create(CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1))
        partition, groups = inside.partition(CONSUMER_OFFSETS, 0), inside.groups
        await becomes(lambda: groups.coordinator.is_loaded(0), every_s=0)
        may_go_on = threading.Event()
        blocked = asyncio.ensure_future(partition.turns.change_log(lambda log: may_go_on.wait(10)))
        await turns()
        asked = answer(groups.call(groups.coordinator.offset_commit, context(8), commit_request("g", {0: 5})))
        before = partition.leadership
        partition.lead(Leadership(before.leader_id, before.leader_epoch + 1, before.replicas, before.isr))
        groups.lead(0, before.leader_epoch + 1)
        assert errors_of(await asked) == {ErrorCode.NOT_COORDINATOR}
        await turns(100)
        assert not groups.coordinator.is_loaded(0)
        may_go_on.set()
        await blocked
        await becomes(lambda: groups.coordinator.is_loaded(0), every_s=0)
        request = OffsetFetchRequest(group_id="g", topics=None)
        found = await answer(groups.call(groups.coordinator.offset_fetch, context(5), request))
        assert [one.committed_offset for topic in found.topics for one in topic.partitions] == [5]
        assert partition.log.end_offset == 1

    settings = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with broker(str(tmp_path / "data"), settings) as kafka:
        kafka.call(story)
