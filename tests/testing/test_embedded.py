"""A broker inside the test's process: what it does to the disk at its end, and the page that explains it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, Producer
from headrace.testing import broker

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES = [text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "def test_" not in text]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    for name in {"fsync", "fdatasync"} & set(dir(os)):
        really = getattr(os, name)

        def counted(descriptor: int, really: Any = really) -> None:
            calls.append(descriptor)
            really(descriptor)

        monkeypatch.setattr(os, name, counted)
    return calls


@pytest.mark.parametrize("keeps", [False, True])
def test_data_that_is_thrown_away_is_never_synced(tmp_path: Path, synced: list[int], keeps: bool) -> None:
    with broker(str(tmp_path) if keeps else None) as kafka, Producer(bootstrap_servers=kafka.address) as producer:
        producer.send("t", b"1").result()
    assert bool(synced) == keeps


def test_a_broker_that_had_a_group_leaves_few_files_to_remove() -> None:
    """To remove them is most of what it does at its end."""
    with broker() as kafka:
        with Producer(bootstrap_servers=kafka.address) as producer:
            producer.send("t", b"1").result()
        with Consumer(bootstrap_servers=kafka.address, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            while not consumer.poll(5):
                pass
        directory = kafka.call(lambda running: str(running.config.values["log.dirs"][0]))
        assert sum(len(files) for _, _, files in os.walk(directory)) < 40
    assert not Path(directory).exists()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: re.sub(r"\W+", "-", text.splitlines()[-1].strip()))
def test_the_examples_of_the_page(example: str) -> None:
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
