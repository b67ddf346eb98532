"""A blocking client over a cluster in memory, whose waiting moves a clock by hand; and what goes wrong there by a seed.

    python -m tests.client.transactions.shared_world [SEEDS] [--from SEED]

drives `SharedTransaction` and `TransactionalWriter` over it: connections that break before and after a request was
served, answers that are lost or errors although the batch is in the log, leaders that move, topics that take less than
a batch. Every transaction that was ended must be there whole, in order and once, and of others nothing or all.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.client.fake import CUT, CUT_BEFORE, SILENCE, VirtualClock
from tests.client.fake_transactions import TransactionalCluster

from headrace.client.cluster import BlockingClient, ClientCore
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.client.errors import TransactionOutcomeUnknownError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions import ProducerIdentity, SharedTransaction, TransactionalWriter, WriteSettings
from headrace.config import ConfigDefinition
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.records.columns import Columns, bytes_column, int_column
from headrace.topics import TopicPartition

OUT, MARKS, SOURCE = "out", TopicPartition("marks", 0), TopicPartition("in", 0)
PARTITIONS = 3
NAME, GROUP = "shared", "group"
COORDINATORS = (
    "FindCoordinator",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
)
TRANSACTIONS = 12


class WaitingClient(BlockingClient):
    """Where the blocking client would wait for sockets, the next thing happens in the cluster, or time passes."""

    def __init__(self, cluster: TransactionalCluster, seed: int = 7) -> None:
        servers = ",".join(f"fake:{9000 + broker}" for broker in cluster.brokers)
        values = read_config(ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": servers})
        self.cluster = cluster
        self.core = ClientCore(ConnectionConfig.of(values), cluster.clock, random.Random(seed), cluster)
        cluster.client = self.core

    def poll(self, timeout_s: float) -> None:
        due = self.core.tick()
        if self.cluster.events:
            self.cluster.events.popleft()()
        elif timeout_s > 0:
            self.cluster.clock.now += max(0.0005, min(due, timeout_s))


def columns(values: Sequence[bytes]) -> Columns:
    return Columns(
        int_column("q", list(range(len(values)))),
        int_column("q", [1] * len(values)),
        bytes_column([None] * len(values)),
        bytes_column(list(values)),
    )


class Bench:
    """A cluster with the topics of a transaction, one transactional id, and a writer's settings."""

    def __init__(self, *, brokers: int = 1, seed: int = 7, **settings: str) -> None:
        self.cluster = TransactionalCluster(VirtualClock(), 2, brokers=brokers, topics={OUT: PARTITIONS, "marks": 1})
        self.client = WaitingClient(self.cluster, seed)
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = WriteSettings.of(given)
        self.transaction = SharedTransaction(self.client, NAME, self.settings, transaction_timeout_s=60)

    def begin(self) -> ProducerIdentity:
        identity = self.transaction.fence()
        self.transaction.enlist(identity, [*(TopicPartition(OUT, index) for index in range(PARTITIONS)), MARKS])
        return identity

    def writer(self, identity: ProducerIdentity) -> TransactionalWriter:
        return TransactionalWriter(self.client, self.settings, NAME, identity)

    def asked(self, name: str) -> list[Any]:
        """The requests of a kind that brokers were sent."""
        return [request for _, one, _, request in self.cluster.requests if one == name]

    def on(self, name: str, *told: Any) -> None:
        """What becomes of the next requests of a kind (None: it is served), one after the other."""
        left = list(told)

        def script(node: int, one: str, request: Any) -> Any:
            if one != name or not left:
                return None
            found = left.pop(0)
            return found(node, request) if callable(found) else found

        self.cluster.script = script

    def serve(self, node: int, name: str, request: Any, version: int) -> Any:
        return self.cluster._work(node, name, request, version)


def refused(code: ErrorCode) -> Callable[[int, Any], ProduceResponse]:
    """A leader that answers a produce request with an error and does nothing."""

    def answer(node: int, request: Any) -> ProduceResponse:
        return produce_answer(request, code)

    return answer


def produce_answer(request: Any, code: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=one.index, error_code=code, base_offset=-1)
                    for one in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


# --- by a seed --------------------------------------------------------------------------------------------------------


