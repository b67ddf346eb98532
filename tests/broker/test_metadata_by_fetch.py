"""Brokers fetch the metadata from the controller, and read the store only when that does not answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.metadata.fetcher import MetadataFetcher
from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.records import METADATA_TOPIC, METADATA_TOPIC_ID
from headrace.cluster.store import Seat, StoreMember
from headrace.cluster.store.model import ModelSession
from headrace.cluster.store.node_formats import CONTROLLER, log_path
from headrace.cluster.store.session import Delete
from headrace.errors import ErrorCode, KafkaError, NotControllerError, StaleControllerEpochError
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)

from . import raw
from .several import SeveralBrokers, create, run_several
from .sim import Client

BY_ID, BY_NAME = 17, 12


def fetch_request(offset: int, epoch: int = -1, *, replica_id: int = 3, wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        replica_id=replica_id,
        replica_state=ReplicaState(replica_id=replica_id),
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[part])],
    )


async def fetch(cluster: SeveralBrokers, node_id: int, request: FetchRequest, version: int = BY_ID) -> PartitionData:
    answer = await cluster.client(node_id).request(request, version, 60.0)
    assert answer.error_code == ErrorCode.NONE
    [topic] = answer.responses
    [data] = topic.partitions
    assert isinstance(data, PartitionData)
    return data


async def controller_of(cluster: SeveralBrokers) -> int:
    await cluster.until(lambda: cluster.controller_id() is not None)
    found = cluster.controller_id()
    assert found is not None
    return found


def all_know(cluster: SeveralBrokers, name: str) -> Callable[[], bool]:
    return lambda: all(name in broker.image.topics for broker in cluster.alive)


# --- what the controller answers


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_the_controller_gives_what_was_appended_and_waits_for_what_will_be(version: int) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        active = cluster.running(controller).metadata.active
        begin = active.tail.begin_offset
        found = await fetch(cluster, controller, fetch_request(begin, active.epoch), version)
        assert found.error_code == ErrorCode.NONE
        assert found.records
        assert (found.high_watermark, found.log_start_offset) == (active.tail.end_offset, begin)
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (controller, active.epoch)
        end = active.tail.end_offset
        began = asyncio.get_running_loop().time()
        request = fetch_request(end, active.epoch, wait_ms=60_000)
        waiting = asyncio.ensure_future(fetch(cluster, controller, request, version))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        assert await create(cluster, cluster.other_than(controller), "new") == ErrorCode.NONE
        assert (await waiting).high_watermark > end
        assert asyncio.get_running_loop().time() - began < 10, "it was not woken"

    run_several(main)


def test_epochs_offsets_and_brokers_that_do_not_fit_are_refused() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        active = cluster.running(controller).metadata.active
        end, epoch = active.tail.end_offset, active.epoch
        refused = [
            (fetch_request(end, epoch - 1), ErrorCode.FENCED_LEADER_EPOCH),
            (fetch_request(end, epoch + 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
            (fetch_request(end + 1000, epoch), ErrorCode.OFFSET_OUT_OF_RANGE),
        ]
        for request, error in refused:
            found = await fetch(cluster, controller, request)
            assert (found.error_code, found.records) == (error, b"")
        elsewhere = await fetch(cluster, cluster.other_than(controller), fetch_request(end, epoch))
        assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (elsewhere.current_leader.leader_id, elsewhere.current_leader.leader_epoch) == (controller, epoch)

    run_several(main)


def test_to_consumers_there_is_no_such_partition() -> None:
    """As with Apache Kafka: the brokers' metadata does not have that topic."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        asked = fetch_request(0, replica_id=-1)
        by_name = await fetch(cluster, controller, asked, BY_NAME)
        assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        by_id = await fetch(cluster, controller, asked, BY_ID)
        assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run_several(main)


def test_who_waits_is_told_when_the_controller_is_deposed() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        active = cluster.running(controller).metadata.active
        request = fetch_request(active.tail.end_offset, active.epoch, wait_ms=60_000)
        waiting = asyncio.ensure_future(fetch(cluster, controller, request))
        await asyncio.sleep(1.0)
        cluster.model.change([Delete(CONTROLLER)])
        assert (await waiting).error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

    run_several(main)


# --- whom a broker believes


