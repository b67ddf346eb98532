"""Coordinators and their appends: in the order of the log, within its bounds, and heard of whatever becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.broker.coordinators import driver as coordinator_driver
from headrace.broker.coordinators.write_order import Append, WriteOrder
from headrace.broker.handlers.delete_groups import delete_groups
from headrace.broker.handlers.list_transactions import list_transactions
from headrace.broker.requests.refusals import tells
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode, KafkaStorageError
from headrace.groups import Now
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.topics import TopicPartition
from headrace.transactions import ADD_VERSION, between_brokers, errors_of

from .coordinators import TOPIC, FakePartition, Machine, answer, context, turns

ALL = range(8)
DAY_MS = 86_400_000


def on_a_machine(test: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        machine = await Machine().ready()
        try:
            await test(machine)
        finally:
            await machine.close()

    asyncio.run(run())


async def reloaded(machine: Machine, group: str) -> dict[int, int]:
    """The group's offsets as a new coordinator finds them in the log."""
    other = await Machine(partitions=machine.partitions).ready()
    found = await other.fetch(group)
    await other.close()
    return found


# --- order


@pytest.mark.parametrize("committed", [False, True])
def test_a_marker_does_not_overtake_the_offsets_that_it_ends(committed: bool) -> None:
    """Else the offsets of an aborted transaction would be pending for good, and committed by the next one."""

    async def test(machine: Machine) -> None:
        who = await machine.started("tid")
        assert await machine.add_offsets("tid", who, "g") == ErrorCode.NONE
        machine.offsets_log.holds = True
        other = machine.commit("other", {1: 1})
        commit = machine.commit_in_transaction("tid", who, "g", {0: 777})
        await turns()
        assert (await machine.end("tid", who, committed)).error_code == ErrorCode.NONE
        await turns()
        first, second, marker = machine.offsets_log.under_way
        for append in (
            marker,
            second,
            first,
        ):  # the disk is done with all of them, and who waits is called in any order
            append.end()
            await turns()
        assert (await other).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert (await commit).topics[0].partitions[0].error_code == ErrorCode.NONE
        machine.offsets_log.holds = False
        expected = {0: 777} if committed else {}
        assert await machine.fetch("g") == expected
        # The next transaction of the same producer commits what is its own, and nothing else.
        assert await machine.add_offsets("tid", who, "g") == ErrorCode.NONE
        await machine.commit_in_transaction("tid", who, "g", {1: 5})
        assert (await machine.end("tid", who, True)).error_code == ErrorCode.NONE
        await turns()
        assert await machine.fetch("g") == expected | {1: 5} == await reloaded(machine, "g")

    on_a_machine(test)


def under_way(future: asyncio.Future[Any], index: int = 0) -> Append:
    return Append.under_way("p", index, future, FakePartition(), -1)  # type: ignore[arg-type]  # nobody looks at it


def test_a_place_that_spans_partitions_waits_for_all_of_them_and_holds_all_of_them_up() -> None:
    async def run() -> None:
        order, happened = WriteOrder(), []
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(3)]
        appends = [under_way(future) for future in futures]
        order.add({0}, appends[:1], lambda: happened.append("0"))
        order.add({1}, appends[1:2], lambda: happened.append("1"))
        order.add({0, 1}, (), lambda: happened.append("both"))
        order.add({0}, appends[2:], lambda: happened.append("0 again"))
        order.add({1}, (), lambda: happened.append("1 again"))
        order.add({2}, (), lambda: happened.append("2"))
        assert happened == ["2"]
        for number, expected in ((2, []), (1, ["1"]), (0, ["0", "both", "0 again", "1 again"])):
            before = len(happened)
            futures[number].set_result(None)
            await turns()
            assert sorted(happened[before:]) == sorted(expected)
        assert happened[3] == "both"
        order.add({0, 1}, (), lambda: happened.append("nothing is left before it"))
        assert happened[-1] == "nothing is left before it"

    asyncio.run(run())


def test_thousands_of_places_may_become_free_at_once() -> None:
    async def run() -> None:
        order, happened = WriteOrder(), []
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        order.add({0}, [under_way(future)], lambda: happened.append(-1))
        for number in range(5_000):
            order.add({0}, (), lambda number=number: happened.append(number))  # type: ignore[misc]
        future.set_result(None)
        await turns()
        assert happened == list(range(-1, 5_000))

    asyncio.run(run())