class Trouble:
    """What goes wrong, request by request."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench, self.rng = bench, rng
        self.rate = rng.choice([0.0, 0.05, 0.2, 0.4])
        self.is_quiet = False

    def __call__(self, node: int, name: str, request: Any) -> Any:
        rng = self.rng
        if self.is_quiet or name in ("ApiVersions", "Metadata") or rng.random() >= self.rate:
            return None
        if name == "Produce":
            return self._produce(node, request)
        if name == "FindCoordinator" and rng.random() < 0.3:
            nobody = Coordinator(key=NAME, node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return FindCoordinatorResponse(coordinators=[nobody])
        return rng.choice((CUT, CUT_BEFORE, SILENCE))

    def _produce(self, node: int, request: Any) -> Any:
        rng, cluster = self.rng, self.bench.cluster
        kind = rng.choice(("cut", "cut before", "silence", "refused", "written", "moved", "smaller"))
        if kind == "refused":
            return produce_answer(request, rng.choice((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CORRUPT_MESSAGE)))
        if kind == "written":
            # It is in the log, and its leader says that it does not know.
            served = self.bench.serve(node, "Produce", request, 11)
            code = served.responses[0].partition_responses[0].error_code
            return served if code else produce_answer(request, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if kind == "moved":
            topic = request.topic_data[0]
            place = (topic.name, topic.partition_data[0].index)
            cluster.leaders[place] = (rng.choice(cluster.brokers), cluster.leaders[place][1] + 1)
            return None
        if kind == "smaller":
            cluster.message_max_bytes = rng.choice((150, 300, 1 << 30))
            return None
        return {"cut": CUT, "cut before": CUT_BEFORE, "silence": SILENCE}[kind]


def play(seed: int) -> str:
    """One seed; what is wrong in the end."""
    rng = random.Random(seed)
    bench = Bench(
        brokers=rng.choice((1, 3)),
        seed=seed,
        batch_size=rng.choice(("60", "200", "900")),
        buffer_memory=rng.choice(("100", "1000000")),
        compression_type=rng.choice(("none", "none", "gzip")),
    )
    trouble = Trouble(bench, rng)
    bench.cluster.script = trouble
    done: dict[int, bool | None] = {}
    written: dict[int, dict[int, int]] = {}
    for number in range(TRANSACTIONS):
        trouble.is_quiet = number == TRANSACTIONS - 1
        if trouble.is_quiet:
            bench.cluster.message_max_bytes = 1 << 30
        written[number] = {index: rng.randrange(0, 30) for index in range(PARTITIONS)}
        done[number] = _one(bench, rng, number, written[number])
    if done[TRANSACTIONS - 1] is not True:
        return "the last transaction, which nothing happened to, was not committed"
    return _audit(bench, written, done)


def _one(bench: Bench, rng: random.Random, number: int, counts: dict[int, int]) -> bool | None:
    """Whether the transaction was committed; None: it is not known."""
    try:
        identity = bench.begin()
        writer = bench.writer(identity)
        left = {index: list(range(count)) for index, count in counts.items()}
        while any(left.values()):
            index = rng.choice([index for index, rest in left.items() if rest])
            some = rng.randrange(1, 12)
            values = [b"%d/%d/%d" % (number, index, row) for row in left[index][:some]]
            del left[index][:some]
            writer.write(TopicPartition(OUT, index), columns(values))
        writer.finish()
        bench.transaction.commit_offsets(identity, GROUP, {SOURCE: OffsetAndMetadata(number)})
        for half in range(2):
            bench.transaction.mark(identity, MARKS, columns([b"%d/%d/%d" % (number, PARTITIONS, half)]))
        try:
            bench.transaction.end(identity, commit=True)
        except TransactionOutcomeUnknownError:
            return None
        return True
    except HeadraceError:
        return False


def _audit(bench: Bench, written: dict[int, dict[int, int]], done: dict[int, bool | None]) -> str:
    found: dict[int, dict[int, list[int]]] = {}
    for value in bench.cluster.committed:
        assert value is not None
        number, index, row = map(int, value.split(b"/"))
        found.setdefault(number, {}).setdefault(index, []).append(row)
    for number, counts in written.items():
        expected = {index: list(range(count)) for index, count in counts.items() if count} | {PARTITIONS: [0, 1]}
        if number not in found and done[number] is not True:
            continue
        if done[number] is False:
            return f"transaction {number} failed, and is there: {found[number]}"
        if found.get(number) != expected:
            return f"transaction {number} is there as {found.get(number)}, not as {expected}"
    if bench.cluster.offsets != {tuple(SOURCE): max(found)}:
        return f"the group is at {bench.cluster.offsets}, and {max(found)} was committed last"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.first, given.first + given.seeds):
        said = play(seed)
        if said:
            wrong += 1
            print(f"seed {seed}: {said}", flush=True)
    print(f"{given.seeds} seeds from {given.first}, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
