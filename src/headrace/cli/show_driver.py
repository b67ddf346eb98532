"""The Spark driver of the show, a process of its own so that it can be killed: two pipelines side by side, then audits.

    python -m headrace.cli.show_driver SERVERS DIRECTORY EVENTS [--wait]

Says on standard output, a line of JSON each, what it is at. With --wait, it begins at a line on standard input.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SOURCE, CLEAN, DEAD, PLAIN = "clicks", "clicks-clean", "clicks-dead", "clicks-at-least-once"
BATCHES = 4
_SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "2g",
}
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
    java = _JAVA_SHORT if "--wait" in sys.argv else _JAVA_LONG
    spark = session("headrace-show", master="local[2,4]", config=_SPARK | {"spark.driver.extraJavaOptions": java})
    spark.sparkContext.setLogLevel("ERROR")
    if "--wait" in sys.argv:
        say(at="ready", seconds=time.monotonic() - began, spark=spark.version)
        sys.stdin.readline()
    limit = -(-events // BATCHES)
    options: dict[str, Any] = {"servers": servers, "source": SOURCE, "target": CLEAN, "dead_letters": DEAD}
    options |= {"checkpoint": f"{directory}/activity", "counts": NO_COUNTS, "max_per_batch": limit}
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(activity, session=spark, **options)
        # Here, not beside: Spark finds a sink that is written in Python only in the session's own thread.
        at_least_once(spark, servers, f"{directory}/at-least-once", limit).awaitTermination()
        done = running.result()
    say(at="done", **done.document)
    audits(spark, servers)


def at_least_once(spark: Any, servers: str, checkpoint: str, limit: int) -> Any:
    """The same source to another topic with the plain sink, to compare."""
    from headrace.spark.pipelines.running import start_patiently

    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", SOURCE)
    rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(limit)).load()
    writer = rows.select("key", "value").writeStream.format("headrace").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", PLAIN).option("checkpointLocation", checkpoint)
    return start_patiently(writer.trigger(availableNow=True))


def audits(spark: Any, servers: str) -> None:
    """The exactly-once output against the input, and the other by itself; together: they share the cores anyway."""
    from headrace.spark.pipelines.audit import audit

    common: dict[str, Any] = {"servers": servers, "match": "json:id", "order": False, "show": 0}
    once = {"source": SOURCE, "against": f"{CLEAN},{DEAD}", "scan": True}
    plain = {"source": PLAIN, "scan": False}

    def check(name: str, options: Mapping[str, Any]) -> None:
        found = audit(session=spark, **common, **options)
        say(at="audit", name=name, document=found.document, lines=found.lines)

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(check, "exactly once", once), pool.submit(check, "at least once", plain)]:
            one.result()


def say(**what: Any) -> None:
    print(json.dumps(what, default=str), flush=True)


if __name__ == "__main__":
    main()
