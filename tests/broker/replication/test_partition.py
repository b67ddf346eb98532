"""A partition with several replicas: who is told what, when, and what never lands in the log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import cast

import pytest
from tests.broker import raw
from tests.broker.replication.partition_worlds import (
    OWN,
    SECOND,
    THIRD,
    Neighbours,
    append,
    copy,
    follows,
    from_leader,
    leads,
    simulated,
)
from tests.log.making import PARTITION, append_one, open_log
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.handlers.offset_for_leader_epoch import offset_for_leader_epoch
from headrace.broker.partitions.leadership import Leadership
from headrace.broker.partitions.partition import SYNC_RETRY_S, Partition
from headrace.broker.partitions.purgatory import Waiter
from headrace.broker.replication import copying
from headrace.broker.replication.copying import StaleAnswerError
from headrace.broker.replication.follower import Answer
from headrace.broker.replication.leader import Term
from headrace.broker.requests.dispatch import RequestContext
from headrace.cluster.changes import ChangedPartition, Changes
from headrace.cluster.image import PartitionImage
from headrace.cluster.records import ConfigRecord, ResourceType
from headrace.errors import (
    ErrorCode,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    RequestTimedOutError,
)
from headrace.log import Appended, Log, LogConfig
from headrace.log.invariants import BrokenInvariantError
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.runtime import DirectoryWriter
from headrace.runtime.simulated import DiskFault, Host, Simulation, run_simulation
from headrace.runtime.writer import Syncable


def test_an_append_is_acknowledged_when_every_in_sync_replica_has_it() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        waiting = append(partition, b"one")
        await asyncio.sleep(0)
        partition.fetched(SECOND, 7, 1, 0)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert partition.high_watermark == 0
        partition.fetched(THIRD, 7, 1, 0)
        assert (await waiting).base_offset == 0
        assert partition.high_watermark == 1
        assert isinstance(partition.append(raw.batch([b"two"]), acks=1), Appended)  # waits for nobody

    simulated(test)


def test_what_is_late_is_kept_and_committed_later() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        waiting = append(partition, b"one", timeout_ms=500)
        with pytest.raises(RequestTimedOutError):
            await waiting
        assert partition.log.end_offset == 1
        for node_id in (SECOND, THIRD):
            partition.fetched(node_id, 7, 1, 0)
        assert partition.high_watermark == 1

    simulated(test)


def test_too_few_in_sync_replicas_refuse_before_anything_is_written() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.log.config = partition.log.config.__class__(min_insync_replicas=2)
        partition.lead(leads(1, (OWN,)))
        with pytest.raises(NotEnoughReplicasError):
            partition.append(raw.batch([b"one"]))
        assert partition.log.end_offset == 0
        assert isinstance(partition.append(raw.batch([b"one"]), acks=1), Appended)
        assert partition.high_watermark == 0  # below the minimum nothing is committed

    simulated(test)


def test_one_that_is_about_to_come_in_does_not_count_for_the_minimum() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.log.config = partition.log.config.__class__(min_insync_replicas=2)
        partition.lead(leads(1, (OWN,)))
        partition.fetched(SECOND, 7, 0, 0)
        assert partition.state is not None
        assert partition.state.maximal_isr == {OWN, SECOND}
        with pytest.raises(NotEnoughReplicasError):
            partition.append(raw.batch([b"one"]))
        assert partition.log.end_offset == 0

    simulated(test)


def test_a_duplicate_waits_like_the_original() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        batch = raw.batch([b"one"], producer_id=5, producer_epoch=0, base_sequence=0)
        first = asyncio.ensure_future(cast(Awaitable[Appended], partition.append(bytearray(batch))))
        again = asyncio.ensure_future(cast(Awaitable[Appended], partition.append(bytearray(batch))))
        await asyncio.sleep(0.1)
        assert not first.done()
        assert not again.done()
        for node_id in (SECOND, THIRD):
            partition.fetched(node_id, 7, 1, 0)
        assert (await first).base_offset == (await again).base_offset == 0
        assert partition.log.end_offset == 1

    simulated(test)


def test_whoever_waits_is_told_when_the_leader_steps_down() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        waiting = append(partition, b"one")
        await asyncio.sleep(0)
        partition.lead(follows(2, partition_epoch=11))
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting
        assert partition.is_following
        # And a leader epoch that begins anew does not take the old waiters over.
        partition.lead(leads(3, partition_epoch=12))
        assert partition.leader_epoch == 3
        assert partition.log.epochs.latest == 3

    simulated(test)


def test_a_queued_append_of_an_old_epoch_does_not_land() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        syncing = partition.writer.sync((partition.log,))  # from now on work is queued
        queued = append(partition, b"late", acks=1)
        partition.lead(follows(2, partition_epoch=11))
        assert not partition.is_following  # until what was queued before has had its turn
        with pytest.raises(NotLeaderOrFollowerError):
            await queued
        await syncing
        assert partition.log.end_offset == 0
        await becomes(lambda: partition.is_following)

    simulated(test)


def test_metadata_that_is_older_than_the_controllers_answer_changes_nothing() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1, (OWN, SECOND)))
        partition.fetched(SECOND, 7, 0, 0)
        partition.fetched(THIRD, 7, 0, 0)
        ((state, proposal),) = neighbours.proposals
        assert proposal.isr == (OWN, SECOND, THIRD)
        assert proposal.broker_epochs == (7, 7, 7)
        state.accepted(proposal, Term(OWN, 1, 11, (OWN, SECOND, THIRD), (OWN, SECOND, THIRD)), 0.0)
        partition.isr_settled()
        assert partition.leadership.isr == [OWN, SECOND, THIRD]
        partition.lead(leads(1, (OWN, SECOND)))
        assert partition.leadership.isr == [OWN, SECOND, THIRD]

    simulated(test)


def test_followers_that_stay_behind_leave_the_in_sync_replicas() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        waiting = append(partition, b"one")
        neighbours.time_ms = 900.0
        partition.fetched(SECOND, 7, 1, 0)
        partition.check_in_sync()
        assert not neighbours.proposals
        neighbours.time_ms = 1100.0
        partition.check_in_sync()
        ((state, proposal),) = neighbours.proposals
        assert proposal.isr == (OWN, SECOND)
        assert not waiting.done()  # nothing is committed before the controller has agreed
        state.accepted(proposal, Term(OWN, 1, 11, (OWN, SECOND, THIRD), (OWN, SECOND)), 1100.0)
        partition.isr_settled()
        assert (await waiting).base_offset == 0

    simulated(test)


def test_the_end_is_not_told_before_the_epochs_start_is_committed_kip_207() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        partition.append(raw.batch([b"one"]), acks=1)
        partition.lead(leads(2, partition_epoch=11))
        with pytest.raises(OffsetNotAvailableError):
            partition.check_settled()
        for node_id in (SECOND, THIRD):
            partition.fetched(node_id, 7, 1, 0)
        partition.check_settled()

    simulated(test)


def test_nothing_is_told_of_former_epochs_before_the_present_one_has_begun() -> None:
    """Nobody would be told where they end: a consumer would take that for a log that was cut, and begin elsewhere."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        asked = OffsetForLeaderPartition(partition=0, leader_epoch=0)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])

        def answer() -> EpochEndOffset:
            return offset_for_leader_epoch(request, cast(RequestContext, None), broker.leaders).topics[0].partitions[0]

        await partition.turns.change_log(Log.truncate_to, 0)  # as with a follower whose leader wrote nothing
        partition.lead(follows(1))
        syncing = partition.writer.sync((partition.log,))  # from now on work is queued
        partition.lead(leads(2, partition_epoch=11))
        assert answer().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(OffsetNotAvailableError):
            partition.check_settled()
        await syncing
        await becomes(lambda: partition.has_begun)
        told = answer()
        assert (told.error_code, told.leader_epoch, told.end_offset) == (ErrorCode.NONE, 0, 0)
        partition.check_settled()

    simulated(test)