def test_a_place_that_fails_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        order, happened = WriteOrder(), []
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def broken() -> None:
            raise UnexpectedError

        order.add({0}, [under_way(future)], broken)
        order.add({0}, (), lambda: happened.append("next"))
        order.add({1}, (), broken)
        future.set_result(None)
        await turns()
        order.add({0}, (), lambda: happened.append("later"))
        assert happened == ["next", "later"]

    asyncio.run(run())
    assert caplog.text.count("please report it") == 2


# --- whatever becomes of an append


class UnexpectedError(Exception):
    """Of no kind that anyone provided for."""


def raises_once(error: BaseException) -> Callable[[], BaseException | None]:
    left = [error]
    return lambda: left.pop() if left else None


@pytest.mark.parametrize("error", [UnexpectedError("a defect"), KafkaStorageError("a broken disk")])
@pytest.mark.parametrize("where", [(CONSUMER_OFFSETS, 0), (TOPIC, 3)])
def test_a_marker_whose_append_fails_is_written_again(error: Exception, where: tuple[str, int]) -> None:
    async def test(machine: Machine) -> None:
        who = await machine.started("tid")
        assert await machine.add_offsets("tid", who, "g") == ErrorCode.NONE
        await add_partition(machine, who, 3)
        await machine.commit_in_transaction("tid", who, "g", {0: 7})
        machine.partitions[where].trouble = raises_once(error)
        assert (await machine.end("tid", who, True)).error_code == ErrorCode.NONE
        await becomes(lambda: machine.transactions.coordinator.snapshots(0)["tid"].state.is_complete)
        assert await machine.fetch("g") == {0: 7}
        assert await machine.started("tid")

    on_a_machine(test)


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_marker_whose_append_fails_later_is_written_again(how: str) -> None:
    async def test(machine: Machine) -> None:
        who = await machine.started("tid")
        assert await machine.add_offsets("tid", who, "g") == ErrorCode.NONE
        await machine.commit_in_transaction("tid", who, "g", {0: 7})
        machine.offsets_log.holds = True
        assert (await machine.end("tid", who, True)).error_code == ErrorCode.NONE
        await turns()
        machine.offsets_log.holds = False
        (marker,) = machine.offsets_log.under_way
        marker.cancel() if how == "is cancelled" else marker.fail(UnexpectedError())
        await becomes(lambda: machine.transactions.coordinator.snapshots(0)["tid"].state.is_complete)
        assert await machine.fetch("g") == {0: 7}

    on_a_machine(test)


@pytest.mark.parametrize("error", [UnexpectedError("a defect"), KafkaStorageError("a broken disk")])
def test_a_coordinators_record_whose_append_fails_is_answered_for(error: Exception) -> None:
    async def test(machine: Machine) -> None:
        machine.offsets_log.trouble = raises_once(error)
        refused = (await machine.commit("g", {0: 1})).topics[0].partitions[0].error_code
        assert refused in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_COORDINATOR)
        assert await machine.fetch("g") == {}
        machine.partitions[TRANSACTION_STATE, 0].trouble = raises_once(error)
        with pytest.raises(AssertionError):
            await machine.started("tid")
        assert await machine.started("tid")
        machine.offsets_log.holds = True
        first, second = machine.commit("g", {0: 2}), machine.commit("g", {0: 3})
        for append, fails in zip(list(machine.offsets_log.under_way), (True, False)):
            append.fail(error) if fails else append.end()
        assert (await first).topics[0].partitions[0].error_code == refused
        assert (await second).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await machine.fetch("g") == {0: 3} == await reloaded(machine, "g")

    on_a_machine(test)


def test_a_defect_in_what_follows_costs_those_who_waited_for_it_and_nobody_else() -> None:
    async def test(machine: Machine) -> None:
        machine.offsets_log.holds = True
        first, second = machine.commit("g", {0: 2}), machine.commit("h", {0: 3})
        coordinator = machine.groups.coordinator
        written = coordinator.written

        def broken(outcome: Any, now: Now) -> Any:
            coordinator.written = written  # type: ignore[method-assign]  # only the first time
            raise UnexpectedError

        coordinator.written = broken  # type: ignore[method-assign]
        for append in list(machine.offsets_log.under_way):
            append.end()
        with pytest.raises(UnexpectedError):
            await first
        assert (await second).topics[0].partitions[0].error_code == ErrorCode.NONE

    on_a_machine(test)


