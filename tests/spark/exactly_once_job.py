"""A Spark driver that writes a stream to a topic, and dies or has its tasks fail where it is told to.

    python -m tests.spark.exactly_once_job '{"servers": …, "source": …, "sink": …, "checkpoint": …, …}'

Run as a process by the tests and by `tests.spark.prove`. See `Plan` for what it is told.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.faults import NEXT, WRITTEN, arm_requests, arm_tasks, die, shuffled

ONCE, AT_LEAST_ONCE = "once", "at-least-once"


@dataclass(frozen=True)
class Plan:
    servers: str
    source: str
    sink: str
    checkpoint: str
    mode: str = ONCE
    master: str = "local[2,4]"
    per_batch: int = 200
    group: str = "progress"
    point: str = ""
    """Where the driver dies, in its first batch; one of `faults.POINTS`."""
    faults: list[str] = field(default_factory=list)
    """How tasks fail, `step: kind`; batch after batch, round and round."""
    spark: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def marks(self) -> Path:
        """Where tasks note the faults that have happened."""
        return Path(self.checkpoint).parent / f"{Path(self.checkpoint).name}.marks"


def fault_of(plan: Plan, batch_id: int) -> tuple[str, str] | None:
    if plan.point.startswith("task "):
        return plan.point.removeprefix("task "), "driver"
    if not plan.faults:
        return None
    step, _, kind = plan.faults[batch_id % len(plan.faults)].partition(": ")
    return step, kind


def run(plan: Plan) -> None:
    from headrace.spark import exactly_once, session

    plan.marks.mkdir(exist_ok=True)
    batch_in_hand = [-1]
    if plan.mode == ONCE:
        if plan.point not in ("", WRITTEN, NEXT) and not plan.point.startswith("task "):
            arm_requests(plan.point)
        arm_tasks(lambda: fault_of(plan, batch_in_hand[0]), str(plan.marks))
    spark = session("exactly-once-job", master=plan.master, config={"spark.sql.shuffle.partitions": "2", **plan.spark})
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", plan.servers)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(plan.per_batch))
        .load()
        .select("key", "value")
    )
    once = exactly_once(plan.sink, plan.servers, group_id=plan.group)
    done: list[int] = []

    def write(frame: Any, batch_id: int) -> None:
        if plan.point == NEXT and done:
            die()
        batch_in_hand[0] = batch_id
        # A replay is not the same sequence of rows. Rows with keys are shuffled to their partition, others stay.
        frame = frame.mapInArrow(shuffled(), frame.schema)
        if batch_id % 3 == 2 and not (fault_of(plan, batch_id) or ("", ""))[0].startswith("route"):
            frame = frame.select("value")
        if plan.mode == ONCE:
            once(frame, batch_id)
        else:
            plain = frame.write.format("headrace").mode("append").option("kafka.bootstrap.servers", plan.servers)
            plain.option("topic", plan.sink).save()
        print(f"batch {batch_id} done", flush=True)
        done.append(batch_id)
        if plan.point == WRITTEN or (plan.point and plan.point != NEXT and plan.mode != ONCE):
            die()

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", plan.checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(Plan(**json.loads(sys.argv[1])))
