"""Decisions on their way into the store and into images: many at once, in order, and nothing before it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.cluster.test_image import state
from tests.waiting import becomes

from headrace.broker.metadata.controller_service import ControllerService
from headrace.broker.metadata.follower import MetadataFollower
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import Registration
from headrace.cluster.changes import Changes
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Endpoint, Image, partition_record
from headrace.cluster.records import MetadataRecord, RemoveTopicRecord, TopicRecord
from headrace.cluster.store import OutcomeUnknownError, Store, StoreError, StoreMember, StoreUnavailableError
from headrace.cluster.store.local import LocalStore
from headrace.cluster.store.metadata_log import MetadataLog
from headrace.errors import ErrorCode, KafkaStorageError, NotControllerError
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.runtime import DiskError, OverloadedError, Runtime
from headrace.runtime.simulated import Simulation


class FakeReplicas:
    """Says what it was told, by the names and ids of topics."""

    def __init__(self) -> None:
        self.told: list[tuple[list[bytes], list[tuple[str, int, bytes]]]] = []
        self.reasons: dict[tuple[str, int], str] = {}
        #: Of the next change; of those after it.
        self.failure: Exception | None = None
        self.failures: list[Exception | None] = []
        self.is_asked = False
        self.may_follow = asyncio.Event()
        self.may_follow.set()

    async def follow(self, changes: Changes) -> None:
        self.is_asked = True
        await self.may_follow.wait()
        failure, self.failure = self.failure, self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        deleted = [topic.topic_id for topic in changes.deleted]
        made = [(topic.name, index, topic.topic_id) for topic, index, _ in changes.partitions]
        if deleted or made:
            self.told.append((deleted, made))

    def unmade(self, image: Image, records: Sequence[MetadataRecord]) -> dict[tuple[str, int], str]:
        return self.reasons


class CountedStore:
    """A store whose appends can be held up, counted and made to fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.appends: list[int] = []
        self.failure: Exception | None = None
        self.may_append = asyncio.Event()
        self.may_append.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_if_epoch(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        self.appends.append(len(records))
        await self.may_append.wait()
        if self.failure is not None:
            raise self.failure
        return await self._store.append_if_epoch(epoch, records)


class World:
    """A controller with a store of its own, and as many followers as a test wants."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.store = CountedStore(LocalStore(runtime, MetadataLog.open(runtime, "/data")))
        self.replicas = FakeReplicas()
        self.follower = self.another_follower(self.replicas)
        self.controller = Controller(1, BrokerConfig.parse({}), runtime.rng, runtime.uuid)
        self.service = ControllerService(self.store, self.follower, self.replicas)  # type: ignore[arg-type]  # fakes

    def another_follower(self, replicas: FakeReplicas) -> MetadataFollower:
        return MetadataFollower(self.runtime, self.store, replicas, Image())  # type: ignore[arg-type]  # fakes

    async def open(self) -> None:
        await self.follower.open()
        epoch = await self.store.elect(StoreMember(1, bytes(16)))
        await self.service.take_over(epoch)
        await self.service.propose(lambda image: Decision(None, self.controller.bootstrap(image)))
        broker = Registration(1, bytes(16), [Endpoint("PLAINTEXT", "localhost", 9092, 0)])
        await self.service.propose(lambda image: self.controller.register_broker(image, broker, fenced=False))
        self.store.appends.clear()

    async def create(self, name: str) -> int:
        request = CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])
        answer = await self.service.propose(lambda image: self.controller.create_topics(image, request))
        return answer.topics[0].error_code

    async def delete(self, name: str) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        answer = await self.service.propose(lambda image: self.controller.delete_topics(image, request, 6))
        return answer.responses[0].error_code


def run(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(3)

    async def opened() -> None:
        world = World(simulation.host().runtime)
        await world.open()
        await main(world)
        await world.service.close()

    simulation.run(opened())
    simulation.check()


def test_decisions_that_come_while_an_append_is_under_way_go_into_the_next_one_together() -> None:
    async def main(world: World) -> None:
        world.store.may_append.clear()
        creating = [asyncio.ensure_future(world.create(f"topic-{number}")) for number in range(50)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in creating)
        assert not world.follower.image.topics, "an image has what is not written"
        world.store.may_append.set()
        assert await asyncio.gather(*creating) == [0] * 50
        assert len(world.store.appends) <= 2
        assert len(world.follower.image.topics) == 50

    run(main)


def test_a_decision_is_made_on_those_before_it_and_answered_after_them() -> None:
    async def main(world: World) -> None:
        world.store.may_append.clear()
        first = asyncio.ensure_future(world.create("a"))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(world.create("a"))
        await asyncio.sleep(1)
        assert not second.done(), "it tells of a topic that a crash may still undo"
        world.store.may_append.set()
        assert [await first, await second] == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]

    run(main)


def test_what_could_not_be_written_is_refused_with_all_that_was_decided_on_it() -> None:
    async def main(world: World) -> None:
        world.store.may_append.clear()
        world.store.failure = DiskError("append", "/data", 28)
        creating = []
        for ask in (world.create, world.create, world.delete):
            creating.append(asyncio.ensure_future(ask("a")))
            await asyncio.sleep(1)
        world.store.may_append.set()
        # Also the second one, though it was told that there is such a topic: there is none.
        assert await asyncio.gather(*creating) == [KafkaStorageError.code] * 3
        assert not world.follower.image.topics
        world.store.failure = None
        assert await world.create("a") == ErrorCode.NONE

    run(main)


@pytest.mark.parametrize("failure", [StoreUnavailableError("it is away"), OutcomeUnknownError("it went away")])
def test_a_store_that_is_away_is_an_error_of_the_request(failure: Exception) -> None:
    async def main(world: World) -> None:
        world.store.failure = failure
        code = await world.create("a")
        is_over = isinstance(failure, OutcomeUnknownError)
        assert code == (ErrorCode.NOT_CONTROLLER if is_over else ErrorCode.REQUEST_TIMED_OUT)
        assert world.service.is_active is not is_over
        world.store.failure = None
        if is_over:
            with pytest.raises(NotControllerError):
                await world.create("b")
            epoch = await world.store.elect(StoreMember(1, bytes(16)))
            await world.service.take_over(epoch)
        assert await world.create("b") == ErrorCode.NONE

    run(main)


def test_how_an_append_of_an_earlier_epoch_ends_is_nothing_to_the_next_one() -> None:
    """A broker that is elected again while its last append as the controller before is still under way."""

    async def main(world: World) -> None:
        world.store.may_append.clear()
        creating = asyncio.ensure_future(world.create("early"))
        await becomes(lambda: world.store.appends, every_s=0)
        world.service.resign("its session is over")
        world.store.failure = OutcomeUnknownError("the session is over")
        epoch = await world.store.elect(StoreMember(1, bytes(16)))
        taking_over = asyncio.ensure_future(world.service.take_over(epoch))
        await asyncio.sleep(1)
        world.store.may_append.set()
        await asyncio.sleep(1)
        world.store.failure = None
        await taking_over
        assert await creating == ErrorCode.NOT_CONTROLLER
        assert world.service.epoch == epoch
        assert await world.create("late") == ErrorCode.NONE

    run(main)


def test_a_topic_that_was_deleted_and_created_again_is_two_to_whoever_hears_of_both_at_once() -> None:
    async def main(world: World) -> None:
        late = FakeReplicas()
        follower = world.another_follower(late)
        await follower.open()
        for _ in range(3):
            assert await world.create("a") == ErrorCode.NONE
            assert await world.delete("a") == ErrorCode.NONE
        assert await world.create("a") == ErrorCode.NONE
        await follower.catch_up()
        made = [topic_id for _, partitions in late.told for _, index, topic_id in partitions if index == 0]
        deleted = [topic_id for gone, _ in late.told for topic_id in gone]
        assert len(set(made)) == 4
        assert deleted == made[:3]
        for gone, partitions in late.told:
            assert not {topic_id for _, _, topic_id in partitions} & set(gone), "made and removed in one step"
        assert state(follower.image) == state(world.follower.image)

    run(main)


def test_nothing_is_decided_on_less_than_was_appended() -> None:
    """A decision of two steps is in the store, but this broker failed with the first of them."""

    async def main(world: World) -> None:
        assert await world.create("a") == ErrorCode.NONE
        state_of_one, first, second = world.follower.image.topics["a"].partitions[0], bytes(15) + b"1", bytes(15) + b"2"
        records: list[MetadataRecord] = [
            TopicRecord(name="b", topic_id=first),
            partition_record(first, 0, state_of_one),
            RemoveTopicRecord(topic_id=first),
            TopicRecord(name="b", topic_id=second),
            partition_record(second, 0, state_of_one),
        ]
        world.replicas.failure = KafkaStorageError("no room for a moment")
        with pytest.raises(KafkaStorageError):
            await world.service.propose(lambda image: Decision(None, records))
        assert world.follower.image.topics["b"].topic_id == first
        seen = await world.service.propose(lambda image: Decision(image.topics["b"].topic_id))
        assert seen == second == world.follower.image.topics["b"].topic_id

    run(main)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (KafkaStorageError("no room"), ErrorCode.KAFKA_STORAGE_ERROR),
        (DiskError("rename", "/data", 5), ErrorCode.KAFKA_STORAGE_ERROR),
        (OverloadedError("too much waits for the disk"), ErrorCode.KAFKA_STORAGE_ERROR),
        (StoreUnavailableError("it is away"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ValueError("a defect"), ErrorCode.NONE),
    ],
    ids=repr,
)
def test_whoever_asked_is_answered_whatever_this_broker_fails_with_and_it_is_made_up_for(
    failure: Exception, code: ErrorCode
) -> None:
    """What was decided is in the store, and in the image: so it is told to logs and coordinators, too, if later."""

    async def main(world: World) -> None:
        seen: list[str] = []
        world.follower.follow(lambda changes: seen.extend(topic.name for topic, _, _ in changes.partitions))
        assert await world.create("a") == ErrorCode.NONE
        world.replicas.failure = failure
        assert await asyncio.wait_for(world.create("b"), 10) == code
        assert await asyncio.wait_for(world.create("b"), 10) == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await asyncio.wait_for(world.create("c"), 10) == ErrorCode.NONE
        assert seen == ["a", "a", "b", "b", "c", "c"]
        made = [name for _, partitions in world.replicas.told for name, _, _ in partitions]
        # What fails by a defect would fail again: nothing else is held up by it.
        assert made == (["a", "a", "b", "b", "c", "c"] if code else ["a", "a", "c", "c"])

    run(main)


@pytest.mark.parametrize("failure", [ValueError("a defect"), StoreError("it does not let this broker write")], ids=repr)
def test_whoever_asked_is_answered_whatever_the_store_fails_with(failure: Exception) -> None:
    async def main(world: World) -> None:
        world.store.failure = failure
        assert await asyncio.wait_for(world.create("a"), 10) != ErrorCode.NONE
        world.store.failure = None
        assert await asyncio.wait_for(world.create("a"), 10) == ErrorCode.NONE

    run(main)


def test_a_snapshot_that_nobody_waits_for_any_more_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        may_go_on = asyncio.Event()

        async def slow(image: Image, epoch: int) -> None:
            await may_go_on.wait()

        monkeypatch.setattr(world.store, "snapshot_due", True, raising=False)
        monkeypatch.setattr(world.store, "take_snapshot", slow, raising=False)
        taking = asyncio.ensure_future(world.service.take_snapshot_if_due())
        await asyncio.sleep(1)
        creating = asyncio.ensure_future(world.create("a"))
        taking.cancel()
        await asyncio.sleep(1)
        may_go_on.set()
        assert await asyncio.wait_for(creating, 10) == ErrorCode.NONE
        assert await asyncio.wait_for(world.create("b"), 10) == ErrorCode.NONE

    run(main)


def test_after_a_snapshot_a_follower_learns_what_is_different() -> None:
    async def main(world: World) -> None:
        for name in ("kept", "gone", "replaced"):
            await world.create(name)
        late = FakeReplicas()
        follower = world.another_follower(late)
        await follower.open()
        image, version = follower.image, follower.image.version
        ids = {name: topic.topic_id for name, topic in image.topics.items()}
        await world.delete("gone")
        await world.delete("replaced")
        await world.create("replaced")
        await world.create("new")
        await world.store.take_snapshot(world.follower.image, world.service.epoch)
        await world.create("newest")
        await follower.catch_up()
        assert follower.image is image
        assert image.version > version
        [(deleted, made), (none, newest)] = late.told
        assert set(deleted) == {ids["gone"], ids["replaced"]}
        assert {name for name, _, _ in made} == {"replaced", "new"}
        assert (none, {name for name, _, _ in newest}) == ([], {"newest"})
        assert state(image) == state(world.follower.image)
        assert image.offset == world.follower.image.offset

    run(main)


def test_the_copy_of_an_image_changes_apart_from_it() -> None:
    async def main(world: World) -> None:
        await world.create("a.b")
        before = state(world.follower.image)
        copy = world.follower.image.copied()
        assert state(copy) == before
        broken = world.controller.delete_topics(copy, DeleteTopicsRequest(topics=[DeleteTopicState(name="a.b")]), 6)
        for record in broken.records:
            copy.apply(record)
        assert not copy.topics
        assert state(world.follower.image) == before
        assert world.follower.image.colliding_topic("a_b") == "a.b"

    run(main)


def test_what_changes_nothing_is_answered_after_this_broker_has_followed_what_it_was_decided_on() -> None:
    """Also where it fails with that at first: whoever hears that a topic is there counts on its logs."""

    async def main(world: World) -> None:
        world.replicas.may_follow.clear()
        world.replicas.is_asked = False
        creating = asyncio.ensure_future(world.create("a"))
        await becomes(lambda: world.replicas.is_asked)
        looking = asyncio.ensure_future(world.service.propose(lambda image: Decision("a" in image.topics)))
        await asyncio.sleep(1)
        assert not looking.done()
        world.replicas.failure = OverloadedError("too much waits for the disk")
        world.replicas.may_follow.set()
        assert await creating == ErrorCode.KAFKA_STORAGE_ERROR
        assert await looking
        assert [name for _, partitions in world.replicas.told for name, _, _ in partitions] == ["a", "a"]

    run(main)


def test_a_change_is_answered_after_this_broker_has_followed_it_though_another_took_it_and_failed() -> None:
    """The image has it then, and the logs do not."""

    async def main(world: World) -> None:
        world.replicas.may_follow.clear()
        world.replicas.is_asked = False
        creating = [asyncio.ensure_future(world.create("a"))]
        await becomes(lambda: world.replicas.is_asked)
        creating.append(asyncio.ensure_future(world.create("b")))
        await asyncio.sleep(1)
        # Whoever reads the store makes up for the first one, and fails with the second.
        reading = asyncio.ensure_future(world.follower.catch_up())
        await asyncio.sleep(1)
        world.replicas.failure = OverloadedError("too much waits for the disk")
        world.replicas.failures = [None, OverloadedError("too much waits for the disk")]
        world.replicas.may_follow.set()
        assert await creating[0] == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(OverloadedError):
            await reading
        assert await creating[1] == ErrorCode.NONE
        assert [name for _, partitions in world.replicas.told for name, _, _ in partitions] == ["a", "a", "b", "b"]

    run(main)
