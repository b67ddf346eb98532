"""Consumer groups: members that come and go, commits, patterns, static members, listeners."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
from tests.client.consumer.conftest import Cluster, poll_until, read
from tests.waiting import eventually

from headrace import CommitFailedError, Consumer, OffsetAndMetadata
from headrace.client.consumer._heartbeats import HeartbeatVerdict, News
from headrace.client.consumer.errors import RebalanceListenerError
from headrace.errors import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    RebalanceInProgressError,
)
from headrace.topics import TopicPartition

pytestmark = pytest.mark.slow


class Recorder:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", sorted(p.partition for p in partitions)))

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", sorted(p.partition for p in partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", sorted(p.partition for p in partitions)))


def is_balanced(consumers: list[Consumer], count: int) -> bool:
    """Whether all partitions are owned, each once, and spread evenly."""
    owned = [consumer.assignment() for consumer in consumers]
    sizes = sorted(map(len, owned))
    return sum(sizes) == count == len(set().union(*owned)) and sizes[-1] - sizes[0] <= 1


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_three_members_share_and_take_over(kafka: Cluster, strategy: str) -> None:
    topic = kafka.topic(6)
    config = kafka.config(group_id=kafka.group(), partition_assignment_strategy=strategy)
    consumers = [Consumer(config) for _ in range(3)]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        poll_until(consumers, lambda: is_balanced(consumers, 6))
        gone = consumers.pop()
        gone.close()
        poll_until(consumers, lambda: is_balanced(consumers, 6))
        for partition in range(6):
            kafka.produce(topic, [b"x"] * 10, partition)
        seen: list[Any] = []
        poll_until([], lambda: seen.extend(r for c in consumers for r in c.poll(0.05)) or len(seen) == 60)
        assert len({(record.partition, record.offset) for record in seen}) == 60
    finally:
        for consumer in consumers:
            consumer.close()


def test_cooperative_members_keep_what_does_not_move(kafka: Cluster) -> None:
    topic = kafka.topic(4)
    config = kafka.config(group_id=kafka.group(), partition_assignment_strategy="cooperative-sticky")
    first_listener, second_listener = Recorder(), Recorder()
    with Consumer(config) as first, Consumer(config) as second:
        first.subscribe([topic], first_listener)
        poll_until([first], lambda: len(first.assignment()) == 4)
        second.subscribe([topic], second_listener)
        poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
        revoked = [event for event in first_listener.events if event[0] == "revoked"]
        assert [len(partitions) for _, partitions in revoked] == [2]
        assert sorted(p.partition for p in second.assignment()) == revoked[0][1]


def test_eager_members_give_up_everything_first(kafka: Cluster) -> None:
    topic = kafka.topic(4)
    config = kafka.config(group_id=kafka.group(), partition_assignment_strategy="range")
    listener = Recorder()
    with Consumer(config) as first, Consumer(config) as second:
        first.subscribe([topic], listener)
        poll_until([first], lambda: len(first.assignment()) == 4)
        second.subscribe([topic])
        poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
    events = [event for event in listener.events if event[1]]
    assert [(kind, len(partitions)) for kind, partitions in events] == [
        ("assigned", 4),
        ("revoked", 4),
        ("assigned", 2),
        ("revoked", 2),
    ]


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_group_mixed_with_confluent_kafka_and_kafka_python_agrees(kafka: Cluster, strategy: str) -> None:
    import confluent_kafka
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    topic, group = kafka.topic(6), kafka.group()
    assignor = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[strategy]
    ours = Consumer(kafka.config(group_id=group, partition_assignment_strategy=strategy))
    librdkafka = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": 200,
        }
    )
    python = KafkaConsumer(
        bootstrap_servers=kafka.address,
        group_id=group,
        partition_assignment_strategy=[assignor],
        heartbeat_interval_ms=200,
    )
    try:
        # Ours first, so that it leads: kafka-python as leader may assign nothing while it lacks the topic's metadata.
        ours.subscribe([topic])
        poll_until([ours], lambda: len(ours.assignment()) == 6)
        librdkafka.subscribe([topic])
        python.subscribe([topic])

        def settled() -> bool:
            librdkafka.poll(0.05)
            python.poll(50)
            mine = {p.partition for p in ours.assignment()}
            others = [{p.partition for p in librdkafka.assignment()}, {p.partition for p in python.assignment() or ()}]
            return len(mine) == 2 and all(len(o) == 2 for o in others) and mine.union(*others) == set(range(6))

        poll_until([ours], settled, wait_s=90)
    finally:
        ours.close()
        librdkafka.close()
        python.close()


def test_a_cooperative_group_mixed_with_confluent_kafka_agrees(kafka: Cluster) -> None:
    import confluent_kafka

    topic, group = kafka.topic(4), kafka.group()
    ours = Consumer(kafka.config(group_id=group, partition_assignment_strategy="cooperative-sticky"))
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": 200,
        }
    )
    try:
        ours.subscribe([topic])
        poll_until([ours], lambda: len(ours.assignment()) == 4)
        theirs.subscribe([topic])

        def settled() -> bool:
            theirs.poll(0.05)
            mine = {p.partition for p in ours.assignment()}
            other = {p.partition for p in theirs.assignment()}
            return len(mine) == len(other) == 2 and mine | other == {0, 1, 2, 3}

        poll_until([ours], settled, wait_s=90)
    finally:
        ours.close()
        theirs.close()


def test_members_without_a_common_strategy_are_refused(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.group()
    with (
        Consumer(kafka.config(group_id=group, partition_assignment_strategy="range")) as first,
        Consumer(kafka.config(group_id=group, partition_assignment_strategy="sticky")) as second,
    ):
        first.subscribe([topic])
        poll_until([first], lambda: first.assignment())
        second.subscribe([topic])
        with pytest.raises(InconsistentGroupProtocolError, match="common"):
            second.poll(10)


def test_a_pattern_picks_up_topics_that_are_created_later(kafka: Cluster) -> None:
    first = kafka.topic(prefix="pattern")
    prefix = f"{first}-"
    pattern = re.compile(re.escape(first) + r"(-\w+)*")
    config = kafka.config(group_id=kafka.group(), metadata_max_age_ms=300)
    with Consumer(config) as consumer:
        consumer.subscribe(pattern)
        poll_until([consumer], lambda: consumer.subscription() == {first} and len(consumer.assignment()) == 1)
        second = kafka.topic(prefix=prefix + "more")
        second_name = {first, second}
        poll_until([consumer], lambda: {p.topic for p in consumer.assignment()} == second_name)


def test_new_partitions_are_picked_up(kafka: Cluster) -> None:
    from confluent_kafka.admin import NewPartitions

    topic = kafka.topic(1)
    with Consumer(kafka.config(group_id=kafka.group(), metadata_max_age_ms=300)) as consumer:
        consumer.subscribe([topic])
        poll_until([consumer], lambda: len(consumer.assignment()) == 1)
        kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        poll_until([consumer], lambda: len(consumer.assignment()) == 3)


def test_a_changed_subscription_rebalances(kafka: Cluster) -> None:
    first, second = kafka.topic(), kafka.topic()
    with Consumer(kafka.config(group_id=kafka.group())) as consumer:
        consumer.subscribe([first])
        poll_until([consumer], lambda: {p.topic for p in consumer.assignment()} == {first})
        consumer.subscribe([second])
        poll_until([consumer], lambda: {p.topic for p in consumer.assignment()} == {second})
        consumer.unsubscribe()
        assert consumer.assignment() == set()


def test_a_static_member_keeps_its_partitions_over_a_restart(kafka: Cluster) -> None:
    topic, group = kafka.topic(4), kafka.group()
    listener = Recorder()
    with Consumer(kafka.config(group_id=group, group_instance_id="b")) as stays:
        stays.subscribe([topic], listener)
        first = Consumer(kafka.config(group_id=group, group_instance_id="a"))
        first.subscribe([topic])
        poll_until([stays, first], lambda: len(stays.assignment()) == len(first.assignment()) == 2)
        owned, heard = first.assignment(), list(listener.events)
        first.close()
        with Consumer(kafka.config(group_id=group, group_instance_id="a")) as again:
            again.subscribe([topic])
            poll_until([again], lambda: again.assignment() == owned)
            stays.poll(0.5)
            assert listener.events == heard
            again.close(leave_group=True)
            poll_until([stays], lambda: len(stays.assignment()) == 4)


def test_a_second_member_of_the_same_instance_id_fences_the_first(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.group()
    first = Consumer(kafka.config(group_id=group, group_instance_id="same"))
    second = Consumer(kafka.config(group_id=group, group_instance_id="same"))
    try:
        first.subscribe([topic])
        poll_until([first], lambda: first.assignment())
        second.subscribe([topic])
        poll_until([second], lambda: second.assignment())

        def fenced() -> bool:
            try:
                first.poll(0.1)
            except FencedInstanceIdError:
                return True
            return False

        eventually(fenced)
    finally:
        first.close()
        second.close()


def test_commits_say_where_the_next_member_begins(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.group()
    kafka.produce(topic, [b"%d" % i for i in range(100)])
    config = kafka.config(group_id=group, enable_auto_commit=False, max_poll_records=30)
    part = TopicPartition(topic, 0)
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        assert len(read(consumer, 30)) == 30
        assert consumer.committed([part]) == {part: None}
        consumer.commit_sync()
        found = consumer.committed([part])[part]
        assert found is not None
        assert found.offset == 30
        consumer.commit_sync({part: OffsetAndMetadata(40, "by hand")})
        found = consumer.committed([part])[part]
        assert found is not None
        assert (found.offset, found.metadata) == (40, "by hand")
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        assert read(consumer, 30)[0].offset == 40


def test_one_poll_brings_what_comes_after_a_committed_offset(kafka: Cluster) -> None:
    """The commit says the leader's epoch, against which the position is held before anything is read."""
    topic, group = kafka.topic(), kafka.group()
    kafka.produce(topic, [b"%d" % i for i in range(100)])
    config = kafka.config(group_id=group, enable_auto_commit=False, max_poll_records=30)
    for begin in (0, 30):
        with Consumer(config) as consumer:
            consumer.subscribe([topic])
            assert [record.offset for record in consumer.poll(20.0)] == list(range(begin, begin + 30))
            consumer.commit_sync()