def test_a_follower_appends_what_it_asked_for_and_nothing_else() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(follows(2))
        asked = partition.position()
        assert (asked.offset, asked.leader_epoch) == (0, 2)
        answer = Answer(high_watermark=1, log_start_offset=0)
        await copy(partition, asked, answer, from_leader(b"one", 0, 1))
        assert (partition.log.end_offset, partition.high_watermark) == (1, 1)
        assert partition.position().last_fetched_epoch == 1
        # The same answer again, as after a time-out, is about a log that is no longer so.
        with pytest.raises(StaleAnswerError):
            await copy(partition, asked, answer, from_leader(b"one", 0, 1))
        asked = partition.position()
        partition.lead(follows(3, leader=THIRD, partition_epoch=11))
        with pytest.raises(StaleAnswerError):
            await copy(partition, asked, answer, from_leader(b"two", 1, 2))
        with pytest.raises(StaleAnswerError):
            await copying.truncate(partition, asked, 0)
        assert partition.log.end_offset == 1
        await copying.truncate(partition, partition.position(), 0)
        assert (partition.log.end_offset, partition.high_watermark) == (0, 0)

    simulated(test)


def test_an_epoch_in_which_nothing_was_written_is_given_up_where_the_next_leader_does_not_know_it() -> None:
    """The log is cut to its own end: nothing goes but the epoch."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(follows(1))
        answer = Answer(high_watermark=1, log_start_offset=0)
        await copy(partition, partition.position(), answer, from_leader(b"one", 0, 1))
        partition.lead(leads(2, partition_epoch=11))
        partition.lead(follows(3, partition_epoch=12))
        assert partition.position().last_fetched_epoch == 2
        await copying.truncate(partition, partition.position(), 1)
        assert partition.position().last_fetched_epoch == 1
        assert partition.log.end_offset == 1

    simulated(test)


def test_an_answer_that_waited_for_the_disk_is_looked_at_again() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(follows(2))
        asked = partition.position()
        syncing = partition.writer.sync((partition.log,))
        answer = Answer(high_watermark=1, log_start_offset=0)
        waiting = asyncio.ensure_future(copy(partition, asked, answer, from_leader(b"one", 0, 1)))
        await asyncio.sleep(0)
        partition.lead(follows(3, leader=THIRD, partition_epoch=11))
        with pytest.raises(StaleAnswerError):
            await waiting
        await syncing
        assert partition.log.end_offset == 0

    simulated(test)


def test_a_broker_that_counts_as_dead_appends_nothing() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        assert isinstance(partition.append(raw.batch([b"one"])), Appended)
        partition.suspend("the session is over")
        with pytest.raises(NotLeaderOrFollowerError):
            await append(partition, b"two")
        assert partition.log.end_offset == 1
        partition.resume()
        assert isinstance(partition.append(raw.batch([b"two"])), Appended)

    simulated(test)


@pytest.mark.parametrize("as_follower", [False, True])
def test_what_comes_to_the_disk_when_the_next_epoch_has_begun_is_committed_in_it(as_follower: bool) -> None:
    """With flush.messages a leader counts what is on its disk, also what it was asked for in an epoch before."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.log.config = replace(partition.log.config, flush_messages=1)
        partition.lead(follows(1) if as_follower else leads(1))
        if as_follower:
            asked, answer = partition.position(), Answer(high_watermark=0, log_start_offset=0)
            waiting = asyncio.ensure_future(copy(partition, asked, answer, from_leader(b"one", 0, 1)))
        else:
            waiting = append(partition, b"one")
        await becomes(lambda: partition.log.end_offset != 0, every_s=0)
        assert partition.log.recovery_point == 0
        partition.lead(leads(2))
        with pytest.raises((NotLeaderOrFollowerError, StaleAnswerError)):
            await waiting
        await becomes(lambda: partition.state is not None)
        for follower in (SECOND, THIRD):
            partition.fetched(follower, 7, 1, 0)
        assert partition.log.recovery_point == 1
        assert partition.high_watermark == 1

    simulated(test)


