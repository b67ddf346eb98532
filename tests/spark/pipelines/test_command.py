"""Pipelines as a user runs them: by the command line, in a process that has no Spark yet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import make_topic
from tests.waiting import eventually

from headrace import Producer
from headrace.testing import BrokerProcess

pytestmark = pytest.mark.slow


def headrace(kafka: BrokerProcess, home: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "pipeline", *arguments, "--json"],
        env=os.environ | {"HEADRACE_BOOTSTRAP": kafka.address, "XDG_DATA_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_activity_starts_spark_by_itself_and_status_knows_of_it(kafka: BrokerProcess, tmp_path: Path) -> None:
    topic = make_topic(kafka.address, "by-command", 2)
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        good = [b'{"id":"%d","at":%d,"event":"view"}' % (number, 1_700_000_000_000 + number) for number in range(50)]
        producer.send_batch(topic, [*good, b"{"]).result(60)
    done = headrace(kafka, tmp_path, "run", "activity", "--source", topic, "--counts", "none")
    assert (done["rows_in"], done["clean"]["rows"], done["dead_letters"]["rows"]) == (51, 50, 1)
    (known,) = headrace(kafka, tmp_path, "status")
    assert (known["phase"], known["rows_in"], known["lag"]) == ("done", 51, 0)


def test_ctrl_c_ends_a_continuous_one_with_a_summary(kafka: BrokerProcess, tmp_path: Path) -> None:
    topic = make_topic(kafka.address, "by-command-for-ever", 2)
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        good = [b'{"id":"%d","at":%d,"event":"view"}' % (number, 1_700_000_000_000 + number) for number in range(50)]
        producer.send_batch(topic, good).result(60)
    arguments = ["run", "activity", "--source", topic, "--counts", "none", "--continuous"]
    # Ctrl-C reaches the whole group of a terminal: Spark's Java and its workers too.
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "pipeline", *arguments],
        env=os.environ | {"HEADRACE_BOOTSTRAP": kafka.address, "XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        eventually(lambda: rows_in(tmp_path) == 50 or process.poll() is not None, "all rows in", 100)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err[-2000:]
    assert ", stopped" in out.splitlines()[0]
    assert "50 records" in out.splitlines()[0]
    assert err == "", "Spark's own words are in its log"
    (log,) = (tmp_path / "headrace" / "logs").iterdir()
    assert log.stat().st_size > 0


def rows_in(home: Path) -> int:
    (noted,) = list((home / "headrace" / "pipelines").glob("*/pipeline.json")) or [None]
    return 0 if noted is None else int(json.loads(noted.read_text())["rows_in"])