def test_automatic_commits_happen_in_poll_before_rejoining_and_on_close(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.group()
    kafka.produce(topic, [b"x"] * 20)
    part = TopicPartition(topic, 0)
    with Consumer(kafka.config(group_id=group, auto_commit_interval_ms=100, max_poll_records=5)) as consumer:
        consumer.subscribe([topic])
        read(consumer, 5)
        with Consumer(kafka.config(group_id=group)) as looker:

            def committed() -> int:
                found = looker.committed([part])[part]
                return 0 if found is None else found.offset

            consumer.pause([part])
            poll_until([consumer], lambda: committed() == 5)
            consumer.resume([part])
            read(consumer, 5)
            consumer.enforce_rebalance()
            consumer.pause([part])
            poll_until([consumer], lambda: committed() == 10)
            poll_until([consumer], lambda: consumer.assignment() == {part})
            read(consumer, 5)
            position = consumer.position(part)
            consumer.close()
            assert committed() == position


def test_callbacks_of_asynchronous_commits_come_in_order_and_before_a_synchronous_one_returns(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 20)
    part = TopicPartition(topic, 0)
    order: list[tuple[Any, int]] = []
    with Consumer(kafka.config(group_id=kafka.group(), enable_auto_commit=False)) as consumer:
        consumer.subscribe([topic])
        read(consumer, 20)
        me = threading.get_ident()

        def heard(error: Any, offsets: Any) -> None:
            assert threading.get_ident() == me
            order.append((error, offsets[part].offset))

        for offset in range(1, 11):
            consumer.commit_async({part: offset}, heard)
        consumer.commit_sync({part: 11})
        assert order == [(None, offset) for offset in range(1, 11)]
        found = consumer.committed([part])[part]
        assert found is not None
        assert found.offset == 11


def test_a_member_that_was_evicted_cannot_commit(kafka: Cluster) -> None:
    topic, group = kafka.topic(2), kafka.group()
    kafka.produce(topic, [b"x"] * 10)
    listener = Recorder()
    config = kafka.config(group_id=group, enable_auto_commit=False)
    with Consumer(config | {"max.poll.interval.ms": 1000}) as slow, Consumer(config) as other:
        slow.subscribe([topic], listener)
        poll_until([slow], lambda: len(slow.assignment()) == 2)
        other.subscribe([topic])
        # `slow` does not poll: it leaves by itself, and the other gets everything.
        poll_until([other], lambda: len(other.assignment()) == 2)
        with pytest.raises((CommitFailedError, RebalanceInProgressError)):
            slow.commit_sync({(topic, 0): 5})
        assert other.committed([(topic, 0)]) == {(topic, 0): None}
        poll_until([slow, other], lambda: len(slow.assignment()) == len(other.assignment()) == 1)
        assert ("lost", [0, 1]) in listener.events


def test_a_listener_can_seek_and_commit(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"] * 20)
    part = TopicPartition(topic, 0)

    class Keeper:
        def __init__(self, consumer: Consumer) -> None:
            self.consumer = consumer
            self.kept = 15

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                self.consumer.seek(partition, self.kept)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            if partitions:
                self.kept = self.consumer.position(part)
                self.consumer.commit_sync()

    with Consumer(kafka.config(group_id=kafka.group(), enable_auto_commit=False)) as consumer:
        consumer.subscribe([topic], Keeper(consumer))
        assert [record.offset for record in read(consumer, 5)] == list(range(15, 20))
        consumer.enforce_rebalance()
        kafka.produce(topic, [b"y"])
        assert [record.offset for record in read(consumer, 1)] == [20]
        found = consumer.committed([part])[part]
        assert found is not None
        assert found.offset == 20


def test_a_listener_can_ask_for_the_position_of_what_it_is_given(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.group()
    kafka.produce(topic, [b"x"] * 5)
    part = TopicPartition(topic, 0)
    seen: list[int] = []

    class Asker:
        def __init__(self, consumer: Consumer) -> None:
            self.consumer = consumer

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            seen.extend(self.consumer.position(partition, timeout=20) for partition in partitions)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            pass

    for start in (0, 3):
        config = kafka.config(group_id=group, enable_auto_commit=False, auto_offset_reset="earliest")
        with Consumer(config) as consumer:
            consumer.subscribe([topic], Asker(consumer))
            assert [record.offset for record in read(consumer, 5 - start)] == list(range(start, 5))
            consumer.commit_sync({part: 3})
    assert seen == [0, 3]


def test_what_a_listener_raises_comes_out_of_poll_and_the_group_goes_on(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"])

    class Broken(Recorder):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise RuntimeError("oops")

    with Consumer(kafka.config(group_id=kafka.group())) as consumer:
        consumer.subscribe([topic], Broken())
        with pytest.raises(RebalanceListenerError, match="oops"):
            poll_until([consumer], lambda: False)
        assert len(read(consumer, 1)) == 1


def test_close_leaves_the_group_at_once(kafka: Cluster) -> None:
    topic, group = kafka.topic(2), kafka.group()
    with Consumer(kafka.config(group_id=group)) as stays:
        gone = Consumer(kafka.config(group_id=group, session_timeout_ms=60_000))
        for consumer in (stays, gone):
            consumer.subscribe([topic])
        poll_until([stays, gone], lambda: len(stays.assignment()) == len(gone.assignment()) == 1)
        gone.close()
        start = time.monotonic()
        poll_until([stays], lambda: len(stays.assignment()) == 2)
        assert time.monotonic() - start < 30


def test_a_custom_assignor_is_asked_and_told_lag(kafka: Cluster) -> None:
    topic = kafka.topic(3)
    kafka.produce(topic, [b"x"] * 50, 1)
    # Without commits, what is read stays lag.
    config = kafka.config(group_id=kafka.group(), partition_assignment_strategy="lag", enable_auto_commit=False)
    with Consumer(config) as first, Consumer(config) as second:
        for consumer in (first, second):
            consumer.subscribe([topic])
        poll_until([first, second], lambda: sorted(len(c.assignment()) for c in (first, second)) == [1, 2])
        busy = next(c for c in (first, second) if TopicPartition(topic, 1) in c.assignment())
        assert busy.assignment() == {TopicPartition(topic, 1)}


def test_a_group_is_needed_to_subscribe_and_to_commit(kafka: Cluster) -> None:
    with Consumer(kafka.config()) as consumer:
        with pytest.raises(InvalidGroupIdError, match=r"group\.id"):
            consumer.subscribe(["x"])
        with pytest.raises(InvalidGroupIdError, match=r"group\.id"):
            consumer.commit_sync()


def test_a_group_goes_on_while_records_that_were_fetched_before_last(kafka: Cluster) -> None:
    """Each poll has records at hand; answers of the coordinator are to be read all the same."""
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % number for number in range(20_000)])
    with Consumer(kafka.config(group_id=kafka.group(), enable_auto_commit=False)) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(1, 1))
        heard: list[Any] = []

        def goes_on(look: Any) -> bool:
            # Fewer than one fetch brings, twice: the records do not run out in between.
            for _ in range(8_000):
                assert consumer.poll(5, 1)
                if look():
                    return True
                time.sleep(0.001)
            return False

        consumer.commit_async(callback=lambda error, offsets: heard.append(error))
        assert goes_on(lambda: heard), "no answer to a commit"
        assert heard == [None]
        core = consumer._core
        assert core is not None
        assert core.link is not None
        assert core.membership is not None
        assert core.heartbeats is not None
        finds = core.link.finds
        core.heartbeats._news = News(HeartbeatVerdict.COORDINATOR_UNKNOWN, core.membership.identity)
        assert goes_on(lambda: core.link is not None and core.link.finds > finds), "no coordinator was found"
