"""The driver's and the tasks' side of a transaction against a broker, without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.spark.auditing import read_topic
from tests.waiting import eventually

from headrace.broker.broker import Broker
from headrace.client.admin import Admin, ConfigResource, NewTopic, ResourceType
from headrace.client.errors import ProducerFencedError
from headrace.client.offsets import OffsetAndMetadata, OffsetSpec
from headrace.client.transactions import ProducerIdentity
from headrace.errors import InvalidTransactionTimeoutError, MessageTooLargeError
from headrace.spark.adopting import name_of
from headrace.spark.cluster import Cluster
from headrace.spark.columns import Shape
from headrace.spark.connections import make_client
from headrace.spark.foreach_batch import UnsafeSparkError, abort_orphan, check_spark
from headrace.spark.history import SinkIdentity, judge
from headrace.spark.lanes import OutputPartitions
from headrace.spark.markers import Marker
from headrace.spark.once import BatchTooSlowError, MarkerFinding, WrongHistoryError, run_batch
from headrace.spark.parcels import pack
from headrace.spark.pipelines.scanning import scan_range
from headrace.spark.planning import DataLossError, OffsetRange
from headrace.spark.transaction import PROGRESS_TOPIC, SinkTransaction
from headrace.spark.writing import WriteJob, write_task
from headrace.testing import EmbeddedBroker, broker
from headrace.topics import TopicPartition

LANES = OutputPartitions.of({"out": 3})
OUT = LANES.partitions()
SHAPE = Shape(("value", "key"), "out")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


class Driver:
    """One driver: its connections and its transaction."""

    def __init__(self, address: str, name: str, progress_topic: str = PROGRESS_TOPIC, **options: int) -> None:
        self.kafka = {"bootstrap.servers": address}
        self.client = make_client(self.kafka)
        self.cluster = Cluster(self.kafka)
        self.transaction = SinkTransaction(
            self.client,
            self.cluster,
            self.kafka,
            name,
            progress_topic=progress_topic,
            timeout_ms=options.get("timeout_ms", 60_000),
        )

    def write(self, identity: ProducerIdentity, lane: int, *parts: list[bytes]) -> int:
        """Write values that come to the task in so many parts."""
        job = WriteJob(self.kafka, SHAPE, LANES, self.transaction.transactional_id, identity, 0, None)
        packed = []
        for values in parts:
            nulls = pa.array([None] * len(values), pa.binary())
            rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "key": nulls})
            packed.append(pack(rows, [lane] * len(values)))
        return write_task(iter(packed), job, lane)

    def commit(self, identity: ProducerIdentity) -> None:
        """Commit, and wait until every partition knows: a broker answers before that. Fencing waits for it."""
        self.transaction.commit(identity)
        self.transaction.fence()

    def close(self) -> None:
        self.client.close()
        self.cluster.close()


@pytest.fixture
def drivers(kafka: EmbeddedBroker) -> Iterator[list[Driver]]:
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        if "out" in admin.list_topics():
            admin.delete_topics(["out"]).all()
        admin.create_topics([NewTopic("out", num_partitions=3, replication_factor=1)]).all()
    made: list[Driver] = []
    yield made
    for one in made:
        # A driver of a test that failed may have left a transaction open.
        one.transaction.fence()
        one.close()


def values_of(kafka: EmbeddedBroker) -> list[bytes]:
    return sorted(value for _, _, value in read_topic(kafka.address, "out") if value is not None)


def begin(drivers: list[Driver], kafka: EmbeddedBroker, name: str, **options: int) -> Driver:
    drivers.append(Driver(kafka.address, name, **options))
    return drivers[-1]


def test_rows_and_marker_become_visible_together(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = begin(drivers, kafka, "together")
    identity = driver.transaction.fence()
    assert driver.transaction.last_marker() is None
    driver.transaction.enlist(identity, OUT)
    assert driver.write(identity, 0, [b"1", b"2"]) == 2
    driver.transaction.mark(identity, Marker(4, 2, 1))
    assert values_of(kafka) == []
    driver.commit(identity)
    assert values_of(kafka) == [b"1", b"2"]
    again = begin(drivers, kafka, "together")
    again.transaction.fence()
    assert again.transaction.last_marker() == Marker(4, 2, 1)


def test_a_driver_that_died_leaves_nothing_once_another_has_begun(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    dead = begin(drivers, kafka, "died")
    identity = dead.transaction.fence()
    dead.transaction.enlist(identity, OUT)
    dead.write(identity, 1, [b"orphan"])
    dead.transaction.mark(identity, Marker(0, 1, 1))
    heir = begin(drivers, kafka, "died")
    heir.transaction.fence()
    assert heir.transaction.last_marker() is None
    assert values_of(kafka) == []
    ends = dict.fromkeys(OUT, OffsetSpec.latest())
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        stable = admin.list_offsets(ends, isolation_level="read_committed").all()
        assert {one: info.offset for one, info in stable.items()} == {
            one: info.offset for one, info in admin.list_offsets(ends).all().items()
        }


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_a_task_of_an_older_epoch_writes_nowhere(drivers: list[Driver], kafka: EmbeddedBroker, lane: int) -> None:
    driver = begin(drivers, kafka, f"zombie-{lane}")
    old = driver.transaction.fence()
    driver.transaction.enlist(old, OUT)
    driver.write(old, 0, [b"old"])
    new = driver.transaction.fence()
    driver.transaction.enlist(new, OUT)
    # Also where the old attempt had written nothing, and before the new one has.
    with pytest.raises(ProducerFencedError):
        driver.write(old, lane, [b"zombie"])
    driver.write(new, lane, [b"new"])
    driver.transaction.mark(new, Marker(0, 1, 1))
    driver.commit(new)
    assert values_of(kafka) == [b"new"]
    with pytest.raises(ProducerFencedError):
        driver.transaction.commit(old)


def test_partitions_are_added_also_by_a_driver_that_has_not_looked_for_its_marker(
    drivers: list[Driver], kafka: EmbeddedBroker
) -> None:
    driver = Driver(kafka.address, "unlooked", progress_topic="progress-of-its-own")
    drivers.append(driver)
    identity = driver.transaction.fence()
    # The topic of the markers does not exist yet: adding it would be refused until time is over.
    driver.transaction.enlist(identity, OUT)
    driver.transaction.mark(identity, Marker(0, 0, 1))
    driver.commit(identity)
    assert driver.transaction.last_marker() == Marker(0, 0, 1)


def test_another_querys_open_transaction_hides_no_marker_and_is_not_waited_for(
    drivers: list[Driver], kafka: EmbeddedBroker
) -> None:
    other = begin(drivers, kafka, "other")
    theirs = other.transaction.fence()
    other.transaction.last_marker()
    other.transaction.enlist(theirs, [])
    other.transaction.mark(theirs, Marker(0, 0, 1))
    driver = begin(drivers, kafka, "hidden")
    for batch in range(3):
        identity = driver.transaction.fence()
        found = driver.transaction.last_marker()
        assert (-1 if found is None else found.batch) == batch - 1
        driver.transaction.enlist(identity, OUT)
        driver.transaction.mark(identity, Marker(batch, 0, 1))
        driver.transaction.commit(identity)
    heir = begin(drivers, kafka, "hidden")
    heir.transaction.fence()
    assert heir.transaction.last_marker() == Marker(2, 0, 1)


def test_a_commit_asked_for_twice_is_one(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = begin(drivers, kafka, "twice")
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    driver.write(identity, 2, [b"once"])
    driver.transaction.commit(identity)
    driver.commit(identity)
    assert values_of(kafka) == [b"once"]


def test_source_offsets_are_committed_with_the_output_or_not_at_all(
    drivers: list[Driver], kafka: EmbeddedBroker
) -> None:
    driver = begin(drivers, kafka, "offsets")
    source = TopicPartition("out", 0)
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        for end, expected in ((False, None), (True, (8, "a note"))):
            identity = driver.transaction.fence()
            driver.transaction.enlist(identity, OUT)
            driver.transaction.commit_offsets(identity, "progress", {source: OffsetAndMetadata(8, "a note")})
            if end:
                driver.commit(identity)
            else:
                driver.transaction.fence()
            found = admin.list_partition_offsets("progress", [source]).get(source)
            assert (None if found is None else (found.offset, found.metadata)) == expected


def test_a_time_out_beyond_what_brokers_allow_says_what_to_do(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = Driver(kafka.address, "too-long", timeout_ms=86_400_000)
    with pytest.raises(InvalidTransactionTimeoutError, match="transaction_timeout_s"):
        driver.transaction.fence()
    driver.close()


def test_an_orphan_can_be_aborted_by_hand(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = begin(drivers, kafka, SinkIdentity("gone").transactional_id)
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    driver.write(identity, 0, [b"orphan"])
    abort_orphan("gone", "out", kafka.address)
    with pytest.raises(ProducerFencedError):
        driver.commit(identity)
    assert values_of(kafka) == []


def test_large_tasks_are_written_in_order_without_gaps(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = begin(drivers, kafka, "large")
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    values = [b"%07d" % number + bytes(500) for number in range(20_000)]
    driver.write(identity, 1, values)
    driver.commit(identity)
    assert [value for _, _, value in read_topic(kafka.address, "out")] == values


def test_small_parts_are_written_together_in_their_order(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = begin(drivers, kafka, "parts")
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    # Nine parts of 200 KB each: four fit into a batch of 900,000 bytes.
    parts = [[b"%08d" % number * 2500 for number in range(first, first + 10)] for first in range(0, 90, 10)]
    assert driver.write(identity, 1, *parts) == 90
    driver.commit(identity)
    written = [value for _, _, value in read_topic(kafka.address, "out")]
    assert written == [value for part in parts for value in part]
    assert scan_range(driver.kafka, OffsetRange(OUT[1], 0, 90)).batches == 3


def test_epochs_that_are_used_up_are_followed_by_a_new_producer_id(
    drivers: list[Driver], kafka: EmbeddedBroker
) -> None:
    driver = begin(drivers, kafka, "rotation")
    first = driver.transaction.fence()

    # Nine hours at a batch a second later (`tests.spark.prove --part rotation` goes all the way).
    def use_up(running: Broker) -> None:
        entry = running.transactions.coordinator._shards.find("rotation")
        assert entry is not None
        entry.current = replace(entry.current, producer_epoch=32_760)

    kafka.call(use_up)
    met = set()
    for batch in range(8):
        identity = driver.transaction.fence()
        met.add(identity.producer_id)
        found = driver.transaction.last_marker()
        assert (-1 if found is None else found.batch) == batch - 1
        driver.transaction.enlist(identity, OUT)
        driver.write(identity, 0, [b"%d" % batch])
        driver.transaction.mark(identity, Marker(batch, 1, 1))
        # Every other one by an heir, who has to fence an open transaction near the end of the epochs.
        if batch % 2:
            heir = begin(drivers, kafka, "rotation")
            met.add(heir.transaction.fence().producer_id)
            with pytest.raises(ProducerFencedError):
                driver.transaction.commit(identity)
            identity = driver.transaction.fence()
            driver.transaction.enlist(identity, OUT)
            driver.write(identity, 0, [b"%d" % batch])
            driver.transaction.mark(identity, Marker(batch, 1, 1))
        driver.transaction.commit(identity)
    assert len(met - {first.producer_id}) == 1
    driver.transaction.fence()
    assert driver.transaction.last_marker() == Marker(7, 1, 1)
    assert values_of(kafka) == [b"%d" % batch for batch in range(8)]


class LateSteps:
    """A batch whose tasks outlive the transaction: the broker has ended it when they are done."""

    def __init__(self, driver: Driver, kafka: EmbeddedBroker) -> None:
        self.driver, self.kafka = driver, kafka
        self.fence = driver.transaction.fence
        self.commit = driver.transaction.commit

    def look(self) -> MarkerFinding:
        return judge(self.driver.transaction.last_marker(), Marker(0))

    def is_stopped(self) -> bool:
        return False

    def enlist(self, identity: ProducerIdentity) -> None:
        self.driver.transaction.enlist(identity, OUT)

    def write(self, identity: ProducerIdentity) -> None:
        self.driver.write(identity, 0, [b"late"])
        with Admin(self.driver.kafka) as admin:

            def is_aborted() -> bool:
                state = admin.describe_transactions([self.driver.transaction.transactional_id]).all()
                return next(iter(state.values())).state == "CompleteAbort"

            eventually(is_aborted, "the abort")

    def mark(self, identity: ProducerIdentity) -> None:
        self.driver.transaction.mark(identity, Marker(0, 1, 1))


def test_a_batch_that_outlives_the_transactions_time_out_says_so_and_leaves_nothing() -> None:
    with broker(overrides={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as quick:
        with Admin({"bootstrap.servers": quick.address}) as admin:
            admin.create_topics([NewTopic("out", num_partitions=3, replication_factor=1)]).all()
        driver = Driver(quick.address, "late", timeout_ms=500)
        try:
            steps = LateSteps(driver, quick)
            with pytest.raises(
                BatchTooSlowError, match=r"longer than transaction.timeout.ms=500.*maxOffsetsPerTrigger"
            ):
                run_batch(steps, 0, attempts_max=4, timeout_ms=500, monotonic=time.monotonic)
            assert values_of(quick) == []
            # A query that is started again finds nothing in its way.
            driver.transaction.fence()
            assert driver.transaction.last_marker() is None
        finally:
            driver.close()


def test_a_spark_that_may_run_a_task_twice_is_refused() -> None:
    safe = {"spark.stage.maxConsecutiveAttempts": "1", "spark.stage.maxAttempts": "1"}
    check_spark(safe)
    with pytest.raises(UnsafeSparkError, match="maxConsecutiveAttempts=1"):
        check_spark({})
    with pytest.raises(UnsafeSparkError, match="speculation=false"):
        check_spark({**safe, "spark.speculation": "true"})


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_batches_too_large_for_their_topic_are_halved_until_they_fit(
    drivers: list[Driver], kafka: EmbeddedBroker, codec: str
) -> None:
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        admin.incremental_alter_configs(
            {ConfigResource(ResourceType.TOPIC, "out"): {"max.message.bytes": "20000"}}
        ).all()
    driver = begin(drivers, kafka, f"halved-{codec}")
    driver.kafka["compression.type"] = codec
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    values = [b"%06d" % number + os.urandom(200) for number in range(5_000)]
    assert driver.write(identity, 1, values[:3_000], values[3_000:]) == len(values)
    driver.commit(identity)
    assert [value for _, _, value in read_topic(kafka.address, "out")] == values
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    with pytest.raises(MessageTooLargeError, match="writing to out-0"):
        driver.write(identity, 0, [os.urandom(30_000)])


# --- what an earlier version wrote ------------------------------------------------------------------------------------

QUERY = "0b9f3a52-7c0e-4a57-9a3e-0d6b7e5f1c22"


def committed_by_an_earlier_version(
    drivers: list[Driver], kafka: EmbeddedBroker, query: str, topics: list[str], batch: int
) -> Driver:
    driver = begin(drivers, kafka, SinkIdentity(query).earlier_id(topics))
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, OUT)
    driver.transaction.mark(identity, Marker(batch, 1, 1))
    driver.commit(identity)
    return driver


def test_a_query_of_an_earlier_version_keeps_its_id_whatever_its_topics_are_now(
    drivers: list[Driver], kafka: EmbeddedBroker
) -> None:
    query = QUERY.replace("0b9f", "0001")
    identity = SinkIdentity(query)
    old = committed_by_an_earlier_version(drivers, kafka, query, ["out"], 6)
    known = old.transaction.known_keys()
    name = identity.earlier_id(["out"])
    assert name_of(identity, ["out"], known) == name_of(identity, ["out", "more"], known) == name
    # A sink with a name, and another query, are new, whatever others wrote.
    letters = SinkIdentity(query, "letters")
    assert name_of(letters, ["dead"], known) == letters.transactional_id
    assert name_of(SinkIdentity(QUERY), ["out"], known) == SinkIdentity(QUERY).transactional_id
    # Its old driver is fenced by the new one.
    epoch = old.transaction.fence()
    old.transaction.enlist(epoch, OUT)
    heir = begin(drivers, kafka, name)
    heir.transaction.fence()
    found = heir.transaction.last_marker()
    assert found is not None
    assert found.batch == 6
    with pytest.raises(ProducerFencedError):
        old.transaction.commit(epoch)
    committed_by_an_earlier_version(drivers, kafka, query, ["more"], 3)
    with pytest.raises(WrongHistoryError, match="Start it once with the topics that it had"):
        name_of(identity, ["third"], old.transaction.known_keys())


def test_a_marker_that_is_not_decided_names_its_sink_too(drivers: list[Driver], kafka: EmbeddedBroker) -> None:
    driver = begin(drivers, kafka, SinkIdentity("undecided").transactional_id)
    identity = driver.transaction.fence()
    driver.transaction.enlist(identity, [])
    driver.transaction.mark(identity, Marker(0))
    assert driver.transaction.transactional_id in driver.transaction.known_keys()


def test_markers_are_not_passed_over_when_their_topic_is_cut_short(
    drivers: list[Driver], kafka: EmbeddedBroker
) -> None:
    driver = begin(drivers, kafka, "cut-short")
    driver.transaction.fence()
    driver.transaction.last_marker()
    driver.transaction._read_to = 1_000_000
    with pytest.raises(DataLossError, match="markers are gone"):
        driver.transaction.last_marker()
