"""What a type checker says of a program that uses the clients: its mistakes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import Producer
from headrace.client.admin.drivers import ADMIN_CONFIGS
from headrace.client.admin.keywords import AdminKeywords
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.client.producer.keywords import ProducerKeywords
from headrace.config import ConfigDefinition

PROGRAM = """\
from dataclasses import dataclass

from headrace import Admin, Consumer, Producer, aio

@dataclass
class Order:
    id: int

producer: Producer[str, Order] = Producer(bootstrap_servers="x", linger_ms=3)
producer.send("orders", Order(1), key="a")
plain = Producer({"bootstrap.servers": "x"})
plain.send("t", b"x")
consumer: Consumer[str, Order] = Consumer(bootstrap_servers="x", group_id="g")
consumer.subscribe(["t"])
for record in consumer:
    print(record.value.id, record.key.upper())
for record in consumer.poll():
    print(record.value.id)

Producer(bootstrap_servers="x", lingerms=3)
Consumer(bootstrap_servers="x", group_idd="g")
Admin(bootstrap_server="x")
aio.Producer(linger="3")
consumer.subscribe("t")
producer.send("orders", b"bytes")
producer.send("orders", Order(1), key=b"a")
plain.send("orders", on_delivery=5)
print(record.value.name)
consumer.seek("t", 5)
"""
FIRST_MISTAKE = 20


@pytest.mark.slow
def test_a_type_checker_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    command += ["--cache-dir", os.environ.get("MYPY_CACHE_DIR", str(tmp_path)), "--ignore-missing-imports", str(file)]
    environment = os.environ | {"MYPYPATH": str(Path(headrace.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line]
    assert found == list(range(FIRST_MISTAKE, PROGRAM.count("\n") + 1)), done.stdout
    assert 'did you mean "linger_ms"?' in done.stdout


@pytest.mark.parametrize(
    ("keywords", "settings"), [(ProducerKeywords, PRODUCER_CONFIGS), (AdminKeywords, ADMIN_CONFIGS)]
)
def test_every_setting_is_a_keyword(keywords: type, settings: ConfigDefinition) -> None:
    assert sorted(keywords.__annotations__) == sorted(name.replace(".", "_") for name in settings.names)


def test_functions_serve_as_serializers_and_partitioners() -> None:
    calls: list[tuple[object, ...]] = []

    def with_context(data: str, ctx: object) -> bytes:
        calls.append((data, ctx.topic, ctx.field))  # type: ignore[attr-defined]
        return data.encode()

    producer: Producer[str, str] = Producer(
        bootstrap_servers="127.0.0.1:1",
        max_block_ms=10,
        key_serializer=str.encode,
        value_serializer=with_context,
        partitioner_class=lambda topic, key, value, count, available: 0,
    )
    with producer:
        producer.send("t", "value", "key", on_delivery=lambda *_: None)
    assert calls == [("value", "t", "value")]
