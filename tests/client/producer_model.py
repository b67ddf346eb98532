"""The producer against brokers that do whatever brokers may do, under seeds; each way that it can go is checked.

    python -m tests.client.producer_model 10000 [--kind idempotent] [--from 0]

Kinds: `plain`, `idempotent` and `transactional` (the sender itself, under virtual time), `asyncio` (its producer on a
simulated loop, with every await cancelled now and then), `once` and `once_asyncio` (`exactly_once`). What is checked:
nothing that was acknowledged is lost; idempotent, nothing is there twice and order is kept; a transaction's records and
offsets are there together or not at all; every delivery, callback, flush, operation and close comes to its end.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import AbortableTransactionError, FatalTransactionError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer._one_record import OneRecord
from headrace.client.transactions._core import ProducerTransactionState, TransactionOperation
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

from .fake import FakeCluster, VirtualClock, World
from .fake_transactions import TransactionalCluster
from .model_faults import Faults

PARTITIONS = 2
GROUP = ConsumerGroupMetadata("g")


class ModelWorld(World):
    """Things happen later, too, and leaders move."""

    def __init__(self, cluster: FakeCluster, rng: random.Random, **keywords: Any) -> None:
        super().__init__(cluster, seed=rng.randrange(1 << 30), **keywords)
        self.rng = rng
        self.later: list[tuple[float, Callable[[], Any]]] = []

    def settle(self) -> float:
        for _ in range(10_000):
            due = super().settle()
            now = self.clock.now
            ripe = [entry for entry in self.later if entry[0] <= now]
            if not ripe:
                return min([due, *(at - now for at, _ in self.later)])
            self.later = [entry for entry in self.later if entry[0] > now]
            for _, work in ripe:
                work()
        raise AssertionError("this does not come to rest")

    def at(self, seconds: float, work: Callable[[], Any]) -> None:
        self.later.append((self.clock.now + seconds, work))

    def move_leader(self) -> None:
        partition = self.rng.randrange(PARTITIONS)
        leader, epoch = self.cluster.leaders["t", partition]
        self.cluster.leaders["t", partition] = (3 - leader, epoch + 1)

    def restart_brokers(self) -> None:
        """They know of each producer the last batch alone then, which is what Kafka's snapshots hold."""
        for log in self.cluster.logs.values():
            for _, recent in log.producers.values():
                while len(recent) > 1:
                    recent.popleft()


def settings_of(rng: random.Random) -> dict[str, Any]:
    request_ms = rng.choice([1_000, 2_000])
    return {
        "linger_ms": rng.choice([0, 0, 5]),
        "batch_size": rng.choice([90, 200, 16_384]),
        "retries": rng.choice([1, 2, 5, 2_147_483_647, 2_147_483_647]),
        "request_timeout_ms": request_ms,
        "delivery_timeout_ms": request_ms + rng.choice([10, 500, 3_000, 60_000]),
        "retry_backoff_ms": rng.choice([5, 100]),
        "retry_backoff_max_ms": 200,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 50,
        "max_block_ms": 3_000,
        "max_in_flight_requests_per_connection": rng.choice([1, 2, 5]),
    }


