"""Exactly once, audited by an independent reader: tasks that fail, a driver that dies, rows in another order each time.

The same harness shows duplicates with the at-least-once sink: so the test can fail.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.spark.auditing import audit, read_topic
from tests.spark.prove import Place, prove_control, prove_drivers, prove_tasks
from tests.spark.standalone import Standalone
from tests.spark.topics import make_topic, numbers, reader, stream
from tests.waiting import eventually

from headrace.client.admin import Admin
from headrace.spark.once import BatchOutcome, ExactlyOnceError
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 1000


def filled(kafka: BrokerProcess, name: str) -> tuple[str, str, Counter[bytes]]:
    source, sink = make_topic(kafka.address, f"{name}-in", 2), make_topic(kafka.address, f"{name}-out", 3)
    values = numbers(ROWS)
    with_keys(kafka.address, source, values)
    return source, sink, Counter(values)


def with_keys(servers: str, topic: str, values: list[bytes]) -> None:
    from headrace.client.producer.blocking import Producer

    with Producer({"bootstrap.servers": servers}) as producer:
        for value in values:
            producer.send(topic, value, key=value[-2:])


def written(kafka: BrokerProcess, sink: str) -> list[bytes]:
    return [value for _, _, value in read_topic(kafka.address, sink) if value is not None]


def run(rows: Any, write: Any, checkpoint: str) -> None:
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination(600)


def fails_once(directory: str, kind: str) -> Any:
    """Fails in the middle of a task, the first time that a batch is tried: a file remembers which were.

    A function within a function travels to the workers by value: they cannot import the tests.
    """

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = os.path.join(directory, f"{kind}-{context.getLocalProperty('streaming.sql.batchId')}")
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and context.partitionId() == 0 and not os.path.exists(mark):
                with open(mark, "w"):
                    pass
                if kind == "exit":
                    os._exit(1)
                raise RuntimeError("injected: the first cause")

    return failing


def test_tasks_that_fail_are_healed_and_nothing_is_lost_or_doubled(
    spark: Any, kafka: BrokerProcess, checkpoint: str, tmp_path: Path
) -> None:
    from headrace.spark import exactly_once

    source, sink, expected = filled(kafka, "healed")
    once = exactly_once(sink, kafka.address)
    outcomes = []

    def write(frame: Any, batch_id: int) -> None:
        # The failure comes in the stage that writes: rows before it are in the log already.
        failing = fails_once(str(tmp_path), "raise" if batch_id % 2 else "exit")
        outcomes.append(once.write(frame.mapInArrow(failing, frame.schema), batch_id))

    rows = stream(spark, kafka.address, source, maxOffsetsPerTrigger="400").select("value")
    run(rows, write, checkpoint)
    assert outcomes == [BatchOutcome.COMMITTED] * 3
    assert len(list(tmp_path.glob("raise-*"))) + len(list(tmp_path.glob("exit-*"))) == 3
    assert audit(expected, written(kafka, sink)) == (0, 0)


def test_a_failure_that_stays_carries_its_first_cause(spark: Any, kafka: BrokerProcess, tmp_path: Path) -> None:
    from headrace.spark import write_once

    sink = make_topic(kafka.address, "never", 2)

    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            raise RuntimeError("injected: the first cause")
        yield from ()

    rows = spark.range(10).selectExpr("cast(id as string) as value")
    with pytest.raises(ExactlyOnceError, match="injected: the first cause"):
        write_once(rows.mapInArrow(broken, rows.schema), sink, kafka.address, attempts=2)
    assert written(kafka, sink) == []


def test_a_named_batch_is_written_once_however_often_it_is_run(spark: Any, kafka: BrokerProcess) -> None:
    from headrace.spark import write_once

    sinks = [make_topic(kafka.address, name, 2) for name in ("named-a", "named-b")]
    rows = spark.range(100).selectExpr(
        "cast(id as string) as value", "cast(id % 7 as string) as key", "if(id % 2 = 0, 'named-a', 'named-b') as topic"
    )
    outcomes = [write_once(rows, sinks, kafka.address, name="job") for _ in range(2)]
    assert outcomes == [BatchOutcome.COMMITTED, BatchOutcome.SKIPPED]
    found = {name: sorted(int(value) for value in written(kafka, name)) for name in sinks}
    assert found == {"named-a": list(range(0, 100, 2)), "named-b": list(range(1, 100, 2))}
    committed = reader(spark, kafka.address, "named-a", kafka__isolation__level="read_committed")
    assert committed.count() == 50


def test_the_group_shows_the_progress_together_with_the_output(
    spark: Any, kafka: BrokerProcess, checkpoint: str
) -> None:
    from headrace.spark import exactly_once

    source, sink, expected = filled(kafka, "grouped")
    rows = stream(spark, kafka.address, source).select("key", "value")
    run(rows, exactly_once(sink, kafka.address, group_id="atomic"), checkpoint)
    assert audit(expected, written(kafka, sink)) == (0, 0)
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        found = admin.list_partition_offsets("atomic", [TopicPartition(source, number) for number in range(2)])
    assert sum(one.offset for one in found.values()) == ROWS


def test_a_restored_checkpoint_and_two_sinks_under_one_name_are_refused(
    spark: Any, kafka: BrokerProcess, checkpoint: str
) -> None:
    from pyspark.errors import StreamingQueryException

    from headrace.spark import exactly_once

    source, sink, expected = filled(kafka, "restored")
    rows = stream(spark, kafka.address, source).select("value")
    run(rows, exactly_once(sink, kafka.address), checkpoint)
    shutil.copytree(checkpoint, f"{checkpoint}.backup")
    more = numbers(100, ROWS)
    with_keys(kafka.address, source, more)
    run(rows, exactly_once(sink, kafka.address), checkpoint)
    with_keys(kafka.address, source, numbers(100, ROWS + 100))
    with pytest.raises(StreamingQueryException, match="other offsets of the source"):
        run(rows, exactly_once(sink, kafka.address), f"{checkpoint}.backup")
    assert audit(expected + Counter(more), written(kafka, sink)) == (0, 0)

    first, second = exactly_once(sink, kafka.address), exactly_once(sink, kafka.address)
    named = exactly_once(sink, kafka.address, sink="odd")

    def both(other: Any) -> Any:
        def write(frame: Any, batch_id: int) -> None:
            first(frame.where("cast(cast(value as string) as int) % 2 = 0"), batch_id)
            other(frame.where("cast(cast(value as string) as int) % 2 = 1"), batch_id)

        return write

    with pytest.raises(StreamingQueryException, match="need names of their own"):
        run(rows, both(second), checkpoint)
    # As it is told: the first stays, and the second gets a name.
    run(rows, both(named), checkpoint)
    assert audit(expected + Counter(numbers(200, ROWS)), written(kafka, sink)) == (0, 0)


@pytest.mark.parametrize("query_id", [None, "of-the-users"])
def test_sinks_on_threads_of_a_batch_are_held_to_the_same(
    spark: Any, kafka: BrokerProcess, checkpoint: str, query_id: str | None
) -> None:
    """They did not know Spark's batch: with a `query_id` they skipped what another checkpoint had under its number."""
    from pyspark.errors import StreamingQueryException

    from headrace.spark import exactly_once

    name = query_id or "sparks"
    source, sink, expected = filled(kafka, f"threads-{name}")
    other = make_topic(kafka.address, f"threads-{name}-other", 1)
    rows = stream(spark, kafka.address, source).select("value")

    def on_threads(*sinks: Any) -> Any:
        def write(frame: Any, batch_id: int) -> None:
            with ThreadPoolExecutor(len(sinks)) as pool:
                for done in [pool.submit(one, frame, batch_id) for one in sinks]:
                    done.result()

        return write

    def once(topic: str, name: str) -> Any:
        return exactly_once(topic, kafka.address, query_id=query_id, sink=name)

    run(rows, on_threads(once(sink, "one"), once(other, "two")), checkpoint)
    assert audit(expected, written(kafka, sink)) == (0, 0)
    assert audit(expected, written(kafka, other)) == (0, 0)
    with_keys(kafka.address, source, numbers(100, ROWS))
    with pytest.raises(StreamingQueryException, match="need names of their own"):
        run(rows, on_threads(once(sink, "one"), once(other, "one")), checkpoint)
    if query_id is not None:
        with pytest.raises(StreamingQueryException, match="WrongHistoryError"):
            run(rows, on_threads(once(sink, "one")), f"{checkpoint}.new")


