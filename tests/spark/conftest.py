"""One Spark session and one broker for every module that asks for them: both are heavy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers import spark_jars
from tests.keeping import KEEP_RECORDS

from headrace.testing import BrokerProcess


def pytest_configure(config: pytest.Config) -> None:
    """Spark leaves sockets to its Java open until the garbage collector finds them: in a test, or after the last."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)


#: What needs no Java is quick; the others are slow, whatever they do.
_WITHOUT_JAVA = (
    "test_connections",
    "test_history",
    "test_lanes",
    "test_markers",
    "test_model",
    "test_once",
    "test_options",
    "test_parcels",
    "test_planning",
    "test_reading",
    "test_steps",
    "test_stream_reader",
    "test_transaction",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.path.stem not in _WITHOUT_JAVA:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", KEEP_RECORDS) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from headrace.spark import session

    # Two cores and four tries, as in a cluster: plain local[2] never tries again, and would prove nothing.
    config = {"spark.sql.shuffle.partitions": "2"}
    jars = spark_jars()
    if jars is not None:
        # Spark's own connector, to compare with. One Java serves all modules, so it has to have the jars from its start
        config["spark.jars"] = jars
    made = session("tests", master="local[2,4]", config=config)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
