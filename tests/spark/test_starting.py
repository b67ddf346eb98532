"""What a session on this machine is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.starting import _local_defaults

COLLECTOR = "spark.driver.defaultJavaOptions"


@pytest.fixture(autouse=True)
def _nobody_chose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_one_machine_gets_few_shuffle_partitions_and_a_collector_for_throughput() -> None:
    found = _local_defaults("local[3,4]", {})
    assert found == {"spark.sql.shuffle.partitions": "3", COLLECTOR: "-XX:+UseParallelGC"}
    assert _local_defaults("spark://host:7077", {}) == {}


@pytest.mark.parametrize(
    ("given", "variable", "file"),
    [
        ({"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseSerialGC"}, "", ""),
        ({}, "-XX:+UseZGC", ""),
        ({}, "", "spark.driver.extraJavaOptions  -XX:+UseG1GC\n"),
    ],
)
def test_a_collector_that_somebody_chose_stays_the_only_one(
    given: dict[str, Any], variable: str, file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", variable)
    (tmp_path / "spark-defaults.conf").write_text(file)
    assert COLLECTOR not in _local_defaults("local", given)


def test_other_options_for_java_do_not_choose_one() -> None:
    assert COLLECTOR in _local_defaults("local[*]", {"spark.driver.extraJavaOptions": "-Xss4m -XX:-UseSomethingGC"})


@pytest.mark.slow
def test_java_runs_with_one(spark: Any) -> None:
    arguments = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert len([one for one in arguments if one.startswith("-XX:+Use") and one.endswith("GC")]) == 1