class _Membership:
    """A controller that says what a test lets it say."""

    def __init__(self, epoch: int, answer: PartitionData | None) -> None:
        self.seat = Seat(epoch, StoreMember(2, bytes(16)))
        self._answer = answer

    async def ask_seat(self, *asked: Any) -> FetchResponse | None:
        if self._answer is None:
            return None
        return FetchResponse(responses=[FetchableTopicResponse(partitions=[self._answer])])


@pytest.mark.parametrize(
    ("known_epoch", "answer_epoch", "error"),
    [(6, 5, StaleControllerEpochError), (5, 4, StaleControllerEpochError), (5, 6, StaleControllerEpochError)],
)
def test_nothing_is_taken_from_a_controller_of_another_epoch(
    known_epoch: int, answer_epoch: int, error: type[KafkaError]
) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        broker = cluster.running(cluster.other_than(cluster.controller_id()))
        leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=answer_epoch)
        membership = _Membership(5, PartitionData(records=b"", current_leader=leader))
        fetcher = MetadataFetcher(broker.cluster, broker.metadata, membership)  # type: ignore[arg-type]  # a fake
        with pytest.raises(error):
            await fetcher.fetch(7, known_epoch)
        silent = MetadataFetcher(broker.cluster, broker.metadata, _Membership(5, None))  # type: ignore[arg-type]  # a fake
        with pytest.raises(NotControllerError):
            await silent.fetch(7, 5)

    run_several(main)


def test_the_epoch_of_the_latest_answer_is_remembered() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        before = cluster.running(controller).metadata.active.epoch
        cluster.model.change([Delete(CONTROLLER)])

        def is_later() -> bool:
            return all(broker.metadata.follower.epoch > before for broker in cluster.alive)

        await cluster.until(is_later)

    run_several(main)


# --- what it costs, and what happens when it fails


class _Reads:
    """Counts what sessions read of the log, by the machine that reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: SeveralBrokers) -> None:
        self.counts: Counter[str] = Counter()
        original = {name: getattr(ModelSession, name) for name in ("get", "children", "sync")}
        owners = {id(broker.runtime.clock): broker.node_id for broker in cluster.alive}
        for name, function in original.items():

            def counted(session: Any, *asked: Any, _function: Any = function, _name: str = name) -> Any:
                self.counts[f"{_name} by {owners.get(id(session._clock))}"] += 1
                return _function(session, *asked)

            monkeypatch.setattr(ModelSession, name, counted)


def test_a_change_costs_the_store_no_read_by_any_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        await asyncio.sleep(5.0)
        reads = _Reads(monkeypatch, cluster)
        for number in range(10):
            through = 1 + number % 3
            assert await create(cluster, through, f"t{number}") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "t9"))
        await asyncio.sleep(5.0)
        assert not reads.counts, f"the controller is {controller}"

    run_several(main)


async def topic_that_the_controller_makes_late(
    cluster: SeveralBrokers, controller: int
) -> tuple[asyncio.Event, asyncio.Future[ErrorCode]]:
    """All others know the topic; what lets the controller make its own logs, and what was asked for it."""
    replicas = cluster.running(controller).replicas
    may_follow = asyncio.Event()
    original = replicas.follow

    async def held(changes: Any) -> None:
        await may_follow.wait()
        await original(changes)

    replicas.follow = held  # type: ignore[method-assign]
    creating = asyncio.ensure_future(create(cluster, controller, "slow"))
    others = [broker for broker in cluster.alive if broker.node_id != controller]
    await cluster.until(lambda: all("slow" in broker.image.topics for broker in others))
    return may_follow, creating


def test_a_change_comes_to_brokers_without_waiting_for_the_controllers_own_logs() -> None:
    """The controller may take long to make what it decided: others need not wait for that."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        may_follow, creating = await topic_that_the_controller_makes_late(cluster, controller)
        assert not creating.done()
        may_follow.set()
        assert await creating == ErrorCode.NONE

    run_several(main)


