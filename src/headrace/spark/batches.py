"""What Spark itself knows of the micro-batch that it runs: the query, its run, and the offsets in its log."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.history import Logged
from headrace.spark.once import ExactlyOnceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.spark")

_MADE_BY_SPARK = re.compile(r"/temporary-[0-9a-f-]{36}/?$")
QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a query that runs. `begin`: the log's entry before it; None for the first one."""

    query: str
    run: str
    number: int
    name: str | None
    begin: Logged | None
    end: Logged
    execution: Any = None
    """Spark's own object of the query's run."""

    @property
    def begin_digest(self) -> str:
        return "" if self.begin is None else self.begin.digest

    @property
    def source_digest(self) -> str:
        """Of all the offsets that the batch is of."""
        return f"{self.begin_digest}:{self.end.digest}"

    def progress(self) -> list[Mapping[str, Any]]:
        return self.end.progress()

    def has_checkpoint(self) -> bool:
        """Whether the query's progress outlives it: Spark makes a place that it removes, unless one is named."""
        from py4j.protocol import Py4JError

        if self.execution is None:
            return True
        try:
            return _MADE_BY_SPARK.search(str(self.execution.resolvedCheckpointRoot())) is None
        except Py4JError as error:
            log.info("where the query's checkpoint is cannot be read from Spark: %s", error)
            return True

    def is_stopped(self) -> bool:
        """Whether the query was told to stop: then its jobs are cancelled, however often they are begun again."""
        from py4j.protocol import Py4JError

        if self.execution is None:
            return False
        try:
            return not self.execution.isActive()
        except Py4JError as error:
            log.info("whether the query still runs cannot be read from Spark: %s", error)
            return False


def running_batch(spark: SparkSession, number: int) -> MicroBatch | None:
    """The micro-batch whose rows have this session, on whatever thread this is; None outside of a streaming query."""
    from py4j.protocol import Py4JError

    query = spark.sparkContext.getLocalProperty(QUERY_ID)
    try:
        jvm: Any = spark._jvm
        execution = _execution(spark, query)
        if execution is None and query is None:
            return None
        query = str(execution.id().toString())
        end = _logged(jvm, execution, number)
        begin = _logged(jvm, execution, number - 1) if number > 0 else None
        run, name = str(execution.runId().toString()), execution.name()
    except (Py4JError, AttributeError, TypeError, ValueError) as error:
        raise _unreadable(query or "(not known)", number, str(error)) from error
    if end is None:
        raise _unreadable(query, number, "they are not in its log")
    return MicroBatch(query, run, number, name, begin, end, execution)


def _execution(spark: SparkSession, query: str | None) -> Any:
    """Spark's own object of the query's run; None when it does not run, or there is none."""
    # The session that `foreachBatch` is given is a copy, which knows of no query. This all sessions share.
    running: Any = spark._jsparkSession.sharedState().activeStreamingQueries()
    if query is not None:
        jvm: Any = spark._jvm
        return running.get(jvm.java.util.UUID.fromString(query))
    # A thread that was begun within `foreachBatch` does not know the query: but the copy is one query's alone.
    for found in running.values():
        if found.sparkSessionForStream().equals(spark._jsparkSession):
            return found
    return None


def _logged(jvm: Any, execution: Any, number: int) -> Logged | None:
    offsets = execution.offsetLog()
    found = offsets.get(number)
    if found.isEmpty():
        return None
    out = jvm.java.io.ByteArrayOutputStream()
    offsets.serialize(found.get(), out)
    return Logged.of(str(out.toString()))


def _unreadable(query: str, number: int, why: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"the offsets of batch {number} of query {query} cannot be read from Spark ({why}): without them a restored "
        "checkpoint cannot be told from the right one. Is this a Spark of 4.2 or newer, and not Spark Connect?"
    )
