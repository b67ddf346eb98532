"""Records and settings for tests of the core."""

from __future__ import annotations

from typing import Any

from headrace.client.consumer.records import ConsumerRecord
from headrace.parallel.core import ParallelCore
from headrace.parallel.options import CoreSettings, Limits, Model, Order, Pool, Retry
from headrace.parallel.work import WorkChunk
from headrace.records import TimestampType
from headrace.topics import TopicPartition

PARTITION = TopicPartition("orders", 0)


def record(
    offset: int, key: bytes | None = None, partition: TopicPartition = PARTITION, **other: Any
) -> ConsumerRecord:
    return ConsumerRecord(
        partition.topic,
        partition.partition,
        offset,
        0,
        TimestampType.CREATE_TIME,
        key,
        other.pop("value", b"v%d" % offset),
        other.pop("headers", ()),
        0,
    )


def records(first: int, last: int, key: bytes | None = None) -> list[ConsumerRecord]:
    return [record(offset, key) for offset in range(first, last)]


def core(
    model: Model | None = None,
    order: Order = Order.NONE,
    retry: Retry | None = None,
    limits: Limits | None = None,
    batch: int | None = None,
    workers: int = 1,
) -> ParallelCore:
    settings = CoreSettings.of(model or Pool(), order, retry or Retry(), limits or Limits(), batch, workers)
    made = ParallelCore(settings)
    made.assign(PARTITION, 0)
    return made


def do(chunk: WorkChunk, *, fails: Exception | None = None, runs: int | None = None) -> None:
    """What a worker does with its chunk: all of it well, or the first record badly."""
    while runs is None or runs > 0:
        run = chunk.next_run()
        if run is None:
            return
        for entry in run.entries:
            if fails is not None:
                run.failed(entry, fails)
                run.done += 1
                chunk.finished.append(run)
                return
            run.done += 1
        chunk.finished.append(run)
        runs = None if runs is None else runs - 1


def committed(core: ParallelCore, partition: TopicPartition = PARTITION) -> tuple[int, str] | None:
    """Commit, and say what."""
    for commit in core.commits():
        core.committed([commit])
        if commit.tracker.partition == partition:
            return commit.offset, commit.note
    return None