def test_nothing_is_acknowledged_by_who_led_alone_and_leads_no_more_when_it_is_on_the_disk() -> None:
    """Its only replica is another broker's by then, which may never have had it."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.reconfigure(replace(partition.log.config, flush_messages=1))
        await becomes(lambda: not partition.writer.busy)
        waiting = append(partition, b"one")
        await asyncio.sleep(0)
        assert partition.log.end_offset == 1
        known = partition.leadership
        partition.lead(Leadership(SECOND, known.leader_epoch + 1, [SECOND], [SECOND], known.partition_epoch + 1))
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting

    simulated(test)


@pytest.mark.parametrize("known", [False, True])
def test_a_leader_whose_log_is_out_of_service_takes_nobody_out_of_the_in_sync_replicas(known: bool) -> None:
    """They cannot fetch because of it: were it the only one left, nobody could lead in its place."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(1))
        append(partition, b"one").cancel()
        error = BrokenInvariantError("read", partition.log.directory, "a reader found it")
        partition.log.fail(error)
        if known:
            partition.failed(error)
        neighbours.time_ms += 5000.0
        partition.check_in_sync()
        assert neighbours.proposals == []

    simulated(test)


def test_a_leader_whose_disk_takes_long_takes_nobody_out_who_has_more_than_it_has_there() -> None:
    """With flush.messages followers are given what is not on its disk yet: they wait for it, and not it for them."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.log.config = replace(partition.log.config, flush_messages=1)
        partition.lead(leads(1))
        asked: list[asyncio.Future[None]] = []

        def never(files: Iterable[Syncable]) -> asyncio.Future[None]:
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        sync, partition.writer.sync = partition.writer.sync, never  # type: ignore[method-assign]
        waiting = append(partition, b"one")
        await asyncio.sleep(0.01)
        for follower in (SECOND, THIRD):
            partition.fetched(follower, 7, 1, 0)
        neighbours.time_ms += 5000.0
        partition.check_in_sync()
        assert neighbours.proposals == []
        assert (partition.high_watermark, waiting.done()) == (0, False)
        partition.writer.sync = sync  # type: ignore[method-assign]
        await partition.sync()
        asked[0].set_result(None)
        assert (await waiting).base_offset == 0

    simulated(test)


def test_what_a_follower_had_not_synced_is_synced_when_it_leads() -> None:
    """Nothing more need be written for it to be committed: a coordinator waits for that before it serves."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.log.config = replace(partition.log.config, flush_messages=1)
        partition.lead(follows(1))
        asked, answer = partition.position(), Answer(high_watermark=0, log_start_offset=0)
        await copying.append(partition, asked, answer, from_leader(b"one", 0, 1))  # its sync would have failed
        partition.lead(leads(2))
        await asyncio.sleep(1)
        for follower in (SECOND, THIRD):
            partition.fetched(follower, 7, 1, 0)
        assert (partition.log.recovery_point, partition.high_watermark) == (1, 1)

    simulated(test)


