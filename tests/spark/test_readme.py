"""What the README and docs/spark.md say of Spark, pasted: here, because it takes both cores as other tests of it do."""

from __future__ import annotations

import pytest
from tests.first_hour.test_readme import ROOT, Desk, desk

__all__ = ["desk"]


@pytest.mark.timeout(900)  # Spark is started four times
def test_spark_and_the_pipelines(desk: Desk) -> None:
    pytest.importorskip("pyspark")
    desk.paste("The command line")
    copied, pipelines = [text for text in desk.paste("Spark") if text.strip()][-2:]
    assert copied
    assert "nothing wrong" in pipelines
    assert desk.shell("    headrace consume copy --isolation-level read_committed | wc -l\n").strip() == "1000"


@pytest.mark.timeout(300)
def test_the_first_example_of_the_page(desk: Desk) -> None:
    pytest.importorskip("pyspark")
    desk.paste("# Kafka and Spark", (ROOT / "docs" / "spark.md").read_text("utf-8"))
    printed = desk.shell("    headrace consume clean-clicks --isolation-level read_committed | sort -n\n")
    assert printed.split() == [str(number) for number in range(1, 101)]
