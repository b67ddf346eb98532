"""The driver's steps without Spark: killed at every one, on Headrace and on Apache Kafka; another client counts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from tests.spark.faults import POINTS
from tests.spark.prove import Place, prove_steps

from headrace.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    if request.param == "headrace":
        with BrokerProcess(directory / "data") as broker:
            yield broker.address
    elif given := os.environ.get("HEADRACE_TEST_KAFKA"):
        yield given
    elif kafka_libs() is None:
        pytest.skip(why_no_kafka())
    else:
        with ApacheKafka(directory / "kafka") as kafka:
            yield kafka.address


@pytest.mark.long
def test_a_driver_killed_at_every_step_loses_and_doubles_nothing(servers: str, tmp_path: Path) -> None:
    count = prove_steps(Place(servers, tmp_path), len(POINTS), f"steps-{uuid.uuid4().hex[:8]}")
    assert count.kills == len(POINTS) >= 20
    # Also in between: nothing was there twice, and the group's offsets were those of the output that could be read.
    assert count.is_exact, count