class Sent:
    """Records in the order of their partition, and what was heard of each."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.deliveries: dict[bytes, Any] = {}
        self.told: Counter[bytes] = Counter()
        self.callbacks: set[bytes] = set()
        self.count = 0

    def next(self) -> tuple[bytes, int, dict[str, Any]]:
        """A value, its partition, and what else the record has."""
        rng = self.rng
        value, partition = b"%d" % self.count, rng.randrange(PARTITIONS)
        self.count += 1
        extra: dict[str, Any] = {}
        if rng.random() < 0.03:
            extra["timestamp"] = 2**63
        if rng.random() < 0.3:
            self.callbacks.add(value)
            extra["on_delivery"] = self._callback(value, rng.random() < 0.2)
        self.values[partition].append(value)
        return value, partition, extra

    def _callback(self, value: bytes, raises: bool) -> Callable[[Any, Any], None]:
        def tell(error: Any, metadata: Any) -> None:
            self.told[value] += 1
            if raises:
                raise ArithmeticError("a callback's own trouble")

        return tell

    def check(self, cluster: FakeCluster, *, once: bool) -> None:
        acked = {value for value, delivery in self.deliveries.items() if delivery.exception() is None}
        assert all(self.told[value] == 1 for value in self.callbacks), "a callback was not called once"
        for partition, values in enumerate(self.values):
            log = cluster.logs["t", partition].values
            found = Counter(log)
            lost = [value for value in values if value in acked and not found[value]]
            assert not lost, f"acknowledged and not there: {lost}"
            if not once:
                continue
            twice = [value for value in values if found[value] > 1]
            assert not twice, f"there twice: {twice}"
            assert log == sorted(log, key=lambda value: int(value or b"-1")), "out of order"


def asks_for_password(seed: int) -> bool:
    """Whether the brokers of this seed authenticate their clients, and refuse them now and then."""
    return random.Random(f"{seed}/password").random() < 0.2


def rests(seed: int) -> bool:
    """Whether the producer of this seed has nothing to do now and then, for so long that it forgets its topics."""
    return random.Random(f"{seed}/rests").random() < 0.4


def _need(condition: bool, what: str) -> None:
    assert condition, what


def run_plain(seed: int, *, idempotent: bool = False) -> None:
    rng = random.Random(f"{seed}/{idempotent}")
    cluster = FakeCluster(VirtualClock(), brokers=2, topics={"t": PARTITIONS})
    idle_ms = {"metadata_max_idle_ms": 5_000} if rests(seed) else {}
    world = ModelWorld(cluster, rng, enable_idempotence=idempotent, **settings_of(rng), **idle_ms)
    faults = Faults(cluster, rng, rng.choice([0.05, 0.2, 0.5]), world.at)
    cluster.script = faults
    if asks_for_password(seed):
        world.authenticate()
    one, sent = OneRecord(world.producer), Sent(rng)
    flushes: list[Any] = []
    fresh = "fresh"

    def flush() -> None:
        before, wait = list(sent.deliveries.values()), world.producer.flush()
        wait.waiters.append(lambda: _need(all(delivery.done() for delivery in before), "a flush ended too early"))
        flushes.append(wait)

    for _ in range(rng.randrange(10, 60)):
        for _ in range(rng.choice([1, 1, 3, 8])):
            value, partition, extra = sent.next()
            topic = "t" if rng.random() < 0.95 else fresh
            if topic != "t":
                sent.values[partition].remove(value)
            sent.deliveries[value] = delivery = world.send(topic, value, partition=partition, **extra)
            if "on_delivery" not in extra and len(world.producer.accumulator.pending) == 1 and rng.random() < 0.5:
                one.send(delivery)
        action = rng.random()
        if action < 0.1:
            world.move_leader()
        elif action < 0.2:
            flush()
        elif action < 0.25:
            cluster.message_max_bytes = rng.choice([100, 1 << 30])
        elif action < 0.28:
            world.producer.recover()
        elif action < 0.32 and fresh not in cluster.topic_ids:
            cluster.create(fresh, PARTITIONS)
        elif 0.32 <= action < 0.4:
            world.restart_brokers()
        elif rests(seed) and 0.4 <= action < 0.45:
            # For long enough that what is not used is forgotten.
            until = world.clock.now + 12
            world.run_until(lambda until=until: world.clock.now > until)  # type: ignore[misc]  # bound
        if rng.random() < 0.7:
            world.step()
    is_closed = rng.random() < 0.2
    if is_closed:
        world.producer.abort("the model's end")
    else:
        faults.is_calm, cluster.message_max_bytes = True, 1 << 30
        flush()
        world.run_until(lambda: all(wait.is_done for wait in flushes), 200)
    assert all(delivery.done() for delivery in sent.deliveries.values()), "a delivery has no end"
    assert all(wait.is_done for wait in flushes), "a flush has no end"
    assert world.producer.is_idle
    assert world.producer.accumulator.buffered_bytes == 0
    world.clock.now += 1.0
    world.settle()
    sent.check(cluster, once=idempotent)
    if not is_closed and world.producer.fatal is None:
        after = [world.send("t", b"%d" % (sent.count + i), partition=i % PARTITIONS) for i in range(4)]
        world.deliver(after, 200)
        assert all(delivery.exception() is None for delivery in after), "the producer is not well afterwards"


class Ledger:
    """Transactions: what each had, and whether it was committed (None: nobody could say)."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[bytes], int | None, bool | None]] = []

    def check(self, cluster: TransactionalCluster) -> None:
        found = Counter(cluster.committed)
        twice = [value for value, count in found.items() if count > 1]
        assert not twice, f"committed twice: {twice}"
        offset = -1
        for values, with_offset, outcome in self.entries:
            there = [value for value in values if found[value]]
            assert outcome is not True or len(there) == len(values), "a committed record is not there"
            assert outcome is not False or not there, f"an aborted record is there: {there}"
            assert len(there) in (0, len(values)), "half a transaction is there"
            if with_offset is not None and (outcome is True or (outcome is None and there)):
                offset = with_offset
        unknown = [with_offset for _, with_offset, outcome in self.entries if outcome is None]
        assert cluster.offsets.get(("in", 0), -1) in (offset, *(one for one in unknown if one is not None))