def test_rows_of_no_query_are_refused(spark: Any, kafka: BrokerProcess) -> None:
    from headrace.spark import exactly_once

    sink = make_topic(kafka.address, "of-no-query", 1)
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    with pytest.raises(ExactlyOnceError, match="write_once"):
        exactly_once(sink, kafka.address, query_id="by-hand")(rows, 0)
    assert written(kafka, sink) == []


@pytest.mark.long
def test_a_query_that_is_stopped_in_a_batch_does_not_write_it_again(
    spark: Any, kafka: BrokerProcess, checkpoint: str, tmp_path: Path
) -> None:
    from headrace.spark import exactly_once

    source, sink, expected = filled(kafka, "stopped")
    begun = str(tmp_path / "begun")

    def hangs(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time

        from pyspark import TaskContext

        for batch in batches:
            with open(begun, "a") as out:
                out.write(f"{TaskContext.get().partitionId()} ")
            while os.path.exists(begun):
                time.sleep(0.1)
            yield batch

    rows = stream(spark, kafka.address, source).select("value")
    hanging = rows.mapInArrow(hangs, rows.schema).writeStream.foreachBatch(exactly_once(sink, kafka.address))
    query = hanging.option("checkpointLocation", checkpoint).start()
    eventually(lambda: Path(begun).exists(), "the batch")
    query.stop()
    # Others of its tasks may have begun meanwhile; but none a second time, as they would if the batch were begun again.
    tasks = Path(begun).read_text().split()
    assert len(tasks) == len(set(tasks))
    assert written(kafka, sink) == []
    run(rows, exactly_once(sink, kafka.address), checkpoint)
    assert audit(expected, written(kafka, sink)) == (0, 0)


# --- the proof, in short (the long form is `python -m tests.spark.prove`) ---------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("points", [("sent EndTxn", "task sent")])
def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(
    kafka: BrokerProcess, tmp_path: Path, points: tuple[str, ...]
) -> None:
    count = prove_drivers(Place(kafka.address, tmp_path), len(points), "killed", points)
    assert count.kills == len(points)
    # Also in between: nothing was there twice, and the group's offsets were those of the output that could be read.
    assert count.is_exact, count


@pytest.mark.long
def test_the_at_least_once_sink_shows_duplicates_in_the_same_harness(kafka: BrokerProcess, tmp_path: Path) -> None:
    count = prove_control(Place(kafka.address, tmp_path), 1)
    assert count.lost == 0
    assert count.doubled > 0


@pytest.mark.long
def test_a_cluster_whose_executor_and_worker_are_killed_loses_and_doubles_nothing(
    kafka: BrokerProcess, tmp_path: Path
) -> None:
    with Standalone(tmp_path / "spark") as cluster:
        place = Place(kafka.address, tmp_path, cluster)
        count = prove_tasks(place, "cluster", ("sent: executor", "acknowledged: raise"), worker_kills=1)
    assert count.faults >= 2
    assert count.is_exact, count


def test_keys_are_where_kafkas_clients_would_put_them(spark: Any, kafka: BrokerProcess, checkpoint: str) -> None:
    from headrace.spark import exactly_once

    source, sink = make_topic(kafka.address, "placed-in", 2), make_topic(kafka.address, "placed-out", 3)
    reference = make_topic(kafka.address, "placed-reference", 3)
    values = numbers(300)
    with_keys(kafka.address, source, values)
    with_keys(kafka.address, reference, values)
    run(stream(spark, kafka.address, source).select("key", "value"), exactly_once(sink, kafka.address), checkpoint)
    assert sorted(read_topic(kafka.address, sink)) == sorted(read_topic(kafka.address, reference))
