"""Brokers that are away: whoever waits for one waits as long as it takes, and goes on afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.helpers import Seen, config, fill, make_topic, stop
from tests.parallel.making import PARTITION, do, record
from tests.waiting import eventually

from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.errors import FatalTransactionError, TransactionTimeoutError
from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace.parallel import Consumers, Model, ParallelConsumer, Pool, Ranges
from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine, EngineSettings
from headrace.parallel.errors import Reject
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.options import CoreSettings, Limits, Order, Retry
from headrace.parallel.ranges import RangeEngine, RangeReaders
from headrace.parallel.transactions import TransactionOutcome, Transactions
from headrace.runtime.real import RealClock
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

AWAY = RequestTimedOutError("no broker")


class AwayConsumer:
    """A consumer whose brokers are away for so many questions."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.asked: Counter[str] = Counter()
        self.found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self.sought: list[int] = []

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.left:
            self.left -= 1
            raise AWAY

    def committed(self, partitions: Any, timeout: float | None = None) -> Any:
        self._ask("committed")
        return {name: self.found.get(name) for name in partitions}

    def position(self, partition: Any, timeout: float | None = None) -> int:
        self._ask("position")
        return 7

    def end_offsets(self, partitions: Any, timeout: float | None = None) -> Any:
        self._ask("end_offsets")
        return dict.fromkeys(partitions, 100)

    def assignment(self) -> set[TopicPartition]:
        return {PARTITION}

    def seek(self, partition: Any, offset: int) -> None:
        self.sought.append(offset)

    def pause(self, partitions: Any) -> None: ...

    def resume(self, partitions: Any) -> None: ...

    def group_metadata(self) -> Any:
        return None


def engine(
    consumer: AwayConsumer, kind: type[Engine] = Engine, retry: Retry | None = None, transactions: Any = None
) -> Any:
    core = ParallelCore(CoreSettings.of(Pool(), Order.NONE, retry or Retry(), Limits(), None))
    member = Member(core, RealClock(), "billing", None, 1)
    handling = Handling(lambda record: None, False, False)
    made: Any = kind(member, ["orders"], {}, EngineSettings(), None, handling, transactions)
    made._consumer = consumer
    return made


def test_who_is_given_partitions_asks_for_what_is_committed_until_it_is_told() -> None:
    consumer = AwayConsumer(5)
    consumer.found[PARTITION] = OffsetAndMetadata(12, "")
    made = engine(consumer)
    made.on_partitions_assigned([PARTITION])
    assert consumer.asked["committed"] == 6
    assert made.member.core.trackers[PARTITION].start == 12


def test_who_is_to_stop_meanwhile_begins_nothing() -> None:
    made = engine(AwayConsumer(1_000))
    made._stop_asked.set()
    made.on_partitions_assigned([PARTITION])
    assert not made.member.core.trackers


def test_where_a_partition_begins_is_asked_again() -> None:
    consumer = AwayConsumer(0)
    made = engine(consumer)
    made.on_partitions_assigned([PARTITION])
    consumer.left = 1
    made._place(consumer)
    assert made.member.core.trackers[PARTITION].start is None
    made._place(consumer)
    assert made.member.core.trackers[PARTITION].start == 7


def test_a_damaged_batch_waits_until_the_end_of_its_partition_is_known() -> None:
    consumer = AwayConsumer(0)
    made = engine(consumer, retry=Retry(dead_letters="orders.dead"))
    made.on_partitions_assigned([PARTITION])
    consumer.left = 1
    error = RecordDeserializationError(PARTITION, 3, "batch", "its checksum is wrong", last_offset=5, raw=b"x")
    made._pass_damage(consumer, error)
    assert not consumer.sought
    made._pass_damage(consumer, error)
    assert consumer.sought == [6]


def test_readers_of_ranges_go_on_when_ends_are_not_known() -> None:
    consumer = AwayConsumer(0)
    made = engine(consumer, RangeEngine)
    made.readers = RangeReaders(made.member, made._handling, 1, 10, {}, 1)
    made.on_partitions_assigned([PARTITION])
    made.member.idle = 1
    made._commit_at = made._log_at = float("inf")
    consumer.left = 1
    made._turn(consumer)
    assert made.readers.ends == {}
    made._looked_at = 0.0
    made._turn(consumer)
    assert made.readers.ends == {PARTITION: 100}


class LostTransactions:
    """Transactions whose end nobody heard of: only the group knows."""

    def __init__(self) -> None:
        self.error: HeadraceError = NetworkError("gone")
        self.begun: list[Any] = []

    def begin(self, messages: Any, offsets: Any, group: Any) -> None:
        self.begun.append((messages, offsets))

    def settle(self, seconds: float) -> TransactionOutcome:
        # Once it has said so, it has forgotten.
        return TransactionOutcome.ASK_GROUP if len(self.begun) == 1 else TransactionOutcome.ABORTED


