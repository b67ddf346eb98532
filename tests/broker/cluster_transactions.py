"""Transactions over three brokers that are killed and cut off: each has one outcome, in all of its partitions.

Producers write to some partitions of a topic and commit offsets in the same transaction, while one broker after the
other is killed, loses its power, is stopped or does not hear of the others. At the end every transaction that was
acknowledged is there once and whole, none that was aborted is, those of which nobody heard are there whole or not at
all; no transaction is left open, and the group's offset is that of the last transaction that was committed with one.
Many seeds, by hand:

    python -m tests.broker.cluster_transactions 100
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from dataclasses import dataclass, field
from enum import Enum

from headrace.client.errors import AbortableTransactionError, FatalTransactionError, TransactionTimeoutError
from headrace.client.producer.aio import Producer
from headrace.cluster.decision import Decision
from headrace.cluster.features import TRANSACTION_VERSION
from headrace.cluster.records import FeatureLevelRecord
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.records import read_control, read_records, split
from headrace.topics import TopicPartition, partition_for_group

from . import raw
from .several import SeveralBrokers, run_several
from .sim import PORT

TOPIC, PARTITIONS = "t", 4
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
TRANSACTION_TIMEOUT_MS = 10_000
TROUBLE_S = 40.0


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Transaction:
    values: dict[int, str] = field(default_factory=dict)  # by partition
    has_offset: bool = False
    outcome: Outcome = Outcome.UNKNOWN


class Writer:
    """A transactional producer; after an error that it cannot go on from, another with the same id."""

    def __init__(self, cluster: SeveralBrokers, name: str, rng: random.Random) -> None:
        self.name = name
        self.host = cluster.simulation.host(f"host-of-{name}")
        self._rng = rng
        self._servers = ",".join(f"broker-{node_id}:{PORT}" for node_id in cluster.brokers)
        self.transactions: list[Transaction] = []
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            producer = Producer(
                bootstrap_servers=self._servers,
                transactional_id=self.name,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                runtime=self.host.runtime,
            )
            try:
                await producer.init_transactions(60)
                while not self.is_stopping:
                    await self._transact(producer)
                    await asyncio.sleep(self._rng.uniform(0, 0.3))
            except (FatalTransactionError, TransactionTimeoutError, TimeoutError):
                await asyncio.sleep(0.1)
            finally:
                with contextlib.suppress(HeadraceError, TimeoutError):
                    await producer.close(20)

    async def _transact(self, producer: Producer) -> None:
        number = len(self.transactions)
        chosen = self._rng.sample(range(PARTITIONS), self._rng.randint(1, PARTITIONS))
        transaction = Transaction({index: f"{self.name}:{number}:{index}" for index in chosen})
        self.transactions.append(transaction)
        is_committed = self._rng.random() < 0.75
        await producer.begin_transaction()
        try:
            for index, value in transaction.values.items():
                producer.send(TOPIC, value.encode(), partition=index)
            if self._rng.random() < 0.3:
                await producer.flush(30)
            if self._rng.random() < 0.5:
                transaction.has_offset = True
                await producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): number}, self.name, 60)
            if is_committed:
                await producer.commit_transaction(60)
                transaction.outcome = Outcome.COMMITTED
                return
        except AbortableTransactionError:
            pass
        await producer.abort_transaction(60)
        transaction.outcome = Outcome.ABORTED


async def trouble(cluster: SeveralBrokers, rng: random.Random) -> None:
    """One broker at a time is killed, stopped or cut off, and comes back."""
    loop = asyncio.get_running_loop()
    until = loop.time() + TROUBLE_S
    while loop.time() < until:
        await asyncio.sleep(rng.uniform(0.5, 3))
        node_id = rng.choice(list(cluster.brokers))
        broker, kind = cluster.brokers[node_id], rng.random()
        away_s = rng.choice((0.2, 1.0, 4.0, 7.0))
        if kind < 0.6:
            if kind < 0.25:
                broker.kill()
            elif kind < 0.45:
                broker.lose_power()
            else:
                await broker.stop()
            await asyncio.sleep(away_s)
            await broker.start()
        else:
            others = [f"broker-{other}" for other in cluster.brokers if other != node_id]
            cluster.simulation.network.partition([f"broker-{node_id}"], others)
            broker.is_reachable = kind < 0.7  # some still have the store
            await asyncio.sleep(away_s)
            broker.is_reachable = True
            cluster.simulation.network.heal()


@dataclass
class Found:
    """What is in a partition: how often each value was committed, and aborted."""

    committed: dict[str, int] = field(default_factory=dict)
    aborted: dict[str, int] = field(default_factory=dict)


async def read(cluster: SeveralBrokers, index: int) -> Found:
    """Every record of a partition, with the outcome that its marker says."""
    found = Found()
    open_values: dict[int, list[str]] = {}
    offset = 0
    leader = cluster.alive[0].image.topics[TOPIC].partitions[index].leader
    while True:
        request = raw.fetch_request(TOPIC, index, offset)
        answer = raw.fetched(await cluster.client(leader).insist(request, raw.FETCH_VERSION))
        assert answer.error_code == ErrorCode.NONE
        if offset >= answer.high_watermark:
            assert answer.last_stable_offset == answer.high_watermark
            assert not any(open_values.values())
            return found
        for batch in split(answer.records or b""):
            offset = batch.next_offset
            values = open_values.setdefault(batch.producer_id, [])
            for record in read_records(batch):
                if not batch.is_control:
                    values.append(bytes(record.value or b"").decode())
                    continue
                counts = found.committed if read_control(record).control_type == 1 else found.aborted
                for value in values:
                    counts[value] = counts.get(value, 0) + 1
                values.clear()


async def committed_offset(cluster: SeveralBrokers, group: str) -> int:
    topic = cluster.alive[0].image.topics[CONSUMER_OFFSETS]
    leader = topic.partitions[partition_for_group(group, len(topic.partitions))].leader
    request = OffsetFetchRequest(group_id=group, topics=None)
    answer: OffsetFetchResponse = await cluster.client(leader).insist(request, 5)
    assert answer.error_code == ErrorCode.NONE
    offsets = [one.committed_offset for row in answer.topics for one in row.partitions]
    return offsets[0] if offsets else -1


def is_at_rest(cluster: SeveralBrokers) -> bool:
    """Whether all brokers are there, everything is copied, and no transaction is open or being ended."""
    if len(cluster.alive) < len(cluster.brokers) or cluster.controller_id() is None:
        return False
    images = [broker.image for broker in cluster.alive]
    if len({image.offset for image in images}) != 1:
        return False
    for broker in cluster.alive:
        for topic in (TOPIC, CONSUMER_OFFSETS, TRANSACTION_STATE):
            for index, state in enumerate(broker.image.topics[topic].partitions):
                if len(state.isr) < len(state.replicas):
                    return False
                if state.leader != broker.node_id:
                    continue
                partition = broker.partition(topic, index)
                if partition.high_watermark != partition.log.end_offset:
                    return False
                if partition.log.last_stable_offset != partition.log.end_offset:
                    return False
                if topic == TRANSACTION_STATE:
                    found = broker.transactions.coordinator.snapshots(index).values()
                    if not all(snapshot.state.is_complete or not snapshot.partitions for snapshot in found):
                        return False
    return True


async def check(cluster: SeveralBrokers, writers: list[Writer]) -> None:
    found = [await read(cluster, index) for index in range(PARTITIONS)]
    for writer in writers:
        last_offset = -1
        for number, transaction in enumerate(writer.transactions):
            counts = [found[index].committed.get(value, 0) for index, value in transaction.values.items()]
            assert set(counts) <= {0, 1}, f"{transaction} is there more than once: {counts}"
            assert len(set(counts)) == 1, f"{transaction} has several outcomes: {counts}"
            is_committed = counts[0] == 1
            if transaction.outcome is not Outcome.UNKNOWN:
                assert is_committed == (transaction.outcome is Outcome.COMMITTED), transaction
            if is_committed and transaction.has_offset:
                last_offset = number
        assert await committed_offset(cluster, writer.name) == last_offset, writer.name


async def story(cluster: SeveralBrokers, seed: int, transaction_version: int) -> list[Writer]:
    rng = random.Random(seed)
    controller_id = cluster.controller_id()
    assert controller_id is not None
    controller = cluster.running(controller_id)
    if transaction_version < 2:
        record = FeatureLevelRecord(name=TRANSACTION_VERSION, feature_level=transaction_version)
        change = controller.metadata.change(lambda image: Decision(None, [record]))
        await cluster.brokers[controller_id].host.start(change)
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=3)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    answer = await cluster.client(1).request(request, raw.CREATE_TOPICS_VERSION, 60.0)
    assert answer.topics[0].error_code == ErrorCode.NONE
    writers = [Writer(cluster, name, random.Random(rng.random())) for name in ("one", "two", "three")]
    running = [asyncio.ensure_future(writer.host.start(writer.run())) for writer in writers]
    await trouble(cluster, rng)
    for writer in writers:
        writer.is_stopping = True
    await asyncio.gather(*running)
    # An offset is committed at least: the topic of offsets is there.
    for broker in cluster.alive:
        await cluster.until(lambda b=broker: CONSUMER_OFFSETS in b.image.topics)  # type: ignore[misc]
    await cluster.until(lambda: is_at_rest(cluster), timeout_s=120)
    await check(cluster, writers)
    return writers


def play(seed: int, transaction_version: int = 2) -> list[Writer]:
    told: list[list[Writer]] = []

    async def main(cluster: SeveralBrokers) -> None:
        told.append(await story(cluster, seed, transaction_version))

    run_several(main, seed, SETTINGS)
    return told[0]


def main(seeds: int) -> None:
    for seed in range(seeds):
        writers = play(seed, 2 if seed % 2 else 0)
        counts = {
            outcome.value: sum(t.outcome is outcome for writer in writers for t in writer.transactions)
            for outcome in Outcome
        }
        print(f"seed {seed}: {counts}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
