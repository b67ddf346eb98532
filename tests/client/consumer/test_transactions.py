"""What a consumer sees of transactions that another client's producer made."""

from __future__ import annotations

from tests.client.consumer.conftest import Cluster, read
from tests.waiting import eventually

from headrace import Consumer, RangeReader


def _fill(kafka: Cluster, topic: str) -> None:
    """Committed, aborted, committed, and one left open; each of five records, by two producers."""
    from confluent_kafka import Producer

    producers = [
        Producer({"bootstrap.servers": kafka.address, "transactional.id": f"{topic}-{i}", "linger.ms": 0})
        for i in (0, 1)
    ]
    for producer in producers:
        producer.init_transactions(30)
    for producer, word, ends in (
        (producers[0], "committed", "commit"),
        (producers[1], "aborted", "abort"),
        (producers[0], "later", "commit"),
    ):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(topic, f"{word}-{i}".encode(), partition=0)
        producer.flush(30)
        getattr(producer, f"{ends}_transaction")(30)


def test_read_committed_skips_aborted_records_and_markers(kafka: Cluster) -> None:
    topic = kafka.topic()
    _fill(kafka, topic)
    with Consumer(kafka.config(isolation_level="read_committed")) as consumer:
        consumer.assign([(topic, 0)])
        found = read(consumer, 10)
        end = consumer.end_offsets([(topic, 0)])[(topic, 0)]
        eventually(lambda: found.extend(consumer.poll(0.1)) or consumer.position((topic, 0)) == end, "the end")
    assert [record.value.decode() for record in found] == [f"{w}-{i}" for w in ("committed", "later") for i in range(5)]


def test_read_uncommitted_sees_aborted_records_but_no_markers(kafka: Cluster) -> None:
    topic = kafka.topic()
    _fill(kafka, topic)
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        found = read(consumer, 15)
        end = consumer.end_offsets([(topic, 0)])[(topic, 0)]
        eventually(lambda: found.extend(consumer.poll(0.1)) or consumer.position((topic, 0)) == end, "the end")
    assert len(found) == 15


def test_read_committed_ends_before_an_open_transaction(kafka: Cluster) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic()
    kafka.produce(topic, [b"first"])
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"{topic}-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    kafka.produce(topic, [b"behind"])
    with Consumer(kafka.config(isolation_level="read_committed")) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, 1)] == [b"first"]
        assert not consumer.poll(0.3)
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 1}
        assert consumer.current_lag((topic, 0)) == 0
        producer.commit_transaction(30)
        assert [record.value for record in read(consumer, 2)] == [b"open", b"behind"]


def test_a_range_with_markers_and_aborted_records_ends(kafka: Cluster) -> None:
    topic = kafka.topic()
    _fill(kafka, topic)
    with RangeReader({"bootstrap.servers": kafka.address, "isolation.level": "read_committed"}) as reader:
        end = reader.end_offsets([(topic, 0)])[(topic, 0)]
        assert end == 18
        found = list(reader.read_records({(topic, 0): (0, end)}, timeout=60))
        assert len(found) == 10
        # A range of nothing but an aborted transaction and its marker.
        assert list(reader.read({(topic, 0): (6, 12)}, timeout=60)) == []