def test_what_the_controller_takes_long_for_is_not_broken_off_by_a_look_at_the_metadata() -> None:
    """A request that comes too late ends its connection, with all others that wait there."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        replicas = cluster.running(controller).replicas
        through = cluster.other_than(controller)
        original = replicas.follow

        async def slow(changes: Any) -> None:
            await asyncio.sleep(5.0)
            await original(changes)

        replicas.follow = slow  # type: ignore[method-assign]
        other = Client(cluster.simulation, "another-client", f"broker-{through}")
        asked = [QuorumTopic(topic_name=METADATA_TOPIC, partitions=[QuorumPartition(partition_index=0)])]
        looking = asyncio.ensure_future(other.request(DescribeQuorumRequest(topics=asked), 2, 60.0))
        creating = asyncio.ensure_future(create(cluster, through, "slow"))
        assert (await looking).error_code == ErrorCode.NONE
        assert await creating == ErrorCode.NONE

    run_several(main)


def test_whoever_passes_a_request_on_has_its_outcome_when_it_answers_however_far_behind_it_was() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        behind = cluster.other_than(controller)
        third = cluster.other_than(controller, behind)
        follower = cluster.running(behind).metadata.follower
        await follower.close()  # it learns nothing by itself
        for number in range(5):
            assert await create(cluster, third, f"t{number}") == ErrorCode.NONE
        assert "t0" not in cluster.running(behind).image.topics
        assert await create(cluster, behind, "last") == ErrorCode.NONE
        assert "last" in cluster.running(behind).image.topics

    # One decision an answer.
    run_several(main, settings={"controller.quorum.fetch.max.bytes": "1", "broker.heartbeat.interval.ms": "100000"})


# --- defects


def test_a_broker_goes_on_following_after_a_defect() -> None:
    """Whoever stops following would lead and serve what it must not, and nobody would notice."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        hurt = cluster.running(cluster.other_than(controller))
        fails = ["fetched", "read"]
        take = hurt.metadata.follower._take

        async def failing(reading: Any) -> None:
            if reading.records and fails:
                raise ValueError(f"a defect with what was {fails.pop(0)}")
            await take(reading)

        hurt.metadata.follower._take = failing  # type: ignore[method-assign]
        assert await create(cluster, controller, "t") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "t"), 10.0)
        assert not fails

    run_several(main)


@pytest.mark.parametrize("what", ["fencing", "an image that does not fit"])
def test_a_controller_goes_on_after_a_defect(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the seat for as long as its session lives: nobody else would do it."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        await asyncio.sleep(3.0)
        active = cluster.running(controller).controller
        original, failures = active.fence_broker, []
        error: Exception = ValueError("a defect") if what == "fencing" else InconsistentMetadataError("it does not fit")

        def failing(image: Any, node_id: int) -> Any:
            if not failures:
                failures.append(node_id)
                raise error
            return original(image, node_id)

        monkeypatch.setattr(active, "fence_broker", failing)
        dead = cluster.other_than(controller)
        cluster.brokers[dead].kill()
        await cluster.until(lambda: all(broker.image.brokers[dead].fenced for broker in cluster.alive))
        assert failures == [dead]

    run_several(main)


def test_a_broker_goes_on_with_its_heartbeats_after_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        hurt = cluster.running(cluster.other_than(controller)).membership
        assert hurt is not None
        original, told = hurt._heartbeat, []

        def failing(**given: bool) -> Any:
            told.append(1)
            if len(told) == 1:
                raise ValueError("a defect")
            return original(**given)

        monkeypatch.setattr(hurt, "_heartbeat", failing)
        await cluster.until(lambda: len(told) > 2)

    run_several(main)


def test_no_broker_is_ahead_of_the_controller_in_what_is_told_of_the_quorum() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        may_follow, creating = await topic_that_the_controller_makes_late(cluster, controller)
        await asyncio.sleep(1.0)  # until they have fetched from there
        asked = [QuorumTopic(topic_name=METADATA_TOPIC, partitions=[QuorumPartition(partition_index=0)])]
        other = Client(cluster.simulation, "another-client", f"broker-{controller}")
        answer = await other.request(DescribeQuorumRequest(topics=asked), 2)
        [told] = answer.topics[0].partitions
        assert len(told.observers) == 2
        assert {seen.log_end_offset for seen in told.observers} == {told.high_watermark}
        may_follow.set()
        assert await creating == ErrorCode.NONE

    run_several(main)


@pytest.mark.parametrize(("timeout_ms", "error"), [(20_000, ErrorCode.REQUEST_TIMED_OUT), (90_000, ErrorCode.NONE)])
def test_whoever_asks_for_much_says_how_long_it_may_take(timeout_ms: int, error: ErrorCode) -> None:
    """Thousands of partitions, whose logs the controller takes long to make."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        replicas = cluster.running(controller).replicas
        original = replicas.follow

        async def slow(changes: Any) -> None:
            if changes.partitions:
                await asyncio.sleep(50.0)
            await original(changes)

        replicas.follow = slow  # type: ignore[method-assign]
        topic = CreatableTopic(name="much", num_partitions=6, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        client = cluster.client(cluster.other_than(controller))
        answer = await client.request(request, raw.CREATE_TOPICS_VERSION, 120.0)
        assert answer.topics[0].error_code == error

    run_several(main)


def test_a_broker_that_cannot_reach_the_controller_reads_the_store() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        cut = cluster.other_than(controller)
        third = cluster.other_than(controller, cut)
        network = cluster.simulation.network
        network.partition([f"broker-{cut}"], [f"broker-{controller}"])
        assert await create(cluster, third, "unseen") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "unseen"))
        # And goes on so, with each change as soon as the store has it.
        for number in range(5):
            assert await create(cluster, third, f"more-{number}") == ErrorCode.NONE
            assert await cluster.until(all_know(cluster, f"more-{number}")) < 1.0
        network.heal()
        assert await create(cluster, cut, "healed") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "healed"))

    run_several(main)


def test_a_controller_that_says_nothing_is_not_waited_for_beyond_the_time_out() -> None:
    """Its machine is half gone: connections stay open, and nothing comes through them."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        cut = cluster.other_than(controller)
        network = cluster.simulation.network
        network.partition([f"broker-{controller}"], [f"broker-{cut}"], one_way=True)
        third = cluster.other_than(controller, cut)
        assert await create(cluster, third, "unseen") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "unseen"), 5.0)
        network.heal()

    run_several(main)


