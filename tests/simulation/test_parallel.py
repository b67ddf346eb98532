"""Parallel consumers, and whatever else is a blocking program with callbacks, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.client.admin.types import NewTopic
from headrace.testing.simulated import simulated_cluster
from headrace.testing.simulated.blocking import BlockingCluster, ThreadedClient
from headrace.testing.simulated.checks import Contents
from headrace.testing.simulated.handled import check_handled, not_handled
from headrace.testing.simulated.history import BrokenError, Handled
from headrace.testing.simulated.plans import KEYED, plan_for
from headrace.testing.simulated.runs import play
from headrace.topics import TopicPartition

_PARTITION = TopicPartition(KEYED, 0)
_FOUND = {_PARTITION: Contents(3, {0: ("w:0:a", 1), 1: ("w:1:b", 1), 2: ("w:2:a", 1)})}


@pytest.mark.slow
def test_parallel_consumers_take_the_same_course_twice() -> None:
    plan = replace(plan_for(4), workloads=("idempotent", "parallel"))
    one, two = play(plan), play(plan)
    assert one.failure is None
    assert one.counts["records handled in parallel"] > 0
    assert one.digest == two.digest


def test_a_listener_of_a_blocking_program_may_call_its_consumer() -> None:
    committed: list[object] = []

    class Listener:
        def __init__(self, consumer: ThreadedClient) -> None:
            self._consumer = consumer

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            committed.append(self._consumer.committed(partitions))

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            self._consumer.commit_sync()

    def program(cluster: BlockingCluster) -> list[bytes]:
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all()
        with cluster.producer() as producer:
            producer.send("t", b"one").result()
        found: list[bytes] = []
        with cluster.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], Listener(consumer))
            while not found:
                found += [record.value for record in consumer.poll(1.0)]
        with cluster.admin() as admin:
            committed.append(admin.list_group_offsets(["g"]).all()["g"][TopicPartition("t", 0)].offset)
        return found

    assert simulated_cluster(seed=1, brokers=1).run_blocking(program) == [b"one"]
    # Nothing when the partition came, and all that was read when it went.
    assert committed == [{TopicPartition("t", 0): None}, 1]


def test_a_record_that_nobody_finished_is_noticed() -> None:
    assert not_handled(Handled(ends={"w:0:a": 1, "w:1:b": 2}), _FOUND) is not None
    assert not_handled(Handled(ends={"w:0:a": 1, "w:1:b": 2, "w:2:a": 3}), _FOUND) is None


def test_a_key_out_of_order_is_noticed_and_other_keys_are_not() -> None:
    ends = {"w:0:a": 10, "w:1:b": 2, "w:2:a": 12}
    check_handled(Handled([(_PARTITION, 1, "w:1:b", 1), (_PARTITION, 2, "w:2:a", 11)], ends), _FOUND)
    with pytest.raises(BrokenError, match="was begun before"):
        check_handled(Handled([(_PARTITION, 2, "w:2:a", 9)], ends), _FOUND)


def test_a_commit_that_passes_an_unfinished_record_is_noticed() -> None:
    ends = {"w:0:a": 10, "w:1:b": 2, "w:2:a": 12}
    check_handled(Handled([], ends, [(_PARTITION, 0, 1), (_PARTITION, 2, 11), (_PARTITION, 3, 13)]), _FOUND)
    with pytest.raises(BrokenError, match="passed a record"):
        check_handled(Handled([], ends, [(_PARTITION, 3, 11)]), _FOUND)
