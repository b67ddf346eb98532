"""A Spark driver that writes a stream to a topic, and dies where it is told to: run as a process by the tests.

    python -m tests.spark.exactly_once_job SERVERS SOURCE SINK CHECKPOINT MODE [CRASH_POINT [BATCH]]

MODE is `once` or `at-least-once`. The driver kills itself (SIGKILL) at the crash point of that batch: one of POINTS.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

POINTS = (
    "before fence",
    "after fence",
    "after last_committed",
    "after enlist",
    "during write",
    "after write",
    "after mark",
    "before commit",
    "after commit",
    "after batch",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, batch: int) -> None:
    """Have the driver die at a step of that batch."""
    from headrace.spark import foreach_batch

    when, _, name = point.partition(" ")
    if name == "batch":
        return
    if when == "during":
        # The tasks run in other processes; the driver dies while they write.
        name = "write"
    plain = getattr(foreach_batch._BatchSteps, name)

    def dying(self: Any, *args: Any) -> Any:
        due = self._batch_id == batch
        if due and when == "before":
            die()
        if due and when == "during":
            import threading

            threading.Timer(0.5, die).start()
        result = plain(self, *args)
        if due and when in ("after", "during"):
            die()
        return result

    setattr(foreach_batch._BatchSteps, name, dying)


def main() -> None:
    servers, source, sink, checkpoint, mode, *crash = sys.argv[1:]
    from headrace.spark import exactly_once, session

    point, batch = (crash[0], int(crash[1]) if len(crash) > 1 else 1) if crash else ("", -1)
    if point and mode == "once":
        arm(point, batch)
    spark = session("exactly-once-job", master="local[2,4]", config={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "400")
        .load()
        .select("key", "value")
    )
    once = exactly_once(sink, servers)

    def write(frame: Any, batch_id: int) -> None:
        # Rows in another order every time: a replay is not the same sequence of rows.
        frame = frame.orderBy("value" if os.getpid() % 2 else "key")
        if mode == "once":
            once(frame, batch_id)
        else:
            plain = frame.write.format("headrace").mode("append").option("kafka.bootstrap.servers", servers)
            plain.option("topic", sink).save()
        if batch_id == batch and (point == "after batch" or mode != "once"):
            die()

    query = (
        rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
