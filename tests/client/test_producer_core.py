"""The producer's sender over a fake cluster under virtual time: order, retries, duplicates, time-outs, splits."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from headrace.client.errors import ClientClosedError, DeliveryTimeoutError
from headrace.errors import (
    ErrorCode,
    InvalidRecordError,
    InvalidTopicError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    UnknownTopicOrPartitionError,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from headrace.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from headrace.records import Batch

from .fake import CUT, CUT_BEFORE, SILENCE, FakeCluster, VirtualClock, World


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def produced(cluster: FakeCluster) -> list[Any]:
    return [request for _, name, _, request in cluster.requests if name == "Produce"]


def headers_sent(cluster: FakeCluster) -> list[Any]:
    return [
        Batch(bytes(data.records)).header()
        for request in produced(cluster)
        for topic in request.topic_data
        for data in topic.partition_data
    ]


def refuse(cluster: FakeCluster, *codes: ErrorCode, **fields: Any) -> None:
    """The next produce requests are answered with these codes, one each, and nothing is written."""
    left = list(codes)

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce" or not left:
            return None
        code = left.pop(0)
        answer = cluster._produce(-1, request, 13)
        for topic in answer.responses:
            topic.partition_responses = [
                PartitionProduceResponse(index=p.index, error_code=code, base_offset=-1, **fields)
                for p in topic.partition_responses
            ]
        return answer

    cluster.script = script


def test_records_arrive_in_order_with_offsets_and_timestamps(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    deliveries = [world.send("t", b"%d" % i, timestamp=1000 + i) for i in range(5000)]
    world.deliver(deliveries)
    assert cluster.values("t") == [b"%d" % i for i in range(5000)]
    assert [delivery.result() for delivery in deliveries] == [("t", 0, i, 1000 + i) for i in range(5000)]


def test_keyed_and_keyless_records_of_one_partition_keep_their_order(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    world.deliver([world.send("t", b"%d" % i, key=None if i % 3 else b"k") for i in range(500)])
    assert cluster.values("t") == [b"%d" % i for i in range(500)]


def test_batches_keep_to_batch_size_and_requests_to_their_maximum(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 8})
    world = World(cluster, batch_size=10_000, max_request_size=50_000)
    world.deliver([world.send("t", b"x" * 500, partition=i % 8) for i in range(2000)])
    headers = headers_sent(cluster)
    assert all(header.size <= 10_000 for header in headers)
    assert max(header.size for header in headers) > 9_000
    for request in produced(cluster):
        assert sum(len(data.records) for topic in request.topic_data for data in topic.partition_data) <= 50_000


def test_a_record_larger_than_a_batch_travels_alone(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, batch_size=1000)
    world.deliver([world.send("t", b"a"), world.send("t", b"b" * 5000), world.send("t", b"c")])
    assert [len(value) for value in cluster.values("t")] == [1, 5000, 1]


def test_linger_gathers_records_and_ends(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, linger_ms=500)
    world.deliver([world.send("t", b"warm-up")])
    start = clock.now
    deliveries = [world.send("t", b"a")]
    world.producer.turn()
    clock.now += 0.2
    deliveries.append(world.send("t", b"b"))
    world.deliver(deliveries)
    assert 0.5 <= clock.now - start < 0.6
    assert headers_sent(cluster)[-1].count == 2


def test_flush_does_not_linger(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, linger_ms=60_000, delivery_timeout_ms=200_000)
    world.send("t", b"a")
    wait = world.producer.flush()
    start = clock.now
    world.run_until(lambda: wait.is_done)
    assert clock.now - start < 5
    assert cluster.values("t") == [b"a"]


@pytest.mark.parametrize("seed", range(6))
def test_cuts_errors_and_silence_lose_and_duplicate_nothing_and_keep_order(clock: VirtualClock, seed: int) -> None:
    rng = random.Random(seed)
    cluster = FakeCluster(clock, brokers=2, topics={"t": 3})
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT]

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce" or rng.random() > 0.3:
            return None
        if rng.random() < 0.2:
            answer = cluster._produce(-1, request, 13)
            code = rng.choice(codes)
            for topic in answer.responses:
                for partition in topic.partition_responses:
                    partition.error_code = code
            return answer
        if rng.random() < 0.1:
            partition = rng.randrange(3)
            _, epoch = cluster.leaders[("t", partition)]
            cluster.leaders[("t", partition)] = (rng.choice([1, 2]), epoch + 1)
        return rng.choice([CUT, CUT_BEFORE, CUT, SILENCE])

    cluster.script = script
    world = World(cluster, seed, batch_size=400, request_timeout_ms=500, delivery_timeout_ms=10_000_000, linger_ms=0)
    deliveries = []
    for i in range(1500):
        deliveries.append(world.send("t", b"%d" % i, partition=i % 3))
        if i % 40 == 0:
            world.step()
    world.deliver(deliveries, 100_000)
    assert {str(delivery.exception()) for delivery in deliveries} == {"None"}
    for partition in range(3):
        assert cluster.logs[("t", partition)].values == [b"%d" % i for i in range(partition, 1500, 3)]
    for i, delivery in enumerate(deliveries):
        where = delivery.result()
        assert cluster.logs[("t", where.partition)].records[where.offset].value == b"%d" % i


@pytest.mark.slow
def test_a_thousand_cuts_lose_and_duplicate_nothing(clock: VirtualClock) -> None:
    rng = random.Random(99)
    cluster = FakeCluster(clock, topics={"t": 1})
    cuts = Counter[str]()

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce" or cuts.total() >= 1000 or rng.random() < 0.2:
            return None
        kind = rng.choice([CUT, CUT_BEFORE])
        cuts[kind] += 1
        return kind

    cluster.script = script
    world = World(cluster, batch_size=300, linger_ms=0, delivery_timeout_ms=2_000_000_000, reconnect_backoff_max_ms=50)
    deliveries = [world.send("t", b"%d" % i) for i in range(4000)]
    world.deliver(deliveries, 10_000_000)
    assert cuts.total() == 1000
    assert cluster.values("t") == [b"%d" % i for i in range(4000)]


def test_without_idempotence_a_lost_answer_may_duplicate_but_one_in_flight_keeps_order(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    answers = [CUT, None, CUT]
    cluster.script = lambda node, name, request: answers.pop() if name == "Produce" and answers else None
    world = World(
        cluster, enable_idempotence=False, max_in_flight_requests_per_connection=1, batch_size=200, linger_ms=0
    )
    world.deliver([world.send("t", b"%d" % i) for i in range(100)])
    values = cluster.values("t")
    assert len(values) > 100
    first_seen = list(dict.fromkeys(values))
    assert first_seen == [b"%d" % i for i in range(100)]
    assert all(header.producer_id == -1 for header in headers_sent(cluster))


def test_the_leader_is_found_again_when_it_moved(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, brokers=2, topics={"t": 1})
    world = World(cluster)
    world.deliver([world.send("t", b"a")])
    cluster.leaders[("t", 0)] = (2, 1)
    world.deliver([world.send("t", b"b")], 20)
    assert cluster.values("t") == [b"a", b"b"]


def test_an_unanswered_batch_is_there_once_though_its_leader_moved_and_many_more_were_sent(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, brokers=2, topics={"t": 1})
    world = World(cluster, batch_size=1, linger_ms=0, request_timeout_ms=2000)
    world.deliver([world.send("t", b"a")])
    cluster.script = lambda node, name, request: SILENCE if name == "Produce" and node == 1 else None
    sent = [world.send("t", b"b")]
    world.run_until(lambda: cluster.values("t") == [b"a", b"b"])
    # The way to the new leader is free: a broker remembers five batches, and "b" must not be the sixth from the end.
    cluster.leaders[("t", 0)] = (2, 1)
    view = world.producer.core.view
    while (leader := view.leader_of("t", 0)) is None or leader.id != 2:
        world.producer.core.refresh_metadata()
        world.settle()
        clock.now += 0.05
    for i in range(20):
        sent.append(world.send("t", b"%d" % i))
        world.settle()
        clock.now += 0.05
    world.deliver(sent, 30)
    assert cluster.values("t") == [b"a", b"b", *(b"%d" % i for i in range(20))]


def test_delivery_timeout_ends_what_cannot_be_delivered(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, delivery_timeout_ms=10_000, request_timeout_ms=2000)
    world.deliver([world.send("t", b"a")])
    cluster.script = lambda node, name, request: CUT_BEFORE if name == "Produce" else None
    errors: list[Any] = []
    lost = world.send("t", b"lost", on_delivery=lambda error, metadata: errors.append((error, metadata)))
    start = clock.now
    world.deliver([lost])
    assert 10 <= clock.now - start < 13
    with pytest.raises(DeliveryTimeoutError, match=r"t-0.*10000 ms.*delivery.timeout.ms"):
        lost.result()
    assert isinstance(errors[0][0], DeliveryTimeoutError)
    assert errors[0][1] == ("t", 0, -1, lost[4] or errors[0][1].timestamp)
    # Whether it was written is not known, so the epoch changes, and what follows is delivered once.
    cluster.script = lambda node, name, request: None
    world.deliver([world.send("t", b"%d" % i) for i in range(3)])
    assert cluster.values("t") == [b"a", b"0", b"1", b"2"]
    assert world.producer.identity.epoch == 1


def test_what_brokers_answered_until_the_time_was_over_is_said(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, delivery_timeout_ms=10_000, request_timeout_ms=2000)
    world.deliver([world.send("t", b"a")])
    refuse(cluster, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 1000)
    late = world.send("t", b"late")
    world.deliver([late])
    assert isinstance(late.exception(), DeliveryTimeoutError)
    assert "last: too few replicas are in sync" in str(late.exception())


def test_retries_are_bounded(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, retries=2)
    world.deliver([world.send("t", b"a")])
    refuse(cluster, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 10)
    failed = world.send("t", b"b")
    before = len(produced(cluster))
    world.deliver([failed])
    assert len(produced(cluster)) - before == 3
    assert "NOT_ENOUGH" in type(failed.exception()).code.name  # type: ignore[union-attr]


def test_a_batch_too_large_for_the_broker_is_split_until_it_fits(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    cluster.message_max_bytes = 700
    world = World(cluster, batch_size=16_384)
    deliveries = [world.send("t", b"%03d" % i + b"x" * 97) for i in range(100)]
    later = [world.send("t", b"later")]
    world.deliver(deliveries + later)
    assert [value[:3] for value in cluster.values("t")] == [b"%03d" % i for i in range(100)] + [b"lat"]
    assert [delivery.result().offset for delivery in deliveries] == list(range(100))
    assert world.producer.metrics.splits > 0


def test_a_single_record_too_large_fails_alone(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    cluster.message_max_bytes = 700
    world = World(cluster)
    deliveries = [world.send("t", b"a"), world.send("t", b"b" * 1000), world.send("t", b"c")]
    world.deliver(deliveries)
    assert [type(delivery.exception()) for delivery in deliveries] == [type(None), MessageTooLargeError, type(None)]
    assert cluster.values("t") == [b"a", b"c"]


def test_a_record_over_max_request_size_is_refused_before_it_is_sent(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, max_request_size=2000)
    deliveries = [world.send("t", b"a"), world.send("t", b"b" * 3000), world.send("t", b"c")]
    world.deliver(deliveries)
    error = deliveries[1].exception()
    assert isinstance(error, MessageTooLargeError)
    assert "max.request.size" in str(error)
    assert cluster.values("t") == [b"a", b"c"]


def test_out_of_order_sequence_bumps_the_epoch_and_goes_on(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    world.deliver([world.send("t", b"a"), world.send("t", b"b")])
    # The broker lost the end of its log: the producer's last number with it.
    log = cluster.logs[("t", 0)]
    epoch, recent = log.producers[world.producer.identity.producer_id]
    recent[-1] = (recent[-1][0] - 5, recent[-1][1] - 5, recent[-1][2])
    world.deliver([world.send("t", b"%d" % i) for i in range(10)])
    assert cluster.values("t")[2:] == [b"%d" % i for i in range(10)]
    assert world.producer.identity.epoch == epoch + 1


def test_a_batch_that_a_restarted_broker_does_not_remember_is_not_sent_with_another_number(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, batch_size=1, linger_ms=0, request_timeout_ms=2000)
    world.deliver([world.send("t", b"a")])
    cluster.script = lambda node, name, request: SILENCE if name == "Produce" else None
    sent = [world.send("t", value) for value in (b"b", b"c", b"d")]
    world.run_until(lambda: cluster.values("t") == [b"a", b"b", b"c", b"d"])
    # It wrote all of them, and knows the last one when it is back.
    _, recent = cluster.logs[("t", 0)].producers[world.producer.identity.producer_id]
    while len(recent) > 1:
        recent.popleft()
    cluster.script = lambda node, name, request: None
    world.deliver(sent, 30)
    world.deliver([world.send("t", b"e")])
    assert cluster.values("t") == [b"a", b"b", b"c", b"d", b"e"]
    errors = [delivery.exception() for delivery in sent]
    assert [type(error) for error in errors] == [
        OutOfOrderSequenceNumberError,
        OutOfOrderSequenceNumberError,
        type(None),
    ]
    assert "may have been written" in str(errors[0])
    assert world.producer.identity.epoch == 0


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
    ids=lambda code: code.name,
)
def test_a_batch_that_was_refused_after_it_was_written_is_not_sent_with_another_number(
    clock: VirtualClock, code: ErrorCode
) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, batch_size=1, linger_ms=0, request_timeout_ms=2000, delivery_timeout_ms=20_000)
    world.deliver([world.send("t", b"a")])
    wrote = cluster.logs[("t", 0)]

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce":
            return None
        answer = cluster._produce(node, request, 13)
        answer.responses[0].partition_responses[0].error_code = code
        return answer

    cluster.script = script
    sent = [world.send("t", value) for value in (b"b", b"c", b"d")]
    world.run_until(lambda: b"b" in wrote.values)
    # Whoever leads from now on knows the last batch alone, and calls what comes before it out of order.
    _, recent = wrote.producers[world.producer.identity.producer_id]
    while len(recent) > 1:
        recent.popleft()
    cluster.script = lambda node, name, request: None
    world.run_until(lambda: all(one.done() for one in sent))
    world.deliver([world.send("t", b"e")], 60)
    assert sorted(wrote.values) == sorted(set(wrote.values)), "a record is there twice"
    assert wrote.values[-1] == b"e"


def test_unknown_producer_id_starts_the_numbers_again(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    world.deliver([world.send("t", b"a")])
    refuse(cluster, ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=1)
    world.deliver([world.send("t", b"b")])
    assert cluster.values("t") == [b"a", b"b"]
    last = headers_sent(cluster)[-1]
    assert (last.producer_epoch, last.base_sequence) == (1, 0)


def test_an_error_that_stays_fails_at_once_and_what_follows_arrives(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    world.deliver([world.send("t", b"a")])
    refuse(
        cluster,
        ErrorCode.INVALID_RECORD,
        record_errors=[BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")],
    )
    bad = [world.send("t", b"%d" % i) for i in range(3)]
    world.deliver(bad)
    errors = [delivery.exception() for delivery in bad]
    assert all(isinstance(error, InvalidRecordError) for error in errors)
    assert "no key" in str(errors[1])
    assert "send it again" in str(errors[0])
    world.deliver([world.send("t", b"b")])
    assert cluster.values("t") == [b"a", b"b"]


def test_a_first_batch_that_is_refused_is_not_overtaken_by_the_second(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, batch_size=300)
    refuse(cluster, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    deliveries = [world.send("t", b"%d" % i) for i in range(100)]
    world.deliver(deliveries, 30)
    assert cluster.values("t") == [b"%d" % i for i in range(100)]


def test_a_duplicate_that_the_broker_reports_counts_as_delivered(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    refuse(cluster, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    delivery = world.send("t", b"a")
    world.deliver([delivery])
    assert delivery.result().offset == -1


def test_acks_0_does_not_wait(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, acks=0)
    delivery = world.send("t", b"a")
    world.deliver([delivery])
    world.run_until(lambda: cluster.values("t") == [b"a"])
    assert delivery.result().offset == -1
    assert not world.setup.settings.idempotent


def test_a_topic_that_appears_later_gets_its_records_in_order(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = World(cluster)
    deliveries = [world.send("t", b"%d" % i) for i in range(10)]
    world.step()
    deliveries += [world.send("t", b"%d" % i) for i in range(10, 20)]
    for _ in range(5):
        world.step()
    cluster.create("t", 1)
    world.deliver(deliveries)
    assert cluster.values("t") == [b"%d" % i for i in range(20)]


def test_a_topic_that_never_appears_fails_after_max_block_ms(clock: VirtualClock) -> None:
    world = World(FakeCluster(clock), max_block_ms=5000)
    delivery = world.send("nowhere", b"a")
    start = clock.now
    world.deliver([delivery])
    assert 5 <= clock.now - start < 11
    assert "nowhere" in str(delivery.exception())
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(delivery.exception())


def test_an_invalid_topic_fails_at_once(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Metadata":
            return None
        response = cluster._metadata(request)
        response.topics = [
            MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=topic.name)
            for topic in request.topics
        ]
        return response

    cluster.script = script
    world = World(cluster)
    delivery = world.send("no good", b"a")
    start = clock.now
    world.deliver([delivery])
    assert isinstance(delivery.exception(), InvalidTopicError)
    assert clock.now - start < 5


def test_a_partition_that_does_not_exist_is_looked_for_until_it_is_too_late(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 2})
    world = World(cluster)
    world.deliver([world.send("t", b"a", partition=1)])
    cluster.create("t", 3)
    world.deliver([world.send("t", b"b", partition=2)])
    assert cluster.logs[("t", 2)].values == [b"b"]
    start = clock.now
    missing = world.send("t", b"c", partition=7)
    world.deliver([missing])
    assert isinstance(missing.exception(), UnknownTopicOrPartitionError)
    assert "0 to 2" in str(missing.exception())
    assert clock.now - start >= 60  # max.block.ms


def test_a_partition_is_waited_for_that_the_broker_which_was_asked_has_not_heard_of(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    world.deliver([world.send("t", b"a", partition=0)])
    asked: list[int] = []

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Metadata":
            asked.append(node)
            if len(asked) == 3:
                cluster.create("t", 2)
        return None

    cluster.script = script
    late = world.send("t", b"b", partition=1)
    world.settle()
    flush = world.producer.flush()
    while not late.done():
        assert flush.left
        world.step()
    assert late.result().partition == 1
    assert not flush.left
    assert len(asked) >= 3


def test_closing_fails_what_is_left_and_says_so(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    cluster.down = {1}
    world = World(cluster)
    delivery = world.send("t", b"a")
    world.step()
    world.producer.abort("the producer was closed")
    assert isinstance(delivery.exception(), ClientClosedError)


def test_callbacks_come_also_when_nobody_keeps_the_handles(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    cluster.message_max_bytes = 300
    world = World(cluster)
    told: list[Any] = []
    for i in range(50):
        world.send("t", b"%d" % i, on_delivery=lambda error, metadata, i=i: told.append((i, error, metadata.offset)))
    world.send("t", b"x" * 400, on_delivery=lambda error, metadata: told.append((50, type(error), metadata.offset)))
    world.run_until(lambda: len(told) == 51)
    assert told == [(i, None, i) for i in range(50)] + [(50, MessageTooLargeError, -1)]


def test_a_raising_callback_does_not_stop_the_others(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    told = []

    def callback(error: Any, metadata: Any) -> None:
        told.append(metadata.offset)
        if metadata.offset == 1:
            raise ZeroDivisionError

    world.deliver([world.send("t", b"%d" % i, on_delivery=callback) for i in range(4)])
    assert told == [0, 1, 2, 3]
    assert "delivery callback" in caplog.text


def test_old_brokers_are_sent_topics_by_name(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    cluster.served[ApiKey.PRODUCE] = (0, 7)
    cluster.served[ApiKey.METADATA] = (0, 7)
    cluster.served[ApiKey.INIT_PRODUCER_ID] = (0, 1)
    cluster.served[ApiKey.API_VERSIONS] = (0, 2)
    world = World(cluster)
    world.deliver([world.send("t", b"a")])
    assert cluster.values("t") == [b"a"]
    assert {version for _, name, version, _ in cluster.requests if name == "Produce"} == {7}


def test_memory_is_free_again_when_everything_is_done(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 4})
    cluster.message_max_bytes = 1500
    world = World(cluster, max_request_size=5000)
    rng = random.Random(3)
    deliveries = [
        world.send("t", b"x" * rng.choice([10, 1000, 6000]), key=rng.choice([None, b"k"])) for _ in range(300)
    ]
    deliveries.append(world.send("missing", b"y"))
    world.deliver(deliveries)
    accumulator = world.producer.accumulator
    assert accumulator.buffered_bytes == 0
    assert not accumulator.incomplete
    assert not accumulator.active


def test_a_topic_that_was_idle_is_followed_to_its_new_leader_when_it_is_used_again(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, brokers=2, topics={"t": 1})
    world = World(cluster, metadata_max_idle_ms=10_000, metadata_max_age_ms=3_600_000)
    world.deliver([world.send("t", b"a")])
    start = clock.now
    world.run_until(lambda: clock.now > start + 60)
    cluster.leaders["t", 0] = (2, 1)
    again = world.send("t", b"b")
    world.deliver([again])
    assert again.result().offset == 1
    assert cluster.values("t") == [b"a", b"b"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_an_answer_counts_whatever_metadata_say_of_the_topic_by_then(clock: VirtualClock, idempotent: bool) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, enable_idempotence=idempotent)
    world.deliver([world.send("t", b"a")])

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Produce":
            # A broker that was just started does not know of the topic yet, and answers before this one does.
            told = cluster._metadata(MetadataRequest(topics=[]))
            unknown = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="t")
            world.core.take_metadata(MetadataResponse(brokers=told.brokers, topics=[unknown]), asked=[])
            cluster.script = lambda node, name, request: None

    cluster.script = script
    world.deliver([world.send("t", b"b")])
    assert cluster.values("t") == [b"a", b"b"]
    assert len(produced(cluster)) == 2