def run_transactional(seed: int) -> None:
    rng = random.Random(f"{seed}/transactional")
    version = rng.choice([1, 2])
    cluster = TransactionalCluster(VirtualClock(), version, brokers=2, topics={"t": PARTITIONS})
    ledger, number = Ledger(), 0

    def make() -> ModelWorld:
        made = ModelWorld(cluster, rng, transactional_id="tid", **settings_of(rng))
        faults.later = made.at
        if asks_for_password(seed):
            made.authenticate()
        return made

    faults = Faults(cluster, rng, rng.choice([0.03, 0.1, 0.3]), lambda *_: None)
    # In protocol 1 a batch that is read late, after the end of its transaction, is part of the next: KIP-890 mended it.
    faults.may_be_late = version == 2
    faults.refuses = rng.random() < 0.7
    cluster.script = faults
    world = make()

    def finish(operation: TransactionOperation) -> HeadraceError | None:
        world.run_until(lambda: operation.is_done, 500)
        return operation.take_outcome()

    def transaction() -> Any:
        found = world.producer.transaction
        assert found is not None
        return found

    for _ in range(rng.randrange(3, 12)):
        if (
            transaction().state is ProducerTransactionState.FATAL_ERROR
            or transaction().state is ProducerTransactionState.UNINITIALIZED
        ):
            world.producer.abort("a new one takes over")
            world.core.close()
            cluster.events.clear()
            world.settle()
            world = make()
            if finish(transaction().init()) is not None:
                continue
        transaction().begin()
        values = [b"%d" % (number + i) for i in range(rng.randrange(8))]
        number += len(values)
        sent = [world.send("t", value, partition=rng.randrange(PARTITIONS)) for value in values]
        if rng.random() < 0.5:
            world.step()
        offset = number if rng.random() < 0.5 else None
        try:
            if offset is not None:
                transaction().send_offsets({TopicPartition("in", 0): OffsetAndMetadata(offset)}, GROUP)
            if rng.random() < 0.1:
                world.move_leader()
            world.producer.flush()
            is_abort = rng.random() < 0.2
            operation = transaction().abort() if is_abort else transaction().commit()
            late = world.send("t", b"%d" % (10**9 + number), partition=0) if rng.random() < 0.3 else None
            error = finish(operation)
            if late is not None:
                world.run_until(late.done, 100)
                assert late.exception() is not None, "a record got into a transaction that was ending"
            outcome = False if is_abort or isinstance(error, AbortableTransactionError) else None if error else True
        except AbortableTransactionError:
            error, outcome = AbortableTransactionError(), False
        except FatalTransactionError as fatal:
            error, outcome = fatal, False
        ledger.entries.append((values, offset, outcome))
        if (
            isinstance(error, AbortableTransactionError)
            and transaction().state is ProducerTransactionState.ABORTABLE_ERROR
        ):
            finish(transaction().abort())
        world.run_until(lambda sent=sent: all(delivery.done() for delivery in sent), 500)  # type: ignore[misc]  # bound
        if outcome is True:
            assert all(delivery.exception() is None for delivery in sent)
    faults.is_calm = True
    wait = world.producer.flush()
    world.run_until(lambda: wait.is_done, 500)
    world.producer.abort("the model's end")
    ledger.check(cluster)


def kinds() -> dict[str, Callable[[int], None]]:
    from .once_model import run_aio_once, run_aio_producer, run_once

    return {
        "plain": run_plain,
        "idempotent": lambda seed: run_plain(seed, idempotent=True),
        "transactional": run_transactional,
        "asyncio": run_aio_producer,
        "once": run_once,
        "once_asyncio": run_aio_once,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--kind", choices=list(kinds()))
    parser.add_argument("--stop", action="store_true", help="at the first seed that fails")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for name, run in kinds().items():
        if chosen.kind not in (None, name):
            continue
        began, failed = time.monotonic(), []
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            try:
                run(seed)
            except Exception:  # noqa: BLE001 - a model that breaks has found something, whatever it is
                failed.append(seed)
                if len(failed) == 1:
                    traceback.print_exc()
                if chosen.stop:
                    break
        first = f", first {failed[0]} (the {failed[0] - chosen.first + 1}th)" if failed else ""
        took_s = time.monotonic() - began
        print(f"{name}: {chosen.seeds} seeds, {len(failed)} failed{first}; {took_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
