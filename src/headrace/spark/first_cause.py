"""Why a Spark job failed in the first place: the error of the first task attempt, which Spark's own message leaves out.

Spark reports the last attempt's error. Where the last attempt only says that it may not be one, the first is wanted.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.spark")

_GROUP = "spark.jobGroup.id"
_TASKS_MAX = 1000
_TEXT_MAX = 2000
_LOOKS_MAX = 20
_LOOK_S = 0.1


def job_ids(spark: SparkSession) -> frozenset[int]:
    """The jobs that Spark knows in this thread's group. Jobs that are not among them later were started since."""
    context: Any = spark.sparkContext
    return frozenset(context.statusTracker().getJobIdsForGroup(context.getLocalProperty(_GROUP)))


def first_cause(spark: SparkSession, before: frozenset[int]) -> str | None:
    """The error of the earliest failed attempt in the jobs started since; None when Spark does not tell."""
    from py4j.protocol import Py4JError

    pause = threading.Event()
    try:
        # Spark's books are kept by a thread of its own, which may be a moment behind.
        for _ in range(_LOOKS_MAX):
            found = _first_cause(spark, before)
            if found is not None:
                return found
            pause.wait(_LOOK_S)
    except (Py4JError, AttributeError, TypeError) as error:
        log.info("the first cause cannot be read from Spark: %s", error)
    return None


def _first_cause(spark: SparkSession, before: frozenset[int]) -> str | None:
    context: Any = spark.sparkContext
    tracker = context.statusTracker()
    store = context._jsc.sc().statusStore()
    failures: list[tuple[int, str]] = []
    for job in job_ids(spark) - before:
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