def test_a_raised_minimum_counts_before_the_in_sync_replicas_that_are_heard_of_with_it() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        topic = broker.image.topics["t"]

        def needs(count: int) -> None:
            name, value = "min.insync.replicas", str(count)
            broker.image.apply(
                ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value)
            )

        partition.lead(leads(1))
        waiting = append(partition, b"one")
        await asyncio.sleep(0.1)
        neighbours.time_ms += 5000.0  # nobody is waited for any more but those in sync
        replicas = (OWN, SECOND, THIRD)
        topic.partitions[0] = PartitionImage(replicas, (OWN,), OWN, leader_epoch=1, partition_epoch=11)
        needs(2)
        changed = ChangedPartition(topic, 0, is_new=False)
        await broker.replicas.follow(Changes(partitions=[changed], configured={"t"}))
        # Who left is eligible to lead now: what it lacks must not be committed.
        assert partition.state is not None
        assert partition.state.term.isr == (OWN,)
        assert partition.high_watermark == 0
        assert not waiting.done()
        # With one enough again it is committed, without waiting for the next look at who lags.
        needs(1)
        await broker.replicas.follow(Changes(configured={"t"}))
        assert (await waiting).base_offset == 0
        assert partition.high_watermark == 1

    simulated(test)


def test_a_deletion_is_over_when_every_live_replica_has_deleted() -> None:
    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(3))
        partition.append(raw.batch([b"x"]), acks=1)
        for follower in (SECOND, THIRD):
            partition.fetched(follower, 7, 1, 0)
        assert partition.high_watermark == 1
        deleting = asyncio.ensure_future(partition.delete_records(1, 10.0))
        await asyncio.sleep(0.01)
        assert (partition.log.start_offset, deleting.done()) == (1, False)
        partition.fetched(SECOND, 7, 1, 1)
        await asyncio.sleep(0.01)
        assert not deleting.done()
        # The third counts no longer when it is fenced.
        neighbours.dead.add(THIRD)
        partition.brokers_changed([THIRD])
        assert await deleting == 1
        neighbours.dead.clear()
        with pytest.raises(RequestTimedOutError):
            await partition.delete_records(1, 0.5)
        late = asyncio.ensure_future(partition.delete_records(1, 10.0))
        await asyncio.sleep(0.01)
        partition.lead(follows(4))
        with pytest.raises(NotLeaderOrFollowerError):
            await late

    simulated(test)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_deletion_whose_leader_leads_no_more_when_the_disk_is_done_ends_with_that(is_deleted: bool) -> None:
    """Nobody would tell it of the other replicas: it would wait for all of its time."""

    async def test(broker: Broker, partition: Partition, neighbours: Neighbours) -> None:
        partition.lead(leads(3))
        partition.append(raw.batch([b"x"]), acks=1)
        for follower in (SECOND, THIRD):
            partition.fetched(follower, 7, 1, 0)
        deleting = asyncio.ensure_future(partition.delete_records(1, 10.0))
        await asyncio.sleep(0)
        assert partition.log.start_offset == 0, "the disk has not come to it yet"
        if is_deleted:
            partition.go_offline("the topic was deleted")
        else:
            partition.lead(follows(4))
        async with asyncio.timeout(1.0):
            with pytest.raises(KafkaStorageError if is_deleted else NotLeaderOrFollowerError):
                await deleting

    simulated(test)


