"""Clients and producers that tasks of one worker share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace import RangeReader, testing
from headrace.client.admin import Admin, NewTopic
from headrace.config import Password
from headrace.spark import connections
from headrace.spark.connections import forget, lent_producer, make_client, shared_client


@pytest.fixture
def config() -> Iterator[dict[str, str]]:
    with testing.broker() as kafka:
        yield {"bootstrap.servers": kafka.address}
        for producer, _ in connections._producers.values():
            producer.close()
        connections._producers.clear()


def test_a_producer_is_kept_for_the_next_task(config: dict[str, str]) -> None:
    with lent_producer(config) as first:
        first.send("t", b"1").result()
    with lent_producer(config) as second:
        second.send("t", b"2").result()
    assert second is first
    with lent_producer({**config, "acks": "1"}) as other:
        assert other is not first


def test_a_producer_is_not_used_by_two_at_a_time(config: dict[str, str]) -> None:
    with lent_producer(config) as outer, lent_producer(config) as inner:
        assert inner is not outer


def test_a_failed_task_leaves_nothing_behind(config: dict[str, str]) -> None:
    with pytest.raises(ZeroDivisionError), lent_producer(config) as first:  # noqa: PT012
        first.send("t", b"1").result()
        raise ZeroDivisionError
    with lent_producer(config) as second:
        assert second is not first
        second.send("t", b"2").result()


def test_a_producer_that_was_idle_for_long_is_made_anew(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lent_producer(config) as first:
        first.send("t", b"1").result()
    monkeypatch.setattr(connections, "PRODUCER_IDLE_MAX_S", -1.0)
    with lent_producer(config) as second:
        assert second is not first


def test_a_password_that_has_changed_is_another_connection(config: dict[str, str]) -> None:
    first = shared_client({**config, "sasl.password": Password("old")}, [])
    second = shared_client({**config, "sasl.password": Password("new")}, [])
    assert second is not first
    assert shared_client({**config, "sasl.password": "new"}, []) is second
    forget(first)
    forget(second)


def test_librdkafkas_names_reach_the_tasks() -> None:
    client = make_client({"metadata.broker.list": "broker:1", "socket.timeout.ms": "1234", "no.clients": "setting"})
    assert client.core.config.bootstrap == (("broker", 1),)
    assert client.core.config.request_timeout_ms == 1234
    client.close()


def test_a_client_asks_for_what_its_task_needs_and_not_for_a_topic_that_is_gone(config: dict[str, str]) -> None:
    with Admin(config) as admin:
        admin.create_topics([NewTopic("kept", 1, 1), NewTopic("gone", 1, 1)]).all()
        client = shared_client(config, ["kept", "gone"])
        client.ensure_metadata(client.core.clock.monotonic() + 30)
        admin.delete_topics(["gone"]).all()
        admin.create_topics([NewTopic("next", 1, 1)]).all()
    assert shared_client(config, ["kept", "next"]) is client
    client.ensure_metadata(client.core.clock.monotonic() + 30)
    assert client.core.view.topics.keys() == {"kept", "next"}
    forget(client)


def test_rows_too_large_together_for_their_topic_are_sent_in_smaller_batches(config: dict[str, str]) -> None:
    """Of the sink at least once, too, whose batches are larger than Kafka's by default."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    import pyarrow as pa

    from headrace.spark.columns import Shape
    from headrace.spark.sink import produce

    with Admin(config) as admin:
        admin.create_topics([NewTopic("small", 1, configs={"max.message.bytes": "20000"})]).all()
    values = [b"%06d" % number + os.urandom(200) for number in range(3_000)]
    rows = pa.RecordBatch.from_pydict({"value": values})
    assert produce(iter([rows]), Shape(("value",), "small"), config) == len(values)
    with RangeReader(config) as reader:
        assert [record.value for record in reader.read_records({("small", 0): (0, len(values))})] == values
