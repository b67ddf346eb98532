"""Why a Spark job failed in the first place: the error of the first task attempt, which Spark's own message leaves out.

Spark reports the last attempt's error. Where the last attempt only says that it may not be one, the first is wanted.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.spark")

_GROUP = "spark.jobGroup.id"
_TASKS_MAX = 1000
_TEXT_MAX = 2000


@contextlib.contextmanager
def job_group(spark: SparkSession, name: str) -> Iterator[str]:
    """A group of its own for the jobs started within, to find them again."""
    context = spark.sparkContext
    before = context.getLocalProperty(_GROUP)
    group = f"{name}-{uuid.uuid4()}"
    context.setLocalProperty(_GROUP, group)
    try:
        yield group
    finally:
        # Spark's streaming engine cancels a query's jobs by its own group: put that back.
        context._jsc.setLocalProperty(_GROUP, before)


def first_cause(spark: SparkSession, group: str) -> str | None:
    """The error of the earliest failed attempt among the group's tasks; None when Spark does not tell."""
    from py4j.protocol import Py4JError

    try:
        return _first_cause(spark, group)
    except (Py4JError, AttributeError, TypeError) as error:
        log.info("the first cause cannot be read from Spark: %s", error)
        return None


def _first_cause(spark: SparkSession, group: str) -> str | None:
    context: Any = spark.sparkContext
    tracker = context.statusTracker()
    store = context._jsc.sc().statusStore()
    failures: list[tuple[int, str]] = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = store.taskList(stage, 0, _TASKS_MAX)
            for at in range(tasks.size()):
                task = tasks.apply(at)
                if task.status() == "FAILED" and task.errorMessage().isDefined():
                    failures.append((task.attempt(), _shortened(task.errorMessage().get())))
    return min(failures)[1] if failures else None


def _shortened(text: str) -> str:
    """Python's traceback if there is one, without Java's; else the first lines."""
    head = text.split("\n\tat ", 1)[0].strip()
    return head[-_TEXT_MAX:]
