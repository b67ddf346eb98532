"""Coordinators and their drivers over appends that end in any order, fail in any way, and hardly fit their logs.

Requests, markers and the ends of appends are mixed at every step, and so are changes of the leader: partitions are led
elsewhere and here again, in whatever step of loading, writing or waiting they are; what was under way is in the log
then, or is not, and seems to have been written all the same. Some of what is in the log seems not to be, since replicas
were slow. At the end both coordinators know what the logs say (but for that), everyone was answered, and no transaction
hangs. A seed decides everything. Many seeds, by hand:

    python -m tests.broker.coordinator_simulation 10000
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.coordination.driver import played, run_seeds

from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.coordination import StoredRecord
from headrace.errors import ErrorCode, KafkaStorageError
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.stored.consumer_offsets import OffsetCommitKey, OffsetCommitValue, decode_record
from headrace.runtime.simulated import run_simulation

from .coordinators import PARTITIONS, TOPIC, FakePartition, Machine, turns

GROUPS = ("a", "b", "c", "d")
STEPS = 120
GROUP_PARTITIONS = 2
Offsets = dict[tuple[str, int], int]


class UnexpectedError(Exception):
    """Of no kind that anyone provided for."""


class Producer:
    """A transactional producer that believes what it was told, also when it was replaced meanwhile."""

    def __init__(self, name: str, who: dict[str, int]) -> None:
        self.name, self.who = name, who
        self.groups: set[str] = set()


class Story:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_newer = self.random.random() < 0.5  # the protocol of transactions
        self.machine = Machine(group_partitions=GROUP_PARTITIONS, seed=seed, version=2 if self.is_newer else 0)
        self.offset = 0
        self.asked: list[asyncio.Future[Any]] = []
        self.plain_commits: list[tuple[str, dict[int, int], asyncio.Future[Any]]] = []
        self.transactional_commits: list[tuple[str, dict[int, int], asyncio.Future[Any]]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.producers: list[Producer] = []
        self.counts: dict[str, int] = {}
        self.is_quiet = False
        self.moving: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.uncertain: set[tuple[str, int]] = set()  # of which a record is in the log, but was said to have failed
        for partition in self.logs:
            partition.trouble = self.trouble

    @property
    def logs(self) -> list[FakePartition]:
        return list(self.machine.partitions.values())

    @property
    def of_groups(self) -> list[FakePartition]:
        return [partition for (topic, _), partition in self.machine.partitions.items() if topic == CONSUMER_OFFSETS]

    @property
    def commits(self) -> list[tuple[str, dict[int, int], asyncio.Future[Any]]]:
        return self.plain_commits + self.transactional_commits

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def trouble(self) -> BaseException | None:
        if self.is_quiet or self.random.random() > 0.03:
            return None
        self.count("appends refused")
        return self.random.choice((UnexpectedError("a defect"), KafkaStorageError("a broken disk")))

    # --- what happens

    async def run(self) -> None:
        self.is_quiet = True
        await self.machine.ready()
        self.is_quiet = False
        self.machine.runtime.offload = self.offload  # type: ignore[method-assign]
        self.join = self.machine.transactions.join
        self.machine.transactions.join = self.slow_join  # type: ignore[method-assign]
        for _ in range(STEPS):
            self.random.choice(self.deeds)(self)
            if self.random.random() < 0.7:
                await turns(self.random.randint(1, 4))
            if self.random.random() < 0.1:
                await asyncio.sleep(self.random.choice((0.001, 0.01, 1.0)))
        await self.make_peace()
        await self.check()
        await self.machine.close()

    def commit(self) -> None:
        group, offsets = self.random.choice(GROUPS), self.some_offsets()
        self.plain_commits.append((group, offsets, self.machine.commit(group, offsets)))

    def some_offsets(self) -> dict[int, int]:
        self.offset += 1
        return dict.fromkeys(self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS)), self.offset)

    def begin_producer(self) -> None:
        """Or replace one, whose transaction is aborted."""
        self.tasks.append(asyncio.get_running_loop().create_task(self.introduce(self.random.choice(("one", "two")))))

    async def introduce(self, name: str) -> None:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = await self.machine.ask_transactions("init_producer_id", request, 4)
        if answer.error_code == ErrorCode.NONE:
            self.count("producers")
            who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
            self.producers = [*self.producers[-3:], Producer(name, who)]

    def add_group(self) -> None:
        if self.producers:
            producer, group = self.random.choice(self.producers), self.random.choice(GROUPS)
            self.tasks.append(asyncio.get_running_loop().create_task(self.added(producer, group)))

    async def added(self, producer: Producer, group: str) -> None:
        if await self.machine.add_offsets(producer.name, producer.who, group) == ErrorCode.NONE:
            producer.groups.add(group)
            if self.random.random() < 0.8:
                self.commit_one(producer, group)

    def commit_in_transaction(self) -> None:
        for producer in self.producers:
            for group in GROUPS if self.is_newer else sorted(producer.groups):
                if self.random.random() < (0.2 if self.is_newer else 0.5):
                    self.commit_one(producer, group)

    def commit_one(self, producer: Producer, group: str) -> None:
        self.count("commits in transactions")
        version, offsets = 5 if self.is_newer else 3, self.some_offsets()
        asked = self.machine.commit_in_transaction(producer.name, producer.who, group, offsets, version)
        self.transactional_commits.append((group, offsets, asked))
        if self.random.random() < 0.3:  # the end overtakes what is long on its way
            self.tasks.append(asyncio.get_running_loop().create_task(self.ended(producer)))

    def end_transaction(self) -> None:
        if self.producers:
            producer = self.random.choice(self.producers)
            producer.groups.clear()
            self.tasks.append(asyncio.get_running_loop().create_task(self.ended(producer)))

    async def ended(self, producer: Producer) -> None:
        await turns(self.random.choice((0, 1, 5)))
        committed = self.random.random() < 0.5
        answer = await self.machine.end(producer.name, producer.who, committed, 5 if self.is_newer else 3)
        if self.is_newer and answer.error_code == ErrorCode.NONE:
            producer.who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

    def delete_groups(self) -> None:
        names = self.random.sample(GROUPS, self.random.randint(1, 2))
        self.asked.append(self.machine.ask_group("delete_groups", DeleteGroupsRequest(groups_names=names), 2))

    def delete_offsets(self) -> None:
        if self.random.random() < 0.5:
            topic_id = self.machine.topic_id(TOPIC)
            assert topic_id is not None
            self.machine.groups.topics_deleted({TOPIC: topic_id})
            return
        indexes = self.random.sample(range(PARTITIONS), 5)
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        topics = [OffsetDeleteRequestTopic(name=TOPIC, partitions=partitions)]
        request = OffsetDeleteRequest(group_id=self.random.choice(GROUPS), topics=topics)
        self.asked.append(self.machine.ask_group("offset_delete", request, 0))

    def change_limit(self) -> None:
        self.machine.limit(CONSUMER_OFFSETS, self.random.choice((160, 200, 400, 1_000_000)))
        self.machine.limit(TRANSACTION_STATE, self.random.choice((250, 1_000_000)))

    async def slow_join(self, *arguments: Any, **more: Any) -> Any:
        """As that of another broker, whose answer may be long on its way."""
        errors = await self.join(*arguments, **more)
        await turns(self.random.choice((0, 0, 1, 10, 100)))
        return errors

    async def offload(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await turns(self.random.choice((1, 1, 5, 40)))
        return function(*arguments)

    def move(self) -> None:
        """Let another broker lead a partition, or another epoch begin; the coordinator hears of it a little later."""
        key = self.random.choice([key for key in self.machine.partitions if key[0] != TOPIC])
        if key not in self.moving:
            self.count("moves")
            task = self.moving[key] = asyncio.get_running_loop().create_task(self.moved(key))
            task.add_done_callback(lambda _: self.moving.pop(key))
            self.tasks.append(task)

    async def moved(self, key: tuple[str, int]) -> None:
        service, partition, index = self.machine.service(key[0]), self.machine.partitions[key], key[1]
        if not service.coordinator.is_loaded(index):
            self.count("moves while it is loaded")
        if self.random.random() < 0.6:
            self.change_leader(partition, is_leader=False)
            await self.not_heard_of_yet()
            service.resign(index, partition.leader_epoch)
            await turns(2)
            self.check_told(key)
            left = [timer for timer in service._timers if timer.partition == index]
            assert not left, f"timers of a partition that is led elsewhere: {left}"
            await turns(self.random.choice((0, 1, 10, 60)))
        self.change_leader(partition, is_leader=True)
        await self.not_heard_of_yet()
        service.lead(index, partition.leader_epoch)
        await turns(self.random.choice((0, 1, 20)))
        partition.committed_max = None
        partition.watchers.wake_all()

    async def not_heard_of_yet(self) -> None:
        await turns(self.random.choice((0, 0, 1, 3)))
        if self.random.random() < 0.5:
            self.end_appends()
            await turns(self.random.choice((1, 3)))

    def check_told(self, key: tuple[str, int]) -> None:
        """Nobody waits for a partition of groups that is led elsewhere. (In a transaction its coordinator may.)"""
        for group, _, asked in self.plain_commits:
            if key == (CONSUMER_OFFSETS, self.machine.groups.coordinator.partition_of(group)):
                assert asked.done(), f"{group} still waits for a coordinator that is gone"

    def change_leader(self, partition: FakePartition, *, is_leader: bool) -> None:
        kept = self.random.randint(0, len(partition.under_way))
        partition.lead(partition.leader_epoch + 1, is_leader=is_leader, kept=kept)
        if is_leader and self.random.random() < 0.5:
            partition.committed_max = self.random.randint(0, partition.log.end_offset)

    def hold_or_not(self) -> None:
        for partition in self.logs:
            partition.holds = self.random.random() < 0.6

    def end_appends(self) -> None:
        """Of any partition, in any order."""
        for partition in self.random.sample(self.logs, len(self.logs)):
            some = self.random.sample(partition.under_way, self.random.randint(0, len(partition.under_way)))
            for append in some:
                match self.random.randrange(20):
                    case 0 if not self.is_quiet:
                        self.count("appends failed")
                        append.fail(
                            self.random.choice((UnexpectedError("a defect"), KafkaStorageError("a broken disk")))
                        )
                    case 1 if not self.is_quiet:
                        self.count("appends cancelled")
                        append.cancel()
                    case 2 if not self.is_quiet:
                        self.count("appends timed out")
                        if partition in self.of_groups:
                            self.uncertain |= names_in(append.records)
                        append.time_out()
                    case _:
                        append.end()

    deeds = (
        *(commit, commit, begin_producer, add_group, add_group, commit_in_transaction, commit_in_transaction),
        *(end_transaction, delete_groups, delete_offsets, change_limit, hold_or_not, end_appends, end_appends, move),
    )

    # --- what must hold

    async def make_peace(self) -> None:
        self.is_quiet = True
        while self.moving:
            await asyncio.sleep(0.01)
        for task in self.tasks:
            if task.done():
                task.result()  # a partition whose move has failed is led by nobody, and waited for for ever
        self.machine.limit(CONSUMER_OFFSETS, 1_000_000)
        self.machine.limit(TRANSACTION_STATE, 1_000_000)
        for partition in self.logs:
            partition.holds = False
        for _ in range(200):
            self.end_appends()
            await asyncio.sleep(0.01)
        for name in ("one", "two"):
            while True:  # a last producer ends what is open
                request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
                answer = await self.machine.ask_transactions("init_producer_id", request, 4)
                if answer.error_code == ErrorCode.NONE:
                    break
                assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS, answer
                await asyncio.sleep(0.1)
        await turns(50)

    async def check(self) -> None:
        asked = [*self.asked, *self.tasks, *(future for _, _, future in self.commits)]
        unanswered = [future for future in asked if not future.done()]
        assert not unanswered, f"{len(unanswered)} were never answered"
        for future in asked:
            future.result()
        self.check_kept()
        known, folded = self.known(self.machine.groups.coordinator), self.folded()
        told = {name: offset for name, offset in known.items() if name not in self.uncertain}
        certain = {name: offset for name, offset in folded.items() if name not in self.uncertain}
        assert told == certain, f"{told} is not what the log says: {certain}"
        other = await Machine(group_partitions=GROUP_PARTITIONS, partitions=self.machine.partitions).ready()
        assert folded == self.known(other.groups.coordinator), "a reload gives another state"
        await other.close()
        for snapshot in self.machine.transactions.coordinator.snapshots(0).values():
            assert not snapshot.state.is_prepared, f"a transaction hangs: {snapshot}"

    def check_kept(self) -> None:
        """What was said to be committed is in the log, whoever led it."""
        written = set()
        for (topic, _), partition in self.machine.partitions.items():
            for record in (record for batch in partition.log.batches for record in batch if topic == CONSUMER_OFFSETS):
                found = None if record.committed is not None else decode_record(record.key, record.value)
                key: Any = None if found is None else found.key
                value: Any = None if found is None else found.value
                if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
                    written.add((key.group, key.partition, value.offset))
        for group, offsets, future in self.commits:
            for part in future.result().topics[0].partitions:
                if part.error_code == ErrorCode.NONE:
                    self.count("commits kept")
                    name = (group, part.partition_index, offsets[part.partition_index])
                    assert name in written, f"{name} was committed, and is lost"

    def known(self, coordinator: Any) -> Offsets:
        found = {}
        for group_id, group in coordinator._shards.groups.items():
            assert not group.offsets.in_flight, f"{group_id} waits for writes that are over"
            assert not group.offsets.pending, f"{group_id} has offsets of a transaction that is over"
            for partitions in group.offsets.committed.values():
                found |= {(group_id, index): offset.offset for index, offset in partitions.items()}
        return found

    def folded(self) -> Offsets:
        """The offsets that count, by what the logs say: written by hand, not by the loader."""
        committed: dict[tuple[str, int], tuple[int, int]] = {}
        for index in range(GROUP_PARTITIONS):
            pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
            batches = self.machine.partitions[CONSUMER_OFFSETS, index].log.batches
            for number, record in enumerate(record for batch in batches for record in batch):
                if record.committed is not None:
                    for name, entry in pending.pop(record.producer_id, {}).items():
                        if record.committed and committed.get(name, (0, -1))[1] < entry[1]:
                            committed[name] = entry
                    continue
                found = decode_record(record.key, record.value)
                key: Any = found.key
                if not isinstance(key, OffsetCommitKey):
                    continue
                name = (key.group, key.partition)
                if record.value is None:
                    committed.pop(name, None)
                    for table in pending.values():
                        table.pop(name, None)
                    continue
                assert isinstance(found.value, OffsetCommitValue)
                table = committed if record.producer_id < 0 else pending.setdefault(record.producer_id, {})
                table[name] = (found.value.offset, number)
        return {name: offset for name, (offset, _) in committed.items()}


def names_in(records: Iterable[StoredRecord]) -> set[tuple[str, int]]:
    """The offsets that these records are about."""
    keys = [decode_record(record.key, record.value).key for record in records if record.committed is None]
    return {(key.group, key.partition) for key in keys if isinstance(key, OffsetCommitKey)}


def simulate(seed: int) -> Story:
    async def main(_: Any) -> Story:
        story = Story(seed)
        await story.run()
        return story

    def run() -> Story:
        story: Story = run_simulation(main, seed, time_max_s=36_000.0).value
        return story

    return played(seed, run)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    run_seeds(simulate)
