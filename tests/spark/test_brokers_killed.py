"""A Spark query that writes exactly once goes on while brokers are killed, and nobody starts it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.prove import prove_brokers

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_exactly_once_goes_on_while_brokers_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    count = prove_brokers(tmp_path, 4)
    assert count.kills == 0, "the driver lived through it"
    assert count.runs == 1
    assert count.is_exact, count
