"""The Spark driver of the show, a process of its own so that it can be killed: two pipelines, then an audit.

    python -m headrace.demo.show_driver SERVERS DIRECTORY EVENTS [--wait]

Says on standard output, a line of JSON each, what it is at. With --wait, it begins at a line on standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SOURCE, CLEAN, DEAD, PLAIN = "clicks", "clicks-clean", "clicks-dead", "clicks-at-least-once"
BATCHES = 4
PLAIN_PARTITIONS = (0, 1)
"""What the at-least-once sink gets: enough to see what a kill does to it, without paying for every click twice."""
_PLAIN_TASKS = "16"
_ROUNDING = 64
_FIRST_COMMIT_S = 60.0
_SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "2g",
    # Each query gets its turn: one does not wait until all tasks of the other are done.
    "spark.scheduler.mode": "FAIR",
}
_POOL = "spark.scheduler.pool"
_JAVA = "-Xms1g -Xmn600m -XX:+UseSerialGC "
# What is killed in its first seconds has no use for the second compiler. For a minute's work, what runs per row is
# worth it, what Spark runs to start is not.
_JAVA_SHORT = _JAVA + "-XX:TieredStopAtLevel=1"
_JAVA_LONG = _JAVA + (
    "-XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=5000 "
    "-XX:Tier4CompileThreshold=40000 -XX:Tier4BackEdgeThreshold=120000"
)


def main() -> None:
    servers, directory, events = sys.argv[1], sys.argv[2], int(sys.argv[3])
    from headrace.spark.pipelines.activity import NO_COUNTS, activity
    from headrace.spark.starting import session

    began = time.monotonic()
    # The one that is killed begins with a small transaction: so it is in the middle of one soon.
    is_first = "--wait" in sys.argv
    java = _JAVA_SHORT if is_first else _JAVA_LONG
    spark = session("headrace-show", master="local[2,4]", config=_SPARK | {"spark.driver.extraJavaOptions": java})
    spark.sparkContext.setLogLevel("ERROR")
    if is_first:
        say(at="ready", seconds=time.monotonic() - began, spark=spark.version)
        sys.stdin.readline()
    # A few more than needed: partitions' shares are rounded down, and what is left over would be one batch more.
    limit = -(-events // (4 * BATCHES if is_first else BATCHES)) + _ROUNDING
    options: dict[str, Any] = {"servers": servers, "source": SOURCE, "target": CLEAN, "dead_letters": DEAD}
    options |= {"checkpoint": f"{directory}/activity", "counts": NO_COUNTS, "max_per_batch": limit}
    has_committed = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(
            activity, session=spark, watch=lambda seen: has_committed.set() if seen.batches else None, **options
        )
        running.add_done_callback(lambda _: has_committed.set())
        wake_workers(spark)
        if is_first:
            # From its first transaction on, the exactly-once sink is always in the middle of one: the kill, which needs
            # the other sink to be in the middle too, finds both.
            has_committed.wait(_FIRST_COMMIT_S)
        spark.sparkContext.setLocalProperty(_POOL, PLAIN)
        # Here, not beside: Spark finds a sink that is written in Python only in the session's own thread.
        at_least_once(spark, servers, f"{directory}/at-least-once").awaitTermination()
        done = running.result()
    say(at="done", **done.document)
    say(at="audit", document=audited(spark, servers))


def wake_workers(spark: Any) -> None:
    """Have Spark start the Python processes that will write, while it still plans what they write."""
    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id LONG").collect()


def at_least_once(spark: Any, servers: str, checkpoint: str) -> Any:
    """Some of the source's partitions to another topic with the plain sink, in one micro-batch, to compare."""
    from headrace.spark.pipelines.running import start_patiently

    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
    reader = reader.option("assign", json.dumps({SOURCE: PLAIN_PARTITIONS}))
    # Short tasks, which take turns with the other query's.
    rows = reader.option("startingOffsets", "earliest").option("minPartitions", _PLAIN_TASKS).load()
    writer = rows.select("key", "value").writeStream.format("headrace").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", PLAIN).option("checkpointLocation", checkpoint)
    return start_patiently(writer.trigger(availableNow=True))


def audited(spark: Any, servers: str) -> dict[str, Any]:
    """The exactly-once output against the input."""
    from headrace.spark.pipelines.audit import audit

    options: dict[str, Any] = {"servers": servers, "source": SOURCE, "against": f"{CLEAN},{DEAD}", "scan": True}
    return audit(session=spark, match="json:id", order=False, show=0, **options).document


def say(**what: Any) -> None:
    print(json.dumps(what, default=str), flush=True)


if __name__ == "__main__":
    main()