def test_a_timer_that_fails_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_driver, "TIMER_RETRY_S", 0.001)

    async def test(machine: Machine) -> None:
        calls = []
        coordinator = machine.groups.coordinator
        on_timer = coordinator.on_timer

        def broken(timer: Any, now: Now) -> Any:
            calls.append(timer)
            if len(calls) == 1:
                raise UnexpectedError
            return on_timer(timer, now)

        coordinator.on_timer = broken  # type: ignore[method-assign]
        (timer,) = machine.groups._timers
        machine.groups._on_timer(timer)
        await becomes(lambda: len(calls) == 2)
        assert calls == [timer, timer]
        assert timer in machine.groups._timers, "the next pass is planned"

    on_a_machine(test)


def test_a_partition_that_cannot_be_loaded_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_driver, "LOAD_RETRY_S", 0.001)
    tries = []
    stored_records = coordinator_driver.stored_records

    def records(log: Any, end_offset: int) -> Any:
        tries.append(log)
        chunks = stored_records(log, end_offset)
        yield next(chunks)
        if len(tries) == 1:
            raise UnexpectedError
        yield from chunks

    async def test(machine: Machine) -> None:
        await machine.commit("g", {0: 1})
        await machine.commit("g", {1: 2})
        monkeypatch.setattr(coordinator_driver, "stored_records", records)
        machine.offsets_log.lead(1)
        machine.groups.lead(0, 1)
        await becomes(lambda: machine.groups.coordinator.is_loaded(0))
        assert len(tries) == 2
        assert await machine.fetch("g") == {0: 1, 1: 2}

    on_a_machine(test)


def test_a_transaction_ends_also_when_the_offsets_topic_was_deleted() -> None:
    async def test(machine: Machine) -> None:
        who = await machine.started("tid")
        assert await machine.add_offsets("tid", who, "g") == ErrorCode.NONE
        del machine.partitions[CONSUMER_OFFSETS, 0]
        machine.groups.resign(0)
        assert (await machine.end("tid", who, True)).error_code == ErrorCode.NONE
        await becomes(lambda: machine.transactions.coordinator.snapshots(0)["tid"].state.is_complete)

    on_a_machine(test)


# --- bounds


def test_deletions_that_do_not_fit_one_batch_are_written_in_several() -> None:
    async def test(machine: Machine) -> None:
        for group in ("a", "b", "c"):
            await machine.commit(group, dict.fromkeys(ALL, 5))
        machine.limit(CONSUMER_OFFSETS, 200)
        before = len(machine.offsets_log.log.batches)
        topics = [
            OffsetDeleteRequestTopic(
                name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in ALL]
            )
        ]
        request = OffsetDeleteRequest(group_id="a", topics=topics)
        assert (await machine.ask_group("offset_delete", request, 0)).error_code == ErrorCode.NONE
        assert len(machine.offsets_log.log.batches) > before + 1
        deleted = await machine.ask_group("delete_groups", DeleteGroupsRequest(groups_names=["b"]), 2)
        assert deleted.results[0].error_code == ErrorCode.NONE
        topic_id = machine.topic_id(TOPIC)
        assert topic_id is not None
        machine.groups.topics_deleted({TOPIC: topic_id})
        for group in ("a", "b", "c"):
            assert await machine.fetch(group) == {} == await reloaded(machine, group)

    on_a_machine(test)


