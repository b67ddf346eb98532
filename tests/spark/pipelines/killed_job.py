"""A pipeline in a driver of its own that dies where it is told to.

python -m tests.spark.pipelines.killed_job NAME POINT '{"servers": …, …}'
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile

from tests.spark.faults import arm_requests, arm_tasks

from headrace.spark.pipelines.declaring import parsed


def run(name: str, point: str, options: dict[str, object]) -> None:
    pipeline = importlib.import_module(f"headrace.spark.pipelines.{name}")
    if point.startswith("task "):
        arm_tasks(lambda: (point.removeprefix("task "), "driver"), tempfile.gettempdir())
    else:
        arm_requests(point)
    pipeline.run(parsed(pipeline.OPTIONS, options))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