def test_a_broker_that_the_store_has_left_still_learns_from_the_controller() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        cut = cluster.other_than(controller)
        await asyncio.sleep(1.0)
        cluster.brokers[cut].is_reachable = False
        assert await create(cluster, controller, "t") == ErrorCode.NONE
        assert await cluster.until(all_know(cluster, "t")) < 0.5
        cluster.brokers[cut].is_reachable = True

    run_several(main)


def test_a_broker_that_missed_what_a_snapshot_took_the_place_of_goes_on_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.broker.metadata.service.RECORDS_MAX", 10)

    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        late = cluster.other_than(controller)
        third = cluster.other_than(controller, late)
        cluster.brokers[late].host.pause()
        for number in range(20):
            assert await create(cluster, third, f"t{number}") == ErrorCode.NONE
        active = cluster.running(controller).metadata.active
        monkeypatch.setattr("headrace.cluster.store.node_log.NodeLog.snapshot_due", True)
        await active.take_snapshot_if_due()
        monkeypatch.undo()
        assert cluster.model.tree.get(log_path(0)) is None, "there was no snapshot"
        cluster.brokers[late].host.resume()
        await cluster.until(all_know(cluster, "t19"))
        assert await create(cluster, third, "after") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "after"))

    run_several(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_whose_node_was_removed_follows_the_next_one(seed: int) -> None:
    """It is told by its watch: it reads nothing of the log, and its heartbeats go to itself."""

    async def main(cluster: SeveralBrokers) -> None:
        before = await controller_of(cluster)
        epoch = cluster.running(before).metadata.active.epoch
        cluster.model.change([Delete(CONTROLLER)])

        def is_another() -> bool:
            active = [broker for broker in cluster.alive if broker.metadata.active.is_active]
            return len(active) == 1 and active[0].metadata.active.epoch > epoch

        await cluster.until(is_another)
        assert await create(cluster, cluster.other_than(before), "t") == ErrorCode.NONE
        await cluster.until(all_know(cluster, "t"))

    run_several(main, seed)


def test_observers_are_described_by_what_they_fetched_last() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = await controller_of(cluster)
        late = cluster.other_than(controller)
        await asyncio.sleep(1.0)
        cluster.brokers[late].host.pause()
        known = cluster.running(late).image.offset
        assert await create(cluster, controller, "t") == ErrorCode.NONE
        await asyncio.sleep(0.2)
        asked = [QuorumTopic(topic_name=METADATA_TOPIC, partitions=[QuorumPartition(partition_index=0)])]
        answer = await cluster.client(controller).request(DescribeQuorumRequest(topics=asked), 2, 60.0)
        state = answer.topics[0].partitions[0]
        observers = {observer.replica_id: observer for observer in state.observers}
        assert observers[late].log_end_offset == known < state.high_watermark
        third = observers[cluster.other_than(controller, late)]
        assert third.log_end_offset == state.high_watermark
        assert third.last_caught_up_timestamp > observers[late].last_caught_up_timestamp
        cluster.brokers[late].host.resume()

    run_several(main)
