"""What a broker tells Prometheus: Kafka's names, and the truth."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import eventually

from headrace import Consumer, Producer
from headrace.broker.metrics.collector import quantile_ms
from headrace.broker.metrics.readings import PhaseReading
from headrace.client.admin import Admin, NewTopic
from headrace.metrics import Exporter, registry_of, serve
from headrace.metrics.exporter import MetricsError
from headrace.testing.embedded import EmbeddedBroker, broker

_REFERENCE = Path(__file__).parent.parent / "reference" / "metrics" / "kafka-4.3.1.txt"
RECORDS = 50


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(overrides={"headrace.metrics.port": "0"}) as running:
        with Admin(bootstrap_servers=running.address) as admin:
            admin.create_topics([NewTopic("events", num_partitions=2)]).all()
        with Producer(bootstrap_servers=running.address) as producer:
            for number in range(RECORDS):
                producer.send("events", b"x" * 100, key=str(number).encode())
        with Consumer(
            {"bootstrap.servers": running.address, "group.id": "readers", "auto.offset.reset": "earliest"}
        ) as consumer:
            consumer.subscribe(["events"])
            read = 0
            while read < RECORDS - 10:
                read += len(consumer.poll(timeout=1.0, max_records=RECORDS - 10 - read))
            consumer.commit_sync()
        yield running


def page(running: EmbeddedBroker) -> str:
    address = running.broker.metrics_address
    assert address is not None
    with urllib.request.urlopen(address) as answer:
        return str(answer.read(), "utf-8")


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_name_of_kafkas_is_one_that_kafka_has_with_the_same_labels(kafka: EmbeddedBroker) -> None:
    theirs = set()
    for line in _REFERENCE.read_text().splitlines():
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})?", line)
        if found:
            theirs.add((found[1], frozenset(re.findall(r"(\w+)=", found[2] or ""))))
    ours = {
        (name, frozenset(label for label, _ in labels))
        for name, labels in samples(page(kafka))
        if name.startswith("kafka_") and not name.startswith("kafka_consumergroup_")
    }
    unknown = {
        (name, labels)
        for name, labels in ours - theirs
        # Which version a request had is not counted here; dashboards sum it away.
        if (name, labels | {"version"}) not in theirs
    }
    assert not unknown
    assert len(ours) > 40


def test_what_came_and_went_is_counted(kafka: EmbeddedBroker) -> None:
    found = samples(page(kafka))
    of_topic = (("topic", "events"),)
    assert found["kafka_server_brokertopicmetrics_messagesin_total", of_topic] == RECORDS
    assert found["kafka_server_brokertopicmetrics_bytesin_total", of_topic] > RECORDS * 100
    assert found["kafka_server_brokertopicmetrics_bytesout_total", of_topic] >= (RECORDS - 10) * 100
    ends = [found["kafka_log_log_logendoffset", (("partition", str(p)), ("topic", "events"))] for p in (0, 1)]
    assert sum(ends) == RECORDS
    assert found["kafka_controller_kafkacontroller_activecontrollercount", ()] == 1
    assert found["kafka_server_replicamanager_underreplicatedpartitions", ()] == 0
    assert found["kafka_network_requestmetrics_requests_total", (("request", "Produce"),)] >= 1
    produced = (("quantile", "0.99"), ("request", "Produce"))
    assert found["kafka_network_requestmetrics_localtimems", produced] > 0


def test_how_far_a_log_is_compacted_is_told() -> None:
    settings = {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024), "min.cleanable.dirty.ratio": "0.01"}
    overrides = {"headrace.metrics.port": "0", "log.cleaner.backoff.ms": "50"}
    with broker(overrides=overrides) as running:
        with Admin(bootstrap_servers=running.address) as admin:
            admin.create_topics([NewTopic("profiles", 1, 1, settings)]).all()
        # Over two segments: the last one is never compacted.
        with Producer(bootstrap_servers=running.address) as producer:
            for number in range(220):
                producer.send("profiles", b"x" * 10_000, key=str(number % 5).encode())
        where = (("partition", "0"), ("topic", "profiles"))
        eventually(lambda: samples(page(running))["headrace_log_compacted_to_offset", where] > 0)
        found = samples(page(running))
        assert found["headrace_log_compacted_to_offset", where] <= 220
        assert found["headrace_log_uncleanable", where] == 0
        assert found["headrace_compactions_total", ()] >= 1
        assert found["kafka_log_logcleanermanager_time_since_last_run_ms", ()] < 60_000


def test_the_lag_of_groups_is_told(kafka: EmbeddedBroker) -> None:
    found = samples(page(kafka))
    lags = {labels: value for (name, labels), value in found.items() if name == "kafka_consumergroup_lag"}
    assert sum(value for labels, value in lags.items() if ("consumergroup", "readers") in labels) == 10


def test_nothing_is_served_unless_asked_for() -> None:
    with broker() as running:
        assert running.broker.metrics_address is None


def test_clients_have_kafkas_names(kafka: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=kafka.address, client_id="till") as producer:
        producer.send("events", b"one").result(10)
        with serve(0, producer) as exporter, urllib.request.urlopen(exporter.address) as answer:
            found = samples(answer.read().decode())
    assert found["kafka_producer_producer_metrics_record_send_total", (("client_id", "till"),)] == 1


def test_a_token_is_needed_where_others_can_reach_it() -> None:
    with pytest.raises(MetricsError, match="token"):
        Exporter(registry_of(), 0, host="0.0.0.0")
    with Exporter(registry_of(), 0, token="secret") as exporter:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(exporter.address)
        assert refused.value.code == 401
        refused.value.close()
        request = urllib.request.Request(exporter.address, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200


def test_quantiles_are_those_of_what_came_since() -> None:
    before = PhaseReading(1.0, (0, 0, 100, 0, 0))
    now = PhaseReading(1.1, (0, 0, 100, 9, 1))
    assert quantile_ms(now, None, 0.5) == 0.004
    assert quantile_ms(now, before, 0.5) == 0.008
    assert quantile_ms(now, before, 0.99) == 0.016
    assert quantile_ms(before, before, 0.99) == 0.0


def test_the_dashboard_asks_for_what_there_is(kafka: EmbeddedBroker) -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
    text = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    asked = set(re.findall(r"\b(?:kafka|headrace)_\w+", text))
    there = {name for name, _ in samples(page(kafka))}
    assert len(asked) > 15
    assert asked <= there


def test_the_figures_to_watch_are_there(kafka: EmbeddedBroker) -> None:
    table = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text().partition("## Ten figures to watch")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line.split("|")[1]]
    assert len(rows) == 10
    asked = {name for row in rows for name in re.findall(r"\b(?:kafka|headrace)_\w+", row.split(" | ")[0])}
    there = {name for name, _ in samples(page(kafka))}
    assert asked <= there
