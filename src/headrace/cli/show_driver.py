"""The Spark driver of the show, a process of its own so that it can be killed: two pipelines side by side, then audits.

    python -m headrace.cli.show_driver SERVERS DIRECTORY EVENTS

Waits for a line on standard input; says on standard output, a line of JSON each, what it is at.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

SOURCE, CLEAN, DEAD, PLAIN = "clicks", "clicks-clean", "clicks-dead", "clicks-at-least-once"
BATCHES = 5
_SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    # A minute's work: the second compiler would cost more than it gives.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main() -> None:
    servers, directory, events = sys.argv[1], sys.argv[2], int(sys.argv[3])
    from headrace.spark.pipelines.activity import NO_COUNTS, activity
    from headrace.spark.starting import session

    began = time.monotonic()
    spark = session("headrace-show", master="local[2,4]", config=_SPARK)
    spark.sparkContext.setLogLevel("ERROR")
    warm_up(spark)
    say(at="ready", seconds=time.monotonic() - began, spark=spark.version)
    sys.stdin.readline()
    limit = -(-events // BATCHES)
    plain = at_least_once(spark, servers, f"{directory}/at-least-once", limit)
    options: dict[str, Any] = {"servers": servers, "source": SOURCE, "target": CLEAN, "dead_letters": DEAD}
    options |= {"checkpoint": f"{directory}/activity", "counts": NO_COUNTS, "max_per_batch": limit}
    done = activity(session=spark, **options)
    plain.awaitTermination()
    say(at="done", **done.document)
    audits(spark, servers)


def warm_up(spark: Any) -> None:
    """Start the Python workers, while there is nothing to do yet."""
    spark.range(2).repartition(2).mapInArrow(lambda batches: batches, "id LONG").count()


def at_least_once(spark: Any, servers: str, checkpoint: str, limit: int) -> Any:
    """The same source to another topic with the plain sink, to compare."""
    from headrace.spark.pipelines.running import start_patiently

    reader = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", SOURCE)
    rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(limit)).load()
    writer = rows.select("key", "value").writeStream.format("headrace").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", PLAIN).option("checkpointLocation", checkpoint)
    return start_patiently(writer.trigger(availableNow=True))


def audits(spark: Any, servers: str) -> None:
    """Both outputs against the input, at the same time: they share the machine's cores anyway."""
    from headrace.spark.pipelines.audit import audit

    def check(name: str, against: str) -> None:
        common: dict[str, Any] = {"servers": servers, "source": SOURCE, "match": "json:id", "order": False, "show": 0}
        found = audit(session=spark, against=against, scan=name == "exactly once", **common)
        say(at="audit", name=name, document=found.document, lines=found.lines)

    outputs: Mapping[str, str] = {"exactly once": f"{CLEAN},{DEAD}", "at least once": PLAIN}
    threads = [threading.Thread(target=check, args=pair) for pair in outputs.items()]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def say(**what: Any) -> None:
    print(json.dumps(what, default=str), flush=True)


if __name__ == "__main__":
    main()