def test_a_transaction_that_only_the_group_knows_of_is_asked_for_until_it_says() -> None:
    consumer = AwayConsumer(0)
    transactions = LostTransactions()
    made = engine(consumer, retry=Retry(local=0, dead_letters="orders.dead"), transactions=transactions)
    core = made.member.core
    other = TopicPartition("orders", 1)
    consumer.found = {PARTITION: OffsetAndMetadata(0, ""), other: OffsetAndMetadata(0, "")}
    made.on_partitions_assigned([PARTITION, other])
    core.add(PARTITION, [record(0)], 0.0, 0)
    core.add(other, [record(0, None, other)], 0.0, 0)
    while (chunk := core.take(0.0)) is not None:
        do(chunk, fails=Reject("no"))
        core.complete(chunk, 0.0)
    consumer.left = 3
    for _ in range(3):
        assert made._transact(consumer, transactions) is None
        assert core.counters.dead_letters == 0
    # It was committed; the other partition went meanwhile, and its new owner is further.
    wanted = transactions.begun[0][1]
    consumer.found = dict(wanted) | {other: OffsetAndMetadata(50, "")}
    core.lose([other])
    assert made._transact(consumer, transactions) is None
    assert core.counters.dead_letters == 1
    assert len(transactions.begun) == 1, "nothing is sent a second time"


def test_a_producer_that_cannot_be_replaced_yet_leaves_the_outcome_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost sight of is not taken for aborted because its successor did not come about at once."""

    class Lost:
        tries = 0

        def __init__(self, config: Any) -> None: ...

        def init_transactions(self, timeout: float) -> None:
            Lost.tries += 1
            if Lost.tries == 2:
                raise NetworkError("no coordinator")
            if Lost.tries == 3:
                raise TransactionTimeoutError("no coordinator")

        def begin_transaction(self) -> None: ...

        def commit_transaction(self, timeout: float) -> None:
            raise FatalTransactionError("fenced")

        def close(self, seconds: float) -> None: ...

    monkeypatch.setattr("headrace.parallel.transactions.Producer", Lost)
    transactions = Transactions({}, RealClock())
    transactions.start()
    transactions.begin([], {}, None)  # type: ignore[arg-type]  # there are no offsets to send
    outcomes = [transactions.settle(0.0) for _ in range(3)]
    assert outcomes == [TransactionOutcome.UNKNOWN, TransactionOutcome.UNKNOWN, TransactionOutcome.ASK_GROUP]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_member_ends_in_order_though_the_outcome_of_its_transaction_is_not_known(
    is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing its consumer asks it to commit once more, when its transactional producer is closed already."""
    made: list[Any] = []

    class Silent:
        def __init__(self, config: Any) -> None:
            made.append(self)
            self.is_closed = False

        def init_transactions(self, timeout: float) -> None: ...

        def begin_transaction(self) -> None: ...

        def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout: float) -> None: ...

        def commit_transaction(self, timeout: float) -> None:
            raise TransactionTimeoutError("no coordinator")

        def close(self, seconds: float) -> None:
            self.is_closed = True

    class Closing(AwayConsumer):
        def close(self) -> None:
            self._ask("close")
            member.on_partitions_revoked([PARTITION])

    monkeypatch.setattr("headrace.parallel.transactions.Producer", Silent)
    consumer = Closing(0)
    consumer.found[PARTITION] = OffsetAndMetadata(0, "")
    transactions = Transactions({}, RealClock())
    transactions.start()
    member = engine(consumer, retry=Retry(local=0, dead_letters="orders.dead"), transactions=transactions)
    core = member.member.core
    member.on_partitions_assigned([PARTITION])
    core.add(PARTITION, [record(0)], 0.0, 0)
    chunk = core.take(0.0)
    do(chunk)
    core.complete(chunk, 0.0)
    assert member._transact(consumer, transactions) is None
    member._is_killed = is_killed
    member._end(consumer, True)
    assert consumer.asked["close"] == 1
    assert [one.is_closed for one in made] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("model", [Pool(), Ranges(), Consumers()], ids=lambda model: type(model).__name__)
def test_an_outage_longer_than_every_time_out_is_outlasted(tmp_path: Path, model: Model) -> None:
    seen = Seen()
    times = {"default.api.timeout.ms": 1_000, "request.timeout.ms": 800}
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        make_topic(broker.address, "orders", 1)
        fill(broker.address, "orders", 20)
        consumer = ParallelConsumer(
            seen,
            topics=["orders"],
            group="billing",
            config=config(broker.address, **times),
            model=model,
            order="none",
            workers=2,
        )
        consumer.start()
        eventually(lambda: seen.distinct() == 20, "the first records")
        broker.kill()
        assert not consumer.has_ended(3.0), "it waits"
        broker.start()
        fill(broker.address, "orders", 20)
        eventually(lambda: seen.distinct() == 40, "the records after the outage")
        stop(consumer)