def test_others_have_their_turn_while_groups_with_many_offsets_are_deleted() -> None:
    async def test(machine: Machine) -> None:
        groups = [f"group-{number}" for number in range(300)]
        for group in groups:
            await machine.commit(group, dict.fromkeys(ALL, 5))
        ran = 0

        async def others() -> None:
            nonlocal ran
            while True:
                await asyncio.sleep(0)
                ran += 1

        beside = asyncio.ensure_future(others())
        machine.offsets_log.holds = True
        asked = answer(
            delete_groups(DeleteGroupsRequest(groups_names=[*groups, "nowhere"]), context(2), machine.groups)
        )
        await becomes(lambda: len(machine.offsets_log.under_way) == 3, every_s=0)
        beside.cancel()
        assert ran >= 2
        machine.offsets_log.holds = False
        first, *rest = machine.offsets_log.under_way
        first.fail(KafkaStorageError("a broken disk"))
        for append in rest:
            append.end()
        told = [(result.group_id, ErrorCode(result.error_code)) for result in (await asked).results]
        lost = [(group, ErrorCode.NOT_COORDINATOR) for group in groups[: 1_000 // 9]]
        gone = [(group, ErrorCode.NONE) for group in groups[1_000 // 9 :]]
        assert told == [*lost, *gone, ("nowhere", ErrorCode.GROUP_ID_NOT_FOUND)]

    on_a_machine(test)


def test_expiry_gets_on_whatever_the_largest_batch_is() -> None:
    async def test(machine: Machine) -> None:
        for group in ("a", "b", "c"):
            await machine.commit(group, dict.fromkeys(ALL, 5))
        machine.limit(CONSUMER_OFFSETS, 200)
        machine.runtime.clock.wall_ms += 8 * DAY_MS
        (timer,) = machine.groups._timers
        machine.groups._on_timer(timer)
        for group in ("a", "b", "c"):
            assert await machine.fetch(group) == {} == await reloaded(machine, group)

    on_a_machine(test)


def test_of_a_commit_in_several_batches_each_offset_is_answered_for_itself() -> None:
    async def test(machine: Machine) -> None:
        machine.limit(CONSUMER_OFFSETS, 200)
        machine.offsets_log.holds = True
        commit = machine.commit("g", dict.fromkeys(ALL, 5))
        batches = list(machine.offsets_log.under_way)
        assert len(batches) > 2
        for number, append in enumerate(batches):
            append.fail(KafkaStorageError("full")) if number == 1 else append.end()
        answered = (await commit).topics[0].partitions
        failed = {one.partition_index for one in answered if one.error_code == ErrorCode.NOT_COORDINATOR}
        assert 0 < len(failed) < len(ALL)
        expected = {index: 5 for index in ALL if index not in failed}
        assert await machine.fetch("g") == expected == await reloaded(machine, "g")

    on_a_machine(test)


@pytest.mark.parametrize("failing", [0, -1])
def test_a_group_whose_deletion_is_written_in_part_is_what_the_log_says(failing: int) -> None:
    async def test(machine: Machine) -> None:
        await machine.commit("g", dict.fromkeys(ALL, 5))
        machine.limit(CONSUMER_OFFSETS, 200)
        machine.offsets_log.holds = True
        deletion = machine.ask_group("delete_groups", DeleteGroupsRequest(groups_names=["g"]), 2)
        batches = list(machine.offsets_log.under_way)
        for append in batches:
            append.fail(KafkaStorageError("full")) if append is batches[failing] else append.end()
        assert (await deletion).results[0].error_code == ErrorCode.NOT_COORDINATOR
        machine.offsets_log.holds = False
        left = await machine.fetch("g")
        assert left == await reloaded(machine, "g")
        assert len(left) < len(ALL)
        again = await machine.ask_group("delete_groups", DeleteGroupsRequest(groups_names=["g"]), 2)
        assert again.results[0].error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        assert await machine.fetch("g") == {} == await reloaded(machine, "g")

    on_a_machine(test)


async def add_partition(machine: Machine, who: dict[str, int], *indexes: int) -> int:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tid",
        v3_and_below_producer_id=who["producer_id"],
        v3_and_below_producer_epoch=who["producer_epoch"],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=list(indexes))],
    )
    answer = await machine.ask_transactions("add_partitions_to_txn", request, 3)
    code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    return code


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_would_be_too_large_to_be_ended_is_refused_while_it_grows(version: int) -> None:
    async def test(machine: Machine) -> None:
        machine.transactions.coordinator.transaction_version = version
        counts = set()
        for bytes_max in range(150, 330):
            machine.limit(TRANSACTION_STATE, 1_000_000)
            who = await machine.started("tid")
            machine.limit(TRANSACTION_STATE, bytes_max)
            taken = [await add_partition(machine, who, index) == ErrorCode.NONE for index in ALL]
            assert sorted(taken, reverse=True) == taken
            counts.add(sum(taken))
            if any(taken):
                # A successor ends it: in the newer protocol with a record that has more to say.
                again = InitProducerIdRequest(transactional_id="tid", transaction_timeout_ms=60_000)
                answer = await machine.ask_transactions("init_producer_id", again, 4)
                assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
                await becomes(lambda: machine.transactions.coordinator.snapshots(0)["tid"].state.is_complete)
        assert counts == set(range(9)), "every size was at its limit once"

    on_a_machine(test)


# --- producer ids


def test_only_who_needs_a_producer_id_waits_for_the_controller() -> None:
    """It may be away for a while, and transactions that are open are to go on."""

    async def test(machine: Machine) -> None:
        who = await machine.started("one")
        machine.producer_ids.is_empty, machine.producer_ids.is_controller_reached = True, False
        assert await machine.add_offsets("one", who, "g") == ErrorCode.NONE
        assert (await machine.end("one", who, True)).error_code == ErrorCode.NONE
        request = InitProducerIdRequest(transactional_id="two", transaction_timeout_ms=60_000)
        refused = await machine.ask_transactions("init_producer_id", request, 4)
        assert (refused.error_code, refused.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        machine.producer_ids.is_controller_reached = True
        assert (await machine.started("two"))["producer_id"] != who["producer_id"]

    on_a_machine(test)


# --- out of touch


def test_others_have_their_turn_while_ids_are_matched_with_a_pattern() -> None:
    async def test(machine: Machine) -> None:
        names = [f"{'a' * 40}{number}" for number in range(20)]
        for name in [*names, "other"]:
            await machine.started(name)
        steps: list[float] = []

        async def others() -> None:
            while True:
                began = time.process_time()
                await asyncio.sleep(0)
                steps.append(time.process_time() - began)

        beside = asyncio.ensure_future(others())

        def listed(pattern: str) -> asyncio.Future[Any]:
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            return answer(list_transactions(request, context(2), machine.transactions))

        asked = [listed("a{0,1000}" * 3 + "[0-9]+"), listed("o.*"), listed("(")]
        slow, quick, invalid = await asyncio.gather(*asked)
        beside.cancel()
        assert sorted(one.transactional_id for one in slow.transaction_states) == sorted(names)
        assert [one.transactional_id for one in quick.transaction_states] == ["other"]
        assert invalid.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert len(steps) > 10
        assert max(steps) < sum(steps) / 4, "none took as long as all together"

    on_a_machine(test)


def test_nobody_is_told_what_a_broker_knows_whose_place_others_may_have_taken() -> None:
    async def test(machine: Machine) -> None:
        who = await machine.started("tid")
        assert await machine.add_offsets("tid", who, "g") == ErrorCode.NONE
        await machine.commit("g", {0: 7})
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        verify = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tid",
            v3_and_below_producer_id=who["producer_id"],
            v3_and_below_producer_epoch=who["producer_epoch"],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
        )
        machine.out_of_touch = "it hung"
        for method, asked, version in (
            ("offset_fetch", request, 8),
            ("heartbeat", HeartbeatRequest(group_id="g", member_id="m", generation_id=1), 4),
            ("describe_groups", DescribeGroupsRequest(groups=["g"]), 5),
        ):
            assert tells(await machine.ask_group(method, asked, version), ErrorCode.NOT_COORDINATOR), method
        told = await machine.ask_transactions("add_partitions_to_txn", verify, 3)
        # Clients see nothing but these places: the one of the whole answer is for brokers.
        places = told.results_by_topic_v3_and_below[0].results_by_partition
        assert [place.partition_error_code for place in places] == [ErrorCode.NOT_COORDINATOR]
        part = TopicPartition(TOPIC, 0)
        for adds in (True, False):
            between = between_brokers("tid", *who.values(), [part], verify_only=not adds)
            told = await machine.ask_transactions("add_partitions_to_txn", between, ADD_VERSION)
            assert errors_of(told, "tid") == {part: ErrorCode.NOT_COORDINATOR}
            joined = await machine.transactions.join("tid", *who.values(), [part], adds=adds)
            assert joined == {part: ErrorCode.NOT_COORDINATOR}
        listed = await machine.ask_group("list_groups", ListGroupsRequest(), 4)
        assert [group.group_id for group in listed.groups] == ["g"]
        machine.out_of_touch = None
        assert await machine.fetch("g") == {0: 7}

    on_a_machine(test)
