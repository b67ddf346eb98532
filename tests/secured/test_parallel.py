"""Consuming in parallel on a Kafka that asks who it is: members, readers and processes, letters and transactions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.secured.conftest import SecuredKafka
from tests.waiting import eventually

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.cli.app import run as run_command
from headrace.config import format_properties
from headrace.errors import SaslAuthenticationFailedError
from headrace.parallel import Consumers, ParallelConsumer, Pool, Ranges, Retry, Window

pytestmark = [pytest.mark.slow, pytest.mark.java]

RECORDS = 20
ROOT = Path(__file__).parents[2]


def handle(record: Any) -> None:
    if record.value == b"3":
        raise ValueError("three")


async def handle_async(record: Any) -> None:
    handle(record)


def topics_of(config: dict[str, Any]) -> tuple[str, str]:
    """A topic with records, and one for dead letters."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(config) as admin:
        admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}.dead", 1)]).all()
    with Producer(config) as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(RECORDS)]).result(30)
    return topic, f"{topic}.dead"


def is_through(config: dict[str, Any], group: str, topic: str) -> bool:
    with Admin(config) as admin:
        found = admin.list_partition_offsets(group, [(topic, 0), (topic, 1)])  # type: ignore[list-item]  # pairs will do
    return sum(one.offset for one in found.values() if one is not None) >= RECORDS


def letters(config: dict[str, Any], topic: str) -> list[bytes | None]:
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning([(topic, 0)])
        return [record.value for record in consumer.poll(30)]


WAYS: dict[str, dict[str, Any]] = {
    "threads": {"model": Pool()},
    "loop": {"handler": handle_async, "model": Window(slot=4, slots=4)},
    "processes": {"model": Pool(), "on": "processes", "workers": 2},
    "consumers in processes": {"model": Consumers(processes=True), "workers": 2, "order": "partition"},
    "ranges": {"model": Ranges(), "order": "none"},
    "transactional": {"model": Pool(), "transactional": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_model_logs_in(secured_kafka: SecuredKafka, way: str) -> None:
    config = secured_kafka.sasl("SCRAM-SHA-512", "SASL_SSL")
    topic, dead = topics_of(config)
    options = {"handler": handle, "order": "none", "workers": 4, **WAYS[way]}
    consumer = ParallelConsumer(
        options.pop("handler"),
        topics=[topic],
        group=topic,
        config={**config, "auto.offset.reset": "earliest"},
        retry=Retry(local=0, dead_letters=dead),
        commit_every_s=0.1,
        **options,
    )
    consumer.start()
    try:
        eventually(lambda: is_through(config, topic, topic), "all records are committed")
    finally:
        consumer.stop()
    assert letters(config, dead) == [b"3"]


def test_a_wrong_password_is_said_when_it_starts(secured_kafka: SecuredKafka) -> None:
    config = {**secured_kafka.sasl("SCRAM-SHA-512", "SASL_SSL"), "sasl.password": "wrong secret"}
    with pytest.raises(SaslAuthenticationFailedError, match=r"refused the credentials \(SCRAM-SHA-512\)") as raised:
        ParallelConsumer(handle, topics=["any"], group="g", config=config).run()
    assert "wrong secret" not in str(raised.value)


@pytest.mark.parametrize("way", ["options", "file", "environment"])
def test_the_command_line(
    secured_kafka: SecuredKafka, way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    config = secured_kafka.sasl("SCRAM-SHA-512", "SASL_SSL")
    topic, dead = topics_of(config)
    secure: list[str] = []
    if way == "options":
        given = [f"-X{name}={value}" for name, value in config.items() if name != "bootstrap.servers"]
        secure = ["-b", config["bootstrap.servers"], *given]
    elif way == "file":
        (tmp_path / "client.properties").write_text(format_properties(config))
        secure = ["--command-config", str(tmp_path / "client.properties")]
    else:
        for name, value in config.items():
            monkeypatch.setenv("HEADRACE_" + name.upper().replace(".", "_"), value)
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", config["bootstrap.servers"])
    program = [sys.executable, "-m", "headrace.cli", "parallel", "tests.secured.test_parallel:handle", topic]
    options = ["--group", topic, "--dead-letters", dead, "--retries", "0", "-X", "auto.offset.reset=earliest"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with subprocess.Popen(
        [*program, *options, *secure], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(lambda: process.poll() is not None or is_through(config, topic, topic), "all is committed")
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert run_command(["deadletters", "list", dead, *secure]) == 0
    assert "three" in capfd.readouterr().out