def test_after_a_crash_nothing_is_seen_before_it_is_as_durable_as_its_topic_wants() -> None:
    """A power loss could take it back from readers who had it."""

    async def main(simulation: Simulation) -> None:
        host = simulation.host()
        config = LogConfig(flush_messages=1)
        log = open_log(host, config)
        for value in (b"one", b"two", b"three"):
            append_one(log, raw.batch([value]), 0)
            if value == b"one":
                log.sync()
        log.abandon()
        log = open_log(host, config, recovery_point=1)
        writer = DirectoryWriter(host.runtime, "/data")
        partition = Partition(OWN, PARTITION, log, writer, Leadership(OWN, 0, [OWN], [OWN]))
        assert (log.end_offset, log.recovery_point) == (3, 1)
        assert partition.high_watermark == 1
        await partition.turns.idle()
        assert (log.recovery_point, partition.high_watermark) == (3, 3)
        await writer.close()

    run_simulation(main, 1)


def unsynced(host: Host) -> tuple[Log, DirectoryWriter]:
    """A log that is to be synced with every record, opened again before its only one was."""
    config = LogConfig(flush_messages=1)
    log = open_log(host, config)
    append_one(log, raw.batch([b"one"]), 0)
    log.abandon()
    return open_log(host, config), DirectoryWriter(host.runtime, "/data")


@pytest.mark.parametrize("how", ["less is wanted", "synced by time", "synced by others"])
def test_what_could_not_be_synced_is_seen_when_it_need_not_be_any_more(how: str) -> None:
    """Nothing more need be written for that: others have synced it, as a move does, or the topic asks for less now."""

    async def main(simulation: Simulation) -> None:
        host = simulation.host()
        log, writer = unsynced(host)
        host.disk.inject(DiskFault("sync_dir", errno.EMFILE, times=None))
        partition = Partition(OWN, PARTITION, log, writer, Leadership(OWN, 0, [OWN], [OWN]))
        await partition.turns.idle()
        assert (log.end_offset, partition.high_watermark) == (1, 0)
        reader = Waiter(1)
        partition.watchers.add(reader)
        host.disk.heal()
        if how == "less is wanted":
            partition.reconfigure(LogConfig())
        elif how == "synced by time":
            await partition.sync()
        else:
            log.sync()
            await asyncio.sleep(2 * SYNC_RETRY_S)
        assert partition.high_watermark == 1
        assert reader.future.done()
        await writer.close()

    run_simulation(main, 1)


def test_what_cannot_be_synced_is_tried_again_once_a_while_however_often_it_was_asked_for() -> None:
    async def main(simulation: Simulation) -> None:
        host = simulation.host()
        log, writer = unsynced(host)
        fault = host.disk.inject(DiskFault("sync_dir", errno.EMFILE, times=1_000_000))
        partition = Partition(OWN, PARTITION, log, writer, Leadership(OWN, 0, [OWN], [OWN]))
        for _ in range(20):
            partition.reconfigure(log.config)
            await partition.turns.idle()
        await asyncio.sleep(2 * SYNC_RETRY_S)
        before = fault.times
        await asyncio.sleep(10 * SYNC_RETRY_S)
        assert fault.times is not None
        assert before is not None
        assert 5 < before - fault.times <= 11
        host.disk.heal()
        await asyncio.sleep(2 * SYNC_RETRY_S)
        assert partition.high_watermark == 1
        await writer.close()

    run_simulation(main, 1)
