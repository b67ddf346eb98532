"""The README's section on Spark, pasted: here, because it takes both cores as Spark's other tests do."""

from __future__ import annotations

import pytest
from tests.first_hour.test_readme import Desk, desk

__all__ = ["desk"]


@pytest.mark.timeout(900)  # Spark is started four times
def test_spark_and_the_pipelines(desk: Desk) -> None:
    pytest.importorskip("pyspark")
    desk.paste("The command line")
    copied, pipelines = [text for text in desk.paste("Spark") if text.strip()][-2:]
    assert copied
    assert "nothing wrong" in pipelines
    assert desk.shell("    headrace consume copy --isolation-level read_committed | wc -l\n").strip() == "1000"
